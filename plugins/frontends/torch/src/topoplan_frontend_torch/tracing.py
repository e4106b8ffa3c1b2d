"""A PyTorch module to a `Program`: `torch.export` on the meta device, without decompositions.

Only this module and `loading` import torch, and late: it is no dependency of the planner.  Nothing is computed: values
have shapes and types, and no memory.
"""

from __future__ import annotations

import importlib
import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from topoplan import TopoplanError
from topoplan.errors import exception_line, shown
from topoplan_frontend_torch.checkpointing import (
    check_exported,
    inference_without_gradients,
    marked_checkpoints,
    region_of,
)
from topoplan_frontend_torch.inputs import InputSpec
from topoplan_frontend_torch.places import is_library, own_line
from topoplan_frontend_torch.program import Argument, Node, Program, Ref, Value

__all__ = ["export", "import_torch", "meta_inputs", "program_of"]

INSTALL = (
    "torch is not installed (pip install torch; without a GPU, its CPU wheel is smaller: "
    "pip install torch --index-url https://download.pytorch.org/whl/cpu)"
)
_PAD = "shapes depend on data: pad to a capacity, such as a fixed number of tokens for each expert"


def import_torch(where: str) -> Any:
    """Return the module ``torch``.

    Raises:
        TopoplanError: it is not installed, or does not load; the message says how to install it.
    """
    try:
        return importlib.import_module("torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise TopoplanError(f"{where}: torch does not load: {exception_line(error)}") from error
        raise TopoplanError(f"{where}: {INSTALL}") from None
    except (ImportError, OSError) as error:
        raise TopoplanError(f"{where}: torch does not load: {exception_line(error)}") from error


def meta_inputs(torch: Any, specs: Sequence[InputSpec]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return tensors without memory for the inputs: those without a name, and those by name."""
    tensors = [(spec.name, torch.empty(spec.shape, dtype=getattr(torch, spec.dtype), device="meta")) for spec in specs]
    return tuple(tensor for name, tensor in tensors if not name), {name: tensor for name, tensor in tensors if name}


def export(torch: Any, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], where: str) -> Any:
    """Return torch's exported program of a module.

    Raises:
        TopoplanError: torch cannot export it; the message has torch's cause, file and line.
    """
    _refuse_quantized(module, where)
    try:
        # What `marked_checkpoints` warns of at its end is not torch's, and is shown.
        with marked_checkpoints(torch), warnings.catch_warnings(), _no_logging(), _no_cache(module):
            warnings.simplefilter("ignore")
            with inference_without_gradients(torch), _made_beside(torch, args, kwargs):
                return torch.export.export(module, args, dict(kwargs), strict=False)
    except TopoplanError:
        raise
    except Exception as error:
        raise TopoplanError(f"{where}: torch.export: {_cause(error)}") from error


def _refuse_quantized(module: Any, where: str) -> None:
    """Raise `TopoplanError` where a module holds packed weights of integers, which no gradient trains."""
    for path, part in module.named_modules():
        if ".quantized" in type(part).__module__ and type(part).__module__.startswith("torch."):
            named = f"{type(part).__module__}.{type(part).__name__}"
            raise TopoplanError(
                f"{where}: module {shown(path)} is {named}, whose packed weights torch.export cannot read "
                "(plan the module before it was quantized: training computes in floating point)"
            )


def _made_beside(torch: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> AbstractContextManager[Any]:
    """Let tensors that a module makes on no device, such as a first state of zeros, be where its inputs are."""
    on_meta = any(getattr(each, "is_meta", False) for each in (*args, *kwargs.values()))
    return torch.device("meta") if on_meta else nullcontext()


@contextmanager
def _no_cache(module: Any) -> Iterator[None]:
    """Let models of transformers return no keys and values for further tokens: training reads none.

    torch cannot export the class that holds them.
    """
    configurations = {id(config): config for part in module.modules() if (config := getattr(part, "config", None))}
    caching = [config for config in configurations.values() if getattr(config, "use_cache", None) is True]
    for config in caching:
        config.use_cache = False
    try:
        yield
    finally:
        for config in caching:
            config.use_cache = True


@contextmanager
def _no_logging() -> Iterator[None]:
    """Log nothing meanwhile: torch logs tracebacks of what it then raises."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _cause(error: Exception) -> str:
    """Return torch's reason in a line, the place in the user's code, and what helps where that is known."""
    text = str(error)
    reason = next((line.strip() for line in text.splitlines() if line.strip()), "")
    name = type(error).__name__
    advice = ""
    if "data-dependent" in text or "unbacked" in text or name.startswith("GuardOnDataDependent"):
        advice = f" ({_PAD})"
    elif ".item()" in text or "data_ptr" in text:
        advice = " (values of tensors are not known here: use shapes and constants alone)"
    return f"{name}: {reason}{_place(error, text)}{advice}"


def _place(error: BaseException, text: str) -> str:
    """Return the innermost line of code that is none of torch's, as ``, at model.py:12``."""
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frames.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    frames += [(match[1], int(match[2])) for match in re.finditer(r'File "([^"]+)", line (\d+)', text)]
    user_frames = [(file, line) for file, line in frames if not is_library(file)]
    return f", at {Path(user_frames[-1][0]).name}:{user_frames[-1][1]}" if user_frames else ""


def program_of(torch: Any, exported: Any, name: str) -> Program:
    """Return an exported program as plain values.

    Raises:
        TopoplanError: it was exported through a call of ``torch.utils.checkpoint`` that hides what is trained.
    """
    check_exported(exported, f"frontend torch: {name}")
    return _Reader(torch, exported, name).program()


class _Reader:
    """Reads an exported program, graphs within it in the place of the nodes that call them."""

    def __init__(self, torch: Any, exported: Any, name: str) -> None:
        self._torch = torch
        self._exported = exported
        self._name = name
        self._values: dict[str, Value] = {}
        self._nodes: list[Node] = []

    def program(self) -> Program:
        """Read the graph and its signature."""
        signature = self._exported.graph_signature
        kinds = self._torch.export.graph_signature.InputKind
        storages: dict[int, str] = {}
        parameters: dict[str, str] = {}
        constants, inputs, frozen = set(), [], set[str]()
        for spec in signature.input_specs:
            argument = spec.arg.name
            if spec.kind is kinds.PARAMETER:
                tensor = self._exported.state_dict[spec.target]
                parameters[argument] = storages.setdefault(id(tensor), spec.target)
                if not tensor.requires_grad:
                    frozen.add(parameters[argument])
            elif spec.kind is kinds.USER_INPUT:
                inputs.append(argument)
            else:
                constants.add(argument)
        outputs = self._read(self._exported.graph_module, {}, "", ())
        return Program(
            name=self._name,
            nodes=tuple(self._nodes),
            values=self._values,
            parameters=parameters,
            constants=frozenset(constants),
            inputs=tuple(name for name in inputs if name in self._values),
            outputs=tuple(outputs),
            frozen=frozenset(frozen),
        )

    def _read(
        self,
        module: Any,
        bindings: Mapping[str, Argument],
        prefix: str,
        outer: tuple[tuple[str, str], ...],
        gradient: bool = True,
    ) -> list[str]:
        """Read the nodes of a graph; return the names of its outputs.

        Args:
            module: holds the graph.
            given: its placeholders -> what the caller gives for them; empty for the program's own graph.
            prefix: of the names of a graph within another.
            outer: modules of the node that calls it.
            gradient: whether autograd records it.
        """
        scope: dict[str, Argument] = dict(bindings)
        outputs: list[str] = []
        for node in module.graph.nodes:
            name = f"{prefix}{node.name}"
            if node.op == "placeholder":
                if node.name not in scope:
                    scope[node.name] = Ref(name)
                    self._value(name, node.meta.get("val"))
            elif node.op == "output":
                outputs = [ref.name for ref in _flat(self._argument(node.args, scope)) if isinstance(ref, Ref)]
            elif node.op == "get_attr":
                value = getattr(module, str(node.target), None)
                if not isinstance(value, self._torch.nn.Module):
                    scope[node.name] = Ref(name)
                    self._value(name, node.meta.get("val", value))
            elif node.op == "call_function":
                self._call(module, node, name, scope, outer, gradient)
        return outputs

    def _call(
        self,
        module: Any,
        node: Any,
        name: str,
        scope: dict[str, Argument],
        outer: tuple[tuple[str, str], ...],
        gradient: bool,
    ) -> None:
        """Read a call: an item of a tuple, a graph within the graph, or an operator."""
        modules = _modules(node.meta.get("nn_module_stack")) or outer
        graphs = [argument for argument in node.args if self._is_graph(module, argument)]
        if getattr(node.target, "__name__", "") == "getitem":
            items = scope[node.args[0].name]
            scope[node.name] = items[node.args[1]] if isinstance(items, tuple) else items
        elif len(graphs) == 1:
            inner = getattr(module, str(graphs[0].target))
            after = node.args[node.args.index(graphs[0]) + 1 :]
            holes = [each.name for each in inner.graph.nodes if each.op == "placeholder"]
            bindings = dict(zip(holes, [self._argument(each, scope) for each in after], strict=False))
            if str(node.target).endswith("set_grad_enabled"):
                gradient = bool(node.args[0])
            results = self._read(inner, bindings, f"{name}.", modules, gradient)
            scope[node.name] = tuple(Ref(each) for each in results)
        else:
            where = own_line(node.meta.get("stack_trace"))
            try:
                outputs = self._outputs(name, node.meta.get("val"))
            except self._torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode:
                place = ", at " + where if where else ""
                raise TopoplanError(f"frontend torch: {node.target}{place} ({_PAD})") from None
            scope[node.name] = outputs
            self._nodes.append(
                Node(
                    name=name,
                    target=str(node.target),
                    arguments=self._arguments(node, scope),
                    outputs=tuple(ref.name for ref in _flat(outputs) if isinstance(ref, Ref)),
                    module=modules,
                    where=where,
                    gradient=gradient,
                    region=region_of(node),
                )
            )

    def _is_graph(self, module: Any, argument: Any) -> bool:
        is_attribute = getattr(argument, "op", "") == "get_attr"
        return is_attribute and isinstance(getattr(module, str(argument.target), None), self._torch.fx.GraphModule)

    def _outputs(self, name: str, value: Any) -> Argument:
        """Declare what a call returns; several values get numbers."""
        if isinstance(value, (tuple, list)):
            return tuple(self._outputs(f"{name}.{k}", item) for k, item in enumerate(value))
        self._value(name, value)
        return Ref(name) if name in self._values else _number(value)

    def _value(self, name: str, value: Any) -> None:
        if isinstance(value, self._torch.Tensor):
            shape = tuple(int(size) for size in value.shape)
            self._values[name] = Value(shape, str(value.dtype).removeprefix("torch."))

    def _arguments(self, node: Any, scope: Mapping[str, Argument]) -> dict[str, Argument]:
        """Return the arguments of a call by the names in its operator's schema."""
        schema = getattr(node.target, "_schema", None)
        names = [argument.name for argument in schema.arguments] if schema is not None else []
        names += [f"arg{k}" for k in range(len(names), len(node.args))]
        arguments = {name: self._argument(each, scope) for name, each in zip(names, node.args, strict=False)}
        return arguments | {key: self._argument(each, scope) for key, each in node.kwargs.items()}

    def _argument(self, argument: Any, scope: Mapping[str, Argument]) -> Argument:
        if isinstance(argument, self._torch.fx.Node):
            return scope.get(argument.name)
        if isinstance(argument, (tuple, list)):
            return tuple(self._argument(item, scope) for item in argument)
        return _number(argument)


def _number(value: Any) -> Argument:
    """Return a number or word as it is, one of torch's symbols as its number, and the text of anything else."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if type(value).__name__ in ("SymInt", "SymFloat", "SymBool"):
        return int(value)
    return str(value).removeprefix("torch.")


def _flat(argument: Argument) -> Iterator[Argument]:
    if isinstance(argument, tuple):
        for item in argument:
            yield from _flat(item)
    else:
        yield argument


def _modules(stack: Any) -> tuple[tuple[str, str], ...]:
    """Return (path, class) of the modules that a node is in, outermost first."""
    if not isinstance(stack, Mapping):
        return ()
    return tuple((_path(path), str(cls)) for path, cls in stack.values())


def _path(path: str) -> str:
    """Return a module's path without the number of the call that torch adds to repeated ones (``norm@1``)."""
    return re.sub(r"@\d+", "", str(path)).removeprefix("L['self'].")
