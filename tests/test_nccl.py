"""All-reduces that nccl-tests measured: 280 rows, one set of constants for each machine."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from topoplan import Cluster, Fabric, Host
from topoplan_samples.tasks import collective, task_graph

TABLE = Path(__file__).parents[1] / "benchmarks/nccl_all_reduce.csv"
ROWS = list(csv.DictReader(TABLE.read_text(encoding="utf-8").splitlines()))
PEAK = {"A100": 300e9, "V100": 150e9}


@pytest.mark.parametrize("gpu", PEAK)
def test_measured_all_reduces_are_met(gpu):
    run = Host.discover().make("simulator", "fluid", {"algorithms": "all-reduce=ring", "protocol": "auto"}).build()
    fabric = Fabric.from_links(name="one", n_hosts=1, links=[], bandwidth=1e9, latency=0.0)
    errors = []
    for row in (row for row in ROWS if row["gpu"] == gpu):
        members = int(row["members"])
        cluster = Cluster.uniform(
            n_hosts=1, devices_per_host=members, inside_bandwidth=PEAK[gpu], device_preset=gpu, interfaces=1
        )
        tasks = task_graph([collective(range(members), int(row["bytes"]))], n_devices=members)
        errors.append(abs(run.makespan(tasks, fabric, cluster) / float(row["microseconds"]) * 1e6 - 1))
    assert len(errors) == 140
    assert np.median(errors) < 0.1
    assert np.quantile(errors, 0.9) < 0.25
