"""Proposals decided per CPU second, beside FlexNet's own search in the same run, and what a change costs.

    TOPOPLAN_FLEXNET=PROGRAM .venv/bin/python benchmarks/search_speed.py
    .venv/bin/python benchmarks/search_speed.py --part 20  # a twentieth of the proposals: does it run?
    .venv/bin/python benchmarks/search_speed.py --blocks longer,changes

First block: `mcmc` with FlexNet's mix of proposals (no blocks, absolute temperature) on one switch, with the simulators
`fluid` and `flexnet`, and FlexNet's simulator and search, where the variable names a program around them.  CPU seconds
are those of the search loop alone, in a process that has run it once before; `beside` says how.  The rate grows with
the number of proposals, because later ones are repeats, so all sides decide equally many, and the table says how many.
FlexNet simulates every proposal; ours decides most of them without.

The program is a worker as `beside` has it.  A request has ``preset`` (dlrm16, dlrm128: FlexNet's settings of that
name), ``servers``, ``measures`` (its operator times, in a file as FlexNet reads them), ``proposals`` and ``seed``; the
answer, beside ``cpu_s`` of the search loop, ``initial_ms`` and ``best_ms`` of an iteration.  Where its initial time is
not that of the simulator `flexnet`, it solves another problem, and there is no ratio.

The other blocks have no peer.  Longer searches: the co-search runs `mcmc` with its own mix, colder than by default, and
`totientperm` with ``after=accepted``: one wiring, with its routes, for every move that is accepted; then the same as
two chains in two processes, which share the proposals, with the CPU seconds of all processes from their start.
Changes: pricing one changed operator, and lowering and simulating it all with nothing kept; both in turn.

DLRM's operators have the times that FlexNet's authors measured, those of other models a roofline's.  Kernels are
compiled before the clock starts.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import math
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import beside
from topoplan import Candidate, Host, State
from topoplan.search.protocol import Run
from topoplan_engine import Choice, ClusterOptions, Experiment, RunOptions, problem_on
from topoplan_engine.experiment import build_cluster, interfaces_unless_given
from topoplan_engine.lowering import Lowering
from topoplan_engine.reporting.tables import markdown_row
from topoplan_engine.search import islands
from topoplan_engine.search.evaluator import Evaluator, memory_penalty
from topoplan_engine.search.whole_run import drive
from topoplan_estimator_measured import profiles

#: FlexNet's mix of proposals.
FLEXNET = (("mcmc", {"block": 0, "temperature": "absolute"}),)
#: Strategy and network together.
TOGETHER = (("mcmc", {"alpha": 400.0}), ("totientperm", {"after": "accepted"}))
#: Preset, servers and proposals of the searches that FlexNet runs, too.
#: Of 200 proposals of dlrm128, most of the time goes into what is derived once for a placement.
BESIDE = (("dlrm16", 16, 2_000), ("dlrm16", 16, 20_000), ("dlrm128", 128, 200), ("dlrm128", 128, 2_000))
#: Preset, servers, simulator and proposals of longer ones.
LONGER = (
    ("dlrm16", 16, "fluid", 20_000),
    ("dlrm16", 16, "flexnet", 4_000),
    ("dlrm128", 128, "fluid", 1_500),
    ("dlrm128", 128, "flexnet", 400),
)
SIMULATORS = ("fluid", "flexnet")
#: Objects after which Python looks for garbage in a worker: as many as in the command `topoplan`.
COLLECT = 300_000
PEER = ("TOPOPLAN_FLEXNET", "a program around FlexNet's search")


def problem_of(host, model, preset, servers, topology):
    """Return a problem in FlexNet's setting: devices of four GPUs, 200 Gb/s inside, interfaces of 100 Gb/s."""
    given = {"preset": preset, **({"dialect": "flexnet"} if model == "dlrm" else {})} if preset else {}
    frontend = host.make("frontend", model, given)
    graph = frontend.build(None if preset else 16 * servers)
    shape = host.make("topology", topology)
    given = ClusterOptions(servers=servers, gpus_per_device=4, inter_gpu_bandwidth_gbps=200.0)
    cluster = build_cluster(interfaces_unless_given(given, [shape]))
    given = {"profile": preset} if preset else {}
    estimator = host.make("estimator", "measured" if preset else "roofline", given)
    costs = estimator.build(graph, cluster)
    return problem_on(graph, cluster, costs, shape)


def evaluator_of(host, problem, simulator):
    component = host.make("simulator", simulator)
    return Evaluator(problem, component.build(), component.memory_policy)


