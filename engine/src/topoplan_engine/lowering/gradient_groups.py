"""The all-reduces of an operator's gradients: what a cut alone says of them, and on which devices they run.

Parts that hold the same slice of a weight sum their gradients.  Which parts these are, and of how many bytes, follows
from the cut; a search meets each cut on many sets of devices.

Data flow: `gradient_groups` lists the groups of a cut, and `placed_groups` puts them on the devices of one placement.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan.model.cluster import Cluster
from topoplan.model.graph import Operator, OperatorGraph, Tensor
from topoplan_engine.kernels.jit import kernel
from topoplan_engine.partition import replica_groups, slice_elements

__all__ = ["GradientGroups", "PlacedGroups", "gradient_groups", "placed_groups", "share_of_ring"]


class GradientGroups(NamedTuple):
    """The parts of one cut that sum their gradients, weight by weight.

    Attributes:
        counts, parts: (G,) parts of each group, and the parts of all of them, one group after the other.
        nbytes: (G,) of the slice that they hold.
        smallest: how many parts the smallest group has; 0 where there is none.
        inside: whether gradients are summed inside a device of several GPUs, too.
    """

    counts: I32
    parts: I32
    nbytes: I64
    smallest: int
    inside: bool


class PlacedGroups(NamedTuple):
    """Columns ``part_counts`` to ``group_seconds`` of an `topoplan_engine.lowering.fragments.OperatorFragment`."""

    part_counts: I32
    parts: I32
    device_counts: I32
    devices: I32
    nbytes: I64
    seconds: F64


def gradient_groups(
    operator: Operator, degrees: tuple[int, ...], gpus_per_device: int, trained: Sequence[Tensor] | None = None
) -> GradientGroups:
    """Return the groups of an operator that is cut by ``degrees``, those of one part among them.

    ``trained`` are its weights that have gradients; all of them unless given.

    A table inside a device of several GPUs lives on one of them: nothing to sum inside the device.
    """
    weights = operator.weights if trained is None else trained
    groups = [replica_groups(operator, weight, degrees) for weight in weights]
    sizes = [
        slice_elements(operator, weight, degrees)[rows[:, 0]].astype(np.int64) * weight.itemsize
        for weight, rows in zip(weights, groups, strict=True)
    ]
    counts = [np.full(len(rows), rows.shape[1], np.int32) for rows in groups]
    return _groups_of(
        np.concatenate([np.zeros(0, np.int32), *counts]),
        np.concatenate([np.zeros(0, np.int32), *(rows.ravel().astype(np.int32) for rows in groups)]),
        np.concatenate([np.zeros(0, np.int64), *sizes]),
        gpus_per_device > 1 and operator.kind != "embedding",
    )


def share_of_ring(graph: OperatorGraph, cluster: Cluster) -> float:
    """Return the part of a tensor that passes over a GPU's link where GPUs of a device scatter, or gather it.

    In FlexNet each pair of GPUs has a link, and all of a GPU's carry a part (`placed_groups`).
    """
    gpus = cluster.gpus_per_device
    return (1 if graph.reduces_per_part and gpus > 1 else gpus - 1) / gpus


def _groups_of(counts: I32, parts: I32, nbytes: I64, inside: bool) -> GradientGroups:
    return GradientGroups(counts, parts, nbytes, int(counts.min()) if len(counts) else 0, inside)


def placed_groups(groups: GradientGroups, devices: I32, cluster: Cluster, per_part: bool) -> PlacedGroups:
    """Return the all-reduces of a placement.

    A device takes part once in each, in ascending order, and one device alone has nothing to sum but inside itself.

    Args:
        groups: of the cut.
        devices: (P,) of the parts.
        cluster: what they are of.
        per_part: every part takes part, in the order of the parts, however many are on one device, and GPUs of a device
            sum as in FlexNet (`topoplan.OperatorGraph.reduces_per_part`).
    """
    members, device_counts = np.empty(len(groups.parts), np.int32), groups.counts
    ascending = _place(groups.counts, groups.parts, devices, members)
    if not per_part and not (ascending and (groups.inside or groups.smallest != 1)):
        device_counts, members = _distinct(groups, members)
        summed = device_counts > 1
        if not groups.inside and not summed.all():
            parts, members = groups.parts[np.repeat(summed, groups.counts)], members[np.repeat(summed, device_counts)]
            device_counts = device_counts[summed]
            groups = _groups_of(groups.counts[summed], parts, groups.nbytes[summed], False)
    seconds = np.zeros(len(groups.nbytes))
    if groups.inside:
        hosts, gpus = (cluster.device_host, cluster.inside_bandwidth), cluster.gpus_per_device
        _sum_inside(device_counts, members, groups.nbytes, *hosts, gpus, per_part, seconds)
    return PlacedGroups(groups.counts, groups.parts, device_counts, members, groups.nbytes, seconds)


def _distinct(groups: GradientGroups, members: I32) -> tuple[I32, I32]:
    """Return how many devices take part in each group, and which: each once, ascending."""
    if not len(members):
        return groups.counts, members
    count = len(groups.counts)
    group = np.repeat(np.arange(count, dtype=np.int64), groups.counts)
    beyond = int(members.max()) + 1
    group, distinct = np.divmod(np.unique(group * beyond + members), beyond)
    return np.bincount(group, minlength=count).astype(np.int32), distinct.astype(np.int32)


@kernel
def _place(counts: I32, parts: I32, devices: I32, members: I32) -> bool:
    """Write the device of each part of the groups; say whether they ascend in every group."""
    ascending, k = True, 0
    for g in range(len(counts)):
        before = np.int32(-1)
        for _ in range(counts[g]):
            members[k] = devices[parts[k]]
            ascending &= members[k] > before
            before = members[k]
            k += 1
    return bool(ascending)


@kernel
def _sum_inside(
    counts: I32, members: I32, nbytes: I64, host: I32, inside_bandwidth: F64, gpus: int, flexnet: bool, seconds: F64
) -> None:
    """Write the seconds of each group's rings inside its devices, of which the slowest ends last.

    A ring of n GPUs puts ``2 (n-1) / n`` of the bytes on the link of each GPU.  In FlexNet each pair of GPUs has such a
    link, and all of a GPU's carry a part: an integer division of twice the bytes by the GPUs.
    """
    k = 0
    for g in range(len(counts)):
        slowest = np.inf
        for _ in range(counts[g]):
            slowest = min(slowest, inside_bandwidth[host[members[k]]])
            k += 1
        sent = float(2 * nbytes[g] // gpus) if flexnet else 2.0 * nbytes[g] * (gpus - 1) / gpus
        seconds[g] = sent / slowest
