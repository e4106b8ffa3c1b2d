"""Measured collectives: the fit, the file, the words, and processes of torch.distributed where torch is there."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topoplan import TopoplanError
from topoplan.cli import main
from topoplan.testing import parametrize_with_checks
from topoplan_command_profile import Profile
from topoplan_command_profile.document import document
from topoplan_command_profile.fit import Line, fit
from topoplan_command_profile.launch import measure_here, measure_joined
from topoplan_command_profile.worker import COLLECTIVES

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
SIZES = np.array([1e5, 1e6, 8e6, 32e6])


@parametrize_with_checks(Profile)
def test_conformance(check):
    check()


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Run the command in an empty folder, started by nobody; return (exit status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)

    def run(*args):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["profile", "collectives", *args])
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    return run


@given(st.floats(0, 1e-2), st.floats(1e6, 1e12))
def test_a_line_is_found_again(latency, bandwidth):
    found = fit(SIZES, latency + SIZES / bandwidth)
    assert found.latency == pytest.approx(latency, abs=1e-9 + 1e-6 * latency)
    assert found.bandwidth == pytest.approx(bandwidth, rel=1e-3)


@given(st.lists(st.floats(1e-6, 10), min_size=4, max_size=4))
def test_whatever_was_measured_gives_a_usable_line(seconds):
    found = fit(SIZES, seconds)
    assert found.latency >= 0
    assert 0 < found.bandwidth < float("inf")


def test_lines_without_latency_and_times_that_do_not_grow():
    assert fit([1.0, 2.0], [1.0, 4.0]).latency == 0
    assert fit([1.0, 2.0], [4.0, 1.0]) == Line(0.0, 2.0)


def test_the_file_has_lines_and_times():
    samples = {name: [(100, 1.0), (200, 1.5)] for name in COLLECTIVES}
    measured = {"samples": samples, "backend": "gloo", "device": "cpu", "world_size": 2, "torch": "2.9"}
    found = document(measured)
    assert list(found["collectives"]) == list(COLLECTIVES)
    line = found["collectives"]["all_reduce"]
    assert (line["latency_s"], line["bandwidth_bytes_per_s"]) == (pytest.approx(0.5), pytest.approx(200))
    assert line["samples"] == [{"bytes": 100, "seconds": 1.0}, {"bytes": 200, "seconds": 1.5}]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--processes", "1"), "--processes: 1 is too small (at least 2)"),
        (("--repeats", "0"), "--repeats: 0 is too small (at least 1)"),
        (("--sizes-mb", "1"), "--sizes-mb: two different sizes at least"),
        (("--sizes-mb", "1,1.0"), "two different sizes at least"),
        (("--sizes-mb", "1,x"), "--sizes-mb: expected number, got 'x'"),
        (("--sizes-mb", "1,nan"), "--sizes-mb: expected number, got 'nan'"),
        (("--sizes-mb", "0,1"), "--sizes-mb: 0.0 is too small (at least 1e-06)"),
        (("-o", "missing/file.json"), "missing does not exist"),
    ],
)
def test_bad_words_are_named(run, words, told):
    status, out, err = run(*words)
    assert (status, out) == (2, "")
    assert told in err
    assert err.startswith("error: ")


def test_a_missing_torch_says_what_to_install(run, monkeypatch, tmp_path):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "torch" else found(name, *more)
    )
    status, out, err = run()
    assert (status, out) == (2, "")
    assert "pip install torch" in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("rank", "world", "told"),
    [("0", "1", "two processes at least"), ("2", "2", "name no process"), ("x", "2", "name no process")],
)
def test_a_wrong_environment_is_named(monkeypatch, rank, world, told):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", world)
    with pytest.raises(TopoplanError, match=told):
        measure_joined([1, 2], 1, "", lambda finished, name: None)


def test_a_process_that_fails_says_why(monkeypatch):
    told = "nosuch" if importlib.util.find_spec("torch") else "No module named 'torch'"
    with pytest.raises(TopoplanError, match=rf"process \d of 2 failed: .*{told}"):
        measure_here(2, [1000, 2000], 1, "nosuch", lambda finished, name: None)


@needs_torch
def test_processes_measure(run, tmp_path):
    status, out, err = run("--sizes-mb", "0.01,0.1", "--repeats", "3", "--json")
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert found.pop("output") == "collectives.json"
    assert found == json.loads((tmp_path / "collectives.json").read_text())
    assert (found["world_size"], found["format"]) == (2, "topoplan-collectives")
    for name in COLLECTIVES:
        assert [sample["bytes"] for sample in found["collectives"][name]["samples"]] == [10_000, 100_000]
        assert all(sample["seconds"] > 0 for sample in found["collectives"][name]["samples"])


@needs_torch
def test_torchrun_s_processes_measure_together(tmp_path):
    """Two processes with the environment of torchrun: the first one writes, the other says nothing."""
    code = "import sys; from topoplan.cli import main; main(sys.argv[1:])"
    words = ["profile", "collectives", "--sizes-mb", "0.01,0.1", "--repeats", "2", "-o", str(tmp_path / "c.json")]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code, *words],
            env={**os.environ, **place, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    told = [process.communicate(timeout=120)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert "all_to_all" in told[0]
    assert told[1] == ""
    assert json.loads((tmp_path / "c.json").read_text())["world_size"] == 2
