"""CPU seconds of planning pipelines, beside those of the released HPGO planner in the same run.

    TOPOPLAN_HPGO_PYTHON=PYTHON3.7 .venv/bin/python benchmarks/planning.py [PROFILE ...]

The variable names a CPython 3.7 that has the wheel HPGO 0.9.2; without it there are our seconds and no ratio.  For
each profile, on two hosts of eight devices (H) and sixteen hosts of one (F), four things are timed from the same file
to the plan: HPGO, our `hpgo`, which plans as HPGO does, the public call `topoplan_searcher_hpgo.plan`, which does no
more than HPGO, and our `pipeline`, which plans as DAPPLE's paper says.  They are timed as calls in a process that has
made one before (warm), as the first call of a process (first), and as a whole command (whole).  That is for HPGO a
Python that imports it and plans, for `plan` ``python -m topoplan_searcher_hpgo``, and for the searchers ``topoplan
optimize``, which also simulates what it plans.  `beside` says how.  gnmt-16 is left out unless it is named: HPGO takes
minutes for it.
"""

from __future__ import annotations

import functools
import sys
import tempfile
from pathlib import Path

import beside

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from reference.layer_files import write

from topoplan import Cluster, Host
from topoplan_engine import problem_on
from topoplan_engine.experiment import build_cluster
from topoplan_engine.options import ClusterOptions
from topoplan_engine.reporting.tables import markdown_row
from topoplan_estimator_profile import Profiled as Prices
from topoplan_frontend_torchgraph import Torchgraph
from topoplan_layer_profiles import profiles
from topoplan_pipeline_planning.layers import layers_of, operator_columns
from topoplan_pipeline_planning.planning import plan
from topoplan_searcher_hpgo import plan as plan_model
from topoplan_searcher_pipeline import DapplePipeline
from topoplan_searcher_pipeline.search import plan_pipelines
from topoplan_topology_bigswitch import BigSwitch

#: Profile, and the global batch to plan for.
PROFILES = {
    "vgg-19": 2048,
    "xlnet-36": 128,
    "amoeba-36": 128,
    "bert-48": 64,
    "gnmt-32-simplified": 1024,
    "gnmt-16": 1024,
}
LONG = "gnmt-16"
MACHINES = {"H": [8, 16], "F": list(range(1, 17))}
PEER = ("TOPOPLAN_HPGO_PYTHON", "a Python 3.7 with HPGO 0.9.2")
OURS = ("plan", "hpgo", "pipeline")


@functools.cache
def installed():
    """Return the installed plugins: those who plan often look for them once, in the first call."""
    return Host.discover()


def graph_of(request):
    return Torchgraph(file=request["file"], profile_batch=request["profile_batch"]).build(request["batch"])


def plan_hpgo(request):
    """Plan as HPGO does, from the file on."""
    graph = graph_of(request)
    costs = Prices().build(graph, Cluster.uniform(n_hosts=1))
    layers = layers_of(graph, operator_columns(graph, costs), limit=4000, simplify=False)
    found = plan(layers, request["devices"], request["batch"])
    split = found.split if len(found.stages) < 3 else f"{len(found.stages)} stages"
    return {"speedup": found.speedup, "split": split, "layers": layers.count}


def plan_pipeline(request):
    """Plan as DAPPLE's paper says, from the file on, for V100 with NVLink and 25 Gb/s between hosts."""
    graph = graph_of(request)
    cluster = build_cluster(
        ClusterOptions(
            devices=tuple(request["devices"]),
            device="V100",
            memory_gb=16.0,
            inter_gpu_bandwidth_gbps=200.0,
            interface_bandwidth_gbps=25.0,
            degree=1,
        ),
        installed(),
    )
    costs = Prices().build(graph, cluster)
    plan_pipelines(DapplePipeline(), problem_on(graph, cluster, costs, BigSwitch()))
    return {}


