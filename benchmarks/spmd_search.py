"""CPU seconds of HiDup's search, beside those of the released module in the same run, by layers and by devices.

    TOPOPLAN_HIDUP=FOLDER TOPOPLAN_HIDUP_PYTHON=PYTHON3.7 .venv/bin/python benchmarks/spmd_search.py

The folder holds the released search module, as ``spmd.so``; it loads in CPython 3.7 alone, which the other variable
names (``python3.7`` unless given).  Without the folder there are our seconds and no ratio.

Both sides search the same program, instruction for instruction, each with its forms, and both count the frontier
entries that they go through; where these differ, or the stages of the plans, a line on standard error says so.  Ours
includes writing the program down from the model; the release's excludes its tracing of the model by PyTorch.  For each
case there are CPU seconds of a call in a process that has made one before (warm), and of the first call of a process
(first); `beside` says how.  There is no whole command: the release's starts PyTorch to trace the model.

The last block is the searcher spmd, which has no peer, on hosts of eight devices: meshes there are, those that were
given up, and CPU seconds of planning on all of them.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from pathlib import Path

import numpy as np

import beside
from topoplan import Cluster, State, Trial
from topoplan_engine import problem_on
from topoplan_engine.reporting.tables import markdown_row
from topoplan_estimator_hidup import Hidup
from topoplan_estimator_hidup.cost import RELEASED
from topoplan_estimator_hidup.flops import flops
from topoplan_frontend_hidup import BertSgmoe, VitSgmoe
from topoplan_searcher_spmd import Spmd
from topoplan_searcher_spmd.search import SpmdSearch
from topoplan_spmd_planning.planning import plan
from topoplan_spmd_planning.prices import Prices
from topoplan_spmd_planning.program import Verb, write_down
from topoplan_spmd_planning.released import released
from topoplan_topology_bigswitch import BigSwitch

MODELS = ("bert-sgmoe", "bert-switch", "vit-sgmoe", "vit-switch")
#: Title -> (model, devices, layers) of its rows.
BLOCKS = {
    "models": [(model, 8, 8) for model in MODELS],
    "layers": [("bert-sgmoe", 8, layers) for layers in (6, 12, 24, 48, 96)],
    "devices": [("bert-sgmoe", devices, 8) for devices in (8, 64, 512, 4096)],
}
PEER = ("TOPOPLAN_HIDUP", "the folder with HiDup's search module, spmd.so")
PYTHON = ("TOPOPLAN_HIDUP_PYTHON", "a Python 3.7")
#: How a PyTorch trace names what an instruction does.
TRACED = {Verb.TAKE: "placeholder", Verb.READ: "get_attr", Verb.RUN: "call_function", Verb.LOSS: "output"}


def problem_of(model, devices, layers, hosts=1):
    frontend = BertSgmoe if model.startswith("bert") else VitSgmoe
    graph = frontend(world_size=devices, layers=layers).build(None)
    cluster = Cluster.uniform(n_hosts=hosts, devices_per_host=devices // hosts)
    costs = Hidup(preset="released").build(graph, cluster)
    return problem_on(graph, cluster, costs, BigSwitch())


def search(problem):
    return plan(write_down(problem.graph, released), Prices(problem), max_states=4_000_000, model=problem.graph.name)


def worker():
    """Return what answers requests: a search of a model, the model itself being built before the clock starts."""
    problems = {}

    def answer(request):
        case = tuple(request["case"])
        if case not in problems:
            problems[case] = problem_of(*case)
        begun = time.process_time()
        found = search(problems[case])
        taken = time.process_time() - begun
        counts = {"states": found.outcome.states, "entries": found.outcome.entries, "stages": len(found.stages)}
        return {"cpu_s": taken, **counts}

    return answer


def trace(case):
    """Return the program of a model as the released module takes it; see ``peers/hidup.py``.

    An output of several is taken out by a node of its own.  The signature of whole tensors, our last one, the
    module adds itself.
    """
    model, devices, layers = case
    graph = problem_of(model, devices, layers).graph
    program = write_down(graph, released)
    nodes, node_of = [], {}
    for instruction in program.instructions:
        inputs = [node_of[value] for value in dict.fromkeys(instruction.inputs)]
        shapes = [program.values[value].shape for value in instruction.outputs]
        meta = {}
        if shapes:
            meta["output_shape"] = shapes if len(shapes) > 1 else shapes[0]
            meta["output_is_tuple"] = len(shapes) > 1
        if instruction.verb is Verb.RUN:
            meta["flops"] = flops(graph.operators[instruction.op])
            meta["signatures"] = [_rule(signature, inputs) for signature in instruction.signatures[:-1]]
        here = len(nodes)
        nodes.append({"op": TRACED[instruction.verb], "name": f"n{here}", "inputs": inputs, "meta": meta})
        node_of |= dict.fromkeys(instruction.outputs, here)
        for item, value in enumerate(instruction.outputs if len(shapes) > 1 else ()):
            if program.values[value].last >= 0:
                node_of[value] = len(nodes)
                meta = {"is_adaptive": True}
                nodes.append(
                    {"op": "call_function", "name": f"n{len(nodes)}", "inputs": [here], "item": item, "meta": meta}
                )
    hints = {
        nodes[node_of[one.outputs[0]]]["name"]: [str(one.signatures[0].outputs[0])]
        for one in program.instructions
        if one.verb is Verb.READ and len(one.signatures) == 1
    }
    return {"nodes": nodes, "profile": profile(devices), "hints": hints}


def _rule(signature, inputs):
    needs = {str(node): str(form) for node, form in zip(inputs, signature.inputs, strict=True)}
    gives = [str(form) for form in signature.outputs]
    return [needs, gives if len(gives) > 1 else gives[0]]


def profile(devices):
    """Return the released profile in the module's words."""
    return {
        "n_devices": devices,
        "device_flops": Hidup().device_flops,
        **{kind.name.lower(): bandwidth for kind, bandwidth in RELEASED.items()},
    }


