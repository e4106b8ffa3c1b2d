"""Bytes of a stage that belong to no operator's tensors: what the kernels of a trainer hold beside them.

A trainer that adds gradients of weights to those in fp32 inside of its kernels gives PyTorch a tensor in their place,
whose values are not read.  Transformer Engine has one for each shape of a matrix, throughout; Megatron-LM's own layers,
the head among them, make one in each backward pass.  Matrices that read the same tensor are one there: queries, keys
and values, or a gate and what it gates.  An expert has matrices of its own, of one shape.

FSDP2 puts the weights of a layer together from slices, and of all that is in no layer, which stay; gradients are whole
until they are summed in fp32.  What is gathered arrives in memory of a stream of its own, which no other tensor gets.
PyTorch's pipelines have a tensor for all that is received, and keep what they sent.

    StageGraph, trainer's kernels ─► placeholders: bytes by shape, once for all stages of a device
                                  ├► gathered_in_backward, made_in_backward: while each operator's backward pass runs
                                  ├► handed_on: from the forward pass of a micro-batch to its backward pass
                                  ├► accumulated_gradients: from the first backward pass to the last one
                                  └► gather_pool, pipeline_buffers: throughout

Sources: NVIDIA/TransformerEngine@7088403 (``get_dummy_wgrad`` in ``pytorch/module/base.py``);
NVIDIA/Megatron-LM@d98e8a64 (``core/tensor_parallel/layers.py``, ``LinearWithGradAccumulationAndAsyncCommunication``);
pytorch/pytorch v2.6 (``torch/distributed/fsdp/_fully_shard``, ``torch/distributed/pipelining/stage.py``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from topoplan.arrays import F64, I32
from topoplan.model.graph import Operator, Role
from topoplan.model.sharding import arguments
from topoplan.model.staged import StagedStrategy
from topoplan_engine.equal_operators import layers_of
from topoplan_engine.experts import expert_dims
from topoplan_engine.lowering.gather_units import GatherUnits, keeps_gathered, stage_units
from topoplan_engine.partition import multiplies
from topoplan_engine.recomputation import latent_projections
from topoplan_engine.sharding.mesh import exchanges
from topoplan_engine.sharding.programs import pieces
from topoplan_engine.sharding.stage_graphs import Link, StageGraph
from topoplan_engine.trainer_kernels import TrainerKernels, kernels_of
from topoplan_engine.training import is_view, shared_weights

__all__ = [
    "accumulated_gradients",
    "fetched_weights",
    "gather_pool",
    "gathered_in_backward",
    "handed_on",
    "kept_for_weights",
    "kept_in_other_slices",
    "made_in_backward",
    "outside_of",
    "pipeline_buffers",
    "pipeline_tensors",
    "placeholders",
    "received_again",
    "regions_without_outputs",
]

#: How much larger a number in fp32 is than one in the precision of weights.
_FP32 = 2

#: Sizes of a matrix, as one device has it.
Shape = tuple[int, ...]


def placeholders(stage: StageGraph) -> Mapping[Shape, float]:
    """Return bytes of the tensors that stand for gradients of matrices of layers, by their shape."""
    kernels = kernels_of(stage.graph)
    if kernels is None or not kernels.placeholders:
        return {}
    layer, experts = layers_of(stage.graph).layer, expert_dims(stage.graph)
    read_by: dict[tuple[int, int], list[int]] = {}
    edges = stage.graph.edges.reshape(-1, 4).tolist()
    source = {(v, k): (u, output) for u, output, v, k in edges}
    routers = {u for u, _, v, _ in edges if stage.graph.operators[v].kind == "top_k"}  # whose matrix is in fp32
    for op, operator in enumerate(stage.graph.operators):
        if layer[op] and op not in routers and stage.backward[op] and (op, 0) in source and _matrix(operator) >= 0:
            read_by.setdefault(source[op, 0], []).append(op)
    nbytes: dict[Shape, float] = {}
    for members in read_by.values():
        sizes = [_local_bytes(stage, op, experts[op]) for op in members]
        nbytes[tuple(map(round, sizes))] = sum(sizes)
    return nbytes


def made_in_backward(stage: StageGraph, micro_batches: int) -> F64:
    """(n,) bytes that are there while the backward pass of each operator runs, and belong to no activation.

    What stands for the gradient of its matrix, and its input where that was gathered for the matrix and is again.
    """
    nbytes = np.zeros(sum(position >= 0 for position in stage.position))
    kernels = kernels_of(stage.graph)
    if kernels is not None and kernels.units:
        return _whole_gradients(stage) + (_of_cut_loss(stage, kernels) + _unreduced(stage)) / micro_batches
    if kernels is None or not kernels.placeholders:
        return nbytes
    layer = layers_of(stage.graph).layer
    for op, operator in enumerate(stage.graph.operators):
        position = stage.position[op]
        if position >= 0 and not layer[op] and _matrix(operator) >= 0 and stage.backward[op]:
            nbytes[position] = _local_bytes(stage, op, -1)
            nbytes[position] += _gathered_input(stage, op) / micro_batches
    return nbytes


def regions_without_outputs(stage: StageGraph) -> frozenset[int]:
    """Return the regions that run again for whoever reads what they make, so that nothing of it is kept.

    Those of Megatron core without products, which are normalizations and activations of experts, and those that make
    queries, keys and values of what latent attention compresses.

    Source: NVIDIA/Megatron-LM@d98e8a64 (``CheckpointWithoutOutput`` in ``core/tensor_parallel/random.py``,
    ``qkv_up_checkpoint`` in ``core/transformer/multi_latent_attention.py``).
    """
    kernels = kernels_of(stage.graph)
    if kernels is None or not kernels.discards:
        return frozenset()
    regions = {region for region in stage.stage.regions.tolist() if region >= 0}
    latent = {op for members in latent_projections(stage.graph) for op in members}
    for op, operator in enumerate(stage.graph.operators):
        if stage.position[op] >= 0 and op not in latent and (multiplies(operator) or _matrix(operator) >= 0):
            regions.discard(int(stage.stage.regions[stage.position[op]]))
    return frozenset(regions)


def _matrix(operator: Operator) -> int:
    """Return the argument that is a matrix of an operator's product: its own, or another operator's; -1 for none."""
    summed = {index for index, dim in enumerate(operator.dims) if dim.role is Role.REDUCTION}
    read = {axis.dim for tensor in operator.inputs for axis in tensor.axes}
    if summed and not summed & read:  # rows of a table are looked up
        return -1
    shared = shared_weights(operator)
    for argument, tensor in enumerate(arguments(operator)):
        if (argument in shared or argument >= len(operator.inputs)) and sum(axis.dim >= 0 for axis in tensor.axes) > 1:
            return argument
    return -1


def _local_bytes(stage: StageGraph, op: int, experts: int) -> float:
    """Return the bytes of an operator's matrix on one device: of one expert, if it counts them along a dimension."""
    operator, argument = stage.graph.operators[op], _matrix(stage.graph.operators[op])
    tensor = arguments(operator)[argument]
    nbytes = tensor.nbytes / pieces(stage.program, stage.program.wanted(op, argument))
    if experts < 0:
        return nbytes
    cut = stage.program.degrees(op, len(operator.dims))[experts]
    return nbytes / (operator.dims[experts].size / cut)


