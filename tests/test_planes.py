"""Planes: random plans take what whole iterations take, exchanges what is calculated by hand, and draws are said."""

from __future__ import annotations

import random

import attrs
import numpy as np
import pytest

from topoplan import Candidate, Collective, Host, State, TopoplanError
from topoplan_engine import problem_on
from topoplan_engine.lowering.staged import StagedLowering
from topoplan_engine.network.doors import some_links
from topoplan_engine.network.kept import NetworkCache
from topoplan_engine.network.machine import network_of
from topoplan_engine.search.evaluator import Evaluator
from topoplan_engine.simulation.collective_choice import CollectiveChoice
from topoplan_engine.simulation.deferred import simulated_words
from topoplan_engine.simulation.written_out import written_out
from topoplan_estimator_roofline import Roofline
from topoplan_samples.plans_drawn import cluster_of, drawn_plan, fabric_of, models_in
from topoplan_samples.tasks import collective, task_graph
from topoplan_searcher_stated.construct import strategy_of
from topoplan_searcher_stated.settings import Settings
from topoplan_simulator_fluid import Fluid
from topoplan_simulator_fluid.max_min import ALWAYS
from topoplan_simulator_fluid.model import Model

AUTO = "all-reduce=auto;all-gather=auto;reduce-scatter=auto;all-to-all=auto"
CHOICES = ["", AUTO, "all-reduce=tree;all-gather=multi-ring;reduce-scatter=multi-ring;all-to-all=staggered"]
PLANES = ["fattree/paths=1", "fattree/paths=1/oversubscription=2", "fattree/paths=1/oversubscription=4", "bigswitch"]
RATE = 1e9


@pytest.fixture(scope="module")
def model_of(tmp_path_factory):
    return models_in(tmp_path_factory.mktemp("models"))


