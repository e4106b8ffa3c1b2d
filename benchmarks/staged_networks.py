"""What one stated plan of some 100,000 devices takes on each network, and larger ones; writes parts of docs/growth.md.

    .venv/bin/python benchmarks/staged_networks.py                       all rows, into the page
    .venv/bin/python benchmarks/staged_networks.py fattree 2048 tp=8,pp=4,zero=1    one row, as JSON

Llama with 32 layers on hosts of 8 H100, a batch of 64 sequences for each replica.  A plan is stages, prices, folding,
simulation, memory, bounds: measured in a process that has planned for 64 hosts before, so that nothing is imported or
compiled.  Every row runs in processes of its own.

    network, hosts, plan -> processor seconds and memory of plans and of the command -> tables of docs/growth.md
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from staged_growth import CONFIG, DOCS

from topoplan import Candidate, Host, State
from topoplan_engine import ClusterOptions, problem_on
from topoplan_engine.experiment import build_cluster
from topoplan_engine.reporting.tables import markdown_table
from topoplan_engine.search.evaluator import Evaluator
from topoplan_engine.simulation.deferred import of_first
from topoplan_searcher_stated.construct import strategy_of
from topoplan_searcher_stated.settings import Settings

#: Of some 100,000 devices, by the words of ``-t``, and whether hosts have insides.
NETWORKS = [
    ("bigswitch", True),
    ("fattree", True),
    ("rail-only", True),
    ("rail-optimized:ports=128", True),
    ("multi-plane:of=fattree,planes=2", True),
    ("torus", False),
    ("torus", True),
]
SERVERS, PLAN = 12_288, "tp=8,pp=4,zero=1"
#: On a fat-tree of so many hosts.
PLANS = [
    PLAN,
    "tp=8,pp=4,zero=2",
    "tp=8,pp=4,zero=3",
    "tp=8,pp=4,cp=2,zero=1",
    "tp=8,pp=4,zero=1,schedule=interleaved:2",
]
SIZES = [2_048, 16_384]
#: Sequences of a replica: a first plan has half as many micro-batches, the next one as many.
SEQUENCES = 64


def settings_of(plan: str) -> dict[str, int | str]:
    """Return the words of a plan with their values."""
    words = dict(word.split("=") for word in plan.split(","))
    return {name: int(value) if value.isdigit() else value for name, value in words.items()}


def batch_of(servers: int, plan: str) -> int:
    """Return how many sequences all replicas have."""
    settings = settings_of(plan)
    return servers * 8 * SEQUENCES // (int(settings["tp"]) * int(settings["pp"]) * int(settings.get("cp", 1)))


def core(network: str, servers: int, plan: str, config: str) -> dict[str, float]:
    """Return processor seconds of a first plan and of the next one on a network, and the peak bytes after the first."""
    host, (words, insides) = Host.discover(), (network.removesuffix(" -m"), network.endswith(" -m"))
    name, _, options = words.partition(":")
    topology = host.make("topology", name, dict(word.split("=", 1) for word in options.split(",")) if options else {})

    def plans(servers: int, counts: tuple[int, ...]) -> tuple[list[float], dict[str, float]]:
        frontend = host.make("frontend", "huggingface", {"config": config, "sequence_length": 2048})
        graph = frontend.build(batch_of(servers, plan))
        inside = {"machine": "dgx-h100"} if insides else {"gpus_per_server": 8, "device": "h100"}
        cluster = build_cluster(ClusterOptions(servers=servers, **inside), host)
        costs = host.make("estimator", "roofline").build(graph, cluster)
        problem = problem_on(graph, cluster, costs, topology)
        fabric = problem.build_fabric(None, np.random.default_rng(0))
        evaluator, seconds, first = Evaluator(problem, host.make("simulator", "fluid").build(), "ignore"), [], {}
        for count in counts:
            begin = time.process_time()
            settings = Settings(**{**settings_of(plan), "micro_batch": SEQUENCES // count})
            state = State(strategy_of(settings, graph, cluster.n_devices)[0], fabric)
            evaluator.price(Candidate(base=state))
            evaluator.memory(state.strategy)
            whole = evaluator.plan(state, {})
            seconds.append(time.process_time() - begin)
            if not first:
                first["bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        simulated = of_first(whole.taskgraph, whole.timeline)[0].n_tasks
        return seconds, {**first, "simulated": simulated, "tasks": whole.taskgraph.n_tasks}

    plans(64, (SEQUENCES // 8, SEQUENCES // 4))
    (first, again), facts = plans(servers, (SEQUENCES // 2, SEQUENCES))
    return {"first": first, "again": again, **facts}


def command(network: str, servers: int, plan: str, config: str) -> dict[str, float]:
    """Return processor seconds and peak bytes of the command, start included."""
    words = f"huggingface -o config={config} -o sequence-length=2048 --servers {servers} --memory-gb 400".split()
    words += f"--batch-size {batch_of(servers, plan)} --plan {plan} -t {network.removesuffix(' -m')}".split()
    words += ["-m", "dgx-h100"] if network.endswith(" -m") else ["--gpus-per-server", "8", "--device", "h100"]
    run = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, capture_output=True)\n"
    run += "used = resource.getrusage(resource.RUSAGE_CHILDREN); print(used.ru_utime + used.ru_stime, used.ru_maxrss)"
    started = [sys.executable, "-c", run, sys.executable, "-m", "topoplan", "optimize", *words]
    printed = subprocess.run(started, check=True, capture_output=True, text=True).stdout.split()
    return {"command": float(printed[0]), "command_bytes": float(printed[1]) * 1024}


def row(network: str, servers: int, plan: str, *, of_command: bool) -> list[str]:
    """Measure in processes of their own, and return the cells."""
    words = [sys.executable, __file__, network, str(servers), plan, *["command"] * of_command]
    measured = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    print(network, servers, plan, measured, file=sys.stderr)
    cells = [f"{measured['first']:.2f} s", f"{measured['again']:.2f} s", f"{measured['bytes'] / 1e6:,.0f} MB"]
    if not of_command:
        return [f"`{plan}`", f"{servers * 8:,}", f"{measured['tasks']:,}", f"{measured['simulated']:,}", *cells]
    return [f"`-t {network}`", *cells, f"{measured['command']:.1f} s", f"{measured['command_bytes'] / 1e6:,.0f} MB"]


def write(name: str, table: str) -> None:
    """Put a table between its marks in the page."""
    page = DOCS / "growth.md"
    head, rest = page.read_text().split(f"<!-- {name} -->\n", 1)
    tail = rest.split(f"<!-- end of {name} -->\n", 1)[1]
    page.write_text(f"{head}<!-- {name} -->\n{table}\n<!-- end of {name} -->\n{tail}")


def main() -> None:
    """Measure all rows and write the tables."""
    names = ["network", "first plan", "next plan", "memory", "command", "its memory"]
    rows = [row(words + " -m" * insides, SERVERS, PLAN, of_command=True) for words, insides in NETWORKS]
    write("networks", markdown_table(names, rows, names[1:]))
    names = ["plan", "devices", "tasks", "simulated", "first plan", "next plan", "memory"]
    rows = [row("fattree -m", servers, plan, of_command=False) for plan in PLANS for servers in SIZES]
    write("plans", markdown_table(names, rows, names[1:]))


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "config.json"
            path.write_text(json.dumps(CONFIG))
            of_one = sys.argv[1], int(sys.argv[2]), sys.argv[3], str(path)
            more = command(*of_one) if sys.argv[4:] else {}
            print(json.dumps({**core(*of_one), **more}))