def _gathered_input(stage: StageGraph, op: int) -> float:
    """Return the bytes of what an operator's backward pass reads and devices gather for it, of the batch."""
    total = 0.0
    for reshard in stage.reshards:
        if op in reshard.users and reshard.output >= 0 and stage.reads(op, reshard):
            argument = next(
                k
                for u, output, v, k in stage.graph.edges.reshape(-1, 4).tolist()
                if (u, output, v) == (reshard.op, reshard.output, op)
            )
            source, target = stage.program.made(reshard.op, reshard.output), stage.program.wanted(op, argument)
            slices = pieces(stage.program, target)
            if slices < pieces(stage.program, source) and not exchanges(source, target):
                total += reshard.nbytes / slices
    return total


def kept_in_other_slices(stage: StageGraph) -> F64:
    """(n,) bytes of the batch that a device keeps of each operator's outputs beyond those that it makes of them.

    Less where devices make terms of a sum and read slices of it.  What is gathered for an operator is gathered again
    for its backward pass, as Megatron-LM does, unless it came in exchange for other slices; with DTensors (torchtitan)
    it is kept as the operator reads it.
    """
    read: dict[tuple[int, int], set[int]] = {}
    as_read = set[tuple[int, int]]()  # what is kept of these is as they are read
    for u, output, v, k in stage.graph.edges.reshape(-1, 4).tolist():
        if stage.position[u] >= 0 and stage.backward[v] and k in stage.arguments_read[v]:
            source, target = stage.program.made(u, output), stage.program.wanted(v, k)
            read.setdefault((u, output), set()).add(pieces(stage.program, target))
            if _has_units(stage) or exchanges(source, target):
                as_read.add((u, output))
    more = np.zeros(sum(position >= 0 for position in stage.position))
    for (u, output), slices in read.items():
        nbytes = stage.graph.operators[u].outputs[output].nbytes
        n_slices = pieces(stage.program, stage.program.made(u, output))
        most = sum(nbytes / each for each in slices) if (u, output) in as_read else nbytes / max(*slices, n_slices)
        more[stage.position[u]] += most - nbytes / n_slices
    return more


