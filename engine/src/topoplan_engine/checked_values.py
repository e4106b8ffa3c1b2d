"""What components build, looked at once: models, machines, rounds; an error is one line that names the component.

What the values themselves refuse, such as two operators of one name, names the component that gave it, too.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterable
from numbers import Integral, Real
from typing import Any, TypeVar

from topoplan.errors import PluginError, TopoplanError, shown
from topoplan.model.collective import CollectiveGroup, CollectiveRounds
from topoplan.model.graph import Operator, OperatorGraph
from topoplan.model.machine import Device, HostModel
from topoplan.model.pass_order import PassOrder
from topoplan.model.taskgraph import Collective
from topoplan.plugin.components import CollectiveAlgorithm, Component, Frontend, Machine, PipelineSchedule

__all__ = ["build_graph", "build_machine", "build_order", "build_rounds"]

T = TypeVar("T")
#: Precisions of models.
_PRECISIONS = ("fp32", "fp16", "bf16", "fp8")


def build_graph(frontend: Frontend, batch_size: int | None) -> OperatorGraph:
    """Build a model for a batch.

    Raises:
        PluginError: a value of it can be none of a model.
    """
    graph = _built(frontend, lambda: frontend.build(batch_size))
    if reason := _why_no_graph(graph):
        raise PluginError(f"{_who(frontend)}: build returned a model {reason}")
    return graph


def build_machine(machine: Machine) -> HostModel:
    """Build a machine.

    Raises:
        PluginError: a value of it can be none of a machine.
    """
    model = _built(machine, machine.build)
    if model.device is not None and (reason := _why_no_device(model.device)):
        raise PluginError(f"{_who(machine)}: build returned a device {reason}")
    return model


def build_rounds(algorithm: CollectiveAlgorithm, collective: Collective, group: CollectiveGroup) -> CollectiveRounds:
    """Ask an algorithm for its messages.

    Raises:
        PluginError: they are none among the members of the group.
    """
    rounds = _built(algorithm, lambda: algorithm.rounds(collective, group))
    if reason := _why_no_rounds(rounds, collective, group):
        raise PluginError(f"{_who(algorithm)}: rounds returned {reason}")
    return rounds


def build_order(schedule: PipelineSchedule, ranks: int, micro_batches: int) -> PassOrder:
    """Ask a schedule for its order of passes."""
    return _built(schedule, lambda: schedule.order(ranks, micro_batches))


def _who(component: Component) -> str:
    return str(getattr(component, "who", f"{component.kind.value} {component.name!r}"))


def _built(component: Component, build: Callable[[], T]) -> T:
    """Build; name the component in front of what a value of the contract says that it cannot be made of."""
    try:
        return build()
    except TopoplanError as error:
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        who = _who(component)
        if str(error).startswith(who) or not frames[-1].f_globals["__name__"].startswith("topoplan.model."):
            raise
        raise TopoplanError(f"{who}: {error}") from None


def _why_no_graph(graph: OperatorGraph) -> str:
    """Say what of a model can be none; empty if all can."""
    if not _is_count(graph.batch_size):
        return f"whose batch_size is {shown(graph.batch_size)} (must be a whole number of at least 1)"
    if graph.precision not in _PRECISIONS:
        return f"whose precision is {shown(graph.precision)} (must be one of {', '.join(_PRECISIONS)})"
    reasons = (_why_no_operator(operator) for operator in graph.operators)
    return next(filter(None, reasons), "")


def _why_no_operator(operator: Operator) -> str:
    """Say what of an operator can be none; empty if all can."""
    if not isinstance(operator.name, str) or not operator.name:
        return f"with an operator named {shown(operator.name)} (must be a text)"
    where = f"whose operator {operator.name!r} has"
    for dim in operator.dims:
        if not _is_count(dim.size):
            return f"{where} a dimension {dim.name!r} of size {shown(dim.size)} (must be a whole number)"
    for term in (*operator.work, *operator.traffic):
        if not _is_quantity(term.coefficient):
            return f"{where} a term of {shown(term.coefficient)} (must be finite and at least 0)"
    profile = operator.profile
    for field in () if profile is None else ("forward", "backward", "activation_bytes"):
        if not _is_quantity(getattr(profile, field)):
            return f"{where} a profile whose {field} is {shown(getattr(profile, field))} (must be finite, at least 0)"
    return ""


def _why_no_rounds(rounds: CollectiveRounds, collective: Collective, group: CollectiveGroup) -> str:
    """Say what of messages can be none among the members of a group; empty if all can."""
    if not _is_count(rounds.chunks):
        return f"{shown(rounds.chunks)} chunks (must be a whole number of at least 1)"
    n_chunks = rounds.chunks * (group.n_members if collective is Collective.ALL_TO_ALL else 1)  # of all tensors
    if not len(rounds.source):
        return "no message"
    for field, minimum, maximum in (
        ("source", 0, group.n_members),
        ("target", 0, group.n_members),
        ("chunk", 0, n_chunks - 1),
        ("count", 1, n_chunks),
        ("repeats", 1, None),
    ):
        column = getattr(rounds, field)
        wrong = (column < minimum) | (False if maximum is None else column > maximum)
        if wrong.any():
            right = f"at least {minimum}" if maximum is None else f"{minimum} to {maximum}"
            return f"a message whose {field} is {column[wrong][0]} (must be {right})"
    if (rounds.source == rounds.target).any():
        return f"a message from member {rounds.source[rounds.source == rounds.target][0]} to itself"
    return ""


def _why_no_device(device: Device) -> str:
    """Say what of a device can be none; empty if all can."""
    rates: Iterable[tuple[str, Any]] = (
        *((f"peak_flops of {precision}", peak) for precision, peak in device.peak_flops.items()),
        ("memory_bandwidth", device.memory_bandwidth),
        ("memory", device.memory),
    )
    for name, value in rates:
        if not _is_quantity(value) or not value > 0:
            return f"whose {name} is {shown(value)} (must be finite and above 0)"
    if not _is_quantity(device.kernel_overhead):
        return f"whose kernel_overhead is {shown(device.kernel_overhead)} s (must be finite and at least 0)"
    return ""


def _is_count(value: object) -> bool:
    """Say whether a value is a whole number of at least 1; those of numpy are."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1


def _is_quantity(value: object) -> bool:
    """Say whether a value is a finite number of at least 0; those of numpy are."""
    return isinstance(value, Real) and not isinstance(value, bool) and 0 <= float(value) < math.inf
