"""Every installed component, and every command, keeps every promise of its kind."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

from topoplan.plugin.host import Host
from topoplan.testing import checks_for
from topoplan_testing import _common

HOST = Host.discover()

#: What components excuse themselves from in their own tests, too: a baseline does not search, nor does a stated plan.
EXCUSED = {(planner, "check_beats_chance") for planner in ("baseline", "stated")}


def marks(name, check):
    """Return the mark of a promise that must be broken."""
    return [pytest.mark.xfail(strict=True, reason="excused")] if (name, check) in EXCUSED else []


def package_of(component):
    """Return what is imported to get a component."""
    module = component.__module__
    return module if module.startswith("topoplan.") else module.partition(".")[0]


PACKAGES = sorted({package_of(HOST.get(row.kind, row.name)) for row in HOST.listing()})
CASES = [
    pytest.param(check, id=f"{row.kind}-{row.name}-{name}", marks=marks(row.name, name))
    for row in HOST.listing()
    for name, check in checks_for(HOST.get(row.kind, row.name)).items()
]


def test_all_plugins_load():
    assert [str(problem) for problem in (*HOST.broken, *HOST.conflicts)] == []


@pytest.mark.filterwarnings("ignore:ns3. no switches join:UserWarning", "ignore:astra-sim:UserWarning")
@pytest.mark.parametrize("check", CASES)
def test_conformance(check):
    check()


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_a_plugin_is_imported_alone(package):
    alone = inspect.unwrap(_common.heavy_after_import)
    assert alone(package) == ""


def test_discovery_loads_nothing_heavy():
    script = "import sys; from topoplan.plugin.host import Host; Host.discover(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert {"topoplan.plugin.host"} <= set(loaded)
    assert not {"numba", "networkx", "flatbuffers", "scipy"} & set(loaded)