def kept_for_weights(stage: StageGraph, late: np.ndarray, slices_more: F64) -> F64:
    """(n,) bytes of the batch of each operator's outputs that others read whose gradients of weights come later.

    Such a gradient is that of an output, times an input: both wait.  What an operator has made waits for others alone.

    Args:
        stage: its graph.
        late: (n,) whether the gradients of an operator's weights come later.
        slices_more: see `kept_in_other_slices`.
    """
    operators, edges = stage.graph.operators, stage.graph.edges.reshape(-1, 4).tolist()
    source = {(v, k): (u, output) for u, output, v, k in edges}
    read: set[tuple[int, int]] = set()
    for v, operator in enumerate(operators):
        if stage.position[v] < 0 or not late[stage.position[v]]:
            continue
        for k in stage.arguments_read[v]:
            maker = source.get((v, k)) if k < len(operator.inputs) else None
            while maker is not None and is_view(operators[maker[0]]):
                maker = source.get((maker[0], 0))
            if maker is not None and stage.position[maker[0]] >= 0:
                read.add(maker)
    nbytes = np.zeros(len(late))
    for u, output in read:
        slices = pieces(stage.program, stage.program.made(u, output))
        nbytes[stage.position[u]] += operators[u].outputs[output].nbytes / slices
    return np.where(nbytes > 0, nbytes + slices_more, 0.0)


def gathered_in_backward(stage: StageGraph) -> F64:
    """(n,) bytes of weights that are gathered while the backward pass of each operator runs, and given back.

    Those of its layer and of the next one.  FSDP2 has the next one in `gather_pool`, until its pass begins; those of no
    layer, which are one unit around all others, are there all the time.
    """
    units = stage_units(stage) if stage.program.gathers_again else None
    rows = [op for op, position in enumerate(stage.position) if position >= 0]
    if units is None:
        return np.zeros(len(rows))
    if not _has_units(stage):
        return units.in_backward()[rows]
    outside = outside_of(stage, units)
    layers = np.where(outside, 0.0, units.nbytes)
    last = np.zeros(len(layers))
    if layers.any():  # torchtitan does not give back the last one (``apply_fsdp``)
        last[np.flatnonzero(layers)[-1] + 1 :] = layers[np.flatnonzero(layers)[-1]]
    nbytes: F64 = units.nbytes[outside].sum() + np.maximum(layers, last)
    return nbytes[units.unit[rows]]


def fetched_weights(stage: StageGraph) -> tuple[float, F64]:
    """Return bytes of the weights that FSDP2 gathers, whether it gives them back or not: of no layer, and by layer."""
    units = stage_units(stage) if _has_units(stage) else None
    if units is None:
        return 0.0, np.zeros(0)
    outside = outside_of(stage, units)
    layers = units.nbytes[~outside]
    return float(units.nbytes[outside].sum()), layers[layers > 0]


def gather_pool(stage: StageGraph) -> float:
    """Return the bytes of the memory that gathered weights arrive in, from which they are copied.

    It belongs to the stream that gathers, so that the allocator gives it to no other tensor.  What has arrived for a
    unit stays until the next one has arrived; the first unit is all that is in no layer.

    Source: pytorch/pytorch v2.6, ``_fsdp_param_group.py`` (note on the overlap of copies and gathers).
    """
    tables, layers = fetched_weights(stage)
    units = np.array([*([tables] if tables else ()), *layers])
    return float(np.max(units + np.append(units[1:], 0.0), initial=0.0))


