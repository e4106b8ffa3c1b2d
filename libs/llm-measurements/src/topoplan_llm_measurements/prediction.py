"""What the product says of a run: its model, machines and stated plan, lowered, folded and simulated.

    Run ─► config.json ─► operator graph ─► prices of kernels, as the stack has them ─┐
      └─► cluster at the stack's rates ─► network ─► stated plan ─► folded iteration ─┴─► seconds, bytes

Graphs, networks and prices are kept for the next run of the same kind, so that rows of one workload cost their plans
alone, and rows of equal runs, as releases of one software repeat them, are predicted once.

A fit asks what a run takes by constants that differ a little.  Those of kernels and links change no task but its time,
so that the iteration is lowered once: each task takes as much longer as its whole operator does.

A pipeline that is full does the same again with each further round of micro-batches.  An iteration of many rounds is
the one of `_ROUNDS` rounds, and what one more adds for each of the others; that is what the whole one takes, but for
the first rounds of plans whose messages wait for each other otherwise than later ones.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import numpy as np

from topoplan.arrays import F64, f64
from topoplan.errors import TopoplanError
from topoplan.model.cluster import Cluster
from topoplan.model.costs import CostFunction
from topoplan.model.fabric import Fabric
from topoplan.model.graph import OperatorGraph
from topoplan.model.machine import HostModel
from topoplan.model.problem import Problem
from topoplan.model.staged import StagedStrategy
from topoplan.model.taskgraph import TaskKind
from topoplan.plugin.components import Estimator, Frontend, Searcher, Simulator, Topology, TopologyContext
from topoplan.plugin.host import Host
from topoplan_engine.checked_prices import build_costs
from topoplan_engine.experiment import build_cluster, interfaces_unless_given
from topoplan_engine.lowering.folding.layout import FoldedIteration
from topoplan_engine.lowering.staged import StagedLowering
from topoplan_engine.network.building import build_fabric
from topoplan_engine.options import ClusterOptions
from topoplan_engine.precision import in_precision, optimizer_of
from topoplan_engine.search.problems import problem_on_fabric
from topoplan_engine.search.setup import StatesStrategy
from topoplan_engine.simulation.quotients import Folds
from topoplan_engine.trainer_kernels import with_kernels
from topoplan_llm_measurements.rows import Predicted, Run
from topoplan_llm_measurements.stacks import Constants, Stack

__all__ = ["Predictor"]

#: Constants that change the time of tasks and messages alone.
CHEAP = ("products", "passes", "inside", "between")
#: Problems that are kept.
_KEPT = 4
#: Rounds of micro-batches, as many as a pipeline has ranks or a multiple, after which a pipeline is full; and
#: rounds from which on they stand for all.
_ROUNDS, _MANY = 2, 5
#: Micro-batches of a round at least.
_FEWEST = 4


class _Prepared(NamedTuple):
    """A model on a cluster, with its prices, and how it is lowered."""

    problem: Problem
    fabric: Fabric
    lowering: StagedLowering


class _Slower(NamedTuple):
    """Seconds of operators, by other constants, over those by a stack's: (n,) forward, (n,) backward, of a step."""

    forward: F64
    backward: F64
    update: float

    def times(self, folded: FoldedIteration) -> FoldedIteration:
        """Return an iteration whose tasks are so much slower."""
        tasks = folded.taskgraph
        factor = np.ones(tasks.n_tasks)
        for kind, of_operators in ((TaskKind.FORWARD, self.forward), (TaskKind.BACKWARD, self.backward)):
            is_kind = (tasks.kind == kind) & (tasks.op >= 0)
            factor[is_kind] = of_operators[tasks.op[is_kind]]
        factor[tasks.kind == TaskKind.UPDATE] = self.update
        return folded._replace(taskgraph=attrs.evolve(tasks, seconds=tasks.seconds * factor))


