"""Every rank that torchrun starts with a script has the device that the plan gives it."""

from __future__ import annotations

import os
import subprocess

import numpy as np
import pytest

from topoplan import Placement
from topoplan_exporter_launch import Megatron, Torchrun
from topoplan_samples.layered import data_parallel, layered, pipeline, planned, stages_of

RECORD = r"""#!/usr/bin/env bash
printf '%s\n' "$(printf '%s\t' "$CUDA_VISIBLE_DEVICES" "$@")" >> "$RECORD"
"""


def started(tmp_path, script, host, *arguments):
    """What the script hands to torchrun on a host: for each call the devices that are visible, and all arguments."""
    (tmp_path / "torchrun").write_text(RECORD)
    (tmp_path / "torchrun").chmod(0o755)
    (tmp_path / "launch.sh").write_bytes(script)
    record = tmp_path / f"record{host}"
    record.unlink(missing_ok=True)
    ended = subprocess.run(
        ["bash", str(tmp_path / "launch.sh"), str(host), "first", "train.py", *arguments],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "RECORD": str(record)},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    return [line.rstrip("\t").split("\t") for line in record.read_text().splitlines()]


def devices_of_ranks(tmp_path, script, plan):
    """The device that every rank gets, as torchrun numbers ranks."""
    first = np.searchsorted(plan.cluster.device_host, np.arange(plan.cluster.n_hosts))
    nodes = {}
    for host in range(plan.cluster.n_hosts):
        for gpus, *words in started(tmp_path, script, host, "--steps", "a b"):
            options = dict(zip(words[:10:2], words[1:10:2], strict=True))
            assert words[10] == "train.py"
            assert words[-2:] == ["--steps", "a b"]
            assert (options["--master-addr"], options["--master-port"]) == ("first", "29500")
            node, count = int(options["--node-rank"]), int(options["--nnodes"])
            nodes[node] = [int(first[host]) + int(gpu) for gpu in gpus.split(",")]
            assert len(nodes[node]) == int(options["--nproc-per-node"])
    assert sorted(nodes) == [*range(count)]
    return [device for node in range(count) for device in nodes[node]]


@pytest.mark.parametrize(
    "devices",
    [
        [[0, 1], [2, 3]],  # host by host
        [[2, 3], [0, 1]],  # hosts the other way round
        [[1, 0], [3, 2]],  # another order inside of hosts
        [[0, 2], [1, 3]],  # replicas on different hosts
    ],
)
def test_every_rank_gets_the_device_of_the_plan(tmp_path, devices):
    graph = layered()
    plan = planned(graph, pipeline(graph, stages_of(graph, [0, 0, 1, 1]), devices), hosts=2, each=2)
    expected = [device for row in devices for device in row]
    for exporter in (Torchrun, Megatron):
        script = exporter().write(plan)
        text = script.decode()
        inside = "--use-tp-pp-dp-mapping" in text  # Megatron-LM then has the stages of a replica side by side
        assert inside == (exporter is Megatron and devices == [[0, 2], [1, 3]])
        ranks = sorted(expected) if inside else expected
        assert devices_of_ranks(tmp_path, script, plan) == ranks
        assert f"TOPOPLAN_DEVICES={','.join(map(str, ranks))}\n" in text
    host = plan.cluster.device_host[expected[0]]
    assert f"ADDRESS  name or address of host {host}, which has rank 0" in script.decode()


def test_a_plan_that_is_no_grid_has_a_rank_for_each_device(tmp_path):
    graph = layered()
    strategy = data_parallel(graph, [0, 1, 2, 3]).with_changes({3: Placement(graph.operators[3].sample_cut(2), [3, 1])})
    plan = planned(graph, strategy, hosts=2)
    assert devices_of_ranks(tmp_path, Torchrun().write(plan), plan) == [0, 1, 2, 3]


def test_the_layout_reaches_megatron_as_one_word(tmp_path):
    graph = layered()
    plan = planned(graph, pipeline(graph, stages_of(graph, [0, 0, 1, 1]), [[0], [1]]))
    ((_, *words),) = started(tmp_path, Megatron().write(plan), 0)
    assert words[words.index("--pipeline-model-parallel-layout") + 1] == "Et*2|t*2L"


@pytest.mark.parametrize(
    "arguments", [(), ("0", "first"), ("4", "first", "x.py"), ("-1", "first", "x.py"), ("a", "b", "c")]
)
def test_a_script_refuses_what_is_no_host_of_the_plan(tmp_path, arguments):
    graph = layered()
    (tmp_path / "launch.sh").write_bytes(Torchrun().write(planned(graph, data_parallel(graph, [0, 1]), hosts=2)))
    ended = subprocess.run(["bash", str(tmp_path / "launch.sh"), *arguments], capture_output=True, text=True)
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