def _whole_gradients(stage: StageGraph) -> F64:
    """(n,) bytes of gradients of weights that FSDP2 has whole while the backward pass of each operator runs.

    Those of its layer in the precision of weights, those of the layer behind in fp32, as they are summed; and of what
    is in no layer all that there are already: they are summed when the pass ends.  Where weights stay, those of the
    layer behind have been added to `accumulated_gradients`.
    """
    rows = [op for op, position in enumerate(stage.position) if position >= 0]
    units = stage_units(stage)
    if units is None:
        return np.zeros(len(rows))
    outside = outside_of(stage, units)
    layers, ends = np.where(outside, 0.0, units.nbytes), np.where(outside, units.nbytes, 0.0)
    ends_since = np.cumsum(ends[::-1])[::-1]
    user = np.full(len(ends), -1)  # the last operator of each unit that has weights
    for reshard in units.given_back:
        user[units.unit[reshard.users[0]]] = max(user[units.unit[reshard.users[0]]], *reshard.users)
    unit = units.unit[rows]
    sums = _FP32 * np.append(layers[1:], 0.0) if stage.program.gathers_again else 0.0
    nbytes: F64 = (layers + sums + ends_since)[unit]
    return nbytes - np.where(np.array(rows) > user[unit], ends[unit], 0.0)


def _unreduced(stage: StageGraph) -> F64:
    """(n,) bytes of the batch of gradients that are terms of a sum, as large as what several operators gathered.

    DTensors add what the backward passes of these operators make of it, and sum it among devices after the last one.
    """
    nbytes = np.zeros(sum(position >= 0 for position in stage.position))
    readers: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for u, output, v, argument in stage.graph.edges.reshape(-1, 4).tolist():
        if stage.position[v] >= 0 and stage.backward[v] and stage.backward[u]:
            readers.setdefault((u, output), []).append((stage.position[v], argument))
    for (u, output), several in readers.items():
        slices_made = pieces(stage.program, stage.program.made(u, output))
        places = sorted(
            place
            for place, argument in several
            if pieces(stage.program, stage.stage.program.wanted(place, argument)) < slices_made
        )
        if len(places) > 1:
            tensor = stage.graph.operators[u].outputs[output].nbytes
            slices = pieces(stage.program, stage.stage.program.wanted(places[0], dict(several)[places[0]]))
            nbytes[places[0] : places[-1]] += tensor / slices - tensor / slices_made
    return nbytes


def _of_cut_loss(stage: StageGraph, kernels: TrainerKernels) -> F64:
    """(n,) bytes of the batch that a loss makes beyond what it does whole, where devices have slices of the words.

    As DTensors (pytorch/pytorch v2.6, ``torch/distributed/tensor/parallel/loss.py``): its backward pass has zeros, the
    exponentials of what it kept, and the sum of both, where one device has two tensors of this size.
    """
    nbytes = np.zeros(sum(position >= 0 for position in stage.position))
    for op, operator in enumerate(stage.graph.operators):
        if operator.kind != "cross_entropy" or kernels.loss != "eager" or stage.position[op] < 0:
            continue
        degrees = stage.program.degrees(op, len(operator.dims))
        if degrees[operator.combines[0]] > 1:
            nbytes[stage.position[op]] = operator.extras[0].nbytes / math.prod(degrees)
    return nbytes


def accumulated_gradients(stage: StageGraph, micro_batches: int, *, at_once: bool) -> float:
    """Return the bytes of gradients that are summed whole from the first of several micro-batches on; FSDP2 has fp32.

    Where weights stay once they are gathered, as in its pipelines, gradients are divided when the last one has ended.

    Args:
        stage: the stage.
        micro_batches: of the iteration.
        at_once: see `topoplan_engine.lowering.gather_units.keeps_gathered`.

    Source: pytorch/pytorch v2.6, ``torch/distributed/pipelining/stage.py`` (``backward_maybe_with_nosync``) and
    ``distributed/fsdp/_fully_shard/_fsdp_param.py`` (``unsharded_accumulated_grad``).
    """
    total = 0.0
    if not keeps_gathered(stage, at_once=at_once) or micro_batches < 2:
        return total
    stated = 0 if _has_units(stage) else stage.stage.gradient_bytes
    for op, operator in enumerate(stage.graph.operators):
        for k in range(len(operator.inputs), len(operator.inputs) + len(operator.weights)):
            slices = pieces(stage.program, stage.program.wanted(op, k))
            if slices < pieces(stage.program, stage.program.stored[op][k]) and stage.backward[op]:
                tensor = arguments(operator)[k]
                whole = stated * tensor.elements or tensor.nbytes * (_FP32 if _has_units(stage) else 1)
                total += whole / slices
    return total