def run_search(host, problem, simulator, given, proposals, seed=0):
    """Search; return the result and the CPU seconds that it took."""
    made = [host.make("searcher", name, options) for name, options in given]
    rngs = np.random.default_rng(seed).spawn(len(made))
    searches = [(c.axis, c.build(problem, rng)) for c, rng in zip(made, rngs, strict=True)]
    evaluator = evaluator_of(host, problem, simulator)
    told = Run(problem=problem, budget=proposals, seed=seed, searchers=tuple(name for name, _ in given))
    begun = time.process_time()
    result = drive(told, evaluator, problem.space.initial(), searches, np.random.default_rng(seed + 1))
    return result, time.process_time() - begun


def worker(simulator):
    """Return what answers requests: FlexNet's mix of proposals on one switch, under a simulator."""
    host = Host.discover()
    gc.set_threshold(COLLECT)

    def answer(request):
        problem = problem_of(host, "dlrm", request["preset"], request["servers"], "bigswitch")
        result, taken = run_search(host, problem, simulator, FLEXNET, request["proposals"], request["seed"])
        return {"cpu_s": taken, "initial_ms": result.initial_cost * 1e3, "best_ms": result.best_cost * 1e3}

    return answer


def write_measures(name, folder):
    """Write a profile that comes with the estimator as FlexNet reads it; return its path.

    FlexNet names a cut by its number of dimensions and the degree of each, innermost first.
    """
    rows = []
    for row in profiles.rows(name):
        degrees = row["degrees"].split("x")
        times = {"fw_time": float(row["forward_ms"]), "bw_time": float(row["backward_ms"])}
        cut = "-".join([str(len(degrees)), *reversed(degrees)])
        rows.append({"name": row["operator"], "pc_str": cut, **times, "mem_req": int(float(row["memory_bytes"]))})
    profile = profiles.profile(name)
    path = Path(folder) / f"{name}.json"
    path.write_text(json.dumps({"batch_size": profile.batch_size, "ngpus": profile.ngpus, "measurements": rows}))
    return str(path)


def beside_flexnet(part, rows):
    """Print the first block, or its first rows, of a part of the proposals."""
    program = beside.path_in(*PEER)
    names = [*SIMULATORS, *(["FlexNet"] if program else [])]
    titles = [
        "model",
        "servers",
        "proposals",
        *(f"{name}, /s" for name in names),
        *(f"{name}, best ms" for name in names),
    ]
    titles += [f"{name} / FlexNet" for name in SIMULATORS] if program else []
    print(beside.table(titles, []), flush=True)
    words = {name: [sys.executable, __file__, "--worker", name] for name in SIMULATORS}
    words |= {"FlexNet": [str(program)]} if program else {}
    with tempfile.TemporaryDirectory() as folder:
        for preset, servers, whole in BESIDE[:rows]:
            proposals = whole // part
            file = write_measures(preset, folder)
            request = {"preset": preset, "servers": servers, "measures": file, "proposals": proposals, "seed": 0}
            sides = {n: beside.Side(functools.partial(beside.Worker, these), request) for n, these in words.items()}
            print(row(preset, servers, proposals, beside.measure(sides)), flush=True)
    print()


def row(preset, servers, proposals, found):
    """Return a row of the first block."""
    rates = {name: proposals / one.warm for name, one in found.items()}
    cells = [preset, str(servers), str(proposals), *(f"{rate:.0f}" for rate in rates.values())]
    cells += [f"{one.answer['best_ms']:.3f}" for one in found.values()]
    if "FlexNet" in found:
        ours, theirs = (found[side].answer["initial_ms"] for side in ("flexnet", "FlexNet"))
        same = abs(ours / theirs - 1) < 1e-6
        cells += [f"{rates[name] / rates['FlexNet']:.1f}" if same else "-" for name in SIMULATORS]
        if not same:
            print(f"{preset}: initially {ours} ms of ours, {theirs} ms of FlexNet", file=sys.stderr)
    return markdown_row(cells)


def search_speed(host, problem, simulator, proposals, given=FLEXNET):
    """Print proposals decided per CPU second."""
    run_search(host, problem, simulator, given, 10)
    result, taken = run_search(host, problem, simulator, given, proposals)
    _print_search(problem.graph.name, problem.cluster.n_hosts, problem.topology, simulator, proposals, taken, result)


def _print_search(*what):
    *names, proposals, taken, result = what
    cells = [*map(str, names), str(proposals), f"{taken:.1f}", f"{proposals / taken:.0f}"]
    print(markdown_row([*cells, f"{result.acceptance:.0%}", f"{result.best_cost * 1e3:.3f}"]), flush=True)


