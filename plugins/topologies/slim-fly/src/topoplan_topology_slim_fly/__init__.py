"""Slim Fly: the graphs of McKay, Miller and Siran, of diameter two (Besta, Hoefler, SC 2014).

Routers are (0, x, y) and (1, m, c) over a field of q = 4 w + d elements, d one of -1, 0, 1.  (0, x, y) and (0, x, z)
are joined if y - z is in X, (1, m, c) and (1, m, e) if c - e is in X', and (0, x, y) and (1, m, c) if y = m x + c.
X and X' are powers of a primitive element (Hafner, J. Algebraic Combin. 2004).
"""

from __future__ import annotations

import math

import attrs
import numpy as np

from topoplan import Fabric, Topology, TopologyContext, TopoplanError, hookimpl, option
from topoplan_topology_slim_fly.field import Field, is_prime_power

__all__ = ["SlimFly", "topoplan_topologies"]

#: Orders of fields are below this; the largest that there is a graph for.
_MOST, _LARGEST = 256, 251


@attrs.frozen(kw_only=True)
class SlimFly(Topology):
    """Slim Fly: routers any two of which are two links apart."""

    name = "slim-fly"
    switched = True

    q: int | None = option(
        None, help="of 2 q^2 routers, a prime power; the smallest with room when absent", minimum=3, maximum=_MOST
    )
    hosts: int | None = option(None, help="hosts of a router; as few as have room when absent", minimum=1, maximum=4096)
    paths: int = option(16, help="number of equal-cost paths for a pair of hosts", minimum=1, maximum=65_536)

    def build(self, context: TopologyContext) -> Fabric:
        """Join the routers; links between them are as fast as the host with the most bandwidth.

        Raises:
            TopoplanError: there is no such graph, or no room for the hosts of the cluster.
        """
        from topoplan_graph_fabrics import at_switches, limit_links

        count = context.cluster.n_hosts
        fitting = (q for q in range(3, _MOST) if _is_size(q) and 2 * q * q * (self.hosts or _balanced(q)) >= count)
        q = self.q or next(fitting, _LARGEST)
        if not _is_size(q):
            sizes = [next((n for n in numbers if _is_size(n)), 3) for numbers in (range(q, 2, -1), range(q, 2 * q))]
            raise TopoplanError(
                f"topology slim-fly: q is {q} (must be a prime power that is not 2 modulo 4: {sizes[0]} or {sizes[1]})"
            )
        hosts = self.hosts or math.ceil(count / (2 * q * q))
        if 2 * q * q * hosts < count:
            room = f"{2 * q * q} routers of {hosts} hosts have room for {2 * q * q * hosts}, not {count}"
            raise TopoplanError(f"topology slim-fly: {room} (use hosts={math.ceil(count / (2 * q * q))})")
        limit_links(self.name, q * q * _degree(q), f"q {q}")
        return at_switches(
            "slim-fly",
            context.cluster,
            np.arange(count) // hosts,
            _pairs(q),
            n_switches=2 * q * q,
            max_paths=self.paths,
        )


def _is_size(q: int) -> bool:
    return q % 4 != 2 and is_prime_power(q)


def _balanced(q: int) -> int:
    """Return the hosts of a router that its links suffice for: half as many, rounded up."""
    return math.ceil(_degree(q) / 2)


def _degree(q: int) -> int:
    """Return the links of a router, (3 q - d) / 2."""
    return (3 * q - {0: 0, 1: 1, 3: -1}[q % 4]) // 2


def _pairs(q: int) -> np.ndarray:
    """Return (k, 2) routers that are joined: first (0, x, y) as x q + y, then (1, m, c)."""
    field = Field.of(q)
    w, power = (q + 1) // 4, field.power
    if q % 4 == 3:
        even = [*range(0, 2 * w - 1, 2), *range(2 * w - 1, 4 * w - 2, 2)]
        odd = [*range(1, 2 * w, 2), *range(2 * w, 4 * w - 1, 2)]
    else:
        even, odd = list(range(0, q - 1, 2)), list(range(1, q, 2))
    a, b = np.triu_indices(q, 1)
    pairs = []
    for side, exponents in enumerate((even, odd)):
        joined = np.isin(field.difference[a, b], power[np.array(exponents) % (q - 1)])
        lines = side * q * q + np.arange(q)[:, None] * q
        pairs.append(np.stack([(lines + a[joined]).ravel(), (lines + b[joined]).ravel()], axis=1))
    x, m, c = np.indices((q, q, q)).reshape(3, -1)
    y = field.sum[field.product[m, x], c]
    return np.concatenate([*pairs, np.stack([x * q + y, q * q + m * q + c], axis=1)])


@hookimpl
def topoplan_topologies() -> type[Topology]:
    """Register the topology."""
    return SlimFly
