"""What each system does with a model, and the SPMD program of it.

All systems give each device an equal share of the batch.  They differ in who holds the experts and in when gradients
are summed:

- ``ddp``: everything is replicated.  Gradients share all-reduces in buckets of 25 MiB, each as soon as its last
  gradient is there, beside the rest of the backward pass (Li et al., PyTorch Distributed, VLDB 2020, section 3.2.3;
  parameter ``bucket_cap_mb`` of ``torch.nn.parallel.DistributedDataParallel``).
- ``horovod``: the same with fusion buffers of 64 MB (Horovod's documentation, ``docs/tensor-fusion.rst``).
- ``deepspeed-moe``: each device has an equal share of the experts, and tokens reach them by all-to-alls
  (Rajbhandari et al., DeepSpeed-MoE, ICML 2022, section 5.1).  The gradients of everything else are summed when the
  backward pass has ended: the engine begins after ``backward``, unless ZeRO overlaps (``overlap_comm``), which HiDup's
  configuration does not ask for.  HiDup found ``ep_size`` = all devices best (SoCC 2022, section 6.1).
- ``fastmoe``: experts likewise (He et al., FastMoE, arXiv:2103.13262, section 4).  ``allreduce_params`` of
  ``fmoe.DistributedGroupedDataParallel`` sums all other gradients in one call after the backward pass.

PyTorch's first bucket of 1 MiB, and Horovod's cycles, are left out.  What the kernels of a system gain is a matter of
operator times.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from topoplan import StagedStrategy, TopoplanError
from topoplan.model.graph import Operator, OperatorGraph, Tensor
from topoplan.model.sharding import PENDING_GRADIENT, REPLICATED, MeshSharding, Signature
from topoplan.model.spmd import SpmdProgram
from topoplan.model.taskgraph import MOST_BYTES
from topoplan_engine.experts import expert_dims
from topoplan_engine.program_strategies import program_strategy
from topoplan_engine.sharding.gradient_terms import whole_with_terms
from topoplan_engine.sharding.programs import why_invalid
from topoplan_engine.sharding.signatures import signatures

__all__ = ["RULES", "Rule", "strategy_of"]


@attrs.frozen
class Rule:
    """What a system does.

    Attributes:
        shares_experts: each device has some of the experts; otherwise it has all of them.
        gradient_bucket_bytes: see `SpmdProgram`.
        source: publication or documentation.
    """

    shares_experts: bool
    gradient_bucket_bytes: int
    source: str


RULES = {
    "ddp": Rule(False, 25 * 2**20, "Li et al., PyTorch Distributed, VLDB 2020, section 3.2.3"),
    "horovod": Rule(False, 64 * 2**20, "https://horovod.readthedocs.io/en/stable/tensor-fusion_include.html"),
    "deepspeed-moe": Rule(True, MOST_BYTES, "Rajbhandari et al., DeepSpeed-MoE, ICML 2022, section 5.1"),
    "fastmoe": Rule(True, MOST_BYTES, "He et al., FastMoE, arXiv:2103.13262, section 4"),
}


def strategy_of(name: str, graph: OperatorGraph, n_devices: int) -> StagedStrategy:
    """Return what the system ``name`` does with a model.

    Raises:
        TopoplanError: it cannot run the model on so many devices.
    """
    rule = RULES[name]
    where = f"searcher baseline: rule={name}"
    cuts = _expert_cuts(graph) if rule.shares_experts else [-1] * len(graph.operators)
    if rule.shares_experts and max(cuts, default=-1) < 0:
        raise TopoplanError(f"{where}: model {graph.name!r} has no experts to share (rule=ddp is data parallelism)")
    for op, dim in zip(graph.operators, cuts, strict=True):
        if dim >= 0 and op.dims[dim].size % n_devices:
            raise TopoplanError(
                f"{where}: {n_devices} devices cannot share the {op.dims[dim].size} experts of {op.name!r} equally"
            )
    rules = tuple((_signature(op, dim),) for op, dim in zip(graph.operators, cuts, strict=True))
    fed = {(v, argument) for _, _, v, argument in graph.edges.reshape(-1, 4).tolist()}
    summed = {op for op, _ in whole_with_terms(graph, rules)} | {k for k, (each,) in enumerate(rules) if each.dim >= 0}
    program = SpmdProgram(
        mesh=(n_devices,),
        rules=rules,
        stored=tuple(_stored(index, op, rules[index][0], fed, summed) for index, op in enumerate(graph.operators)),
        gradient_bucket_bytes=rule.gradient_bucket_bytes,
    )
    strategy = program_strategy(program, graph)
    if reason := why_invalid(strategy, graph, n_devices):
        raise TopoplanError(f"{where}: {reason}")
    return strategy


def _expert_cuts(graph: OperatorGraph) -> list[int]:
    """Return, for each operator that runs where the experts are, the dimension that counts them; -1 for the others.

    These are the operators with weights of their own for each expert, and what follows them up to the combination of
    the experts' answers.
    """
    dims = expert_dims(graph)
    cuts = [-1] * len(dims)
    for index, (op, dim) in enumerate(zip(graph.operators, dims, strict=True)):
        if dim >= 0 and all(_follows(tensors, dim) for tensors in (op.inputs, op.weights, op.outputs)):
            cuts[index] = dim
    for u, _, v, _ in sorted(graph.edges.reshape(-1, 4).tolist(), key=lambda edge: edge[2]):
        if cuts[u] >= 0 and dims[v] >= 0 and _follows(graph.operators[v].outputs, dims[v]):
            cuts[v] = dims[v]
    return cuts


def _follows(tensors: Sequence[Tensor], dim: int) -> bool:
    """Say whether one of the tensors has an axis along dimension ``dim``."""
    return any(axis.dim == dim for tensor in tensors for axis in tensor.axes)


def _signature(op: Operator, expert_dim: int) -> Signature:
    """Return the signature that shares experts, or samples; the whole operator on each device if it has neither."""
    dim = expert_dim if expert_dim >= 0 else op.sample_dim
    choices = signatures(op)
    return next((signature for signature in choices if dim >= 0 and signature.dim == dim), choices[-1])


def _stored(
    index: int, op: Operator, signature: Signature, fed: set[tuple[int, int]], summed: set[int]
) -> tuple[MeshSharding, ...]:
    """Return how arguments are stored: as they are used, with gradients to sum for whole weights of shared work."""
    stored: list[MeshSharding] = []
    for argument, sharding in enumerate(signature.inputs):
        if (index, argument) in fed:
            stored.append(())
        elif argument >= len(op.inputs) and sharding == REPLICATED and index in summed:
            stored.append((PENDING_GRADIENT,))
        else:
            stored.append((sharding,))
    return tuple(stored)
