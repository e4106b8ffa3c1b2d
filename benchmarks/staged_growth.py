"""How the price of a stated plan grows with devices; writes the section "Staged plans" of docs/growth.md.

    .venv/bin/python benchmarks/staged_growth.py            all rows
    .venv/bin/python benchmarks/staged_growth.py 128        one row, as JSON

Llama with 32 layers under tp=8, pp=4 and data parallelism on hosts of 8 H100 at one switch, 64 micro-batches, ZeRO 1.
A plan is stages, prices, folding, simulation, memory, bounds.  Every row runs in processes of its own.
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

from topoplan_engine.reporting.tables import markdown_table
from topoplan_engine.simulation.deferred import of_first

DOCS = Path(__file__).parents[1] / "docs"
#: Of 8 devices each.
SERVERS = [4, 16, 128, 2048, 12_500]
TP, PP, MICRO_BATCHES = 8, 4, 64
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "hidden_act": "silu",
}


def measure(servers: int, config: str) -> dict[str, float]:
    """Return tasks, processor seconds of a first plan and of a second one on the same network, and peak bytes."""
    from topoplan import Candidate, Host, State
    from topoplan_engine import ClusterOptions, problem_on
    from topoplan_engine.experiment import build_cluster
    from topoplan_engine.search.evaluator import Evaluator
    from topoplan_searcher_stated.construct import strategy_of
    from topoplan_searcher_stated.settings import Settings

    host = Host.discover()

    def plans(servers: int, micro_batches: tuple[int, ...]) -> tuple[int, int, list[float]]:
        replicas = servers * 8 // (TP * PP)
        frontend = host.make("frontend", "huggingface", {"config": config, "sequence_length": 2048})
        graph = frontend.build(replicas * MICRO_BATCHES)
        cluster = build_cluster(ClusterOptions(servers=servers, gpus_per_server=8, degree=1, device="h100"), host)
        costs = host.make("estimator", "roofline").build(graph, cluster)
        problem = problem_on(graph, cluster, costs, host.make("topology", "bigswitch"))
        fabric = problem.build_fabric(None, np.random.default_rng(0))
        evaluator, seconds = Evaluator(problem, host.make("simulator", "fluid").build(), "ignore"), []
        for count in micro_batches:
            begin = time.process_time()
            settings = Settings(tp=TP, pp=PP, zero=1, micro_batch=MICRO_BATCHES // count)
            state = State(strategy_of(settings, graph, cluster.n_devices)[0], fabric)
            evaluator.price(Candidate(base=state))
            evaluator.memory(state.strategy)
            plan = evaluator.plan(state, {})
            seconds.append(time.process_time() - begin)
        simulated = of_first(plan.taskgraph, plan.timeline)[0].n_tasks
        return plan.taskgraph.n_tasks, simulated, seconds

    plans(16, (8,))  # loads the kernels
    tasks, simulated, (first, again) = plans(servers, (MICRO_BATCHES // 2, MICRO_BATCHES))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"tasks": tasks, "simulated": simulated, "first": first, "again": again, "bytes": memory}


def command(servers: int, config: str) -> dict[str, float]:
    """Return processor seconds and peak bytes of the command, start included."""
    batch = servers * 8 // (TP * PP) * MICRO_BATCHES
    words = f"huggingface -o config={config} -o sequence-length=2048 --servers {servers} --gpus-per-server 8".split()
    words += f"--batch-size {batch} --device h100 --memory-gb 400 --plan tp={TP},pp={PP},zero=1".split()
    run = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, capture_output=True)\n"
    run += "used = resource.getrusage(resource.RUSAGE_CHILDREN); print(used.ru_utime + used.ru_stime, used.ru_maxrss)"
    printed = subprocess.run(
        [sys.executable, "-c", run, sys.executable, "-m", "topoplan", "optimize", *words],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    return {"command": float(printed[0]), "command_bytes": float(printed[1]) * 1024}


def main() -> None:
    """Measure all rows and write the section."""
    rows = []
    for servers in SERVERS:
        words = [sys.executable, __file__, str(servers)]
        row = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
        print(row, file=sys.stderr)
        rows.append(
            [
                f"{servers * 8:,}",
                f"{row['tasks']:,}",
                f"{row['simulated']:,}",
                f"{row['first']:.2f} s",
                f"{row['again']:.2f} s",
                f"{row['bytes'] / 1e6:,.0f} MB",
                f"{row['command']:.1f} s",
                f"{row['command_bytes'] / 1e6:,.0f} MB",
            ]
        )
    names = ["devices", "tasks", "simulated", "first plan", "next plan", "memory", "command", "its memory"]
    page = DOCS / "growth.md"
    head, rest = page.read_text().split("<!-- staged -->\n", 1)
    tail = rest.split("<!-- end of staged -->\n", 1)[1]
    page.write_text(f"{head}<!-- staged -->\n{markdown_table(names, rows, names)}\n<!-- end of staged -->\n{tail}")


if __name__ == "__main__":
    if len(sys.argv) == 2:
        with tempfile.TemporaryDirectory() as folder:
            config = Path(folder) / "config.json"
            config.write_text(json.dumps(CONFIG))
            print(json.dumps({**measure(int(sys.argv[1]), str(config)), **command(int(sys.argv[1]), str(config))}))
    else:
        main()
