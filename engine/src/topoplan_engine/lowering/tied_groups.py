"""Weights that stages share: the all-reduces of their gradients, and their bytes on every device that uses them.

Megatron-LM calls the devices of such an all-reduce an embedding group (Narayanan et al., SC'21): the first stage has
the table of the words, the last one its copy, and both sum its gradient after the last micro-batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TypeVar

import attrs
import numpy as np

from topoplan.arrays import I64
from topoplan.model.costs import PartCosts
from topoplan.model.graph import OperatorGraph
from topoplan.model.placement import Placement
from topoplan_engine.csr import indptr
from topoplan_engine.lowering.fragment_cache import FragmentCache
from topoplan_engine.lowering.fragments import OperatorFragment
from topoplan_engine.lowering.gradient_groups import GradientGroups, PlacedGroups, gradient_groups, placed_groups
from topoplan_engine.lowering.parts import PartTable
from topoplan_engine.partition import slice_elements
from topoplan_engine.tied import TiedWeight, copies_of, holder_slices, tied_weights
from topoplan_engine.training import gradient_flow

__all__ = ["with_copies", "with_tied_groups"]

_Costs = TypeVar("_Costs", OperatorFragment, PartCosts)


def with_copies(graph: OperatorGraph, placements: Sequence[Placement], costs: Sequence[_Costs]) -> list[_Costs]:
    """Return the costs of all operators, with the bytes of weights of others that their devices hold a copy of.

    A copy has as many bytes of gradients and optimizer state for each of its own as the weight.
    """
    result = list(costs)
    for tied in tied_weights(graph):
        owner, states = graph.operators[tied.owner], costs[tied.owner].states
        slices = [slice_elements(owner, w, placements[tied.owner].degrees)[0] * w.itemsize for w in owner.weights]
        each = np.array([1.0, 0.0, 0.0]) if states is None else states[:, 0] / sum(slices)
        for (user, _), nbytes in zip(tied.users, copies_of(graph, tied, placements), strict=True):
            if not nbytes.any():
                continue
            cost, added = result[user], each[:, None] * nbytes
            result[user] = attrs.evolve(
                cost,
                memory=cost.memory + added.sum(axis=0),
                kept=None if cost.kept is None else cost.kept + added.sum(axis=0),
                states=None if cost.states is None else cost.states + added,
            )
    return result


def with_tied_groups(table: PartTable, fragments: FragmentCache, placements: Sequence[Placement]) -> PartTable:
    """Return the table with all-reduces of the gradients of weights that several stages use.

    They take the place of those among the parts of the owner alone.  Parts of a group are numbered from the first one
    of its owner.

    Args:
        table: of ``placements``.
        fragments: of the model.
        placements: of all operators.
    """
    graph = fragments.graph
    by_owner: dict[int, list[TiedWeight]] = {}
    for tied in tied_weights(graph):
        elsewhere = any(nbytes.any() for nbytes in copies_of(graph, tied, placements))
        if elsewhere and gradient_flow(graph).weights[tied.owner][tied.weight]:
            by_owner.setdefault(tied.owner, []).append(tied)
    for owner, several in by_owner.items():
        table = _regrouped(table, owner, _groups_of(table, owner, several, fragments, placements))
    return table


def _groups_of(
    table: PartTable,
    owner: int,
    several: Sequence[TiedWeight],
    fragments: FragmentCache,
    placements: Sequence[Placement],
) -> PlacedGroups:
    """Return the all-reduces of an operator's weights, some of which others use, too."""
    graph, cluster = fragments.graph, fragments.cluster
    operator, gpus = graph.operators[owner], cluster.gpus_per_device
    used = {tied.weight for tied in several}
    others_weights = [tensor for k, tensor in gradient_flow(graph).trained(operator, owner) if k not in used]
    groups = [gradient_groups(operator, placements[owner].degrees, gpus, others_weights)]
    for tied in several:
        first = [table.op_base[op] - table.op_base[owner] for op in (owner, *(user for user, _ in tied.users))]
        slices = holder_slices(graph, tied, placements)
        part = np.concatenate([base + np.arange(rows.shape[1]) for base, rows in zip(first, slices, strict=True)])
        rows = _regions(np.concatenate(slices, axis=1), operator.weights[tied.weight].itemsize)
        groups.append(
            GradientGroups(
                counts=np.array([len(holders) for holders, _ in rows], dtype=np.int32),
                parts=np.concatenate([part[list(holders)] for holders, _ in rows]).astype(np.int32),
                nbytes=np.array([nbytes for _, nbytes in rows], dtype=np.int64),
                smallest=min(len(holders) for holders, _ in rows),
                inside=gpus > 1,
            )
        )
    devices = table.device[table.op_base[owner] :]
    placed = [placed_groups(group, devices, cluster, False) for group in groups]
    return PlacedGroups(*(np.concatenate(columns) for columns in zip(*placed, strict=True)))


def _regions(slices: I64, itemsize: int) -> list[tuple[tuple[int, ...], int]]:
    """Return the parts that hold the same elements, and how many bytes those are; ``slices`` is (2, P, axes)."""
    low, high = slices
    ends = [np.unique(slices[:, :, axis]) for axis in range(slices.shape[2])]
    regions: dict[tuple[int, ...], int] = {}
    for cell in itertools.product(*(range(len(cuts) - 1) for cuts in ends)):
        first = np.array([cuts[k] for cuts, k in zip(ends, cell, strict=True)], dtype=np.int64)
        last = np.array([cuts[k + 1] for cuts, k in zip(ends, cell, strict=True)], dtype=np.int64)
        holders = tuple(np.flatnonzero((low <= first).all(axis=1) & (high >= last).all(axis=1)).tolist())
        if holders:
            regions[holders] = regions.get(holders, 0) + int((last - first).prod()) * itemsize
    return list(regions.items())


def _regrouped(table: PartTable, owner: int, groups: PlacedGroups) -> PartTable:
    """Return the table with other all-reduces of an operator."""
    stays = table.group_op != owner
    parts, devices = np.diff(table.part_ptr), np.diff(table.device_ptr)
    return table._replace(
        group_op=np.append(table.group_op[stays], np.full(len(groups.nbytes), owner, dtype=np.int32)),
        group_bytes=np.append(table.group_bytes[stays], groups.nbytes),
        group_seconds=np.append(table.group_seconds[stays], groups.seconds),
        part_ptr=indptr(np.append(parts[stays], groups.part_counts), np.int32),
        group_parts=np.append(table.group_parts[np.repeat(stays, parts)], groups.parts),
        device_ptr=indptr(np.append(devices[stays], groups.device_counts), np.int32),
        group_devices=np.append(table.group_devices[np.repeat(stays, devices)], groups.devices),
    )
