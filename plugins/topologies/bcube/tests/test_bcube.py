"""BCube: counts, distances and cuts of the definition, by networkx and by hand."""

import networkx as nx
import numpy as np
import pytest

from topoplan import TopoplanError
from topoplan_samples.graph_fabrics import counts, made
from topoplan_topology_bcube import BCube


@pytest.mark.parametrize(
    ("ports", "levels", "row"),
    [
        (4, 2, (16, 8, 32, 0, 4, None, 3.2)),
        (8, 2, (64, 16, 128, 0, 4, None, 3.555556)),
        (4, 3, (64, 48, 192, 0, 6, None, 4.571429)),
        (2, 4, (16, 32, 64, 0, 8, None, 4.266667)),
    ],
)
def test_counts(ports, levels, row):
    assert counts(made(BCube, row[0], ports=ports, levels=levels)) == row


@pytest.mark.parametrize(("ports", "levels"), [(4, 2), (2, 4)])
def test_cut(ports, levels):
    """Every half of 16 hosts: a switch is on the side of most of its hosts, so its smaller part is cut."""
    fabric = made(BCube, 16, ports=ports, levels=levels)
    up = fabric.link_src < 16
    masks = [0] * fabric.n_switches
    for host, switch in zip(fabric.link_src[up].tolist(), fabric.link_dst[up].tolist(), strict=True):
        masks[switch - 16] |= 1 << host
    halves = np.arange(1 << 15)
    bits = np.array([bin(n).count("1") for n in range(1 << 16)])
    halves = halves[bits[halves] == 8]
    cut = sum(np.minimum(bits[halves & mask], ports - bits[halves & mask]) for mask in masks)
    assert cut.min() == 8


@pytest.mark.slow
@pytest.mark.parametrize(("hosts", "interfaces"), [(1, 4), (2, 4), (13, 4), (16, 1), (100, 2), (10_000, 2)])
def test_sizes_follow_hosts_and_interfaces(hosts, interfaces):
    fabric = made(BCube, hosts, interfaces)
    assert nx.is_connected(fabric.to_networkx().to_undirected().subgraph({*range(hosts), *fabric.link_dst.tolist()}))
    assert np.bincount(fabric.link_src, fabric.link_bandwidth)[:hosts] == pytest.approx(interfaces * 1e9)


def test_errors_name_what_would_be_right():
    with pytest.raises(TopoplanError, match=r"room for 16 hosts, not 17 \(use ports=5\)"):
        made(BCube, 17, ports=4, levels=2)