def pipeline_buffers(stage: StageGraph, rank_of: I32) -> float:
    """Return the bytes that PyTorch's pipelines hold throughout for what stages send each other.

    ``rank_of`` has the rank of each stage; stages of one rank hand each other what they made.

    A tensor for what each micro-batch receives, and for the gradient of what it sends; the last stage keeps what the
    model made of each micro-batch, the scores that a loss outside of the model reads.

    Source: pytorch/pytorch v2.6, ``torch/distributed/pipelining/stage.py`` (``_prepare_forward_infra``,
    ``_prepare_backward_infra``, ``output_chunks``).
    """
    received, sent, scores = pipeline_tensors(stage, rank_of)
    return received + sent + scores if received or sent else 0.0


def handed_on(strategy: StagedStrategy, stage: StageGraph) -> float:
    """Return the bytes of the batch that PyTorch's pipelines keep of what stages send each other and run again.

    What a stage sent is kept until its backward pass.  What it received is in one of `pipeline_buffers`, and not kept a
    second time for operators that run again, so that less is kept than without them.

    Source: pytorch/pytorch v2.6, ``torch/distributed/pipelining/stage.py`` (``fwd_cache``, ``args_recv_info``).
    """
    total, rank_of = 0.0, strategy.order.rank_of
    if not _has_units(stage):
        return total
    for op, links in stage.sends.items():
        place = stage.stage.operators.tolist().index(links[0].op)
        if stage.stage.regions[place] >= 0 and any(rank_of[each.source] != rank_of[each.target] for each in links):
            total += _tensor_bytes(stage, op, links[0])
    for op, link in stage.receives.items():
        if rank_of[link.source] != rank_of[link.target] and received_again(strategy, stage, op):
            total -= stage.graph.operators[op].outputs[0].nbytes / pieces(stage.program, link.arrives)
    return total


def received_again(strategy: StagedStrategy, stage: StageGraph, op: int) -> list[int]:
    """Return the places of operators that run again, read what an operator receives, and have to keep it.

    They need not where what sends it does not run again, and has kept it for a backward pass that reads it.
    """
    link = stage.receives[op]
    readers = stage.graph.edges[stage.graph.edges[:, 0] == op][:, [2, 3]].tolist()
    source = strategy.stages[link.source]
    is_read = any(stage.backward[v] and k in stage.arguments_read[v] for v, k in readers)
    if is_read and source.regions[np.searchsorted(source.operators, link.op)] < 0:
        return []
    places = [stage.position[v] for v, _ in readers]
    return [place for place in places if place >= 0 and stage.stage.regions[place] >= 0]


def pipeline_tensors(stage: StageGraph, rank_of: I32 | None = None) -> tuple[float, float, float]:
    """Return the parts of `pipeline_buffers`; with no ``rank_of`` all other stages are on other ranks.

    They are what it receives, the gradients of what it sends, and scores of a loss.
    """
    if not _has_units(stage):
        return 0.0, 0.0, 0.0

    def of(links: Mapping[int, Link]) -> float:
        away = {op: k for op, k in links.items() if rank_of is None or rank_of[k.source] != rank_of[k.target]}
        return sum(_tensor_bytes(stage, op, link) for op, link in away.items())

    received = of({op: link for op, link in stage.receives.items() if op not in stage.sends})
    return received, of({op: links[0] for op, links in stage.sends.items()}), _score_bytes(stage)


def _tensor_bytes(stage: StageGraph, op: int, link: Link) -> float:
    """Return the bytes of the batch that a stage receives by a link, or of the gradient of what it sends."""
    tensor = (stage.graph.operators[op].outputs or stage.graph.operators[op].inputs)[0]
    return tensor.nbytes / pieces(stage.program, link.sent if op in stage.sends else link.arrives)


def _score_bytes(stage: StageGraph) -> float:
    """Return the bytes of the batch of what losses read."""
    return sum(
        operator.inputs[0].nbytes / pieces(stage.program, stage.program.wanted(op, 0))
        for op, operator in enumerate(stage.graph.operators)
        if operator.kind == "cross_entropy"
    )


def _has_units(stage: StageGraph) -> bool:
    """Whether a trainer is PyTorch's FSDP2 with its pipelines, which gathers units of weights."""
    kernels = kernels_of(stage.graph)
    return kernels is not None and bool(kernels.units)


def outside_of(stage: StageGraph, units: GatherUnits) -> np.ndarray:
    """(U,) whether each unit of gathered weights is in no layer of the model."""
    outside = np.ones(len(units.nbytes), dtype=np.bool_)
    for op, layer in enumerate(layers_of(stage.graph).layer):
        outside[units.unit[op]] &= not layer
    return outside
