"""Files that say something impossible: one line that names the file, the field and the value; status 2."""

from __future__ import annotations

import struct

import attrs
import pytest

from topoplan import Cluster, Fabric, Host, Plan, TaskKind
from topoplan.cli import main
from topoplan_samples.tasks import collective, compute, task_graph, transfer

#: Two layers on three hosts: forward 0, 1 with a transfer, backward 1, 0 with a transfer, one all-reduce.
TASKS = task_graph(
    [
        compute(0, op=0),
        compute(0, kind=TaskKind.BACKWARD, op=0),
        compute(1, op=1),
        compute(1, kind=TaskKind.BACKWARD, op=1),
        transfer(0, 1, 4096, op=1),
        transfer(1, 0, 4096, op=1),
        collective([0, 1, 2], 8192, op=0),
    ],
    edges=[(0, 1), (0, 4), (1, 6), (2, 3), (3, 5), (4, 2), (5, 1)],
    n_devices=3,
    op_names=("a", "b"),
)
STAR = [(h, 3) for h in range(3)] + [(3, h) for h in range(3)]


def plan(links=STAR, **changes):
    fabric = Fabric.from_links(name="star", n_hosts=3, n_switches=1, links=links, bandwidth=12.5e9, latency=1e-6)
    return Plan(cluster=Cluster.uniform(n_hosts=3), fabric=fabric, taskgraph=attrs.evolve(TASKS, **changes))


@pytest.fixture
def simulate(tmp_path, capsys):
    def simulate(suffix, plan, edit=lambda data: data):
        name = {".fbuf": "flatbuffer", ".json": "json"}[suffix]
        exporter = Host.discover().get("exporter", name)
        path = tmp_path / f"plan{suffix}"
        path.write_bytes(edit(exporter().write(plan)))
        with pytest.raises(SystemExit) as ended:
            main(["simulate", str(path), "--json"])
        out, err = capsys.readouterr()
        err = "".join(line for line in err.splitlines(keepends=True) if not line.startswith("compiling kernels"))
        return ended.value.code or 0, out, err, str(path)

    return simulate


def told(answer, *words):
    status, out, err, path = answer
    assert (status, out) == (2, "")
    assert err.startswith(f"error: {path}")
    assert err.count("\n") == 1
    for word in words:
        assert word in err


both = pytest.mark.parametrize("suffix", [".fbuf", ".json"])


def milliseconds(before, after):
    """Replace a single-precision number of a task graph file."""
    return lambda data: data.replace(struct.pack("<f", before), struct.pack("<f", after))


@both
def test_the_plan_itself_is_fine(simulate, suffix):
    assert simulate(suffix, plan())[0] == 0


@both
def test_a_cycle_names_its_tasks(simulate, suffix):
    # The transfer to the second layer waits for that layer.
    told(simulate(suffix, plan(succ=[1, 4, 6, 4, 5, 2, 1])), "task 2 (forward", "cycle")


@both
def test_an_unreachable_pair_names_the_hosts(simulate, suffix):
    pairs = [(0, 3), (3, 0), (1, 3), (3, 1)]
    told(simulate(suffix, plan(links=pairs)), "task 6", "host 1 to host 2", "no path")


@pytest.mark.parametrize("value", [-1.25, float("nan"), float("inf")])
def test_an_impossible_time_in_a_task_graph_file_is_refused(simulate, value):
    timed = plan(seconds=[1e-3, 1.25e-3, 1e-3, 1e-3, 0, 0, 0])
    told(simulate(".fbuf", timed, milliseconds(1.25, value)), "runtime", str(value))


def test_an_impossible_time_in_a_plan_is_refused(simulate):
    told(simulate(".json", plan(seconds=[1e-3, -1.25, 1e-3, 1e-3, 0, 0, 0])), "task 1", "-1.25")


def test_a_device_that_does_not_exist_is_refused(simulate):
    told(simulate(".json", plan(device=[0, 0, 7, 1, -1, -1, -1])), "device", "7")


def test_zero_bandwidth_is_refused(simulate):
    told(simulate(".json", plan(), lambda data: data.replace(b"12500000000.0", b"0.0")), "bandwidth", "0.0")
    told(simulate(".fbuf", plan(), milliseconds(12.5e6, 0.0)), "netbw", "0")
