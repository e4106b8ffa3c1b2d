"""What a trainer's kernels keep for the backward pass, where they differ from operators that run one by one.

    graph in its precision ─► with_kernels(graph, "megatron") ─► the same operators, which keep what these kernels keep
                                                               └► tag ``kernels``: buffers of a stage (`stage_buffers`)

Operators of a graph keep what PyTorch's own kernels keep.  Trainers fuse some of them, and so keep less, or more:

=====================  ===================================================================================
gates                  ``silu(gate) * up`` in one kernel keeps ``gate`` and ``up`` and computes the activation again
loss in place          the gradient of the scores takes their place, in their precision
loss compiled          scores in their precision are kept, and their gradient is made in it
loss, cut, eager       of scores that are cut by words four tensors in fp32 are there at once, see `_cut_loss`
scores of attention    kept whole by attention that is not fused: shares, the mask of their dropout, what that leaves
weights of experts     multiplied to what is inside of an expert, so that answers are not kept
router                 scores and shares of all experts in fp32, and a map of those that are chosen
norms written out      an RMS norm in PyTorch's operators keeps what it multiplies with its weight, too, in fp32
GELU written out       three tensors beside its input
repeated keys          keys and values are copied for all heads of the query, and their gradients made, for attention
cached keys            keys and values are copied into a cache, which is made in training, too
layers compiled        of what a region keeps, only what its backward pass needs
inputs in fp8          products of layers, and gates, keep what they read in one byte for each number
=====================  ===================================================================================

Sources: NVIDIA/Megatron-LM@d98e8a64 (``fusions/fused_bias_swiglu.py``, ``moe/router.py``, ``moe/experts.py``);
NVIDIA/TransformerEngine@7088403 (``pytorch/cross_entropy.py``, ``common/triton/cross_entropy.py``); Korthikanti et al.,
2022, section 4.1; huggingface/transformers v4.57 (``modeling_llama.py``, ``activations.py``, ``cache_utils.py``);
pytorch/torchtitan (``models/llama/model.py``, ``repeat_kv``);
pytorch/pytorch v2.6 (``torch/distributed/tensor/parallel/loss.py``, ``aten/src/ATen/native``); DeepSeek-AI, DeepSeek-V3
(2024), section 3.3.3.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Literal, cast

import attrs

from topoplan.errors import TopoplanError, nearest, shown
from topoplan.model.graph import Axis, Operator, OperatorGraph, Tensor
from topoplan_engine.equal_operators import layers_of
from topoplan_engine.experts import expert_dims

__all__ = [
    "KERNELS",
    "TrainerKernels",
    "attention_of",
    "check_precision",
    "kernels_of",
    "products_in_fp8",
    "with_attention",
    "with_kernels",
]

#: How attention runs: without scores in memory; so by FlashAttention 2, which is slower on Hopper; with them.
AttentionKernel = Literal["fused", "flash2", "written"]
#: The tag of a graph that names its kernels.
_TAG = "kernels"
#: The tag of a graph that names its kernel of attention.
_ATTENTION = "attention"
#: Kinds of functions that trainers fuse with the product behind them.
_GATES = ("silu", "gelu", "relu")
#: Kinds of products with a matrix of their own.
_PRODUCTS = ("linear", "expert_linear")


@attrs.frozen(kw_only=True)
class TrainerKernels:
    """The kernels of a trainer; see the module.

    Attributes:
        gates: whether an activation and the product with what it gates are one kernel.
        loss: of scores over words; ``plain`` keeps what the operator says.
        attention: its kernel: fused, which keeps no scores; FlashAttention 2, which is slower on Hopper; or written,
            whose scores are in memory.
        fused: whether rotary embeddings, gates, and tokens to experts and back are one kernel each, for estimators.
        experts: whether weights of experts are multiplied inside of them, and the router keeps all shares.
        placeholders: whether each shape of a matrix has a tensor that stands for gradients which kernels have added to
            those in fp32 already, throughout (Transformer Engine, ``get_dummy_wgrad``).
        buffers: whether gradients of weights are there throughout, in buffers of the trainer.
        repeats: whether keys and values are repeated for all heads of the query before attention.
        written: whether models are as transformers writes them; tag ``written`` of a graph says what of its model is.
        units: whether gradients of a layer are there whole until they are summed, and a layer's weights are gathered by
            copies (FSDP2).
        compiled: whether layers are compiled as a whole, so that nothing is kept that no backward pass needs.
        discards: whether a region that runs again for whoever reads it keeps nothing of what it makes.
        narrow: whether inputs of products in fp8 are kept in fp8, and those of gates in experts.
    """

    gates: bool = True
    loss: Literal["plain", "eager", "in place", "compiled"] = "eager"
    attention: AttentionKernel = "fused"
    fused: bool = True
    experts: bool = False
    placeholders: bool = False
    units: bool = False
    compiled: bool = False
    discards: bool = False
    narrow: bool = False
    buffers: bool = True
    repeats: bool = False
    written: bool = False


#: Name -> kernels.  Megatron core runs modules of Transformer Engine unless it is asked for ``--transformer-impl
#: local``; torchtitan compiles layers if it is asked to, and with them the loss since 2025 (pytorch/torchtitan#1033),
#: which ran operator by operator before.  PyTorch's attention is FlashAttention 2.  DeepSeek's trainer is what the
#: report on DeepSeek-V3 says of it (sections 3.2.3 and 3.3.3).
KERNELS: Mapping[str, TrainerKernels] = MappingProxyType(
    {
        "megatron": TrainerKernels(loss="in place", experts=True, placeholders=True, discards=True),
        "megatron-local": TrainerKernels(attention="written", fused=False),
        "torchtitan": TrainerKernels(loss="compiled", attention="flash2", units=True, compiled=True, repeats=True),
        "torchtitan-2024": TrainerKernels(attention="flash2", units=True, compiled=True, repeats=True),
        "torchtitan-eager": TrainerKernels(gates=False, attention="flash2", fused=False, units=True, repeats=True),
        "deepseek": TrainerKernels(loss="in place", experts=True, discards=True, narrow=True),
        "transformers": TrainerKernels(gates=False, loss="plain", fused=False, buffers=False, written=True),
    }
)


def kernels_of(graph: OperatorGraph) -> TrainerKernels | None:
    """Return the kernels of a graph; None where operators run one by one."""
    return KERNELS.get(graph.tags.get(_TAG, ""))


def check_precision(name: str, precision: str) -> None:
    """Check that a run has the precision that kernels are for.

    Args:
        name: of `KERNELS`, or of none.
        precision: of the run.

    Raises:
        TopoplanError: the kernels keep in fp8 what products in fp8 read, and products are not in fp8.
    """
    if name in KERNELS and KERNELS[name].narrow and precision != "fp8":
        raise TopoplanError(f"kernels: {name}: products run in fp8 (--precision fp8, not {precision or 'unset'})")


def products_in_fp8(graph: OperatorGraph) -> frozenset[int]:
    """Return the products whose inputs a trainer keeps in fp8: those of layers with their own matrix, but of routers.

    Gradients of their outputs wait in fp8, too, where gradients of weights are computed apart.

    Source: DeepSeek-AI, DeepSeek-V3 (2024), sections 3.3.1 and 3.3.3.
    """
    kernels = kernels_of(graph)
    if kernels is None or not kernels.narrow:
        return frozenset()
    layer = layers_of(graph).layer
    routers = {u for u, _, v, _ in graph.edges.reshape(-1, 4).tolist() if graph.operators[v].kind == "top_k"}
    return frozenset(
        number
        for number, op in enumerate(graph.operators)
        if op.kind in _PRODUCTS and op.weights and layer[number] and number not in routers
    )


def attention_of(graph: OperatorGraph) -> AttentionKernel:
    """Return the kernel of attention of a graph: what its model says, else that of its trainer, else ``fused``."""
    kernels = kernels_of(graph)
    if _ATTENTION in graph.tags:
        return cast("AttentionKernel", graph.tags[_ATTENTION])
    return "fused" if kernels is None else kernels.attention


def with_attention(graph: OperatorGraph, kernel: AttentionKernel) -> OperatorGraph:
    """Return a model whose attention runs in a kernel, ``fused``, ``flash2`` or ``written``, whoever trains it."""
    return attrs.evolve(graph, tags={**graph.tags, _ATTENTION: kernel})


def with_kernels(graph: OperatorGraph, name: str) -> OperatorGraph:
    """Return a graph whose operators keep what the kernels of a trainer keep.

    Args:
        graph: the model, in its precision.
        name: of `KERNELS`; empty for operators that run one by one.

    Raises:
        TopoplanError: there are no such kernels.
    """
    if name and name not in KERNELS:
        raise TopoplanError(f"kernels: {shown(name)} is not known{nearest(name, KERNELS)}")
    if name:
        graph = attrs.evolve(graph, tags={**graph.tags, _TAG: name})
    keeps_scores = attention_of(graph) == "written"
    if not name:
        return _written(graph) if keeps_scores else graph
    kernels, readers = KERNELS[name], _readers(graph)
    operators = list(graph.operators)
    if kernels.gates:
        _fuse_gates(operators, readers)
    written = graph.tags.get("written", "").split() if kernels.written else []
    layer, experts = layers_of(graph).layer, expert_dims(graph)
    for number, op in enumerate(graph.operators):
        if op.kind == "cross_entropy":
            operators[number] = _loss_of_scores(op) if "scores" in written else _LOSSES[kernels.loss](op)
        elif op.kind == "scaled_dot_product_attention" and keeps_scores:
            operators[number] = _unfused_attention(op, dropout="dropout" in graph.tags)
        elif op.kind == "scaled_dot_product_attention" and kernels.repeats:
            operators[number] = _repeated_keys(op)
        elif kernels.written and op.kind in _WRITTEN:
            operators[number] = _WRITTEN[op.kind](op, written)
        elif "dropout" in graph.tags and (op.kind == "learned_positions" or (op.kind == "add" and layer[number])):
            operators[number] = _dropped(op)
        elif op.kind == "top_k" and kernels.experts:
            operators[number] = _router(op)
        elif op.kind == "combine" and experts[number] >= 0 and kernels.experts:
            operators[number] = attrs.evolve(op, saved=("gates", "experts"))
    return attrs.evolve(graph, operators=tuple(operators))


def _written(graph: OperatorGraph) -> OperatorGraph:
    """Return a graph whose attention keeps its scores; all else stays."""
    dropout = "dropout" in graph.tags
    operators = (
        _unfused_attention(op, dropout=dropout) if op.kind == "scaled_dot_product_attention" else op
        for op in graph.operators
    )
    return attrs.evolve(graph, operators=tuple(operators))


def _readers(graph: OperatorGraph) -> dict[int, list[tuple[int, int]]]:
    """Return who reads the outputs of each operator, and as which input."""
    readers: dict[int, list[tuple[int, int]]] = {}
    for u, _, v, argument in graph.edges.reshape(-1, 4).tolist():
        readers.setdefault(u, []).append((v, argument))
    return readers


def _fuse_gates(operators: list[Operator], readers: Mapping[int, list[tuple[int, int]]]) -> None:
    """Let products of an activation with what it gates keep the inputs of both alone."""
    for number, op in enumerate(operators):
        if op.kind not in _GATES or len(readers.get(number, ())) != 1:
            continue
        ((reader, place),) = readers[number]
        product = operators[reader]
        if product.kind == "multiply" and len(product.inputs) == 2:
            operators[number] = attrs.evolve(op, saved=(op.inputs[0].name,))
            operators[reader] = attrs.evolve(product, saved=(product.inputs[1 - place].name,))


def _loss_in_place(op: Operator) -> Operator:
    """Keep the gradient of the scores, which the forward pass has made in their place.

    It is counted as what the loss keeps until its backward pass, and as the gradient of the scores from there on.
    """
    scores = op.inputs[0]
    gradient = attrs.evolve(scores, name="scores_gradient")
    return attrs.evolve(op, extras=(gradient,), scratch=(), saved=(), tags={**op.tags, "in_place": scores.name})


def _compiled_loss(op: Operator) -> Operator:
    """Keep the scores as they are, and make nothing but their gradient."""
    return attrs.evolve(op, extras=(), scratch=(), saved=(op.inputs[0].name,))


def _eager_loss(op: Operator) -> Operator:
    """Keep the logarithms of probabilities in fp32, and make two gradients of their size, as the operator says.

    What held the scores in their own precision is free, but too small for a tensor in fp32: the allocator keeps it.
    """
    if op.inputs[0].itemsize == op.extras[0].itemsize:
        return op
    return attrs.evolve(op, scratch=(*op.scratch, attrs.evolve(op.inputs[0], name="scores_before")))


_LOSSES: Mapping[str, Callable[[Operator], Operator]] = MappingProxyType(
    {"plain": lambda op: op, "eager": _eager_loss, "in place": _loss_in_place, "compiled": _compiled_loss}
)


def _loss_of_scores(op: Operator) -> Operator:
    """Keep, and make, what the loss has in the precision of the scores."""
    size = op.inputs[0].itemsize
    extras, scratch = (tuple(attrs.evolve(x, itemsize=size) for x in tensors) for tensors in (op.extras, op.scratch))
    return attrs.evolve(op, extras=extras, scratch=scratch)


def _written_norm(op: Operator, words: Collection[str]) -> Operator:
    """Keep what an RMS norm multiplies with its weight; in mixed precision its input in fp32 instead of two bytes."""
    return attrs.evolve(op, extras=(*op.extras, attrs.evolve(op.outputs[0], name="normalized", itemsize=4)))


def _written_gelu(op: Operator, words: Collection[str]) -> Operator:
    """Keep the hyperbolic tangent, and both factors of the last product: half of the input, and one more than it."""
    if "gelu" not in words:
        return op
    names = ("tangent", "half", "tangent_and_one")
    return attrs.evolve(op, extras=(*op.extras, *(attrs.evolve(op.outputs[0], name=name) for name in names)))


def _cached_attention(op: Operator, words: Collection[str]) -> Operator:
    """Keep copies of keys and values beside the tensor that they are slices of."""
    if "joint" not in words:
        return op
    copies = (attrs.evolve(tensor, name=f"cached_{tensor.name}") for tensor in op.inputs[1:])
    return attrs.evolve(op, extras=(*op.extras, *copies))


_WRITTEN: Mapping[str, Callable[[Operator, Collection[str]], Operator]] = MappingProxyType(
    {"gelu": _written_gelu, "rms_norm": _written_norm, "scaled_dot_product_attention": _cached_attention}
)


def _unfused_attention(op: Operator, *, dropout: bool) -> Operator:
    """Keep the shares of every pair of positions, with dropout its mask and what it leaves, and no sums."""
    sizes = {dim.name: (dim.size, number) for number, dim in enumerate(op.dims)}
    axes = tuple(Axis(*sizes[name]) for name in "nhgqt")
    itemsize = op.inputs[0].itemsize
    extras = [Tensor("shares", axes, itemsize)]
    if dropout:
        extras += [Tensor("mask", axes, 1), Tensor("shares_left", axes, itemsize)]
    scratch = tuple(Tensor(name, axes, itemsize) for name in ("shares_gradient", "scores_gradient"))
    return attrs.evolve(op, saved=("query", "keys", "values"), extras=tuple(extras), scratch=scratch)


def _repeated_keys(op: Operator) -> Operator:
    """Make keys and values of all heads of the query, and their gradients, while the backward pass runs.

    Layers that run again, and compiled ones, keep those that are shared, and repeat them again.
    """
    sizes = {dim.name: (dim.size, number) for number, dim in enumerate(op.dims)}
    if sizes["g"][0] == 1:
        return op
    itemsize = op.inputs[0].itemsize
    names = {"keys_of_heads": "nhgtd", "values_of_heads": "nhgte"}
    copies = (
        Tensor(f"{name}{of}", tuple(Axis(*sizes[dim]) for dim in dims), itemsize)
        for name, dims in names.items()
        for of in ("", "_gradient")
    )
    return attrs.evolve(op, scratch=(*op.scratch, *copies))


def _dropped(op: Operator) -> Operator:
    """Keep the mask of a dropout in front of a sum, or behind the words."""
    (output,) = op.outputs
    mask = attrs.evolve(output, name="mask", itemsize=1)
    return attrs.evolve(op, extras=(*op.extras, mask))


def _router(op: Operator) -> Operator:
    """Keep scores and shares of all experts in fp32, and the map of those that are chosen."""
    scores = op.inputs[0]
    sizes = {"scores": 4, "shares": 4, "map": 1}
    extras = (attrs.evolve(scores, name=name, itemsize=size) for name, size in sizes.items())
    return attrs.evolve(op, extras=(*op.extras, *extras))
