"""Where code of plugins is called: what it raises, or returns of a wrong type, is told in one line that names it.

`guarded` puts checks around the ``build`` of a component, and around what it builds where that is called seldom: a
searcher's ``ask`` and ``tell``, an exporter, a simulator's full run.  What is called for every candidate (costs, a
simulator's shortcuts) is left as it is; `culprit` then finds in the traceback who raised.  A `TopoplanError` of a
plugin is its own message and passes.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from topoplan.errors import TopoplanError, TopoplanWarning, shown
from topoplan.plugin.components import Component, Exporter, Kind, PartCosts, Topology

if TYPE_CHECKING:
    from topoplan.model.graph import OperatorGraph
    from topoplan.model.strategy import Strategy
    from topoplan.model.timeline import Timeline
    from topoplan.search.protocol import Candidate, Trial

__all__ = ["PluginError", "bare", "calling", "culprit", "guarded", "modules_of", "told"]

C = TypeVar("C", bound=Component)
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


def modules_of(functions: Sequence[Any]) -> set[str]:
    """Return the modules of functions and the packages that these are in; nothing of core itself."""
    found = set()
    for function in functions:
        inner = getattr(function, "func", function)  # of a functools.partial
        module = getattr(inner, "__module__", None) or type(inner).__module__
        found |= {module, module.partition(".")[0]} if module != "__main__" else {module}
    return {module for module in found if module.partition(".")[0] not in (_CORE, "builtins", "types")}


def guarded(component: C, provider: object) -> C:
    """Return the component with checks around what it builds; messages name it and its ``provider``."""
    who = f"{component.kind.value} {component.name!r} ({provider})"
    changes: dict[str, Any] = {"build": _build(component, who)}
    if isinstance(component, Topology) and component.static is not None:
        changes["static"] = _static(component.static, who)
    if isinstance(component, Exporter) and component.refuses is not None:
        changes["refuses"] = _refuses(component.refuses, who)
    for function in changes.values():
        function.guards = component
    return attrs.evolve(component, **changes)


def bare(component: Any) -> Any:
    """Return the component that `guarded` was given, with what was changed since; anything else as it is."""
    given = getattr(component.build, "guards", None) if isinstance(component, Component) else None
    if given is None:
        return component
    now = {field.name: getattr(component, field.name) for field in attrs.fields(type(component)) if field.init}
    changes = {
        name: value
        for name, value in now.items()
        if getattr(value, "guards", None) is not given and value != getattr(given, name)
    }
    return attrs.evolve(given, **changes) if changes else given


def _build(component: Component, who: str) -> Callable[..., Any]:
    def build(*given: Any) -> Any:
        from topoplan.model.fabric import Fabric
        from topoplan.model.graph import OperatorGraph
        from topoplan.model.machine import HostModel

        with calling(f"{who}: build"):
            made = component.build(*given)
        match component.kind:
            case Kind.FRONTEND:
                _expect(made, OperatorGraph, f"{who}: build")
            case Kind.MACHINE:
                _expect(made, HostModel, f"{who}: build")
            case Kind.TOPOLOGY:
                _expect(made, Fabric, f"{who}: build")
            case Kind.ESTIMATOR:
                _expect_methods(made, ("supports", "price"), f"{who}: build")
                _check_costs(made, given[1], who)
            case Kind.SIMULATOR:
                _expect_methods(made, ("__call__",), f"{who}: build")
                return _Simulate(made, who)
            case Kind.SEARCHER:
                _expect_methods(made, ("ask", "tell", "adopt"), f"{who}: build")
                return _Search(made, who)
            case Kind.EXPORTER:
                _expect_methods(made, ("__call__",), f"{who}: build")
                return _exporter(made, who)
        return made

    return build


def _static(static: Callable[..., Any], who: str) -> Callable[..., Any]:
    def build(*given: Any) -> Any:
        from topoplan.model.fabric import Fabric

        with calling(f"{who}: static"):
            made = list(static(*given))
        for fabric in made:
            _expect(fabric, Fabric, f"{who}: static")
        return made

    return build


def _refuses(refuses: Callable[..., Any], who: str) -> Callable[..., Any]:
    def ask(*given: Any) -> str:
        with calling(f"{who}: refuses"):
            why = refuses(*given)
        _expect(why, str, f"{who}: refuses")
        return str(why)

    return ask


def _exporter(write: Callable[..., Any], who: str) -> Callable[..., Any]:
    def export(plan: Any) -> bytes:
        with calling(f"{who}: the function that it builds"):
            data = write(plan)
        _expect(data, bytes, f"{who}: the function that it builds")
        return bytes(data)

    return export


def _check_costs(costs: Any, graph: OperatorGraph, who: str) -> None:
    """Price the first operator whole, on one device."""
    import numpy as np

    for op, operator in enumerate(graph.operators[:1]):
        whole = (1,) * len(operator.dims)
        with calling(f"{who}: supports"):
            if not costs.supports(op, whole):
                return
        with calling(f"{who}: price"):
            price = costs.price(op, whole, np.zeros(1, dtype=np.int32))
        _expect(price, PartCosts, f"{who}: price")
        for field in ("forward", "backward", "memory"):
            column = getattr(price, field)
            if np.shape(column) != (1,):
                raise PluginError(f"{who}: price of 1 part: {field} has shape {np.shape(column)} (must be (1,))")


class _Simulate:
    """A simulator whose full runs are checked; its shortcuts are its own."""

    def __init__(self, simulate: Any, who: str) -> None:
        self._simulate, self._who = simulate, who

    def __call__(self, *given: Any) -> Timeline:
        from topoplan.model.timeline import Timeline

        timeline: Timeline = self._simulate(*given)
        _expect(timeline, Timeline, f"{self._who}: a run")
        return timeline

    def __getattr__(self, name: str) -> Any:
        return getattr(self._simulate, name)


class _Search:
    """A searcher under way whose every call is checked; attributes beside the protocol are its own."""

    def __init__(self, search: Any, who: str) -> None:
        self._search, self._who = search, who

    def ask(self) -> list[Candidate]:
        from topoplan.search.protocol import Candidate

        with calling(f"{self._who}: ask"):
            asked = self._search.ask()
        _expect(asked, Sequence, f"{self._who}: ask", "a sequence of Candidate")
        for candidate in asked:
            _expect(candidate, Candidate, f"{self._who}: ask: an element of what it")
        return list(asked)

    def tell(self, trials: Sequence[Trial]) -> None:
        with calling(f"{self._who}: tell"):
            self._search.tell(trials)

    def adopt(self, trial: Trial) -> None:
        with calling(f"{self._who}: adopt"):
            self._search.adopt(trial)

    def report(self, strategy: Strategy | None) -> Mapping[str, Any] | None:
        """Return what the searcher reports; None, and a warning, where it cannot: the search is done by then."""
        if not hasattr(self._search, "report"):
            return None
        try:
            with calling(f"{self._who}: report"):
                said = self._search.report(strategy)
            if said is not None:
                _expect(said, Mapping, f"{self._who}: report", "a mapping of JSON values")
        except TopoplanError as error:
            warnings.warn(TopoplanWarning(f"{error}; it is left out"), stacklevel=2)
            return None
        return said  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._search, name)


def _expect(value: Any, wanted: type[Any], what: str, right: str = "") -> None:
    if not isinstance(value, wanted):
        raise PluginError(f"{what} returned {_kind_of(value)} (must return {right or wanted.__name__})")


def _expect_methods(value: Any, names: Sequence[str], what: str) -> None:
    for name in names:
        if not callable(getattr(value, name, None)):
            right = "something that can be called" if name == "__call__" else f"an object with a method {name}"
            raise PluginError(f"{what} returned {_kind_of(value)} (must return {right})")


def _kind_of(value: Any) -> str:
    return "None" if value is None else f"{type(value).__name__} {shown(value, 40)}"