def with_failures(fabric, draw):
    """Return a fabric without one link in twenty, at hosts or between switches, or with all of them."""
    at_hosts = np.minimum(fabric.link_src, fabric.link_dst) < fabric.n_hosts
    some = {"none": at_hosts & False, "nics": at_hosts, "links": ~at_hosts}[draw.choice(["none", "nics", "links"])]
    joined = np.stack([np.minimum(fabric.link_src, fabric.link_dst), np.maximum(fabric.link_src, fabric.link_dst)])
    cables = sorted({tuple(pair) for pair in joined[:, some].T.tolist()})
    lost = set(draw.sample(cables, len(cables) // 20))
    kept = [link for link, pair in enumerate(map(tuple, joined.T.tolist())) if pair not in lost]
    return some_links(fabric, np.array(kept))


def random_plan(seed, model_of):
    """Return a plan of one stage on planes, and how its collectives run; None for what does not go together."""
    draw = random.Random(seed)
    planes, of = str(draw.choice([2, 4, 8])), draw.choice([*PLANES, "rail-optimized", "rail-only"])
    topology, options = (of, {"planes": planes}) if "rail" in of else ("multi-plane", {"of": of, "planes": planes})
    sizes = [4, 8, 16, 32], [1, 2, 4, 8]
    plan = drawn_plan(seed, model_of, options_of={topology: options}, topology=topology, sizes=sizes, batch=64)
    if plan is None or len(plan[3].stages) > 1:
        return None
    graph, cluster, fabric, strategy = plan
    return graph, cluster, with_failures(fabric, draw), strategy, draw.choice(CHOICES)


def compare(graph, cluster, fabric, strategy, text):
    """Compare a folded iteration with the whole one; return whether neither draws."""
    choice = CollectiveChoice(text, "none") if text else CollectiveChoice("")
    one_task = Collective.ALL_TO_ALL in choice.algorithms
    lowering = StagedLowering(graph, cluster, Roofline().build(graph, cluster), one_task=one_task)
    model = Model(algorithms=choice)
    tasks = lowering.lower(strategy)
    tasks = written_out(tasks, choice.algorithms).taskgraph if text else tasks
    prepared = model.prepare(tasks, network_of(fabric, cluster))
    if model.draws(prepared):
        return False
    whole = model.simulate(prepared._replace(late_ends=ALWAYS))
    network = (NetworkCache().get if text else NetworkCache().for_folds)(fabric, cluster)
    folded = lowering.fold(strategy, lambda messages: model.message_loads(messages, network), choice.algorithms)
    outcome, _ = model.simulate_folded(folded, network)
    if folded.draws and not text:  # hosts have lost different numbers of lanes, and the fold says that it spreads
        assert outcome.makespan == pytest.approx(whole.makespan, rel=1e-4)
        return False
    assert outcome.makespan == pytest.approx(whole.makespan, rel=1e-9)
    np.testing.assert_allclose(outcome.link_bytes, whole.link_bytes, rtol=1e-9, atol=1.0)
    return True


def compare_some(first, count, model_of):
    compared, seed = 0, first
    while compared < count:
        seed += 1
        plan = random_plan(seed, model_of)
        try:
            compared += plan is not None and compare(*plan)
        except TopoplanError:  # a host that has lost all ways to another one
            continue


def test_random_plans_on_planes_take_what_whole_iterations_take(model_of):
    compare_some(1000, 3, model_of)


@pytest.mark.slow
def test_fifty_random_plans_on_planes_take_what_whole_iterations_take(model_of):
    """Planes of 2, 4 and 8, oversubscribed, with links and NICs that failed, and with chosen algorithms."""
    compare_some(2000, 50, model_of)


@pytest.mark.parametrize("planes", [1, 2, 4])
@pytest.mark.parametrize("hosts", [2, 8])
def test_an_all_reduce_and_an_all_to_all_on_planes_take_what_a_hand_calculation_says(planes, hosts):
    """A ring has a lane on each plane: 2 (n-1)/n S over the whole interface.

    Of an all-to-all each host sends n - 1 messages of S / n.  Spread over all planes, as an algorithm loads them, they
    fill the interface: (n-1)/n S.
    """
    cluster = cluster_of(hosts, 1)
    cluster = attrs.evolve(cluster, latency=0.0, interface_bandwidth=np.full(hosts, RATE))
    options = {"of": "bigswitch", "planes": str(planes)}
    fabric = fabric_of("multi-plane", cluster, options) if planes > 1 else fabric_of("bigswitch", cluster, {})
    size, times = 1 << 30, {"": 2, "all-reduce=ring": 2, "all-to-all=direct": 1}
    for text, rounds in times.items():
        kind = Collective.ALL_TO_ALL if "all-to-all" in text else Collective.ALL_REDUCE
        tasks = task_graph([collective(range(hosts), size, kind=kind)], n_devices=hosts)
        model = Model(algorithms=CollectiveChoice(text, "none")) if text else Model()
        outcome = model.simulate(model.prepare(tasks, network_of(fabric, cluster)))
        assert outcome.makespan == pytest.approx(rounds * (hosts - 1) / hosts * size / RATE, rel=1e-3)


@pytest.mark.parametrize(
    ("topology", "options", "algorithms", "settings", "said"),
    [
        ("rail-only", {"planes": "2"}, "", Settings(tp=2, zero=1), False),
        ("multi-plane", {"of": "fattree", "planes": "2"}, "all-reduce=tree", Settings(tp=2), False),
        ("multi-plane", {"of": "fattree", "planes": "2"}, "all-reduce=tree", Settings(tp=2, pp=2), True),
        ("rail-only", {"planes": "2"}, "", Settings(tp=2, pp=2), True),
    ],
)
def test_paths_are_said_to_be_spread_where_messages_draw_some(
    topology, options, algorithms, settings, said, model_of, monkeypatch
):
    """Rings have all planes, and algorithms load all paths; a message between stages takes one plane."""
    monkeypatch.setattr("topoplan_engine.simulation.folds._FOLDED", 0)
    monkeypatch.setattr("topoplan_engine.simulation.folds._FOLDED_DRAWS", 0)
    graph, cluster, host = model_of("dense", 2, 64), cluster_of(16, 2, 4), Host.discover()
    fabric = fabric_of(topology, cluster, options)
    strategy, _ = strategy_of(settings, graph, cluster.n_devices)
    problem = problem_on(graph, cluster, Roofline().build(graph, cluster), host.make("topology", "bigswitch"))
    simulate = Fluid().build().with_host(host)
    simulate = simulate.with_algorithms(algorithms) if algorithms else simulate
    evaluator, state = Evaluator(problem, simulate, "ignore"), State(strategy, fabric)
    evaluator.price(Candidate(base=state))
    timeline = evaluator.plan(state, {}).timeline
    assert timeline is not None
    assert ("spread over its equal paths" in simulated_words(timeline)) == said
