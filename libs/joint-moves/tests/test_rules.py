"""Which algorithms are proposed on which machine, and how rules are written."""

from __future__ import annotations

import attrs

from topoplan import Cluster
from topoplan.model.machine import HostModel, HostNode
from topoplan_joint_moves import KINDS, algorithm_names, text_of_rules


def test_switches_add_where_the_machine_has_them():
    host = HostModel(device=None, nodes=(HostNode.DEVICE, HostNode.SWITCH))
    h100 = attrs.evolve(Cluster.uniform(n_hosts=2, device_preset="H100"), host=host)
    assert algorithm_names("all-reduce", h100) == "auto+nvls"
    assert algorithm_names("all-to-all", h100) == "auto"
    assert algorithm_names("all-reduce", attrs.evolve(h100, host=None)) == "auto"
    assert algorithm_names("all-reduce", attrs.evolve(h100, device_preset=("A100-80",) * 2)) == "auto"


def test_rules_of_all_shapes_are_one_of_the_kind():
    names = dict.fromkeys(KINDS, "auto")
    assert text_of_rules([("all-reduce", "2x2"), ("all-reduce", "1x2")], names, ["2x2", "1x2"]) == "all-reduce=auto"
    assert text_of_rules([("all-reduce", "1x2")], names, ["2x2", "1x2"]) == "all-reduce@1x2=auto"
    assert text_of_rules([], names, ["2x2"]) == ""