class Predictor:
    """Predicts runs; what runs have in common is made once.

    Args:
        host: has the components; all installed plugins unless given.
    """

    def __init__(self, host: Host | None = None) -> None:
        self._host = host or Host.discover()
        self._kept: dict[tuple[str, Stack], _Prepared] = {}
        self._folded: dict[str, tuple[FoldedIteration, float]] = {}
        self._predicted: dict[tuple[str, Stack], Predicted] = {}
        self._variants: dict[tuple[tuple[str, Stack], tuple[Stack, ...]], list[Predicted]] = {}
        self._slower: dict[tuple[int, Stack], tuple[_Prepared, _Slower]] = {}
        self._networks: dict[str, tuple[Cluster, Fabric]] = {}
        simulate = self._host.make(Simulator, "fluid", {}).build()
        if not isinstance(simulate, Folds):
            raise TopoplanError("simulator fluid: runs no folded iterations")
        self._simulate: Folds = simulate

    def predicted(self, run: Run, stack: Stack) -> Predicted:
        """Return what a run takes.

        Args:
            run: what runs.
            stack: the hardware and software that runs it.

        Raises:
            TopoplanError: the model, the machine or the plan is not one that the product has.
        """
        key = _key(run, stack)
        if key not in self._predicted:
            self._predicted[key] = self._of_rounds(run, stack)
        return self._predicted[key]

    def beside(self, run: Run, stack: Stack, variants: Sequence[Stack]) -> list[Predicted]:
        """Return what a run takes by a stack, and by others that differ a little from it.

        Where these differ in `CHEAP` constants alone, operators are taken to be slower by what they are uncut.

        Args:
            run: what runs.
            stack: see `predicted`.
            variants: the same hardware and software with other constants.

        Raises:
            TopoplanError: see `predicted`.
        """
        key = _key(run, stack), tuple(variants)
        if key not in self._variants:
            self._variants[key] = self._beside(run, stack, variants)
        return list(self._variants[key])

    def _beside(self, run: Run, stack: Stack, variants: Sequence[Stack]) -> list[Predicted]:
        """Return what `beside` does, made anew."""
        cheap = [each for each in variants if attrs.evolve(each, constants=_but_cheap(stack, each)) == stack]
        seconds, memory = np.zeros(1 + len(cheap)), 0.0
        for part, weight in _parts(run):
            prepared, folded, peak = self._lowered(part, stack)
            memory = max(memory, peak)
            simulated = [self._seconds(part, stack, folded)]
            for each in cheap:
                slower = self._slower_by(part, prepared, stack, each)
                simulated.append(self._seconds(part, each, slower.times(folded)))
            seconds += weight * np.array(simulated)
        by_stack = dict(zip([stack, *cheap], seconds.tolist(), strict=True))
        self._predicted.setdefault(_key(run, stack), Predicted(seconds=by_stack[stack], memory=memory))
        return [
            Predicted(seconds=by_stack[each], memory=memory) if each in by_stack else self.predicted(run, each)
            for each in (stack, *variants)
        ]

    def _of_rounds(self, run: Run, stack: Stack) -> Predicted:
        """Return what a run takes, from few rounds of micro-batches where it has many."""
        each = [(weight, self._simulated(part, stack)) for part, weight in _parts(run)]
        return Predicted(
            seconds=sum(weight * part.seconds for weight, part in each), memory=max(part.memory for _, part in each)
        )

    def _simulated(self, run: Run, stack: Stack) -> Predicted:
        _, folded, memory = self._lowered(run, stack)
        return Predicted(seconds=self._seconds(run, stack, folded), memory=memory)

    def _seconds(self, run: Run, stack: Stack, folded: FoldedIteration) -> float:
        cluster, fabric = self._network(run, stack)
        return self._simulate.run_folded(folded, fabric, cluster).makespan

    def _lowered(self, run: Run, stack: Stack) -> tuple[_Prepared, FoldedIteration, float]:
        """Return a folded iteration and bytes of the fullest device; those of the last runs are kept."""
        prepared = self._prepared(run, stack)
        cluster, fabric = prepared.problem.cluster, prepared.fabric
        key = _text([attrs.asdict(run, recurse=False), stack.estimator, stack.constants.latency_us])
        if key not in self._folded:
            strategy = self._strategy(run, prepared.problem)
            folded = prepared.lowering.fold(strategy, lambda t: self._simulate.message_loads(t, fabric, cluster))
            if len(self._folded) > 1:
                del self._folded[next(iter(self._folded))]
            self._folded[key] = folded, float(prepared.lowering.memory(strategy).max())
        return prepared, *self._folded[key]

    def _slower_by(self, run: Run, prepared: _Prepared, stack: Stack, variant: Stack) -> _Slower:
        """Return how much slower another stack's operators are, uncut."""
        key = id(prepared), variant
        if key not in self._slower:
            if len(self._slower) >= _KEPT * len(CHEAP):
                del self._slower[next(iter(self._slower))]
            graph, cluster = prepared.problem.graph, prepared.problem.cluster
            ratio = np.ones((2, len(graph.operators)))
            if variant.estimator != stack.estimator:
                estimator = self._host.make(Estimator, "kernels", {**variant.estimator, **_narrow(run)})
                costs = build_costs(estimator, graph, cluster)
                base, changed = _whole_seconds(graph, prepared.problem.costs), _whole_seconds(graph, costs)
                ratio = np.where(base > 0, changed / np.where(base > 0, base, 1.0), 1.0)
            update = variant.constants.passes / stack.constants.passes
            self._slower[key] = prepared, _Slower(f64(ratio[0]), f64(ratio[1]), update)
        return self._slower[key][1]

    def _strategy(self, run: Run, problem: Problem) -> StagedStrategy:
        searcher = self._host.make(Searcher, "stated", {k.replace("_", "-"): v for k, v in run.plan.items()})
        if not isinstance(searcher, StatesStrategy):
            raise TopoplanError("searcher stated: states no strategy")
        strategy = searcher.stated_strategy(problem)
        if not isinstance(strategy, StagedStrategy):
            raise TopoplanError("searcher stated: states no staged strategy")
        return strategy

    def _prepared(self, run: Run, stack: Stack) -> _Prepared:
        key = _text({**attrs.asdict(run, recurse=False), "plan": None}), stack
        if key not in self._kept:
            if len(self._kept) >= _KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = self._prepare(run, stack)
        return self._kept[key]

    def _prepare(self, run: Run, stack: Stack) -> _Prepared:
        graph, (cluster, fabric) = self._graph(run), self._network(run, stack)
        costs = build_costs(self._host.make(Estimator, "kernels", {**stack.estimator, **_narrow(run)}), graph, cluster)
        problem = problem_on_fabric(graph, cluster, costs, fabric)
        return _Prepared(problem, fabric, StagedLowering(graph, cluster, costs))

    def _network(self, run: Run, stack: Stack) -> tuple[Cluster, Fabric]:
        """Return a cluster at the rates that a stack reaches, and its network; those asked for last are kept."""
        constants = stack.constants
        key = _text([dict(run.cluster), run.devices, constants.inside, constants.between, constants.latency_us])
        if key not in self._networks:
            if len(self._networks) >= 2 * _KEPT:
                del self._networks[next(iter(self._networks))]
            topology = self._host.make(Topology, "bigswitch", {})
            cluster = self._cluster(run, stack, topology)
            context = TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0))
            fabric = build_fabric(topology, context)
            if not isinstance(fabric, Fabric):
                raise TopoplanError(f"topology {topology.name}: its fabric is rebuilt between phases")
            self._networks[key] = cluster, fabric
        return self._networks[key]

    def _graph(self, run: Run) -> OperatorGraph:
        with tempfile.TemporaryDirectory(prefix="topoplan-") as folder:
            path = Path(folder) / "config.json"
            path.write_text(json.dumps(dict(run.model)), encoding="utf-8")
            options: dict[str, Any] = {"config": str(path), "sequence-length": run.sequence_length}
            if count := run.model.get("num_nextn_predict_layers", 0):
                options["prediction-layers"] = count
            try:
                graph = self._host.make(Frontend, "huggingface", options).build(run.batch)
            except TopoplanError as error:
                raise TopoplanError(str(error).replace(str(path), "model")) from None
        graph = with_kernels(in_precision(graph, "bf16" if _narrow(run) else run.precision), run.kernels)
        return attrs.evolve(graph, optimizer=optimizer_of(graph))

    def _cluster(self, run: Run, stack: Stack, topology: Topology) -> Cluster:
        """Return the cluster at the rates that the stack reaches."""
        options = interfaces_unless_given(ClusterOptions(**run.cluster), [topology])
        server = build_cluster(attrs.evolve(options, servers=1), self._host)
        per_host = len(server.device_host)
        if run.devices % per_host and run.devices > per_host:
            raise TopoplanError(
                f"gpus: {run.devices} do not fill hosts of {per_host} (nearest: {_filled(run.devices, per_host)})"
            )
        constants = stack.constants
        values: dict[str, Any] = {
            "servers": max(run.devices // per_host, 1),
            "inter_gpu_bandwidth_gbps": float(server.inside_bandwidth[0]) * 8e-9 * constants.inside,
            "interface_bandwidth_gbps": float(server.interface_bandwidth[0]) * 8e-9 * constants.between,
        }
        if run.devices < per_host:
            values["gpus_per_server"] = run.devices
        cluster = build_cluster(attrs.evolve(options, **values), self._host)
        return attrs.evolve(cluster, host=_with_latency(cluster.host, constants.latency_us * 1e-6))


def _text(values: Any) -> str:
    """Return values as one text, the same for equal ones."""
    return json.dumps(values, sort_keys=True, default=dict)


def _key(run: Run, stack: Stack) -> tuple[str, Stack]:
    return _text(attrs.asdict(run, recurse=False)), stack


def _but_cheap(stack: Stack, variant: Stack) -> Constants:
    """Return constants of another stack, but `CHEAP` ones of a stack."""
    return attrs.evolve(variant.constants, **{name: getattr(stack.constants, name) for name in CHEAP})


def _whole_seconds(graph: OperatorGraph, costs: CostFunction) -> F64:
    """(2, n) seconds of operators, uncut, on one device: forward and backward."""
    device = np.zeros(1, np.int32)
    prices = [costs.price(op, (1,) * len(operator.dims), device) for op, operator in enumerate(graph.operators)]
    return f64(np.array([[price.forward[0], price.backward[0]] for price in prices]).reshape(-1, 2).T)


def _parts(run: Run) -> list[tuple[Run, float]]:
    """Return runs whose seconds, so often, are those of a run: itself, or two of few rounds where it has many."""
    samples = _samples_of_a_round(run)
    rounds = run.batch / samples if samples else 0.0
    if rounds < _MANY:
        return [(run, 1.0)]
    few, more = (attrs.evolve(run, batch=samples * count) for count in (_ROUNDS, _ROUNDS + 1))
    return [(few, 1 - (rounds - _ROUNDS)), (more, rounds - _ROUNDS)]


def _samples_of_a_round(run: Run) -> int:
    """Return the samples of a round of micro-batches; 0 where the batch has no whole number of micro-batches."""
    plan = run.plan
    ranks, model = int(plan.get("pp", 1)), int(plan.get("tp", 1)) * int(plan.get("cp", 1))
    share = run.devices // (ranks * model) * int(plan.get("micro_batch", 1))
    return 0 if not share or run.batch % share else share * ranks * -(-_FEWEST // ranks)


def _filled(devices: int, per_host: int) -> str:
    """Return the numbers of devices that fill hosts, below and above."""
    below = devices // per_host * per_host
    return f"{below} or {below + per_host}"


def _narrow(run: Run) -> dict[str, bool]:
    """Return the estimator's option for products in fp8 or fp4 of a run in bf16."""
    return {run.precision: True} if run.precision in ("fp8", "fp4") else {}


def _with_latency(host: HostModel | None, seconds: float) -> HostModel | None:
    """Return a host between two of whose devices a message takes so much longer."""
    if host is None or not seconds:
        return host
    links = tuple(attrs.evolve(link, latency=link.latency + seconds / 2) for link in host.links)
    return attrs.evolve(host, links=links)
