"""``topoplan share`` from a file to a table, a plot and JSON; twice the same."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from topoplan_command_share.shared_cluster import shared_cluster_from

EXAMPLE = Path(__file__).parents[1] / "experiments" / "shared-cluster.toml"
SMALL = """
title = "small"
budget = 20

[share]
loads = [50, 100]
trials = 2

[cluster]
servers = 16
interface-bandwidth-gbps = 10

[[model]]
use = "ncf"
servers = 4

[[model]]
use = "candle-uno"
batch-size = 256
servers = 8

[[network]]
name = "panel"
use = "topoopt"

[[network]]
name = "tree"
use = "fattree"
oversubscription = 4

[[network]]
name = "tree of equal cost"
use = "fattree"
costs-as = "panel"

[[searcher]]
use = "mcmc"

[[searcher]]
use = "totientperm"
"""


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


@pytest.mark.slow
def test_all_outputs_and_the_same_twice(run, small, tmp_path):
    outputs = ["--plot", tmp_path / "share.svg"]
    code, out, err = run("share", small, *outputs)
    assert code == 0, err
    assert err == "" or "compiling" in err
    assert "tree of equal cost" in out
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(first) == {"small.toml", "share.svg"}
    code, out, _ = run("share", small, *outputs, "--json")
    found = json.loads(out)
    assert code == 0
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == first

    rows = {(row["network"], row["load"]): row for row in found["rows"]}
    assert set(rows) == {(n, load) for n in ("panel", "tree", "tree of equal cost") for load in (50, 100)}
    assert {rows[name, 50]["jobs"] for name in ("panel", "tree")} == {rows["tree of equal cost", 50]["jobs"]}
    for row in found["rows"]:
        assert 0 < row["mean_s"] <= row["max_s"] * (1 + 1e-12)
        assert row["p99_s"] <= row["max_s"]
    assert rows["panel", 100]["mean_slowdown"] == 1.0
    assert rows["panel", 100]["max_slowdown"] == 1.0
    # Random servers of an oversubscribed tree: a job meets others at the top of racks.
    assert rows["tree", 100]["max_slowdown"] > 1.05
    panel, tree, equal = found["networks"]
    assert [network["shared"] for network in found["networks"]] == [False, True, True]
    assert [one["interfaces"] for one in (panel, tree, equal)] == [4, 4, 1]
    assert tree["interface_bandwidth_gbps"] == panel["interface_bandwidth_gbps"] == pytest.approx(10)
    assert equal["interface_bandwidth_gbps"] != pytest.approx(40)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("loads = [50, 100]", "loads = [10]", "has no room at a load of 10 %"),
        ("trials = 2", "trails = 2", "no option 'trails'"),
        ('use = "ncf"', 'use = "nfc"', "no frontend named 'nfc'"),
        ('use = "fattree"\noversubscription = 4', 'use = "fattree"\nk = 3', "fattree: k 3 is odd"),
        ('costs-as = "panel"', 'costs-as = "panels"', "no network 'panels'"),
        ("budget = 20", "budget = twenty", "is not TOML"),
    ],
)
def test_bad_files_end_in_one_line(run, small, tmp_path, old, new, message):
    assert old in SMALL
    small.write_text(SMALL.replace(old, new, 1))
    code, out, err = run("share", small, "--plot", tmp_path / "share.svg")
    assert code == 2
    assert message in err
    assert "Traceback" not in err
    assert out == ""
    assert not (tmp_path / "share.svg").exists()


def test_a_path_that_cannot_be_written_is_told_before_the_work(run, small, tmp_path):
    code, _, err = run("share", small, "--plot", tmp_path / "no" / "share.svg")
    assert code == 2
    assert "does not exist" in err


@pytest.mark.slow
def test_ctrl_c_writes_nothing(run, small, tmp_path, monkeypatch):
    def stop(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("topoplan_command_share.sharing.job_times", stop)
    code, _, err = run("share", small, "--plot", tmp_path / "share.svg")
    assert code == 130
    assert "interrupted" in err
    assert not (tmp_path / "share.svg").exists()


def test_the_example_can_be_read():
    share = shared_cluster_from(tomllib.loads(EXAMPLE.read_text()), EXAMPLE.stem, EXAMPLE.name)
    assert share.study.cluster.servers == 128
    assert [job.servers for job in share.jobs] == [16] * 4