def sides(case, folder, python):
    """Return ours, and the release where there is one."""
    start = functools.partial(beside.Worker, [sys.executable, __file__, "--worker"])
    made = {"ours": beside.Side(start, {"case": case})}
    if folder is not None:
        adapter = Path(__file__).parent / "peers" / "hidup.py"
        made["HiDup"] = beside.Side(
            functools.partial(beside.Worker, [str(python), str(adapter)], [folder]), trace(case)
        )
    return made


def block(title, cases, folder, python):
    """Print one row for each (model, devices, layers); return its ratios, by kind of call."""
    kinds, least, ratios = ("warm", "first"), None, []
    titles = [title, "devices", "layers", "states", "entries", *(f"{kind}, s" for kind in kinds), "growth"]
    titles += [f"HiDup {kind}, s" for kind in kinds] + [f"HiDup / ours, {kind}" for kind in kinds] if folder else []
    print(beside.table(titles, []), flush=True)
    for case in cases:
        found = beside.measure(sides(case, folder, python))
        ours, counts = found["ours"], found["ours"].answer
        least = least or ours.warm
        cells = [*map(str, case), str(counts["states"]), str(counts["entries"])]
        cells += [*(beside.shown(getattr(ours, kind)) for kind in kinds), f"{ours.warm / least:.2f}"]
        if folder:
            theirs = found["HiDup"]
            ratios.append([getattr(theirs, kind) / getattr(ours, kind) for kind in kinds])
            cells += [beside.shown(getattr(theirs, kind)) for kind in kinds] + [f"{one:.1f}" for one in ratios[-1]]
            check(case, counts, theirs.answer)
        print(markdown_row(cells), flush=True)
    for kind, those in zip(kinds, zip(*ratios, strict=True), strict=False):
        print(f"\nHiDup's seconds over ours, {kind}: {beside.spread(those)}", flush=True)
    print()


def check(case, ours, theirs):
    """Say where the two searched different programs: their seconds are not compared unseen."""
    for what in ("entries", "stages"):
        if ours[what] != theirs[what]:
            print(f"{case}: {what} {ours[what]} of ours, {theirs[what]} of HiDup", file=sys.stderr)


def meshes(cases):
    """Print one row for each (model, devices, layers): what spmd takes to plan on every mesh."""
    print(f"every mesh\n{'model':14}{'devices':>8}{'layers':>8}{'meshes':>8}{'given up':>10}{'s':>8}{'s each':>8}")
    for model, devices, layers in cases:
        problem = problem_of(model, devices, layers, hosts=max(1, devices // 8))
        state = State(problem.space.initial(), problem.build_fabric(None, np.random.default_rng(0)))
        trial = Trial(state=state, cost=1.0, demand=lambda: None)
        started = time.process_time()
        search = SpmdSearch(Spmd(), problem)
        search.adopt(trial)
        while asked := search.ask():
            search.tell([trial] * len(asked))  # nothing is simulated
        taken, report = time.process_time() - started, search.report(None)
        given_up = report["meshes_outdone"]
        count = len(report["meshes"]) + given_up
        print(
            f"{model:14}{devices:>8}{layers:>8}{count:>8}{given_up:>10}{taken:>8.2f}{taken / count:>8.2f}", flush=True
        )


def main(rows=None):
    """Print all blocks, or the first rows of those beside the release."""
    folder = beside.path_in(*PEER)
    python = beside.path_in(*PYTHON, default="python3.7") if folder else None
    for title, cases in BLOCKS.items():
        block(title, cases[:rows], folder, python)
    if rows is not None:
        return
    search(problem_of("bert-sgmoe", 2, 1))  # loads the kernels
    meshes([*(("bert-sgmoe", devices, 8) for devices in (8, 64, 512, 4096)), ("bert-sgmoe", 64, 24)])


if __name__ == "__main__":
    if sys.argv[1:] == ["--worker"]:
        beside.serve(worker())
    else:
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--rows", type=int, metavar="N", help="the first of each block, and of the last one none")
        main(parser.parse_args().rows)
