"""Pieces of a task graph: what one placement, or two at the ends of an edge, contribute.

A piece depends on nothing else, so it can be kept and used again while other operators change.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan.model.cluster import Cluster
from topoplan.model.graph import Operator
from topoplan.model.placement import Placement
from topoplan.model.taskgraph import TaskGraph, TaskKind
from topoplan.plugin.components import CostFunction, PartCosts
from topoplan_engine.partition import Transfers, replica_groups, slice_elements

__all__ = ["EdgePiece", "FragmentKey", "OperatorPiece", "edge_piece", "messages", "operator_piece", "weight_seconds"]


#: Value key of a fragment: a number of the operator, or of the kind of edge, and the keys of its placements.
FragmentKey = tuple[int, *tuple[bytes, ...]]


@attrs.frozen(eq=False)
class OperatorPiece:
    """One operator under one placement.

    Attributes:
        key: equal for equal fragments of one graph.
        devices, forward, backward, memory: (P,) per part.
        states, kept, weight_gradient: likewise, see `PartCosts`; the last one is told for every operator.
        part_counts, group_parts: (G,) and the rows one after the other, of all weights in order: the parts
            whose gradients enter each all-reduce.
        device_counts, group_devices: likewise, the devices that take part (each once).
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


@attrs.frozen(eq=False)
class EdgePiece:
    """One edge under two placements: (n,) rows sorted by (consumer part, producer part).

    ``key`` is equal for equal fragments of one graph.  ``local`` marks pairs of parts on one device: a dependency
    without a transfer.  ``devices`` (2, n) are those of the producer's and the consumer's parts.
    """

    key: FragmentKey
    src: I32
    dst: I32
    size: I64
    local: np.ndarray
    devices: I32


def operator_piece(
    key: FragmentKey, operator: Operator, placement: Placement, costs: CostFunction, cluster: Cluster, per_part: bool
) -> OperatorPiece:
    """Price the parts of an operator and derive its gradient all-reduces; ``per_part``: `reduces_per_part`."""
    priced = costs.price(key[0], placement.degrees, placement.devices)
    parts: list[I64] = []
    devices: list[I32] = []
    sizes: list[int] = []
    seconds: list[float] = []
    # A table inside a device of several GPUs lives on one of them: nothing to sum inside the host.
    inside = cluster.gpus_per_device > 1 and operator.kind != "embedding"
    for weight in operator.weights:
        groups = replica_groups(operator, weight, placement.degrees)
        elements = slice_elements(operator, weight, placement.degrees)
        for group in groups:
            members = placement.devices[group]
            if not per_part:
                if (np.diff(members) <= 0).any():
                    members = np.unique(members)
                if len(members) == 1 and not inside:
                    continue
            size = int(elements[group[0]]) * weight.itemsize
            slowest = cluster.inside_bandwidth[cluster.device_host[members]].min()
            parts.append(group)
            devices.append(members)
            sizes.append(size)
            # FlexNet's ring inside the host: an integer division of twice the bytes by the GPUs.
            seconds.append(float(2 * size // cluster.gpus_per_device / slowest) if inside else 0.0)
    return OperatorPiece(
        key=key,
        devices=placement.devices,
        forward=priced.forward,
        backward=priced.backward,
        memory=priced.memory,
        part_counts=_counts(parts),
        group_parts=_joined(parts),
        device_counts=_counts(devices),
        group_devices=_joined(devices),
        group_bytes=np.array(sizes, dtype=np.int64),
        group_seconds=np.array(seconds, dtype=np.float64),
        weight_gradient=weight_seconds(operator, priced),
        kept=priced.kept,
        states=priced.states,
    )


def weight_seconds(operator: Operator, priced: PartCosts) -> F64:
    """(P,) seconds of the backward pass that the gradients of weights take."""
    if priced.weight_gradient is not None:
        return priced.weight_gradient
    return priced.backward / 2 if operator.weights else np.zeros(len(priced.backward))


def edge_piece(key: FragmentKey, moved: Transfers, itemsize: int, source: Placement, target: Placement) -> EdgePiece:
    """Place the transfers between the parts of a producer and a consumer."""
    devices = np.stack([source.devices[moved.src], target.devices[moved.dst]])
    return EdgePiece(key, moved.src, moved.dst, moved.elements * itemsize, devices[0] == devices[1], devices)


def messages(pieces: Sequence[OperatorPiece | EdgePiece], n_devices: int) -> TaskGraph:
    """Return the transfers and all-reduces of ``pieces`` without dependencies; ``op`` numbers the pieces."""
    edges = [(k, piece) for k, piece in enumerate(pieces) if isinstance(piece, EdgePiece)]
    reduced = [(k, piece) for k, piece in enumerate(pieces) if isinstance(piece, OperatorPiece)]
    apart = [~piece.local for _, piece in edges]
    ends = [piece.devices[:, far] for (_, piece), far in zip(edges, apart, strict=True)]
    sizes = [piece.size[far] for (_, piece), far in zip(edges, apart, strict=True)]
    there, back = _columns([end[0] for end in ends]), _columns([end[1] for end in ends])
    transfers, groups = 2 * len(there), sum(len(piece.group_bytes) for _, piece in reduced)
    number = np.repeat([k for k, _ in edges], [len(size) for size in sizes])
    none = np.full(transfers + groups, -1, dtype=np.int32)
    return TaskGraph(
        kind=np.repeat([TaskKind.TRANSFER, TaskKind.COLLECTIVE], [transfers, groups]),
        device=none,
        seconds=np.zeros(transfers + groups),
        size=_columns([*sizes, *sizes, *(piece.group_bytes for _, piece in reduced)]),
        src=np.concatenate([there, back, none[:groups]]),
        dst=np.concatenate([back, there, none[:groups]]),
        group=np.concatenate([none[:transfers], np.arange(groups)]),
        group_ptr=np.concatenate([[0], np.cumsum(_columns([piece.device_counts for _, piece in reduced]))]),
        group_members=_columns([piece.group_devices for _, piece in reduced]),
        succ_ptr=np.zeros(transfers + groups + 1),
        succ=[],
        op=_columns([number, number, *(np.full(len(piece.group_bytes), k) for k, piece in reduced)]),
        n_devices=n_devices,
    )


def _columns(rows: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(rows) if len(rows) else np.zeros(0, dtype=np.int32)


def _counts(rows: list[I32] | list[I64]) -> I32:
    return np.array([len(row) for row in rows], dtype=np.int32)


def _joined(rows: list[I32] | list[I64]) -> I32:
    return np.concatenate(rows).astype(np.int32) if rows else np.zeros(0, dtype=np.int32)
