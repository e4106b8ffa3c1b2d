"""How much memory a process may have."""

import resource

import pytest

from topoplan.errors import TopoplanError
from topoplan_engine import available
from topoplan_engine.available import available_bytes, check_memory


def group(folder, name, text):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def process(tmp_path):
    folder = tmp_path / "self"
    folder.mkdir()
    return folder


def test_the_least_limit_of_all_control_groups_around_a_process_counts(tmp_path, process):
    (process / "cgroup").write_text("0::/jobs/7\n")
    group(tmp_path, "memory.max", "max\n")
    group(tmp_path, "jobs/7/memory.max", "max\n")
    assert available_bytes(process, tmp_path) == available_bytes(process, tmp_path / "nothing")
    group(tmp_path, "jobs/memory.max", "3000000\n")
    assert available_bytes(process, tmp_path) == 3_000_000
    group(tmp_path, "jobs/7/memory.max", "2000000\n")
    assert available_bytes(process, tmp_path) == 2_000_000


def test_control_groups_of_the_first_version_count(tmp_path, process):
    (process / "cgroup").write_text("5:cpu,cpuacct:/x\n4:memory:/x\n")
    group(tmp_path, "memory/x/memory.limit_in_bytes", "5000000\n")
    group(tmp_path, "cpu,cpuacct/x/memory.limit_in_bytes", "1\n")
    assert available_bytes(process, tmp_path) == 5_000_000


def test_without_control_groups_the_machine_and_the_limit_of_the_process_count(tmp_path, process, monkeypatch):
    whole = available_bytes(process, tmp_path)
    assert whole is not None
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1_000_000, 1_000_000))
    assert available_bytes(process, tmp_path) == 1_000_000
    monkeypatch.setattr(available.os, "sysconf", lambda _: 900)
    assert available_bytes(process, tmp_path) == 900**2


def test_what_needs_more_is_refused_with_both_numbers(monkeypatch):
    monkeypatch.setattr(available, "available_bytes", lambda: 2_000_000_000)
    check_memory("plan: 1 task", 1_700_000_000, "use fewer devices")
    expected = r"plan: 1 task take some 2\.1 GB of memory, and this process may have 2\.0 GB \(use fewer devices\)"
    with pytest.raises(TopoplanError, match=expected):
        check_memory("plan: 1 task", 1_800_000_000, "use fewer devices")
    monkeypatch.setattr(available, "available_bytes", lambda: None)
    check_memory("plan: 1 task", 1 << 60, "use fewer devices")
