"""Where code of plugins is called: what it raises, or returns of a wrong type, is told in one line that names it.

`guarded` makes a subclass of a component whose methods are checked, and so is what they build where that is called
seldom: a searcher's ``ask`` and ``tell``, a simulator's full run (`topoplan.plugin.guarded_builds`).  What is called
for every candidate (costs, a simulator's shortcuts) is left as it is; `culprit` then finds in the traceback who raised.
A `TopoplanError` of a plugin is its own message and passes.
"""

from __future__ import annotations

import functools
import traceback
from abc import ABCMeta
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import topoplan
from topoplan.errors import TopoplanError, shown
from topoplan.plugin.components import CostFunction, Kind, PartCosts, Registered

if TYPE_CHECKING:
    from topoplan.model.graph import OperatorGraph

__all__ = ["PluginError", "bare", "calling", "culprit", "expect", "guarded", "modules_of", "told"]

R = TypeVar("R", bound=Registered)
_CORE = "topoplan"


class PluginError(TopoplanError):
    """Code of a plugin returned what it must not, or raised what is no `TopoplanError`, and the cause of this one."""


@contextmanager
def calling(what: str) -> Iterator[None]:
    """Name ``what`` (``searcher 'x' (plugin 'y'): ask``) in the place of what its code raises meanwhile."""
    try:
        yield
    except TopoplanError:
        raise
    except (Exception, SystemExit) as error:  # a plugin may raise anything at all
        raise PluginError(f"{what} raised {told(error)}") from error


def told(error: BaseException) -> str:
    """One line for an exception of somebody else's code."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def culprit(error: BaseException, modules: Mapping[str, object]) -> str:
    """Say which plugin's code raised, e.g. ``plugin 'x': price (cost.py, line 12)``; empty where none did.

    Args:
        error: as it was caught.
        modules: name of a module, or of the package that it is in -> the plugin that it belongs to.
    """
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        module = str(frame.f_globals.get("__name__", ""))
        plugin = modules.get(module) or modules.get(module.partition(".")[0])
        if plugin is not None:
            return f"{plugin}: {frame.f_code.co_name} ({Path(frame.f_code.co_filename).name}, line {line})"
    return ""


def modules_of(code: Iterable[Any]) -> set[str]:
    """Return the modules of functions and classes and the packages that these are in; nothing of core itself."""
    names = {getattr(each, "__module__", None) or type(each).__module__ for each in code}
    names |= {name.partition(".")[0] for name in names}
    return {name for name in names if name.partition(".")[0] not in (_CORE, "builtins", "types")}


def guarded(cls: type[R], provider: object) -> type[R]:
    """Return a subclass with checks around its methods; messages name the component and its ``provider``."""
    who = f"{cls.kind.value} {cls.name!r} ({provider})"
    methods = {name: _checked(cls, name, f"{who}: {name}", check) for name, check in _CHECKS.get(cls.kind, {}).items()}
    names = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    return cast("type[R]", ABCMeta(cls.__name__, (cls,), {"__slots__": (), "guards": cls, **names, **methods}))


def bare(cls: Any) -> Any:
    """Return the class that `guarded` was given; anything else as it is."""
    return vars(cls).get("guards", cls) if isinstance(cls, type) else cls


def _checked(cls: type[Registered], name: str, what: str, check: Callable[..., Any]) -> Callable[..., Any]:
    method = getattr(cls, name)

    @functools.wraps(method)
    def call(component: Any, *arguments: Any) -> Any:
        with calling(what):
            value = method(component, *arguments)
            if name == "static":
                value = list(value)
        return check(value, what, *arguments)

    return call


def _a(name: str) -> Callable[..., Any]:
    """Return a check for an instance of a public class of core, which is imported when it is needed."""

    def check(value: Any, what: str, *arguments: Any) -> Any:
        expect(value, getattr(topoplan, name), what)
        return value

    return check


def _fabrics(value: list[Any], what: str, *arguments: Any) -> list[Any]:
    for fabric in value:
        expect(fabric, topoplan.Fabric, what)
    return value


def _simulate(value: Any, what: str) -> Any:
    from topoplan.plugin.guarded_builds import GuardedSimulate

    expect(value, topoplan.Simulate, what)
    return GuardedSimulate(value, what.removesuffix(": build"))


def _search(value: Any, what: str, *arguments: Any) -> Any:
    from topoplan.plugin.guarded_builds import GuardedSearch

    expect(value, topoplan.Search, what)
    return GuardedSearch(value, what.removesuffix(": build"))


def _text(value: Any, what: str, *arguments: Any) -> str:
    expect(value, str, what)
    return str(value)


def _bytes(value: Any, what: str, *arguments: Any) -> bytes:
    expect(value, bytes, what)
    return bytes(value)


def _costs(costs: Any, what: str, graph: OperatorGraph, *arguments: Any) -> Any:
    """Price the first operator whole, on one device."""
    import numpy as np

    expect(costs, CostFunction, what)
    who = what.removesuffix(": build")
    for op, operator in enumerate(graph.operators[:1]):
        whole = (1,) * len(operator.dims)
        with calling(f"{who}: supports"):
            if not costs.supports(op, whole):
                return costs
        with calling(f"{who}: price"):
            price = costs.price(op, whole, np.zeros(1, dtype=np.int32))
        expect(price, PartCosts, f"{who}: price")
        for field in ("forward", "backward", "memory"):
            column = getattr(price, field)
            if np.shape(column) != (1,):
                raise PluginError(f"{who}: price of 1 part: {field} has shape {np.shape(column)} (must be (1,))")
    return costs


def expect(value: Any, wanted: type[Any], what: str, right: str = "") -> None:
    """Raise `PluginError` where ``what`` returned no value of a type."""
    if not isinstance(value, wanted):
        raise PluginError(f"{what} returned {_kind_of(value)} (must return {right or wanted.__name__})")


def _kind_of(value: Any) -> str:
    return "None" if value is None else f"{type(value).__name__} {shown(value, 40)}"


#: Kind -> method -> what is checked of the value that it returned.
_CHECKS: Mapping[Kind, Mapping[str, Callable[..., Any]]] = {
    Kind.FRONTEND: {"build": _a("OperatorGraph")},
    Kind.MACHINE: {"build": _a("HostModel")},
    Kind.TOPOLOGY: {"build": _a("Fabric"), "static": _fabrics},
    Kind.ESTIMATOR: {"build": _costs},
    Kind.SIMULATOR: {"build": _simulate},
    Kind.SEARCHER: {"build": _search},
    Kind.EXPORTER: {"write": _bytes, "refuses": _text},
}
