"""Fragments of a task graph: what one placement, or two at the ends of an edge, contribute.

A fragment depends on nothing else, so it can be cached and used again while other operators change.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from topoplan.arrays import F64, I32, I64, f64
from topoplan.model.costs import CostFunction, MicroBatch, PartCosts
from topoplan.model.graph import Operator
from topoplan.model.placement import Placement
from topoplan.model.taskgraph import TaskGraph, TaskKind
from topoplan_engine.csr import indptr
from topoplan_engine.lowering.gradient_groups import PlacedGroups
from topoplan_engine.partition import Transfers
from topoplan_engine.training import shared_weights

__all__ = [
    "EdgeFragment",
    "FragmentKey",
    "OperatorFragment",
    "edge_fragment",
    "messages",
    "micro_batch_seconds",
    "operator_fragment",
    "weight_seconds",
]


#: Value key of a fragment: a number of the operator, or of the kind of edge, and the keys of its placements.
FragmentKey = tuple[int, *tuple[bytes, ...]]


@attrs.frozen(eq=False)
class OperatorFragment:
    """One operator under one placement.

    Attributes:
        key: equal for equal fragments of one graph.
        devices, forward, backward, memory: (P,) per part.
        states, kept, weight_gradient, gradients: (P,) see `PartCosts`; weight_gradient is there for every operator.
        part_counts, group_parts: the parts whose gradients enter each all-reduce, weight by weight: (G,) how many, and
            the parts of all of them, one after the other.
        device_counts, group_devices: the devices that take part (each once), in the same form.
        group_bytes, group_seconds: (G,) bytes of the slice, and seconds inside the hosts.
    """

    key: FragmentKey
    devices: I32
    forward: F64
    backward: F64
    memory: F64
    part_counts: I32
    group_parts: I32
    device_counts: I32
    group_devices: I32
    group_bytes: I64
    group_seconds: F64
    weight_gradient: F64
    kept: F64 | None
    states: F64 | None
    gradients: F64 | None


@attrs.frozen(eq=False)
class EdgeFragment:
    """One edge under two placements: (n,) rows sorted by (consumer part, producer part).

    ``key`` is equal for equal fragments of one graph.  ``local`` marks pairs of parts on one device: a dependency
    without a transfer.  ``devices`` (2, n) are those of the producer's and the consumer's parts.  ``gradient`` says
    whether gradients go back.
    """

    key: FragmentKey
    src: I32
    dst: I32
    size: I64
    local: np.ndarray
    devices: I32
    gradient: bool = True


def operator_fragment(
    key: FragmentKey,
    operator: Operator,
    placement: Placement,
    reduces: PlacedGroups,
    costs: CostFunction,
) -> OperatorFragment:
    """Price the parts of an operator.

    Args:
        key: of the fragment.
        operator, placement: what is placed, and how.
        reduces: its all-reduces of gradients.
        costs: what prices it.
    """
    prices = costs.price(key[0], placement.degrees, placement.devices)
    return OperatorFragment(
        key=key,
        devices=placement.devices,
        forward=f64(prices.forward),  # kernels read columns that are more than a view of one number
        backward=f64(prices.backward),
        memory=f64(prices.memory),
        part_counts=reduces.part_counts,
        group_parts=reduces.parts,
        device_counts=reduces.device_counts,
        group_devices=reduces.devices,
        group_bytes=reduces.nbytes,
        group_seconds=reduces.seconds,
        weight_gradient=f64(weight_seconds(operator, prices)),
        kept=None if prices.kept is None else f64(prices.kept),
        states=None if prices.states is None else f64(prices.states),
        gradients=None if prices.gradients is None else f64(prices.gradients),
    )


def weight_seconds(operator: Operator, prices: PartCosts, *, shared: bool = False) -> F64:
    """(P,) seconds of the backward pass that the gradients of weights take; ``shared``: of those of others, too."""
    if prices.weight_gradient is not None:
        return prices.weight_gradient
    trains = any(tensor.requires_grad for tensor in operator.weights)
    trains |= shared and any(operator.inputs[argument].requires_grad for argument in shared_weights(operator))
    some = prices.backward[: None if prices.backward.strides[0] else 1]  # of parts that are views of one
    return np.broadcast_to(some / 2 if trains else np.zeros(1), prices.backward.shape)


def micro_batch_seconds(
    op: int, operator: Operator, placement: Placement, micro_batches: int, costs: CostFunction
) -> F64:
    """(3, P) seconds in which each part runs one micro-batch: forward, backward, and of it gradients of weights."""
    batch = MicroBatch.of(operator, micro_batches)
    prices = costs.price_micro_batch(op, placement.degrees, placement.devices, batch)
    return np.stack([prices.forward, prices.backward, weight_seconds(operator, prices)])


def edge_fragment(
    key: FragmentKey, slices: Transfers, itemsize: int, source: Placement, target: Placement, gradient: bool
) -> EdgeFragment:
    """Place the transfers between the parts of a producer and a consumer."""
    devices = np.stack([source.devices[slices.src], target.devices[slices.dst]])
    local, size = devices[0] == devices[1], slices.elements * itemsize
    return EdgeFragment(key, slices.src, slices.dst, size, local, devices, gradient)


def messages(fragments: Sequence[OperatorFragment | EdgeFragment], n_devices: int) -> TaskGraph:
    """Return the transfers and all-reduces of fragments without dependencies; ``op`` numbers the fragments."""
    edges = [(k, fragment) for k, fragment in enumerate(fragments) if isinstance(fragment, EdgeFragment)]
    ops = [(k, fragment) for k, fragment in enumerate(fragments) if isinstance(fragment, OperatorFragment)]
    remote = [~fragment.local for _, fragment in edges]
    ends = [fragment.devices[:, rows] for (_, fragment), rows in zip(edges, remote, strict=True)]
    sizes = [fragment.size[rows] for (_, fragment), rows in zip(edges, remote, strict=True)]
    producers, consumers = _concatenated([end[0] for end in ends]), _concatenated([end[1] for end in ends])
    number = np.repeat([k for k, _ in edges], [len(size) for size in sizes])
    gradients = np.repeat([fragment.gradient for _, fragment in edges], [len(size) for size in sizes]).astype(np.bool_)
    transfers, groups = len(producers) + int(gradients.sum()), sum(len(fragment.group_bytes) for _, fragment in ops)
    sent = _concatenated(sizes)
    none = np.full(transfers + groups, -1, dtype=np.int32)
    return TaskGraph(
        kind=np.repeat([TaskKind.TRANSFER, TaskKind.COLLECTIVE], [transfers, groups]),
        device=none,
        seconds=np.zeros(transfers + groups),
        size=_concatenated([sent, sent[gradients], *(fragment.group_bytes for _, fragment in ops)]),
        src=np.concatenate([producers, consumers[gradients], none[:groups]]),
        dst=np.concatenate([consumers, producers[gradients], none[:groups]]),
        group=np.concatenate([none[:transfers], np.arange(groups)]),
        group_ptr=indptr(_concatenated([fragment.device_counts for _, fragment in ops])),
        group_members=_concatenated([fragment.group_devices for _, fragment in ops]),
        succ_ptr=np.zeros(transfers + groups + 1),
        succ=[],
        op=_concatenated([number, number[gradients], *(np.full(len(fragment.group_bytes), k) for k, fragment in ops)]),
        n_devices=n_devices,
    )


def _concatenated(rows: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(rows) if len(rows) else np.zeros(0, dtype=np.int32)
