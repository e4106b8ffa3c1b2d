"""Prices of rings, beside the fluid simulator and what links take by hand."""

from __future__ import annotations

import numpy as np
import pytest

from topoplan import Cluster, TopologyContext
from topoplan.model.taskgraph import Collective
from topoplan_samples.tasks import collective, task_graph
from topoplan_simulator_fluid import Fluid
from topoplan_spmd_planning.machine import Machine
from topoplan_topology_bigswitch import BigSwitch

NBYTES = 1 << 26


@pytest.mark.parametrize("inside", [450e9, 5e9], ids=["slow between hosts", "slow inside"])
@pytest.mark.parametrize(
    ("hosts", "devices", "members"), [(4, 4, 16), (4, 4, 8), (4, 4, 4), (1, 8, 8), (8, 1, 8), (2, 8, 8)]
)
@pytest.mark.parametrize("strided", [False, True])
def test_all_reduces_take_what_they_are_priced_at(hosts, devices, members, strided, inside):
    cluster = Cluster.uniform(
        n_hosts=hosts,
        devices_per_host=devices,
        inside_bandwidth=inside,
        interfaces=1,
        interface_bandwidth=12.5e9,
        latency=1e-5,
    )
    fabric = BigSwitch().build(TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0)))
    everybody = np.arange(hosts * devices)
    groups = everybody.reshape(members, -1).T if strided else everybody.reshape(-1, members)
    machine = Machine(cluster, fabric)
    priced = machine.seconds(Collective.ALL_REDUCE, NBYTES, machine.links(groups.astype(np.int64)))
    tasks = task_graph([collective(group.tolist(), NBYTES) for group in groups], n_devices=len(everybody))
    assert Fluid().build()(tasks, fabric, cluster).makespan == pytest.approx(priced, rel=1e-3)
