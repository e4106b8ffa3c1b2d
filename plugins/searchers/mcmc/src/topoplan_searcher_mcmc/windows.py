"""Placements on hosts in a row, as FlexNet draws them without ``--net-opt`` (``get_random_parallel_config``)."""

from __future__ import annotations

import numpy as np

from topoplan.model.cluster import Cluster
from topoplan.model.placement import Placement

__all__ = ["neighbouring"]


def neighbouring(placement: Placement, cluster: Cluster, rng: np.random.Generator) -> Placement:
    """Return the cut of ``placement`` on the devices that follow a random host's first one, in ascending order.

    After the last device comes the first.  What fits into one host stays where it is.
    """
    counts = np.bincount(cluster.device_host)
    per_host = int(counts[0]) if (counts == counts[0]).all() else 1
    if placement.parts <= per_host:
        return placement
    first = int(rng.integers(cluster.n_devices // per_host)) * per_host
    return Placement(placement.degrees, np.sort((first + np.arange(placement.parts)) % cluster.n_devices))
