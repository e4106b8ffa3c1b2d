"""Link use from the slow references."""

from __future__ import annotations

import numpy as np

from topoplan.model.recording import LinkUse
from topoplan.model.taskgraph import TaskGraph
from topoplan_engine.network.tables import LOAD, Network
from topoplan_reference.flexnet import flexnet_reference
from topoplan_reference.fluid import FluidRun
from topoplan_simulator_flexnet.model import Model as Flexnet
from topoplan_simulator_fluid.model import Model as Fluid

__all__ = ["flexnet_rows", "fluid_rows"]


def flexnet_rows(taskgraph: TaskGraph, network: Network, model: Flexnet) -> LinkUse:
    """Return a row for each segment and link, joined with the one before where that is of one task and ends there."""
    crossings: list[tuple[float, ...]] = []
    flexnet_reference(taskgraph, network, model, crossings)
    rows: list[tuple[float, ...]] = []
    for link, task, begin, end, nbytes in sorted(crossings, key=lambda row: row[0]):  # of a link, in order of time
        if rows and rows[-1][:2] == (link, task) and rows[-1][3] == begin:
            _, _, first, _, before = rows.pop()
            begin, nbytes = first, before + nbytes
        rows.append((link, task, begin, end, nbytes))
    return _table(rows)


def fluid_rows(taskgraph: TaskGraph, network: Network, model: Fluid) -> LinkUse:
    """Return a row for each flow and link, between any two events."""
    watched = _Watched(taskgraph, network, model)
    watched.run()
    return _table(watched.rows)


class _Watched(FluidRun):
    """A run of the fluid reference that writes down, at each event, what has flowed since the one before."""

    def __init__(self, taskgraph: TaskGraph, network: Network, model: Fluid) -> None:
        super().__init__(taskgraph, network, model)
        self.rows: list[tuple[float, ...]] = []
        self._before = 0.0
        self._rates: list[tuple[int, dict[int, int], float]] = []

    def _share(self) -> None:
        seconds = self.now - self._before
        for task, links, rate in self._rates if seconds > 0 else ():
            for link, load in links.items():
                if link < len(self.link_bytes):
                    self.rows.append((link, task, self._before, self.now, rate * seconds * load / LOAD))
        super()._share()
        self._before = self.now
        self._rates = [
            (flow.task, dict(flow.links), self.share[flow.bottleneck])
            for flow in self.active.values()
            if flow.bottleneck is not None
        ]


def _table(rows: list[tuple[float, ...]]) -> LinkUse:
    link, task, start, finish, nbytes = np.array(rows, dtype=np.float64).reshape(-1, 5).T
    return LinkUse(link=link, task=task, start=start, finish=finish, nbytes=nbytes)
