"""From what users name to a graph: a factory of modules, a module itself, or a `.pt2` file."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from topoplan import OperatorGraph, TopoplanError
from topoplan.errors import exception_line, nearest, shown
from topoplan_frontend_torch import Torch, tracing
from topoplan_frontend_torch.archive import read_archive
from topoplan_frontend_torch.inputs import parse_inputs, with_batch_size
from topoplan_frontend_torch.model import graph_of

__all__ = ["build", "from_torch"]

WHERE = "frontend torch"

#: Why a module that reads values while it is made fails here, and what to do.
_ON_META = " (made on the meta device, where tensors have no values; topoplan.from_torch plans modules made elsewhere)"


def build(options: Torch, batch_size: int | None) -> OperatorGraph:
    """Build the graph of the command line's options.

    Raises:
        TopoplanError: an option is missing or wrong, or the module cannot be exported.
    """
    if bool(options.module) == bool(options.file):
        raise TopoplanError(
            f"{WHERE}: {'module and file are both given' if options.file else 'module is missing'} "
            "(-o module=package.module:function -o inputs=8x128:int64, or -o file=model.pt2)"
        )
    if options.file:
        if options.inputs:
            raise TopoplanError(f"{WHERE}: inputs: are those of the file (leave them out; --batch-size is possible)")
        return graph_of(read_archive(Path(options.file), batch_size), strict=options.strict)
    torch = tracing.import_torch(WHERE)
    specs = with_batch_size(parse_inputs(options.inputs, f"{WHERE}: inputs"), batch_size)
    module = _made(torch, options.module)
    args, kwargs = tracing.meta_inputs(torch, specs)
    return _exported(torch, module, args, kwargs, type(module).__name__, options.strict)


def from_torch(
    module: Any,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    name: str = "",
    strict: bool = False,
) -> OperatorGraph:
    """Return the operator graph of a PyTorch module.

    The module is exported as it is: in training mode it has dropout, in evaluation mode it has not.  Nothing is
    computed; a module on the meta device (``with torch.device("meta"):``) needs no memory, whatever its size.

    Args:
        module: a `torch.nn.Module`, or what `torch.export.export` returned.
        args: its arguments, as for a call; the first axis of the first tensor is the samples.
        kwargs: those by name.
        name: of the model; the class of the module unless given.
        strict: refuse what cannot be planned operator by operator; otherwise one warning counts it.

    Raises:
        TopoplanError: torch is missing, or cannot export the module; the message has torch's cause, file and line.
    """
    torch = tracing.import_torch(WHERE)
    if isinstance(module, torch.export.ExportedProgram):
        return graph_of(tracing.program_of(torch, module, name or "module"), strict=strict)
    if not isinstance(module, torch.nn.Module):
        raise TopoplanError(f"from_torch: module: {shown(module)} is no torch.nn.Module")
    arguments = args if isinstance(args, (tuple, list)) else (args,)
    return _exported(torch, module, tuple(arguments), kwargs or {}, name or type(module).__name__, strict)


def _exported(
    torch: Any, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str, strict: bool
) -> OperatorGraph:
    exported = tracing.export(torch, module, args, kwargs, WHERE)
    return graph_of(tracing.program_of(torch, exported, name), strict=strict)


def _made(torch: Any, text: str) -> Any:
    """Import and call what ``package.module:name`` says, on the meta device; a module stands for itself.

    Raises:
        TopoplanError: there is no such thing, or it makes no module; the message names what there is.
    """
    path, colon, name = text.partition(":")
    if not colon or not path or not name:
        raise TopoplanError(f"{WHERE}: module: {shown(text)} (expected package.module:function, such as models:make)")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    with torch.device("meta"):
        factory = _attribute(path, name)
        if isinstance(factory, torch.nn.Module):
            return factory
        if not callable(factory):
            raise TopoplanError(
                f"{WHERE}: module: {text} is {shown(factory)} (expected a function, a class or a module)"
            )
        try:
            module = factory()
        except TopoplanError:
            raise
        except Exception as error:
            advice = _ON_META if "meta" in str(error) else ""
            raise TopoplanError(f"{WHERE}: module: {text}() raised {exception_line(error)}{advice}") from error
    if not isinstance(module, torch.nn.Module):
        raise TopoplanError(f"{WHERE}: module: {text}() returned {shown(module)} (expected a torch.nn.Module)")
    return module


def _attribute(path: str, name: str) -> Any:
    try:
        target = importlib.import_module(path)
    except ModuleNotFoundError as error:
        missing = shown(error.name)
        raise TopoplanError(
            f"{WHERE}: module: no module {missing} (packages are those that Python finds, and what lies in "
            f"{Path.cwd()})"
        ) from None
    except Exception as error:
        raise TopoplanError(f"{WHERE}: module: import of {path} raised {exception_line(error)}") from error
    for word in name.split("."):
        if not hasattr(target, word):
            public = [each for each, value in vars(target).items() if callable(value) and not each.startswith("_")]
            raise TopoplanError(f"{WHERE}: module: {path} has no {shown(word)}{nearest(word, public)}")
        target = getattr(target, word)
    return target
