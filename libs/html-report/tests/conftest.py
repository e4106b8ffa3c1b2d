"""Plans that tests of the report share."""

from __future__ import annotations

import pytest

from topoplan import Host
from topoplan_engine import ClusterOptions, Experiment, RunOptions, optimize


@pytest.fixture(scope="session")
def host():
    return Host.discover()


@pytest.fixture(scope="session")
def alexnet(host):
    """AlexNet in data parallelism on 8 hosts, wired to each other."""
    return optimize(
        Experiment(
            model="alexnet",
            cluster=ClusterOptions(servers=8, interface_bandwidth_gbps=25.0),
            topology="topoopt",
            run=RunOptions(batch_size=64, budget=0),
        ),
        host=host,
    ).plan
