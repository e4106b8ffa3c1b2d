"""Which strategies the trainers run, as values that searchers obey (`topoplan.Restriction`).

`grid` and `tensor` refuse a plan afterwards; the rules here are theirs, said of one operator, one parameter and one
tensor at a time.  A whole strategy is asked of the exporter itself: what it can write, the trainer can run.
"""

from __future__ import annotations

from collections.abc import Callable

from topoplan import AxisUse, Cluster, Operator, OperatorGraph, PipelineLimits, Restriction, Strategy
from topoplan.model.graph import Role
from topoplan.model.sharding import PARTIAL, Sharding, Signature
from topoplan_exporter_launch.meshes import SMALL, cuts_experts, has_experts
from topoplan_exporter_launch.tensor import TABLES, has_matrix, is_sent, positions_dim
from topoplan_trainer_plans import PlanLike, why_not_written

__all__ = ["DEEPSPEED", "MEGATRON", "TORCHTITAN", "TORCHTITAN_TOML", "TrainerRestriction"]

_REPLICAS = (AxisUse.DATA, AxisUse.SHARDED_DATA)
_SLICES = (AxisUse.TENSOR, AxisUse.SEQUENCE)
_DATA_ALONE: tuple[tuple[AxisUse, ...], ...] = tuple((data,) for data in _REPLICAS)


class TrainerRestriction(Restriction):
    """What a trainer runs that puts devices on a grid of stages x replicas x slices of tensors.

    Args:
        name: of its exporter.
        write: the exporter, or the part of it that refuses whole plans.
        meshes: uses of axes.
        shards_state: whether it has ZeRO's second stage.
        pipelines: those that it has.
        whole_tables: it leaves tables of words whole where it cuts matrices, and may leave matrices whole.
        runs: the strategy that it runs where a plan does not say all; None: what the plan says.
    """

    def __init__(
        self,
        name: str,
        write: Callable[[PlanLike], object],
        meshes: tuple[tuple[AxisUse, ...], ...],
        *,
        shards_state: bool,
        pipelines: PipelineLimits | None,
        whole_tables: bool = False,
        runs: Callable[[OperatorGraph, Cluster, Strategy], Strategy] | None = None,
    ) -> None:
        self.name, self.meshes, self.shards_state, self.pipelines = name, meshes, shards_state, pipelines
        self._write, self._whole_tables, self._runs = write, whole_tables, runs

    def allows(self, operator: Operator, use: AxisUse, signature: Signature) -> bool:
        """Say whether all devices along the axis do to this operator what the axis is for."""
        if use in _REPLICAS:
            return signature.dim == operator.sample_dim
        if use is AxisUse.EXPERT:
            if signature.dim == operator.sample_dim:
                return not operator.weights or not has_experts(operator)
            return not operator.weights or cuts_experts(operator, signature.dim)
        if not operator.weights:
            if PARTIAL in signature.inputs:  # what matrices in slices make is summed right behind them
                return False
            shared = self._whole_tables and "shared" in operator.tags
            return signature.dim < 0 if shared else signature.dim < 0 or signature.dim != operator.sample_dim
        return self._cuts_weights(operator, use, signature.dim)

    def _cuts_weights(self, operator: Operator, use: AxisUse, dim: int) -> bool:
        """Say whether an operator with weights may be cut along a dimension (-1: none) on the axis of tensors."""
        if self._whole_tables and operator.kind in TABLES:
            return dim < 0
        if has_matrix(operator):
            if dim < 0:
                return self._whole_tables
            role = operator.dims[dim].role
            columns = operator.kind not in TABLES and len(operator.weights[0].axes) > 1
            return role is Role.REDUCTION or (role is Role.PARAMETER and columns)
        positions = positions_dim(operator)
        if use is AxisUse.SEQUENCE and positions >= 0:
            return dim == positions
        if dim < 0:
            return True
        has_weights = any(axis.dim == dim for weight in operator.weights for axis in weight.axes)
        return operator.dims[dim].role is Role.ATTRIBUTE and dim != positions and not has_weights

    def stores(self, elements: int, use: AxisUse, stored: Sharding, used: Sharding) -> bool:
        """Say whether a parameter is stored as it is used, or in slices where replicas slice everything."""
        if use is AxisUse.SHARDED_DATA and elements >= SMALL:
            return stored.sliced and not used.sliced
        return stored.axis == used.axis

    def converts(self, use: AxisUse, source: Sharding, target: Sharding) -> bool:
        """Say whether the trainer sends what brings an activation from one sharding to the other."""
        if use in _SLICES:
            return is_sent(source, target, sequence=use is AxisUse.SEQUENCE)
        return True

    def refusal(self, graph: OperatorGraph, cluster: Cluster, strategy: Strategy) -> str:
        """Return why the exporter cannot write a strategy."""
        return why_not_written(self._write, graph, cluster, strategy)

    def as_run(self, graph: OperatorGraph, cluster: Cluster, strategy: Strategy) -> Strategy:
        """Return a strategy with what the trainer adds to it."""
        return strategy if self._runs is None else self._runs(graph, cluster, strategy)


