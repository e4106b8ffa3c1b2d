"""What hosts at switches get: all of their interfaces, and links between switches as wide as the widest host."""

import attrs

from topoplan import Cluster
from topoplan_graph_fabrics import at_switches


def test_the_widest_host_says_how_switches_are_joined():
    cluster = attrs.evolve(Cluster.uniform(n_hosts=2), interfaces=[1, 2], interface_bandwidth=[1e9, 3e9])
    fabric = at_switches("two", cluster, [0, 1], [(0, 1), (0, 1)], n_switches=2, speed=0.5)
    rows = fabric.link_rows([0, 1, 2], [2, 3, 3])
    assert fabric.link_bandwidth[rows].tolist() == [1e9, 6e9, 6e9]
    assert fabric.link_count[rows].tolist() == [1, 2, 4]
