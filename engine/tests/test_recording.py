"""What is recorded of an iteration: equal to the run, exact in bytes, within bandwidths, and a path without gaps."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from topoplan import Candidate, Host, TopoplanError
from topoplan.model.placement import Placement
from topoplan.model.recording import Cause, LinkUse, MemoryKind
from topoplan.testing import reference
from topoplan_engine.guarded import build_search
from topoplan_engine.lowering import Lowering
from topoplan_engine.pipelines import pipeline_strategy
from topoplan_engine.search.evaluator import Evaluator
from topoplan_engine.simulation.base import Simulation
from topoplan_engine.simulation.recording import expanded
from topoplan_reference.recording import flexnet_rows, fluid_rows
from topoplan_samples.models import model_problem
from topoplan_samples.problems import state_of
from topoplan_samples.random_graphs import networks, taskgraphs
from topoplan_samples.tasks import collective, compute, task_graph, transfer
from topoplan_simulator_flexnet import recording as flexnet_recording
from topoplan_simulator_flexnet.model import Model as Flexnet
from topoplan_simulator_fluid import recording as fluid_recording
from topoplan_simulator_fluid.model import Model as Fluid

SETTINGS = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
MODELS = [Fluid(), Fluid(stepped=True), Fluid(stepped=True, seed=3), Flexnet(1 << 20, 1), Flexnet(50_000, None)]
NAMES = ["coupled", "stepped", "drawn", "flexnet", "segments"]
COLLECTIVES = ["ring", "parameter-server", "nccl-serial"]


def check_links(rows, timeline, fabric):
    """Rows add up to the last bit, and at no time move more over a link than it can."""
    assert (np.bincount(rows.link, rows.nbytes, fabric.n_links) == timeline.link_bytes).all()
    assert (rows.finish > rows.start).all()
    assert (rows.nbytes >= 0).all()
    rate = rows.nbytes / (rows.finish - rows.start)
    for link in range(fabric.n_links):
        mine = rows.link == link
        times = np.unique(np.concatenate([rows.start[mine], rows.finish[mine]]))
        if not len(times):
            continue
        begins = np.searchsorted(times, rows.start[mine])
        ends = np.searchsorted(times, rows.finish[mine])
        together = np.zeros(len(times))
        np.add.at(together, begins, rate[mine])
        np.add.at(together, ends, -rate[mine])
        moved = np.cumsum(together)[:-1] * np.diff(times)
        # What ends within a picosecond ends together, and times are rounded.
        allowed = fabric.link_bandwidth[link] * (np.diff(times) * (1 + 1e-9) + 3e-12 + 4 * np.spacing(times[-1]))
        assert (moved <= allowed + 1e-6).all()


def check_within_tasks(rows, timeline):
    """Nothing crosses a link before its task begins, or after it ends."""
    slack = 3e-12 + 4 * np.spacing(timeline.makespan)
    assert (rows.start >= timeline.start[rows.task] - slack).all()
    assert (rows.finish <= timeline.finish[rows.task] + slack).all()


def check_path(path, timeline, tasks, cluster, fabric):
    """The path begins at 0, ends with the iteration, and has no gap but where a fabric is rebuilt."""
    start, finish = timeline.start[path.task], timeline.finish[path.task]
    assert len(set(path.task.tolist())) == len(path.task)
    assert finish[-1] == timeline.makespan
    assert start[0] == 0.0 or path.cause[0] == Cause.REBUILD
    gaps = path.cause[1:] != Cause.REBUILD
    assert (start[1:][gaps] <= finish[:-1][gaps]).all()
    for before, task, cause, by in zip(path.task, path.task[1:], path.cause[1:], path.by[1:], strict=False):
        if cause in (Cause.PREDECESSOR, Cause.REBUILD):
            assert by == before
        elif cause == Cause.DEVICE:
            assert 0 <= by < cluster.n_devices
            assert tasks.device[task] in (by, -1)
        else:
            assert cause == Cause.LINK
            assert -1 <= by < fabric.links.n_links + 2 * cluster.n_devices


@pytest.mark.parametrize("model", MODELS, ids=NAMES)
@SETTINGS
@given(st.data())
def test_recordings_of_any_iteration_hold(model, data):
    network = data.draw(networks())
    tasks = data.draw(taskgraphs(network.cluster.n_devices))
    options = {"barriers": data.draw(st.booleans()), "collective": data.draw(st.sampled_from(COLLECTIVES))}
    simulate = Simulation(model, **options)
    where = (tasks, network.fabric, network.cluster)
    try:
        run = simulate(*where)
    except TopoplanError:  # behind a barrier or a server, tasks of this graph wait for each other
        assume(False)
    timeline, recording = simulate.record(*where)
    assert timeline == run
    check_links(recording.links, timeline, network.fabric)
    check_within_tasks(recording.links, timeline)
    check_path(recording.critical, timeline, tasks, network.cluster, network.fabric)
    if options["collective"] != "parameter-server":  # there the first of many messages says when an all-reduce begins
        assert (np.diff(timeline.start[recording.critical.task]) >= 0).all()


def bytes_until(rows, times, n_links, n_tasks):
    """(times, links, tasks) bytes that have crossed by each of some times."""
    start, finish = rows.start[:, None], rows.finish[:, None]
    share = np.clip((times[None, :] - start) / (finish - start), 0.0, 1.0)
    total = np.zeros((len(times), n_links, n_tasks))
    np.add.at(total, (slice(None), rows.link, rows.task), (share * rows.nbytes[:, None]).T)
    return total


@pytest.mark.parametrize("model", MODELS, ids=NAMES)
@SETTINGS
@given(st.data())
def test_rows_are_those_of_the_slow_references(model, data):
    """Every task has moved as much over each link at any time as the reference simulators say."""
    network = data.draw(networks())
    tasks = data.draw(taskgraphs(network.cluster.n_devices))
    prepared = model.prepare(tasks, network)
    _, rows = model.record(prepared)
    if isinstance(model, Flexnet):
        assert rows == flexnet_rows(tasks, network, model)
        return
    expected = fluid_rows(tasks, network, model)
    if not model.stepped:
        expected = expanded(expected, prepared.rings.representative)
    times = np.unique(np.concatenate([expected.start, expected.finish, rows.start]))[:200]
    shape = (network.n_links, tasks.n_tasks)
    slack = 1e-9 * max(1.0, float(tasks.size.sum())) + 4e-12 * float(network.paths.bandwidth.max())
    np.testing.assert_allclose(
        bytes_until(rows, times, *shape), bytes_until(expected, times, *shape), rtol=1e-6, atol=slack
    )


@pytest.mark.parametrize("model", MODELS, ids=NAMES)
@pytest.mark.parametrize("delay", [0.0, 1e-3])
def test_a_fabric_that_is_rebuilt_is_recorded_phase_by_phase(model, delay):
    fabric, cluster, tasks = reference.rebuilt(delay), reference.cluster(), reference.taskgraph()
    simulate = Simulation(model, barriers=False, collective="ring")
    timeline, recording = simulate.record(tasks, fabric, cluster)
    assert timeline == simulate(tasks, fabric, cluster)
    check_links(recording.links, timeline, fabric.links)
    check_within_tasks(recording.links, timeline)
    check_path(recording.critical, timeline, tasks, cluster, fabric)
    assert Cause.REBUILD in recording.critical.cause


def test_the_path_says_what_each_task_waited_for():
    """Device 0 computes twice, then sends 8 MB while another transfer takes half of the link, then 1 computes."""
    fabric, cluster = reference.ring(), reference.cluster()
    tasks = task_graph(
        [compute(0), compute(0), transfer(0, 1, 8_000_000), transfer(0, 1, 8_000_000), compute(1)],
        [(1, 2), (1, 3), (2, 4)],
    )
    simulate = Simulation(Fluid(), barriers=False, collective="ring")
    timeline, recording = simulate.record(tasks, fabric, cluster)
    link = int(fabric.link_rows([0], [1])[0])
    path = recording.critical
    assert path.task.tolist() == [0, 1, 2, 4]
    assert path.cause.tolist() == [Cause.START, Cause.DEVICE, Cause.LINK, Cause.PREDECESSOR]
    assert path.by.tolist() == [-1, 0, link, 2]
    rows = recording.links
    assert set(rows.link.tolist()) == {link}
    rate = rows.nbytes / (rows.finish - rows.start)
    assert rate == pytest.approx(np.full(len(rate), 5e8), rel=1e-6)
    assert timeline.link_bytes[link] == rows.nbytes[0] + rows.nbytes[1]


def test_a_message_that_has_to_wait_names_the_link_that_was_held():
    """In FlexNet a link is held by one message at a time: the second one begins when the first has left."""
    fabric, cluster = reference.ring(), reference.cluster()
    tasks = task_graph([transfer(0, 1, 500_000), transfer(0, 1, 500_000)])
    simulate = Simulation(Flexnet(1 << 20, None), barriers=False, collective="ring")
    _, recording = simulate.record(tasks, fabric, cluster)
    path = recording.critical
    assert path.task.tolist() == [0, 1]
    assert path.cause.tolist() == [Cause.START, Cause.LINK]
    assert path.by[1] == fabric.link_rows([0], [1])[0]


@pytest.mark.parametrize("recorder", [fluid_recording, flexnet_recording], ids=["fluid", "flexnet"])
def test_too_many_rows_are_one_line(monkeypatch, recorder):
    monkeypatch.setattr(recorder, "MOST_ROWS", 10)
    model = Fluid() if recorder is fluid_recording else Flexnet(1000, None)
    simulate = Simulation(model, barriers=False, collective="ring")
    with pytest.raises(Exception, match="record: "):
        simulate.record(reference.taskgraph(), reference.ring(), reference.cluster())


@pytest.mark.parametrize("model", MODELS, ids=NAMES)
def test_room_grows_where_it_is_needed(monkeypatch, model):
    """Rows are the same, however often there was no room for more."""
    tasks = task_graph(
        [collective((0, 1, 2, 3), 40_000_000), *(transfer(a, (a + 1) % 4, 3_000_000 * (a + 1)) for a in range(4))]
    )
    where = tasks, reference.ring(), reference.cluster()
    simulate = Simulation(model, barriers=False, collective="ring")
    _, expected = simulate.record(*where)
    recorder = fluid_recording if isinstance(model, Fluid) else flexnet_recording
    make_room, counts = recorder._room, []

    def watched(count, *more):
        counts.append(count)
        return make_room(count, *more)

    monkeypatch.setattr(recorder, "_room", watched)
    monkeypatch.setattr(recorder, "SPARE", 0)
    assert simulate.record(*where)[1] == expected
    assert len(counts) > 1 or recorder is flexnet_recording


def test_rows_of_a_class_of_links_are_those_of_each():
    rows = LinkUse(link=[2, 0], task=[1, 0], start=[0.0, 1.0], finish=[1.0, 2.0], nbytes=[3.0, 4.0])
    copied = expanded(rows, np.array([0, 2, 2]))
    assert copied.link.tolist() == [0, 1, 2]
    assert copied.task.tolist() == [0, 1, 1]
    assert copied.nbytes.tolist() == [4.0, 3.0, 3.0]


def peak_of(levels, n_devices):
    """(D,) the most that a device holds at any time."""
    level, peak = np.zeros((n_devices, len(MemoryKind))), np.zeros(n_devices)
    for time in np.unique(levels.time):
        now = levels.time == time
        level[levels.device[now], levels.kind[now]] = levels.nbytes[now]
        peak = np.maximum(peak, level.sum(axis=1))
    return peak


@pytest.mark.parametrize("plan", ["data-parallel", "pipeline", "spmd"])
def test_the_peak_of_memory_is_what_the_plan_says(plan):
    host = Host.discover()
    problem, strategy = {"data-parallel": placed, "pipeline": pipelined, "spmd": programmed}[plan](host)
    lowering = Lowering(problem.graph, problem.cluster, problem.costs)
    tasks = lowering.lower(strategy)
    fabric = problem.build_fabric(None, np.random.default_rng(0))
    timeline = host.make("simulator", "fluid").build()(tasks, fabric, problem.cluster)
    levels = lowering.memory_levels(strategy, tasks, timeline)
    use = lowering.memory_use(strategy)
    assert (strategy.program is not None) == (plan == "spmd")
    assert use.activations.max() > 0
    assert (np.diff(levels.time) >= 0).all()
    assert peak_of(levels, problem.cluster.n_devices) == pytest.approx(use.total, abs=2.0)
    last = {(d, k): level for d, k, level in zip(levels.device, levels.kind, levels.nbytes, strict=True)}
    assert all(last[d, k] == 0 for d, k in last if k == MemoryKind.ACTIVATIONS)


def placed(host):
    problem = model_problem(host, "alexnet", servers=4)
    return problem, problem.space.initial()


def pipelined(host):
    problem = model_problem(host, "alexnet", servers=4)
    count = len(problem.graph.operators)
    stage = np.minimum(np.arange(count) * 4 // count, 3)
    placements = tuple(
        Placement((1,) * len(op.dims), [s]) for op, s in zip(problem.graph.operators, stage.tolist(), strict=True)
    )
    return problem, pipeline_strategy(placements, stage, "1f1b", 4)


def programmed(host):
    problem = model_problem(host, "alexnet", servers=4)
    search = build_search(host.make("searcher", "spmd"), problem, np.random.default_rng(0))
    evaluator = Evaluator(problem, host.make("simulator", "fluid").build(), "ignore")
    search.adopt(evaluator.price(Candidate(base=state_of(problem))))
    return problem, search.ask()[0].state().strategy


def test_what_is_recorded_changes_nothing_else():
    tasks = reference.taskgraph()
    simulate = Simulation(Fluid(), barriers=False, collective="ring")
    timeline, recording = simulate.record(tasks, reference.ring(), reference.cluster())
    again = simulate.record(attrs.evolve(tasks), reference.ring(), reference.cluster())
    assert (timeline, recording) == again
