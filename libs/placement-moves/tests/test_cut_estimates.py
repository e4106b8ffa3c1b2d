"""Estimates beside what is lowered: exact where every device fetches equally much."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from topoplan import Cluster
from topoplan.testing import reference
from topoplan_engine import problem_on_fabric
from topoplan_engine.lowering.fragment_cache import FragmentCache
from topoplan_placement_moves.cut_estimates import CutEstimates
from topoplan_placement_moves.planning import plans
from topoplan_samples.costs import FlatCosts
from topoplan_samples.graphs import two_linears


@pytest.fixture
def problem():
    return problem_on_fabric(two_linears(), Cluster.uniform(n_hosts=4), FlatCosts(), reference.ring())


def test_edges_take_as_long_as_the_host_that_fetches_most(problem):
    estimates, fragments = CutEstimates(problem), FragmentCache(problem.graph, problem.cluster, problem.costs)
    rate = problem.cluster.interfaces[0] * problem.cluster.interface_bandwidth[0]
    for edge, ((u, v), table) in enumerate(estimates.edges().items()):
        assert table.shape == (len(estimates.cuts[u]), len(estimates.cuts[v]))
        for row, first in enumerate(estimates.cuts[u]):
            for column, second in enumerate(estimates.cuts[v]):
                fragment = fragments.edge(edge, {u: first, v: second})
                sizes = np.where(fragment.local, 0, fragment.size)
                fetched = np.bincount(fragment.devices[1], sizes, 4).max()
                sent = sizes.sum() / first.parts
                assert table[row, column] == pytest.approx(2 * max(fetched, sent) / rate)


def test_edges_of_hosts_with_several_devices_are_those_of_a_loop_over_devices():
    """Whole cuts, device by device: what each lacks of its slice comes equally from all devices of the producer."""
    cluster = Cluster.uniform(n_hosts=3, devices_per_host=2, inside_bandwidth=2e9)
    problem = problem_on_fabric(two_linears(), cluster, FlatCosts(), reference.ring(3))
    estimates, graph = CutEstimates(problem), problem.graph
    fragments = FragmentCache(graph, cluster, problem.costs)
    rate, host = cluster.interfaces[0] * cluster.interface_bandwidth[0], cluster.device_host
    for edge, ((u, v), table) in enumerate(estimates.edges().items()):
        for row, first in enumerate(estimates.cuts[u]):
            for column, second in enumerate(estimates.cuts[v]):
                fragment = fragments.edge(edge, {u: first, v: second})
                sizes = np.where(fragment.local, 0, fragment.size)
                fetched = 2.0 * np.bincount(fragment.devices[1], sizes, 6)
                on_host = np.bincount(host[first.devices], minlength=3)
                inside = fetched * (on_host / first.parts)[host]
                far = fetched - inside
                received, sent = np.bincount(host, far).max(), far.sum() / (on_host > 0).sum()
                expected = max(max(received, sent) / rate, inside.max() / cluster.inside_bandwidth[0])
                assert table[row, column] == pytest.approx(expected)


def test_gradients_take_as_long_as_rings(problem):
    estimates = CutEstimates(problem)
    rate = problem.cluster.interfaces[0] * problem.cluster.interface_bandwidth[0]
    operator = problem.graph.operators[0]
    samples = operator.sample_cut(4)
    position = [cut.degrees for cut in estimates.cuts[0]].index(samples)
    size = sum(weight.nbytes for weight in operator.weights)
    assert estimates.gradients[0][position] == pytest.approx(2 * 3 / 4 * size / rate)
    whole = [cut.parts for cut in estimates.cuts[0]].index(1)
    assert estimates.gradients[0][whole] == 0


@pytest.mark.parametrize(("per_part", "share"), [(False, 7 / 8), (True, 1 / 8)])
def test_gpus_of_a_device_take_as_long_as_when_they_are_simulated(problem, per_part, share):
    """Twice (n-1)/n of a weight passes over each link of eight GPUs; in FlexNet, whose pairs have links, 1/n."""
    cluster = Cluster.uniform(n_hosts=4, gpus_per_device=8, inside_bandwidth=2e9)
    graph = attrs.evolve(problem.graph, reduces_per_part=per_part)
    estimates, single = (
        CutEstimates(problem_on_fabric(graph, cluster, FlatCosts(), reference.ring())),
        CutEstimates(problem),
    )
    fragments, nbytes = FragmentCache(graph, cluster, FlatCosts()), sum(w.nbytes for w in graph.operators[0].weights)
    for cut, seconds, alone in zip(estimates.cuts[0], estimates.gradients[0], single.gradients[0], strict=True):
        if cut.parts == 1 or cut.degrees == graph.operators[0].sample_cut(4):
            assert seconds - alone == pytest.approx(2 * share * nbytes / 2e9)
            assert fragments.operator(0, cut).group_seconds.sum() == pytest.approx(2 * share * nbytes / 2e9)


def test_estimates_are_made_in_parts_where_they_take_long(problem, monkeypatch):
    whole = CutEstimates(problem).edges()
    monkeypatch.setattr("topoplan_placement_moves.cut_estimates._AT_A_TIME", 1)
    parts = [dict(sums) for sums in CutEstimates(problem).growing_edges()]
    assert len(parts) > len(whole)
    assert parts[-1].keys() == whole.keys()
    assert all((parts[-1][ends] == whole[ends]).all() for ends in whole)
    plan = plans(problem)
    assert [next(plan) for _ in parts[1:]] == [None] * (len(parts) - 1)
    assert next(plan) is not None
