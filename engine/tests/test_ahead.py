"""A second process compiles kernels of simulators ahead, and ends with the first one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from topoplan_engine.reporting.ahead import ahead, small_case
from topoplan_simulator_flexnet import Flexnet
from topoplan_simulator_fluid import Fluid


@pytest.mark.parametrize("component", [Fluid(), Fluid(transport="flexnetpacket"), Flexnet()], ids=repr)
def test_the_small_case_runs_on_every_simulator(component):
    taskgraph, fabric, cluster = small_case()
    taskgraph.check()
    assert component.build()(taskgraph, fabric, cluster).makespan > 1e-3 + 2 * taskgraph.size[1] / 1e9 / 4


@pytest.fixture
def started(monkeypatch):
    """Processes that were started."""
    processes, start = [], subprocess.Popen

    def noted(*words, **how):
        processes.append(start(*words, **how))
        return processes[-1]

    monkeypatch.setattr(subprocess, "Popen", noted)
    return processes


def bring_kernels(monkeypatch, are_shipped):
    """Let packages bring kernels along, or not."""
    monkeypatch.setattr("topoplan_engine.reporting.ahead.are_shipped", lambda: are_shipped)


def test_the_process_ends_with_the_context(started, monkeypatch):
    bring_kernels(monkeypatch, are_shipped=False)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    with ahead(["fluid"]):
        [process] = started
        assert process.poll() is None
    assert process.poll() is not None


@pytest.mark.parametrize(
    ("simulators", "cores", "are_shipped"), [([], 2, False), (["fluid"], 1, False), (["fluid"], 2, True)]
)
def test_nothing_is_started_where_it_would_not_help(started, monkeypatch, simulators, cores, are_shipped):
    bring_kernels(monkeypatch, are_shipped)
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    with ahead(simulators):
        assert started == []


@pytest.mark.slow
def test_the_process_ends_with_its_parent():
    script = (
        "import os, sys; os.environ['NUMBA_OPT'] = '3'  # kernels of packages are not used\n"
        "from topoplan_engine.reporting.ahead import ahead\n"
        "import subprocess; start = subprocess.Popen\n"
        "def noted(*words, **how):\n    process = start(*words, **how); print(process.pid); return process\n"
        "subprocess.Popen = noted\n"
        "with ahead(['fluid']): sys.stdout.flush(); os._exit(0)"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    waited = subprocess.run(["timeout", "60", "tail", "--pid", said.strip(), "-f", "/dev/null"], check=False)
    assert waited.returncode == 0
