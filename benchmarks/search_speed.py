"""Proposals decided per second, and what a change costs beside pricing from scratch.

    .venv/bin/python benchmarks/search_speed.py [folder with FlexNet measurement files]

Prints one line per case.  Searches run `mcmc` with FlexNet's mix of proposals (no blocks, absolute temperature).  The
co-search runs `mcmc` with its own mix, colder than by default, and `totientperm` with ``after=accepted``: one wiring,
with its routes, for every move that is accepted.  Then the same search runs as two chains in two processes, which
share the proposals; their time includes the start of the processes.  Without a folder the roofline estimator prices
operators.  Kernels are compiled before the clock starts.  A full evaluation lowers and compiles the network with
nothing kept; both sides of its ratio run in turn.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from topoplan import Candidate, Choice, ClusterOptions, Experiment, Host, RunOptions, State, TopologyContext, chains
from topoplan.evaluate import Evaluator, memory_penalty
from topoplan.experiment import build_cluster
from topoplan.lowering import Lowering
from topoplan.problem import Problem
from topoplan.run import Run, drive
from topoplan.space import Space

#: FlexNet's mix of proposals.
FLEXNET = (("mcmc", {"block": 0, "temperature": "absolute"}),)
#: Strategy and network together.
TOGETHER = (("mcmc", {"alpha": 400.0}), ("totientperm", {"after": "accepted"}))


def problem_of(host, model, preset, servers, topology, measures=None):
    """Return a problem in FlexNet's setting: devices of four GPUs, 200 Gb/s inside, interfaces of 100 Gb/s."""
    given = {"preset": preset, **({"dialect": "flexnet"} if model == "dlrm" else {})} if preset else {}
    frontend, options = host.make("frontend", model, given)
    graph = frontend.build(options, None if preset else 16 * servers)
    cluster = build_cluster(ClusterOptions(servers=servers, big_gpu=4, inter_gpu_bandwidth_gbps=200.0))
    measured = measures is not None and preset is not None
    given = {"file": str(measures / f"{preset}.json")} if measured else {}
    estimator, options = host.make("estimator", "measured" if measured else "roofline", given)
    costs = estimator.build(options, graph, cluster)
    shape, shape_options = host.make("topology", topology)

    def build(demand, rng):
        return shape.build(shape_options, TopologyContext(cluster=cluster, demand=demand, rng=rng))

    return Problem(
        graph=graph, cluster=cluster, costs=costs, space=Space(graph, cluster, costs), topology=topology,
        build_fabric=build, reconfigurable=shape.follows_demand,
    )  # fmt: skip


def evaluator_of(host, problem, simulator):
    component, options = host.make("simulator", simulator)
    return Evaluator(problem, component.build(options), component.memory(options))


def search_speed(host, problem, simulator, proposals, co=False):
    """Print proposals decided per second."""
    given = TOGETHER if co else FLEXNET

    def run(budget):
        made = [host.make("searcher", name, options) for name, options in given]
        rngs = np.random.default_rng(0).spawn(len(made))
        searches = [(c.axis, c.build(o, problem, rng)) for (c, o), rng in zip(made, rngs, strict=True)]
        evaluator = evaluator_of(host, problem, simulator)
        told = Run(problem=problem, budget=budget, seed=0, searchers=tuple(name for name, _ in given))
        return drive(told, evaluator, problem.space.initial(), searches, np.random.default_rng(1))

    run(10)
    result = run(proposals)
    what = f"{problem.graph.name:12s} {problem.cluster.n_hosts:4d} servers  {problem.topology:10s} {simulator:8s}"
    print(
        f"{what} {proposals:6d} proposals in {result.elapsed:6.1f} s: {proposals / result.elapsed:7.1f}/s, "
        f"accepted {result.acceptance:.0%}, best {result.best_cost * 1e3:.3f} ms",
        flush=True,
    )


def chains_speed(host, proposals, measures, count=2):
    """Print proposals decided per second by chains in as many processes: dlrm128, as `problem_of` has it."""
    experiment = Experiment(
        model=Choice("dlrm", {"preset": "dlrm128", "dialect": "flexnet"}),
        cluster=ClusterOptions(servers=128, big_gpu=4, inter_gpu_bandwidth_gbps=200.0),
        topology="topoopt",
        estimator="roofline" if measures is None else Choice("measured", {"file": str(measures / "dlrm128.json")}),
        searchers=[Choice(name, options) for name, options in TOGETHER],
        run=RunOptions(budget=proposals, chains=count, workers=count),
    )
    result, _ = chains.search(host, experiment)
    print(
        f"dlrm          128 servers  topoopt    fluid    {proposals:6d} proposals in {result.elapsed:6.1f} s: "
        f"{proposals / result.elapsed:7.1f}/s, {count} chains in {count} processes, "
        f"best {result.best_cost * 1e3:.3f} ms",
        flush=True,
    )


def change_speed(host, problem, simulator, count=12):
    """Print the time of pricing one changed operator, and of lowering and simulating it all from nothing."""
    rng = np.random.default_rng(0)
    kept = evaluator_of(host, problem, simulator)
    base = State(problem.space.initial(), problem.build_fabric(None, rng))
    kept.price(Candidate(base=base))
    seconds = np.zeros(2)
    for _ in range(count):
        op = int(rng.integers(len(base.strategy.placements)))
        candidate = Candidate(base=base, placements={op: problem.space.random_placement(op, rng)})
        component, options = host.make("simulator", simulator)
        simulate, state = component.build(options), candidate.state()
        begin = time.perf_counter()
        changed = kept.price(candidate).cost
        seconds[0] += time.perf_counter() - begin
        begin = time.perf_counter()
        taskgraph = Lowering(problem.graph, problem.cluster, problem.costs).lower(state.strategy)
        whole = simulate.makespan(taskgraph, state.fabric, problem.cluster)
        seconds[1] += time.perf_counter() - begin
        penalty = memory_penalty(kept.memory(state.strategy), problem.cluster.device_memory, component.memory(options))
        assert changed == penalty + whole
    change, full = seconds / count * 1e3
    print(
        f"{problem.graph.name:12s} {problem.cluster.n_hosts:4d} servers  {simulator:8s} change {change:7.2f} ms, "
        f"from scratch {full:7.2f} ms: {full / change:.1f} x",
        flush=True,
    )


def main() -> None:
    host = Host.discover()
    measures = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    for preset, servers, proposals in (("dlrm16", 16, (20_000, 4_000)), ("dlrm128", 128, (1_500, 400))):
        problem = problem_of(host, "dlrm", preset, servers, "bigswitch", measures)
        for simulator, budget in zip(("fluid", "flexnet"), proposals, strict=True):
            search_speed(host, problem, simulator, budget)
    search_speed(host, problem_of(host, "dlrm", "dlrm128", 128, "topoopt", measures), "fluid", 4_000, co=True)
    chains_speed(host, 4_000, measures)
    for model, preset in (("dlrm", "dlrm128"), ("vgg16", None), ("transformer", None)):
        problem = problem_of(host, model, preset, 128, "bigswitch", measures)
        for simulator in ("fluid", "flexnet"):
            change_speed(host, problem, simulator)


if __name__ == "__main__":
    main()
