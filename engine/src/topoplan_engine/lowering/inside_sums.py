"""What the GPUs that a device stands for send each other (`Cluster.gpus_per_device`) for the weights of a program.

They divide the samples of their device, and each has the weights of the device whole.  So they add up each gradient of
a weight before devices do, and share what devices then have of it, or what devices gather of weights:

    GPUs reduce-scatter ─► devices sum    ─► GPUs all-gather      a gradient
                           devices gather ─► GPUs all-gather      a weight that devices store in slices

A ring of n GPUs takes (n-1)/n of the bytes over each GPU's link each time, 2 (n-1)/n for a gradient that devices
all-reduce, as in placements (`topoplan_engine.lowering.gradient_groups`).  A collective takes this time before its
first byte leaves a host; where one device alone has a weight, its all-reduce has no other member.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from topoplan.model.cluster import Cluster
from topoplan.model.graph import OperatorGraph
from topoplan.model.sharding import arguments
from topoplan.model.taskgraph import Collective
from topoplan_engine.lowering.gradient_groups import share_of_ring
from topoplan_engine.sharding.mesh import MeshStep
from topoplan_engine.sharding.programs import Reshard, pieces
from topoplan_engine.sharding.resharding import CollectiveStep
from topoplan_engine.sharding.stage_graphs import StageGraph
from topoplan_engine.training import gradient_flow

__all__ = ["inside_seconds", "with_sums_inside"]


def with_sums_inside(stage: StageGraph, graph: OperatorGraph, cluster: Cluster) -> StageGraph:
    """Return a stage whose gradients are summed inside its devices, too; the same one where a device is one GPU.

    Each gradient that devices do not sum is one that is summed along no axes of the mesh.

    Args:
        stage: of the model.
        graph: the model.
        cluster: the slowest of the stage's hosts says how fast links of GPUs are.
    """
    if cluster.gpus_per_device == 1:
        return stage
    devices = stage.stage.mesh.devices
    slowest = float(cluster.inside_bandwidth[cluster.device_host[devices]].min())
    reshards = {(each.op, each.argument): each for each in stage.reshards if each.parameter}
    sums = {}
    for op, argument in _trained(stage, graph):
        reshard = reshards.get((op, argument))
        if reshard is None or all(step.free for step in reshard.backward):
            sums[op, argument] = _sum_of_one(stage, op, argument, reshard)
    listed = [each for each in stage.reshards if not (each.parameter and (each.op, each.argument) in sums)]
    ordered = sorted([*listed, *sums.values()], key=lambda each: each.users[0])
    return attrs.evolve(stage, inside=share_of_ring(graph, cluster) / slowest, reshards=tuple(ordered))


def _trained(stage: StageGraph, graph: OperatorGraph) -> Iterator[tuple[int, int]]:
    """Yield (operator, argument) of all weights of a stage that are trained, and whose gradients GPUs of a device sum.

    A table lives on one of them.
    """
    flow = gradient_flow(graph)
    for op, number in enumerate(stage.operator):
        operator = stage.graph.operators[op]
        if stage.position[op] < 0 or operator.kind == "embedding":
            continue
        yield from ((op, len(operator.inputs) + k) for k, trained in enumerate(flow.weights[number]) if trained)
        yield from ((op, k) for user, k in sorted(stage.copies) if user == op and flow.inputs[number][k])


def _sum_of_one(stage: StageGraph, op: int, argument: int, reshard: Reshard | None) -> Reshard:
    """Return a resharding whose gradient a device sums by itself: ``reshard``, or one that brings nothing."""
    share = 1 / pieces(stage.program, stage.program.wanted(op, argument))
    backward = (MeshStep(CollectiveStep(Collective.ALL_REDUCE), (), share),)
    if reshard is not None:
        return attrs.evolve(reshard, backward=backward)
    nbytes = arguments(stage.graph.operators[op])[argument].nbytes
    return Reshard(op, -1, argument, True, nbytes, (op,), (), backward)


def inside_seconds(stage: StageGraph, reshard: Reshard, nbytes: float) -> float:
    """Return the seconds in which GPUs of a device scatter, or gather, so many bytes of a weight or its gradient."""
    embeds = stage.graph.operators[reshard.op].kind == "embedding"
    return 0.0 if embeds or not reshard.parameter else stage.inside * nbytes
