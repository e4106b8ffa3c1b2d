"""The planner against the released search in plain Python, and its parts against sums done by hand."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topoplan import Cluster, TopoplanError
from topoplan_pipeline_planning.latency import early_backward_seconds
from topoplan_pipeline_planning.layers import Layers, OperatorColumns
from topoplan_pipeline_planning.machine import Bandwidths, Machine
from topoplan_pipeline_planning.placing import placements, replicated_placements
from topoplan_pipeline_planning.planning import plan, shortlist
from topoplan_pipeline_planning.states import antichain_states
from topoplan_reference.hpgo import reference_best, reference_candidates
from topoplan_reference.hpgo import replicated_placements as device_by_device

CHAIN_4 = [[1], [2], [3], []]


def layers_of(children, seed):
    """Return layers of random times and bytes: communication takes about as long as computing."""
    rng = np.random.default_rng(seed)
    count = len(children)
    columns = OperatorColumns(
        forward=rng.uniform(0.1, 1.0, count),
        backward=rng.uniform(0.1, 2.0, count),
        activations=rng.uniform(0, 1, count) * 10.0 ** rng.uniform(6, 9),
        parameters=rng.uniform(0, 1, count) * 10.0 ** rng.uniform(6, 9.5),
    )
    return Layers.of(antichain_states(children, 1000), columns)


@st.composite
def models(draw):
    """Draw the layers of a DAG in which the first operator leads everywhere."""
    count = draw(st.integers(1, 6))
    children = [[] for _ in range(count)]
    for v in range(1, count):
        for u in sorted(draw(st.sets(st.integers(0, v - 1), min_size=1, max_size=2))):
            children[u].append(v)
    return layers_of(children, draw(st.integers(0, 10**6)))


machines = st.lists(st.integers(1, 3), min_size=1, max_size=4).filter(lambda sizes: 1 < sum(sizes) <= 5)


@settings(max_examples=60)
@given(models(), machines, st.integers(1, 40), st.integers(1, 3))
def test_the_released_search_finds_nothing_better_or_else(layers, sizes, batch, micro_batch):
    micro_batch = min(micro_batch, batch)
    machine = Machine.split(np.cumsum(sizes).tolist())
    speedup, spans, pipelines = reference_best(layers, machine, batch, micro_batch)
    result = plan(layers, np.cumsum(sizes).tolist(), batch, micro_batch=micro_batch)
    assert result.speedup == pytest.approx(speedup, rel=1e-12)
    best = [c for c in reference_candidates(layers, machine, batch, micro_batch) if c[0] == speedup]
    if len(best) == 1:
        assert [(s.start, s.end - 1, s.replication, s.devices) for s in result.stages] == spans
        assert result.pipelines == pipelines


@settings(max_examples=30)
@given(models(), machines)
def test_stages_share_out_layers_and_devices(layers, sizes):
    machine = Machine.split(np.cumsum(sizes).tolist())
    for result in shortlist(layers, machine, 64):
        assert result.stages[0].start == 0
        assert result.stages[-1].end == layers.count
        assert all(a.end == b.start for a, b in zip(result.stages, result.stages[1:], strict=False))
        devices = [device for stage in result.stages for device in stage.devices]
        assert len(devices) == len(set(devices)) <= machine.n_devices
        assert all(len(s.devices) == s.replication * result.pipelines for s in result.stages)


def test_equal_times_without_communication_split_evenly():
    columns = OperatorColumns(forward=np.ones(4), backward=np.ones(4), activations=np.ones(4), parameters=np.ones(4))
    layers = Layers.of(antichain_states(CHAIN_4, 9), columns)
    results = shortlist(layers, Machine.split([4]), 400)
    by_family = {result.family: result for result in results}
    assert by_family["one device each"].split == "1|1|1|1 @1 @2 @3"
    # M micro-batches through S stages take M + S - 1 steps.
    assert by_family["one device each"].speedup == pytest.approx(8 / (2 / 400 * (400 + 3)))
    assert by_family["equal halves"].split == "2|2 @2"


def test_a_host_without_a_neighbour_is_one_device():
    layers = layers_of(CHAIN_4, 1)
    result = plan(layers, [1], 8)
    assert (result.split, result.speedup) == ("1", pytest.approx(1.0))


@pytest.mark.parametrize(
    ("ends", "batch", "micro_batch", "message"),
    [
        ([8, 8], 8, 1, "host 1 ends at 8, before it has a device"),
        ([], 8, 1, "no host"),
        ([0, 2], 8, 1, "host 0 ends at 0"),
        ([2], 8, 9, "micro-batch 9 is larger than the batch of 8"),
    ],
)
def test_bad_questions_are_refused(ends, batch, micro_batch, message):
    with pytest.raises(TopoplanError, match=message):
        plan(layers_of(CHAIN_4, 1), ends, batch, micro_batch=micro_batch)


def test_communication_by_hand():
    machine = Machine.split([2, 4], Bandwidths(inside=10.0, transfer=2.0, allreduce=5.0))
    assert machine.host == (0, 0, 1, 1)
    assert machine.allreduce((1,), 100.0) == 0
    assert machine.allreduce((0, 1), 100.0) == pytest.approx(100.0 / 10)  # one ring inside
    assert machine.allreduce((0, 1, 2, 3), 100.0) == pytest.approx(150.0 / 5)
    assert machine.transfer((0,), (1,), 100.0) == pytest.approx(10)
    assert machine.transfer((0, 1), (2, 3), 100.0) == pytest.approx(50)  # all of it through the network
    assert machine.transfer((1, 2), (3,), 100.0) == pytest.approx(25)  # half of it
    assert machine.transfer((0,), (1, 2), 100.0) == pytest.approx(20)
    assert Machine.split([4]).allreduce((0, 1, 2, 3), 25e9) == pytest.approx(1.5 / 2)  # two rings


def test_bandwidths_of_a_cluster_are_those_of_its_slowest_host():
    cluster = Cluster.uniform(n_hosts=2, interfaces=2, interface_bandwidth=3.0, inside_bandwidth=7.0)
    assert Bandwidths.of(cluster) == Bandwidths(inside=7.0, transfer=6.0, allreduce=6.0)


def test_policies_choose_fresh_used_or_scattered_devices():
    machine = Machine.split([4, 8, 12])
    used = frozenset({0, 1})
    assert placements(machine, used, 2) == ((4, 5), (2, 3), (2, 4))
    assert placements(machine, used, 3) == ((4, 5, 6), (2, 4, 8))  # two are left where some are used
    assert placements(machine, frozenset(), 12) == (tuple(range(12)),)
    assert placements(machine, frozenset(range(11)), 2) == ()
    assert replicated_placements(machine, frozenset({0}), 2) == ((4, 8), (1, 4), (1, 2))


@given(data=st.data())
def test_one_device_for_each_replica_is_placed_as_device_by_device(data):
    ends = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    machine = Machine.split([sum(ends[: k + 1]) for k in range(len(ends))])
    n_devices = sum(ends)
    occupied = frozenset(data.draw(st.sets(st.integers(0, n_devices - 1))))
    replicas = data.draw(st.integers(0, n_devices))
    unions = replicated_placements(machine, occupied, replicas)
    assert unions == device_by_device(machine, occupied, 1, replicas)


@pytest.mark.slow
def test_replicas_on_many_hosts_are_placed_in_the_time_of_their_number():
    machine = Machine.split([8 * host for host in range(1, 513)])
    before = time.process_time()
    unions = replicated_placements(machine, frozenset(range(2048)), 2048)
    assert unions == (tuple(range(2048, 4096)),)
    assert time.process_time() - before < 5.0


@given(
    st.lists(st.floats(0.1, 10), min_size=1, max_size=6),
    st.integers(1, 12),
    st.lists(st.floats(0, 5), min_size=6, max_size=6),
)
def test_early_backward_is_its_recurrence(steps, micro_batches, reductions):
    count = len(steps)
    memo = {}

    def recur(what, i, x):
        if not (0 <= i < micro_batches and 0 <= x < count):
            return 0.0
        if (what, i, x) not in memo:
            warm_up = count - x
            if what == "f":
                after = (recur("b", i - warm_up, x), recur("f", i - 1, x), recur("f", i, x - 1))
            else:
                after = (recur("b", i, x + 1), recur("f", i + warm_up - 1, x))
            memo[what, i, x] = steps[x] + max(after)
        return memo[what, i, x]

    expected = max(recur("b", micro_batches - 1, x) + reductions[x] for x in range(count))
    actual = early_backward_seconds(np.array(steps), np.array(reductions[:count]), micro_batches)
    assert actual == pytest.approx(expected, rel=1e-12)
