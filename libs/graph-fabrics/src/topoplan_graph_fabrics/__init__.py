"""Fabrics on a given graph: a topology says which nodes are joined, and gets links with their bandwidths.

`share_interfaces` is for hosts that have several links: each has an equal share of its host's bandwidth.  `at_switches`
is for hosts that join one switch with all of their interfaces, where switches are joined to each other.
`limit_links`
refuses networks that are too large to write down.  `named_topology` makes the topology that another one changes.
"""

from topoplan_graph_fabrics.links import at_switches, limit_links, share_interfaces
from topoplan_graph_fabrics.named import named_topology

__all__ = ["at_switches", "limit_links", "named_topology", "share_interfaces"]
