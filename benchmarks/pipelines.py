"""Pipelines as `pipeline` plans them, beside those of HPGO, straight pipelines and data parallelism, all simulated.

    .venv/bin/python benchmarks/pipelines.py [docs/pipelines.md [PROFILE...]]

Layer profiles, batch sizes and machines are those of ``tests/reference/hpgo_plans.csv``: what HPGO planned.  Every plan
is simulated on one switch with the devices and links of DAPPLE's clusters; plans of others under every order of passes
and with every number of micro-batches, of which the fastest that fits into memory counts.  Ends with status 1 where a
plan of `pipeline` is slower than another one.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import attrs

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from reference.tables import rows

from topoplan import Candidate, Host, State
from topoplan_engine import ClusterOptions, Experiment, RunOptions, optimize, problem_on_fabric
from topoplan_engine.experiment import Choice
from topoplan_engine.files import write_file
from topoplan_engine.lowering import Lowering
from topoplan_engine.reporting.tables import markdown_table
from topoplan_engine.search.evaluator import Evaluator
from topoplan_engine.simulation.idle import bubble_fraction
from topoplan_pipeline_planning.layers import Layers, operator_columns
from topoplan_pipeline_planning.machine import Machine as HpgoMachine
from topoplan_pipeline_planning.planning import best_of, shortlist
from topoplan_searcher_pipeline import DapplePipeline
from topoplan_searcher_pipeline.columns import columns_of, states_of
from topoplan_searcher_pipeline.machine import Machine
from topoplan_searcher_pipeline.planning import Planner, baselines, orders_of
from topoplan_searcher_pipeline.plans import Pipeline, strategy_of
from topoplan_searcher_pipeline.search import plan_pipelines

TWO_HOSTS = (8, 16)
MACHINES = {TWO_HOSTS: "hierarchical", tuple(range(1, 17)): "flat"}
#: V100 with NVLink inside hosts and 25 Gb/s Ethernet between them: configurations A and B of DAPPLE.
CLUSTER = ClusterOptions(
    device="V100", memory_gb=16.0, inter_gpu_bandwidth_gbps=200.0, interface_bandwidth_gbps=25.0, degree=1
)
COLUMNS = (
    "profile",
    "batch",
    "machine",
    "data parallel",
    "straight",
    "HPGO",
    "pipeline",
    "its stages",
    "order",
    "micro-batches",
    "idle",
    "planned in",
)
#: Relative difference that rounding makes.
ROUNDING = 1e-9

PAGE = """# Pipelines

    python benchmarks/pipelines.py docs/pipelines.md

This page compares plans of the searcher `pipeline` with three baselines. Figures are simulated speedups over one \
device that runs the whole batch.

The cluster has 16 V100 of 16 GB: two hosts of eight devices with 25 GB/s inside a host (hierarchical), or sixteen \
hosts of one device (flat). Each host has 25 Gb/s to one switch. Memory holds three copies of the weights (weights, \
gradients and momentum). Each baseline has the schedule and the number of micro-batches that are best for it and fit \
into memory.

- **data parallel**: one stage on all devices. All-reduces overlap with the backward pass.
- **straight**: 2, 4, 8 or 16 stages with equally many devices each, cut by HPGO's dynamic program.
- **HPGO**: the plan that DAPPLE's released planner returns.
- **pipeline**: the plan of the searcher `pipeline`, simulated once more.
- *its stages*: the number of devices of each stage, then the first layer of each later stage (`@`).
- *idle*: the fraction of device time without computation.
- *planned in*: CPU time on one core, without the simulation of tasks.

`-s pipeline` and `-s hpgo` plan on the command line. HPGO's planner is also a Python call of three \
lines, without simulation:

```python
from topoplan_frontend_torchgraph import Torchgraph
from topoplan_searcher_hpgo import plan

print(plan(Torchgraph(profile="bert-48"), devices=[8, 16], batch_size=64))
```

[Its README](../plugins/searchers/hpgo/README.md) says what the result holds, and how \
`baselines=released` and `RAYON_NUM_THREADS` relate to HPGO's. The planners are offered in Python only.

A tensor that several later stages read is sent to each of them, once however many operators there read it. In XLNet, \
and for BERT's attention masks, the first stage feeds all later ones.