def cpu_seconds():
    """Return the CPU seconds of this process and of those that it has waited for."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def chains_speed(host, proposals, count=2):
    """Print proposals decided per CPU second by chains in as many processes: dlrm128, as `problem_of` has it."""
    experiment = Experiment(
        model=Choice("dlrm", {"preset": "dlrm128", "dialect": "flexnet"}),
        cluster=ClusterOptions(servers=128, gpus_per_device=4, inter_gpu_bandwidth_gbps=200.0),
        topology="topoopt",
        estimator=Choice("measured", {"profile": "dlrm128"}),
        searchers=[Choice(name, options) for name, options in TOGETHER],
        run=RunOptions(budget=proposals, chains=count, workers=count),
    )
    begun = cpu_seconds()
    result = islands.search(host, experiment)
    taken = cpu_seconds() - begun
    _print_search(f"dlrm, {count} chains", 128, "topoopt", "fluid", proposals, taken, result)


def change_speed(host, problem, simulator, count=12):
    """Print the CPU time of pricing one changed operator, and of lowering and simulating it all from nothing."""
    rng = np.random.default_rng(0)
    kept = evaluator_of(host, problem, simulator)
    base = State(problem.space.initial(), problem.build_fabric(None, rng))
    kept.price(Candidate(base=base))
    seconds = np.zeros(2)
    for _ in range(count):
        op = int(rng.integers(len(base.strategy.placements)))
        candidate = Candidate(base=base, placements={op: problem.space.random_placement(op, rng)})
        component = host.make("simulator", simulator)
        simulate, state = component.build(), candidate.state()
        begin = time.process_time()
        changed = kept.price(candidate).cost
        seconds[0] += time.process_time() - begin
        begin = time.process_time()
        taskgraph = Lowering(problem.graph, problem.cluster, problem.costs).lower(state.strategy)
        whole = simulate.makespan(taskgraph, state.fabric, problem.cluster)
        seconds[1] += time.process_time() - begin
        penalty = memory_penalty(kept.memory(state.strategy), problem.cluster.device_memory, component.memory_policy)
        assert math.isclose(changed, penalty + whole, rel_tol=1e-12)  # the price of a quotient may be rounded otherwise
    change, full = seconds / count * 1e3
    cells = [problem.graph.name, str(problem.cluster.n_hosts), simulator, f"{change:.2f}", f"{full:.2f}"]
    print(markdown_row([*cells, f"{full / change:.1f}"]), flush=True)


def longer_searches(part, rows):
    """Print the searches without a peer, or the first of them."""
    titles = ["model", "servers", "network", "simulator", "proposals", "CPU s", "a CPU second", "accepted", "best, ms"]
    print(beside.table(titles, []), flush=True)
    host = Host.discover()
    for preset, servers, simulator, proposals in LONGER[:rows]:
        search_speed(host, problem_of(host, "dlrm", preset, servers, "bigswitch"), simulator, proposals // part)
    if rows is None:
        problem = problem_of(host, "dlrm", "dlrm128", 128, "topoopt")
        search_speed(host, problem, "fluid", 4_000 // part, TOGETHER)
        chains_speed(host, 4_000 // part)
    print()


def changes(part, rows):
    """Print what it takes to price a change."""
    titles = ["model", "servers", "simulator", "change, ms", "from nothing, ms", "ratio"]
    print(beside.table(titles, []), flush=True)
    host = Host.discover()
    for model, preset in (("dlrm", "dlrm128"), ("vgg16", None), ("transformer", None))[:rows]:
        problem = problem_of(host, model, preset, 128, "bigswitch")
        for simulator in SIMULATORS:
            change_speed(host, problem, simulator)


BLOCKS = {"beside": beside_flexnet, "longer": longer_searches, "changes": changes}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        beside.serve(worker(sys.argv[2]))
    else:
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--part", type=int, default=1, metavar="N", help="one of N parts of the proposals")
        parser.add_argument("--blocks", default=",".join(BLOCKS), help=f"of {', '.join(BLOCKS)}")
        parser.add_argument("--rows", type=int, metavar="N", help="the first of each block; unset: all")
        given = parser.parse_args()
        for name in given.blocks.split(","):
            if name not in BLOCKS:
                beside.refuse(f"--blocks: no block {name!r} (have: {', '.join(BLOCKS)})")
            BLOCKS[name](given.part, given.rows)
