"""Bandwidths of collectives on a cluster: bytes of the whole tensor over the seconds of a ring, or of an exchange.

HiDup measures one bandwidth for each kind of collective and never asks where the devices are.  These follow from the
cluster: its hosts, their devices, and how fast both are joined.  On eight hosts of one device over 9.71 Gbps, HiDup's
testbed, they are 4 to 23 % above the bandwidths of its released profile, which were measured.

Source of the formulas: Thakur, Rabenseifner, Gropp: Optimization of Collective Communication Operations in MPICH,
IJHPCA 19(1), 2005.
"""

from __future__ import annotations

import numpy as np

from topoplan import Cluster
from topoplan.model.taskgraph import Collective

__all__ = ["FASTEST", "bandwidths_of"]

#: Bytes/s where nothing is sent, or where no link is slower.
FASTEST = 10**15


def bandwidths_of(cluster: Cluster) -> dict[Collective, int]:
    """Return bytes/s of the whole tensor for collectives over all devices; the order is that of HiDup's profile.

    A ring visits the devices host by host, so that one of a host's devices sends to the next host.  In an exchange all
    devices of a host share its interfaces.
    """
    n = cluster.n_devices
    if n == 1:
        return dict.fromkeys(_KINDS, FASTEST)
    per_host = np.bincount(cluster.device_host, minlength=cluster.n_hosts)
    out = cluster.interfaces * cluster.interface_bandwidth
    several = per_host > 1
    ring = min(
        float(out.min()) if cluster.n_hosts > 1 else FASTEST,
        float(cluster.inside_bandwidth[several].min()) if several.any() else FASTEST,
    )
    outside = per_host * (n - per_host) / n**2 / out  # seconds of a host for a byte of the tensor
    inside = (per_host - 1) / n**2 / cluster.inside_bandwidth  # of a device
    gather = ring * n / (n - 1)
    exchange = 1 / float(np.maximum(outside, inside).max())
    return {
        kind: min(FASTEST, round(bandwidth))
        for kind, bandwidth in zip(_KINDS, (gather, gather / 2, gather, exchange), strict=True)
    }


_KINDS = (Collective.ALL_GATHER, Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL)