def plan_call(request):
    """Plan as HPGO does, with the public call."""
    model = Torchgraph(file=request["file"], profile_batch=request["profile_batch"])
    found = plan_model(model, devices=request["devices"], batch_size=request["batch"])
    return {"speedup": found.speedup}


PLANNERS = {"plan": plan_call, "hpgo": plan_hpgo, "pipeline": plan_pipeline}


def command(searcher, request):
    """Return the words of the whole command, or program."""
    if searcher == "plan":
        words = {"--devices": request["devices"], "--batch-size": request["batch"]}
        words["--profile-batch"] = request["profile_batch"]
        options = [word for name, value in words.items() for word in (name, str(value))]
        return [sys.executable, "-m", "topoplan_searcher_hpgo", request["file"], *options]
    return [
        sys.executable,
        "-c",
        "from topoplan.cli import main; main()",
        "optimize",
        "torchgraph",
        "-o",
        f"file={request['file']}",
        "-o",
        f"profile-batch={request['profile_batch']}",
        "--batch-size",
        str(request["batch"]),
        "--devices",
        str(request["devices"]),
        "-s",
        searcher,
        "--json",
    ]


def sides(request, python):
    """Return ours, and HPGO where there is one."""
    made = {}
    for name in OURS:
        start = functools.partial(beside.Worker, [sys.executable, __file__, "--worker", name])
        whole = functools.partial(beside.command_seconds, command(name, request))
        made[name] = beside.Side(start, request, whole)
    if python is not None:
        adapter = Path(__file__).parent / "peers" / "hpgo.py"
        start = functools.partial(beside.Worker, [str(python), str(adapter)])
        made["HPGO"] = beside.Side(start, request, functools.partial(beside.one_request, start, request))
    return made


def main(names):
    python = beside.path_in(*PEER)
    ratios = {}
    titles = ["profile", "layers", "machine", "call", *(f"{name}, s" for name in OURS)]
    titles += ["HPGO, s", *(f"HPGO / {name}" for name in OURS)] if python else []
    print(beside.table(titles, []), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            file = str(write(name, Path(folder)))
            for machine, ends in MACHINES.items():
                request = {"file": file, "profile_batch": profiles.batch_size(name), "batch": PROFILES[name]}
                found = beside.measure(sides(request | {"devices": ends}, python))
                for kind, times in rows(name, machine, found):
                    ratios.setdefault((machine, kind), []).append(times)
    if python:
        print()
        print(
            beside.table(
                ["HPGO's seconds over ours", "call", *(f"of {name}" for name in OURS)],
                [
                    [machine, kind, *(beside.spread(one) for one in zip(*those, strict=True))]
                    for (machine, kind), those in ratios.items()
                ],
            )
        )


def rows(name, machine, found):
    """Print the rows of a profile on a machine; yield the ratios of each kind of call."""
    for kind in beside.KINDS:
        seconds = [getattr(one, kind) for one in found.values()]
        times = [seconds[-1] / ours for ours in seconds[:-1]] if "HPGO" in found else []
        cells = [name, str(found["hpgo"].answer["layers"]), machine, kind, *map(beside.shown, seconds)]
        cells += [f"{one:.2g}" if one < 10 else f"{one:.0f}" for one in times]
        print(markdown_row(cells), flush=True)
        yield kind, times
    check(name, machine, found)


def check(name, machine, found):
    """Say where HPGO finds another plan: seconds of different answers are not compared unseen."""
    if "HPGO" in found:
        ours, theirs = (found[side].answer["speedup"] for side in ("hpgo", "HPGO"))
        if abs(ours / theirs - 1) > 4e-4:  # equal plans are told apart by the order of a set there
            print(f"{name} {machine}: speedup {ours} of hpgo, {theirs} of HPGO", file=sys.stderr)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        beside.serve(PLANNERS[sys.argv[2]])
    elif not set(sys.argv[1:]) <= set(PROFILES):
        beside.refuse(f"wanted: [PROFILE ...], of {', '.join(PROFILES)}")
    else:
        main(sys.argv[1:] or [name for name in PROFILES if name != LONG])