def _grids(*tensors: AxisUse, experts_and_tensors: bool = True) -> tuple[tuple[AxisUse, ...], ...]:
    """Return meshes of replicas, and of replicas, experts and slices of tensors."""
    meshes: list[tuple[AxisUse, ...]] = [*_DATA_ALONE, *((use,) for use in tensors)]
    meshes += [(data, use) for data in _REPLICAS for use in tensors]
    meshes += [(AxisUse.EXPERT,), *((data, AxisUse.EXPERT) for data in _REPLICAS)]
    if experts_and_tensors:
        meshes += [(AxisUse.EXPERT, use) for use in tensors]
        meshes += [(data, AxisUse.EXPERT, use) for data in _REPLICAS for use in tensors]
    return tuple(meshes)


def _write_megatron(plan: PlanLike) -> object:
    from topoplan_exporter_launch.megatron import flags_and_grid

    return flags_and_grid(plan)


def _as_megatron_runs(graph: OperatorGraph, cluster: Cluster, strategy: Strategy) -> Strategy:
    from topoplan_exporter_launch.as_run import as_run
    from topoplan_exporter_launch.megatron import TARGET

    return as_run(graph, cluster, strategy, TARGET, gives_back=True)


def _as_torchtitan_runs(graph: OperatorGraph, cluster: Cluster, strategy: Strategy) -> Strategy:
    from topoplan_exporter_launch.as_run import as_run
    from topoplan_exporter_launch.torchtitan import TARGET

    return as_run(graph, cluster, strategy, TARGET, gives_back=False)


def _write_torchtitan(plan: PlanLike) -> bytes:
    from topoplan_exporter_launch.torchtitan import write

    return write(plan)


def _write_torchtitan_toml(plan: PlanLike) -> bytes:
    from topoplan_exporter_launch.torchtitan_toml import write

    return write(plan)


def _write_deepspeed(plan: PlanLike) -> bytes:
    from topoplan_exporter_launch.deepspeed import write

    return write(plan)


MEGATRON = TrainerRestriction(
    "megatron",
    _write_megatron,
    _grids(*_SLICES),
    shards_state=True,
    pipelines=PipelineLimits(cuts="layers", schedules=("1f1b",), recompute="all or none"),
    runs=_as_megatron_runs,
)
TORCHTITAN = TrainerRestriction(
    "torchtitan",
    _write_torchtitan,
    tuple(
        mesh
        for mesh in _grids(*_SLICES, experts_and_tensors=False)
        if AxisUse.EXPERT not in mesh or AxisUse.SHARDED_DATA in mesh
    ),
    shards_state=False,
    pipelines=PipelineLimits(cuts="layers", schedules=("1f1b", "gpipe"), recompute="all or none"),
    runs=_as_torchtitan_runs,
)
TORCHTITAN_TOML = TrainerRestriction(
    "torchtitan",
    _write_torchtitan_toml,
    tuple(mesh for mesh in TORCHTITAN.meshes if AxisUse.TENSOR not in mesh),
    shards_state=False,
    pipelines=PipelineLimits(cuts="layers", schedules=("1f1b", "gpipe"), recompute="all or none"),
    runs=_as_torchtitan_runs,
)
DEEPSPEED = TrainerRestriction(
    "deepspeed",
    _write_deepspeed,
    _grids(AxisUse.TENSOR, experts_and_tensors=False),
    shards_state=True,
    pipelines=None,
    whole_tables=True,
)
