"""What the groups of a plan have of the network, for many plans: the same groups are looked at once."""

from __future__ import annotations

import functools

import numpy as np

from topoplan import AnyFabric, Problem
from topoplan.arrays import F64, I64
from topoplan_searcher_stated.degrees import Degrees
from topoplan_spmd_planning.machine import Links, Machine, collective_seconds

__all__ = ["GroupLinks", "exchange_seconds"]


class GroupLinks:
    """Links of the groups along axes of plans, whose ranks all use them at the same time.

    Args:
        problem: its cluster.
        fabric: between its hosts.
    """

    def __init__(self, problem: Problem, fabric: AnyFabric) -> None:
        self._machine, self._n_devices = Machine(problem.cluster, fabric), problem.cluster.n_devices

    def of(self, degrees: Degrees, axes: int) -> Links:
        """Return what the groups along some axes of a mesh have of the network, a bit for each axis."""
        strides = degrees.strides
        chosen = [axis for place, axis in enumerate(degrees.mesh_axes) if axes >> place & 1]
        return self._along(tuple(sorted((strides[axis], degrees.of(axis)) for axis in chosen)))

    @functools.cache  # noqa: B019  of one search, as long as it lives
    def _along(self, axes: tuple[tuple[int, int], ...]) -> Links:
        """Return the links of all groups whose members differ along axes of these (stride, size)."""
        firsts, members = np.arange(self._n_devices), np.zeros(1, dtype=np.int64)
        for stride, size in axes:
            firsts = firsts[firsts // stride % size == 0]
            members = (members[:, None] + stride * np.arange(size)).ravel()
        return self._machine.links(firsts[:, None] + members)

    @functools.cache  # noqa: B019
    def between_ranks(self, stride: int, ranks: int) -> F64:
        """(2, ranks) seconds per byte that the slowest device of each rank sends to the next rank, and the one before.

        Args:
            stride: between peers of neighbouring ranks.
            ranks: of the pipeline.
        """
        seconds = np.zeros((2, ranks))
        devices = np.arange(self._n_devices)
        rank = devices // stride % ranks
        for source in range(ranks):
            senders = devices[rank == source]
            for way, target in ((0, (source + 1) % ranks), (1, (source - 1) % ranks)):
                receivers = senders + (target - source) * stride
                seconds[way, source] = self._machine.pair_seconds(senders.astype(np.int32), receivers.astype(np.int32))
        return seconds


def exchange_seconds(collective: I64, nbytes: F64, axes: I64, links: dict[int, list[Links]]) -> F64:
    """(R, T) seconds of exchanges, 0 for tasks that are none; see `topoplan_spmd_planning.machine.collective_seconds`.

    Args:
        collective: (T,) its kind; -1 for none.
        nbytes: (R, T) of the tensor of each group.
        axes: (T,) along which its groups lie.
        links: of these axes, in each of R rows.
    """
    seconds = np.zeros(nbytes.shape)
    for mask, rows in links.items():
        columns = Links(*np.array(rows, dtype=np.float64).T[:, :, None])
        for kind in np.unique(collective[(axes == mask) & (collective >= 0)]).tolist():
            tasks = np.flatnonzero((axes == mask) & (collective == kind))
            durations = collective_seconds(kind, nbytes[:, tasks], columns)
            seconds[:, tasks] = np.where(columns.members > 1, durations, 0.0)
    return seconds