"""


@attrs.frozen
class Case:
    """A model on a machine, and what prices strategies of it."""

    evaluator: Evaluator
    planner: Planner
    layers: Layers
    fabric: object
    batch: int

    def seconds(self, plan):
        """Simulate a plan."""
        graph = self.evaluator.problem.graph
        strategy = strategy_of(plan, graph, self.planner.columns, self.planner.machine)
        return self.evaluator.price(Candidate(base=State(strategy, self.fabric))).cost

    def fastest(self, pipelines):
        """Simulate pipelines under every schedule, but those that surely take longer; return seconds."""
        planner, best = self.planner, float("inf")
        plans = [
            plan for p in pipelines for kind, count in planner.schedules(p) if (plan := planner.plan(p, kind, count))
        ]
        for plan in sorted(plans, key=lambda plan: plan.seconds):
            if planner.costs_of(plan.pipeline, plan.micro_batches).busiest < best:
                best = min(best, self.seconds(plan))
        return best


def case_of(experiment, outcome):
    """Make what prices other plans of the same experiment."""
    host, plan = Host.discover(), outcome.plan
    estimator = host.make("estimator", "profile")
    costs = estimator.build(plan.graph, plan.cluster)
    problem = problem_on_fabric(plan.graph, plan.cluster, costs, plan.fabric)
    simulator = host.make("simulator", "fluid")
    states, _ = states_of(plan.graph, DapplePipeline().max_states)
    columns = columns_of(plan.graph, plan.cluster, costs, states)
    planner = Planner(
        columns=columns,
        machine=Machine.of(plan.cluster),
        sizes=tuple(columns.replicas.tolist()),
        kinds=orders_of("any"),
        micro_batch=1,
        recompute=True,
    )
    layers = Layers.of(states, operator_columns(plan.graph, costs))
    return Case(Evaluator(problem, simulator.build(), "limit"), planner, layers, plan.fabric, plan.graph.batch_size)


def rows_of(profile, batch, ends):
    """Plan and simulate one row."""
    experiment = Experiment(
        model=Choice("torchgraph", {"profile": profile}),
        cluster=attrs.evolve(CLUSTER, devices=ends),
        simulator="fluid:memory=limit",
        searchers=["pipeline"],
        run=RunOptions(batch_size=batch, optimizer="momentum"),
    )
    outcome = optimize(experiment)
    case = case_of(experiment, outcome)
    problem = case.evaluator.problem
    taken = []
    for _ in range(2):
        started = time.process_time()
        plan_pipelines(DapplePipeline(), problem)
        taken.append(time.process_time() - started)
    report = outcome.plan.provenance["reports"]["pipeline"]
    again = case.evaluator.price(Candidate(base=State(outcome.plan.strategy, outcome.plan.fabric))).cost
    assert abs(again - outcome.plan.timeline.makespan) <= ROUNDING * again
    peak = Lowering(problem.graph, problem.cluster, problem.costs).memory(outcome.plan.strategy)
    assert (peak <= problem.cluster.device_memory).all()
    given = {name: list(make()) for name, make in baselines(lambda: case.layers, case.planner.machine, batch)}
    released = best_of(shortlist(case.layers, HpgoMachine.split(ends), batch))
    stages = [case.planner.machine.counts(stage.devices).tolist() for stage in released.stages]
    given["hpgo"] = [Pipeline(tuple(s.start for s in released.stages), tuple(map(tuple, stages)))]
    others = {name: case.fastest(pipelines) for name, pipelines in given.items()}
    return report, again, others, bubble_fraction(outcome.plan.timeline), min(taken)


def main(page, profiles):
    ends = {name: key for key, name in MACHINES.items()} | {"two hosts": TWO_HOSTS}
    wanted = {
        (row["profile"], int(row["batch_size"]), tuple(map(int, row["devices"].split()))) for row in rows("hpgo_plans")
    }
    wanted |= {(row["profile"], int(row["batch_size"]), ends[row["machine"]]) for row in rows("hpgo_families")}
    wanted = {row for row in wanted if not profiles or row[0] in profiles}
    table_rows, slower, faster = [], [], 0
    for number, (profile, batch, hosts) in enumerate(sorted(wanted, key=lambda w: (*w[:2], len(w[2])))):
        if sys.stderr.isatty():
            print(f"\r{number}/{len(wanted)} {profile} of {batch} ", end="", file=sys.stderr, flush=True)
        report, seconds, others, idle, planning = rows_of(profile, batch, hosts)
        one = report["one_device_s"]
        best = min(others.values())
        if seconds > best * (1 + ROUNDING):
            slower.append(f"{profile} of {batch} on {MACHINES[hosts]}: {one / seconds:.3f} < {one / best:.3f}")
        faster += seconds < best * (1 - 1e-4)
        cells = [
            profile,
            batch,
            MACHINES[hosts],
            *(
                f"{one / others[k]:.3f}" if others[k] < float("inf") else "too large"
                for k in ("data_parallel", "straight", "hpgo")
            ),
        ]
        cells += [f"**{one / seconds:.3f}**", report["split"], report["schedule"] if len(report["stages"]) > 1 else "-"]
        cells += [report["micro_batches"], f"{idle:.1%}", f"{planning * 1e3:.0f} ms"]
        table_rows.append([str(cell) for cell in cells])
        print(" ".join(map(str, cells)), flush=True)
    told = (
        f"{len(table_rows)} rows: `pipeline` is faster than all others in {faster}, slower than any in {len(slower)}.\n"
    )
    if page is not None:
        write_file(page, (PAGE + "\n".join([markdown_table(COLUMNS, table_rows), "", told])).encode())
    print(told, *slower, sep="\n")
    return 1 if slower else 0


if __name__ == "__main__":
    if "-h" in sys.argv or "--help" in sys.argv:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else None, sys.argv[2:]))
