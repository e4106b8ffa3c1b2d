"""Promises of exporters: ``write(plan) -> bytes``, and of their way back."""

from __future__ import annotations

from pathlib import Path

import attrs

from topoplan import Exporter, TopoplanError
from topoplan_testing import reference
from topoplan_testing._common import example


def check_writes_bytes(component: type[Exporter]) -> None:
    """A complete plan becomes bytes, and at least one."""
    data = example(component).write(reference.plan())
    assert isinstance(data, bytes), f"returned {type(data).__name__}"
    assert data, "returned nothing"


def check_same_bytes_twice(component: type[Exporter]) -> None:
    """Equal plans give equal bytes: no clock, no random identifier, no order of a set."""
    assert example(component).write(reference.plan()) == example(component).write(reference.plan())


def check_bytes_name_no_place(component: type[Exporter]) -> None:
    """The output does not tell on which machine it was made."""
    data = example(component).write(reference.plan())
    for place in (Path.cwd(), Path.home()):
        assert len(place.parts) < 2 or str(place).encode() not in data, f"the output contains {place}"


def check_any_operator_name_is_written(component: type[Exporter]) -> None:
    """Names outside ASCII, with quotes or spaces, are written and change the output or nothing."""
    data = example(component).write(reference.plan(names=("größe", 'a "b" <c>')))
    assert isinstance(data, bytes), f"returned {type(data).__name__}"


def check_task_graph_survives(component: type[Exporter]) -> None:
    """If the format can be read, what was read is written as the same bytes, and holds the same tasks."""
    if not component.overrides("read"):
        return
    plan = reference.plan()
    data = example(component).write(plan)
    read = example(component).read(data, f"reference{component.suffix}")
    assert read.taskgraph.n_devices == plan.taskgraph.n_devices
    assert read.taskgraph.n_tasks >= plan.taskgraph.n_tasks, "tasks were lost"
    assert example(component).write(read) == data, "what was read is written differently"


def check_phases_survive_or_are_refused(component: type[Exporter]) -> None:
    """If the format can be read, a fabric that is rebuilt between phases is read as such, or not written."""
    if not component.overrides("read"):
        return
    plan = attrs.evolve(reference.plan(), fabric=reference.rebuilt(delay=1e-3), timeline=None)
    try:
        data = example(component).write(plan)
    except TopoplanError:
        return
    read = example(component).read(data, f"reference{component.suffix}")
    assert read.fabric == plan.fabric, "the fabric was written as one that stays as it is"


def check_strategy_survives(component: type[Exporter]) -> None:
    """If the format holds strategies, reading gives the strategy that was written."""
    if not component.overrides("read_strategy"):
        return
    plan = reference.plan()
    assert plan.graph is not None
    read = example(component).read_strategy(example(component).write(plan), f"reference{component.suffix}", plan.graph)
    assert read == plan.strategy


def check_a_schedule_survives_or_is_refused(component: type[Exporter]) -> None:
    """A strategy with micro-batches is read as such, or refused on one of the ways, as where it is unwritable."""
    plan = reference.pipelined()
    assert plan.graph is not None
    try:
        data = example(component).write(plan)
        assert type(plan.strategy) not in component.unwritable, "a strategy that is declared unwritable was written"
        if component.overrides("read_strategy"):
            read = example(component).read_strategy(data, f"reference{component.suffix}", plan.graph)
            assert read == plan.strategy, "the strategy was read without its schedule"
    except TopoplanError:
        return
    if component.overrides("read"):
        strategy = example(component).read(data, f"reference{component.suffix}").strategy
        assert strategy is None or strategy == plan.strategy, "the strategy was written without its schedule"


def check_garbage_is_refused_by_name(component: type[Exporter]) -> None:
    """A file in another format is a `TopoplanError` that names the file."""
    for garbage in (b"", b"\x00garbage\xff" * 3):
        for method, more in (("read", ()), ("read_strategy", (reference.graph(("dense1", "dense2")),))):
            if not component.overrides(method):
                continue
            try:
                getattr(example(component), method)(garbage, "strange-file", *more)
            except TopoplanError as error:
                assert "strange-file" in str(error), f"the message does not name the file: {error}"
            else:
                raise AssertionError(f"{garbage!r} was read as if it were a {component.suffix} file")
