"""Promises of simulators: ``build() -> Simulate``; ``(taskgraph, fabric, cluster) -> Timeline``."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np

from topoplan import Cluster, Fabric, Simulate, Simulator, TaskGraph, Timeline, TopoplanError
from topoplan_testing import reference
from topoplan_testing._common import example

_EPSILON = 1e-9


def check_every_task_is_timed(component: type[Simulator]) -> None:
    """Every task starts at or after 0 and finishes at or after its start; the last finish is the makespan."""
    tasks, times = _run(component)
    assert times.start.shape == times.finish.shape == (tasks.n_tasks,), f"times of shape {times.start.shape}"
    assert np.isfinite(times.finish).all(), "a task never finishes"
    assert (times.start >= 0).all(), "a task starts before 0"
    assert (times.finish >= times.start).all(), "a task finishes before it starts"
    assert np.isclose(times.makespan, times.finish.max()), f"makespan {times.makespan}, last {times.finish.max()}"


def check_same_timeline_twice(component: type[Simulator]) -> None:
    """The same task graph gives the same timeline to the last bit."""
    assert _run(component) == _run(component)


def check_never_below_bounds(component: type[Simulator]) -> None:
    """The makespan is not below the simulator's own bounds, the busiest device, or the busiest link."""
    (tasks, times), fabric = _run(component), reference.ring()
    compute = tasks.device >= 0
    busiest = np.bincount(tasks.device[compute], tasks.seconds[compute]).max()
    link = (times.link_bytes / fabric.link_bandwidth).max()
    for what, bound in (
        ("its own bound", times.bounds.best),
        ("the busiest device", busiest),
        ("the busiest link", link),
    ):
        assert times.makespan >= bound * (1 - _EPSILON), f"makespan {times.makespan} s is below {what}, {bound} s"


def check_dependencies_are_kept(component: type[Simulator]) -> None:
    """No task starts before everything that it depends on has finished."""
    tasks, times = _run(component)
    for task, after in reference.edges_of(tasks):
        early = times.finish[task] - times.start[after]
        assert early <= _EPSILON, f"{tasks.label(after)} starts {early} s before {tasks.label(task)} finishes"


def check_a_device_runs_one_task_at_a_time(component: type[Simulator]) -> None:
    """The compute tasks of a device do not overlap, and each takes its seconds."""
    tasks, times = _run(component)
    for device in range(tasks.n_devices):
        mine = np.flatnonzero(tasks.device == device)
        mine = mine[np.argsort(times.start[mine], kind="stable")]
        assert np.allclose(times.finish[mine] - times.start[mine], tasks.seconds[mine]), "a task takes another time"
        overlap = times.finish[mine[:-1]] - times.start[mine[1:]]
        assert (overlap <= _EPSILON).all(), f"tasks overlap on device {device}"


def check_traffic_is_counted(component: type[Simulator]) -> None:
    """There is one row of bytes and seconds for every link, and transfers between hosts leave bytes on links."""
    _, times = _run(component)
    assert times.link_bytes.shape == times.link_busy.shape == (reference.ring().n_links,)
    assert (times.link_bytes >= 0).all(), "a link carries less than nothing"
    assert times.link_bytes.sum() >= 4e6, "four transfers of 1e6 bytes left no trace on the links"


def check_devices_and_links_are_busy_for_what_they_do(component: type[Simulator]) -> None:
    """Devices are busy for the seconds of their tasks, links for their bytes over their bandwidth; none for longer."""
    tasks, times = _run(component)
    compute = tasks.device >= 0
    computed = np.bincount(tasks.device[compute], tasks.seconds[compute], minlength=tasks.n_devices)
    sent = times.link_bytes / reference.ring().link_bandwidth
    for what, busy, work in (("devices", times.device_busy, computed), ("links", times.link_busy, sent)):
        assert busy.shape == work.shape, f"{what} are busy for an array of shape {busy.shape}, not {work.shape}"
        assert np.allclose(busy, work), f"{what} are busy for {busy} s, but what they do takes {work} s"
        most = times.makespan * (1 + _EPSILON)
        assert (busy <= most).all(), f"{what} are busy for {busy.max()} s of an iteration of {times.makespan} s"


def check_a_cycle_is_an_error(component: type[Simulator]) -> None:
    """Tasks that wait for each other are a `TopoplanError`, not a timeline."""
    tasks = reference.taskgraph()
    back = attrs.evolve(tasks, succ_ptr=[*tasks.succ_ptr[:-1], len(tasks.succ) + 1], succ=[*tasks.succ, 0])
    _refused(component, back, reference.ring(), "a cycle")


