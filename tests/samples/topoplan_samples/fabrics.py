"""Networks that tests of several packages use."""

from __future__ import annotations

from topoplan import Fabric

__all__ = ["star"]


def star(n_hosts, bandwidth=1e9, latency=1e-6):
    """Return hosts around one switch, the node ``n_hosts``: links to it, then those from it, in the order of hosts."""
    links = [(host, n_hosts) for host in range(n_hosts)] + [(n_hosts, host) for host in range(n_hosts)]
    return Fabric.from_links(
        name="star", n_hosts=n_hosts, n_switches=1, links=links, bandwidth=bandwidth, latency=latency
    )