def check_an_unreachable_host_is_an_error(component: type[Simulator]) -> None:
    """A transfer to a host that cannot be reached is a `TopoplanError`, not a timeline."""
    links = [(0, 1), (1, 0), (2, 3), (3, 2)]
    split = Fabric.from_links(name="split", n_hosts=4, links=links, bandwidth=1e9, latency=1e-6)
    _refused(component, reference.taskgraph(), split, "an unreachable host")


def check_a_rebuilt_fabric_takes_its_time(component: type[Simulator]) -> None:
    """A fabric that is rebuilt between phases costs its delay, there and back; or it is a `TopoplanError`."""
    simulate = example(component).build()
    try:
        times = simulate(reference.taskgraph(), reference.rebuilt(delay=1.0), reference.cluster())
    except TopoplanError:
        return
    except AttributeError as error:
        raise AssertionError(f"{error} (simulate its phases, or refuse what is no Fabric)") from None
    assert times.makespan >= 2.0, f"an iteration with two rebuilds of 1 s takes {times.makespan} s"


def check_makespan_is_that_of_a_run(component: type[Simulator]) -> None:
    """`makespan` is the time of a run, and infinite only where that is no less than the cutoff.

    With `lower_bounds` it stops at a cutoff of zero.
    """
    for simulate, case in _cases(component):
        time = simulate(*case).makespan
        assert simulate.makespan(*case) == time, f"makespan {simulate.makespan(*case)} s, but a run takes {time} s"
        for cutoff in (2 * time, time, time / 2, 0.0):
            makespan = simulate.makespan(*case, cutoff)
            assert makespan == time or (makespan == np.inf and time >= cutoff), (
                f"makespan with a cutoff of {cutoff} s is {makespan} s, but a run takes {time} s"
            )
        assert makespan == np.inf or not simulate.lower_bounds, "lower_bounds, but makespan does not stop at its cutoff"


def check_makespans_are_those_of_each_seed(component: type[Simulator]) -> None:
    """`makespans` are the times of runs with each seed; these differ only where `draws` says so."""
    seeds = range(example(component).first_draw, example(component).first_draw + 4)
    for simulate, case in _cases(component):
        times = [simulate.with_seed(seed)(*case).makespan for seed in seeds]
        makespans = simulate.makespans(*case, seeds)
        assert np.array_equal(makespans, times), f"makespans are {makespans} s, but runs with each seed take {times} s"
        assert len({*times}) == 1 or simulate.draws(*case), f"draws nothing, but runs with other seeds take {times} s"


def check_link_seconds_are_no_more_than_a_run(component: type[Simulator]) -> None:
    """`link_seconds` has a row for each operator, or for the first ones; no link is busy for longer than a run."""
    for simulate, (tasks, fabric, cluster) in _cases(component):
        busy, time = simulate.link_seconds(tasks, fabric, cluster), simulate(tasks, fabric, cluster).makespan
        assert busy.ndim == 2, f"link_seconds of shape {busy.shape}"
        assert busy.shape[0] <= len(tasks.op_names), f"{busy.shape[0]} rows for {len(tasks.op_names)} operators"
        assert busy.shape[1] >= fabric.n_links, f"{busy.shape[1]} columns for {fabric.n_links} links"
        assert (busy >= 0).all(), "a link is busy for less than nothing"
        most = busy.sum(axis=0).max()
        assert most <= time * (1 + _EPSILON), f"a link is surely busy for {most} s, but a run takes {time} s"


def check_memory_policy_is_known(component: type[Simulator]) -> None:
    """`memory_policy` says ignore, limit or penalty."""
    policy = example(component).memory_policy
    assert policy in ("ignore", "limit", "penalty"), f"memory_policy says {policy!r}"


def _run(component: type[Simulator]) -> tuple[TaskGraph, Timeline]:
    tasks = reference.taskgraph()
    return tasks, example(component).build()(tasks, reference.ring(), reference.cluster())


def _cases(component: type[Simulator]) -> Iterator[tuple[Simulate, tuple[TaskGraph, Fabric, Cluster]]]:
    """Yield the simulator with a network of single paths, then with one of two equal paths for every pair."""
    for fabric in (reference.ring(), reference.two_switches()):
        yield example(component).build(), (reference.taskgraph(), fabric, reference.cluster())


def _refused(component: type[Simulator], tasks: TaskGraph, fabric: Fabric, what: str) -> None:
    simulate = example(component).build()
    try:
        simulate(tasks, fabric, reference.cluster())
    except TopoplanError:
        return
    raise AssertionError(f"{what} was simulated as if nothing were wrong")
