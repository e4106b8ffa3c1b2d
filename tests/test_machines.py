"""A machine of another vendor is a small package: its devices are known wherever devices are named."""

from __future__ import annotations

import json
import re

import attrs
import pytest

from topoplan import Host, TopoplanError
from topoplan_engine import ClusterOptions
from topoplan_engine.experiment import build_cluster
from topoplan_engine.options import HostGroup

PACKAGE = '''
from topoplan import Device, HostLink, HostModel, HostNode, Machine, hookimpl

class Mi325x(Machine):
    """AMD MI325X, eight in a mesh."""

    name = "mi325x"

    def build(self):
        device = Device(
            name="MI325X",
            peak_flops={"fp32": 163.4e12, "bf16": 1307.4e12, "fp16": 1307.4e12},
            memory_bandwidth=6e12,
            memory=256e9,
            kernel_overhead=4e-6,
            sources=("AMD Instinct MI325X data sheet, dense",),
        )
        pairs = [(i, j) for i in range(8) for j in range(i)]
        links = tuple(HostLink(i, j, bandwidth=64e9) for i, j in pairs)
        nodes = (HostNode.DEVICE,) * 8
        return HostModel(device=device, nodes=nodes, links=links, sources=("data sheet",))

@hookimpl
def topoplan_machines():
    return Mi325x
'''
BROKEN = PACKAGE.replace("        device =", "        raise ValueError('no such chip')\n        device =").replace(
    "mi325x", "mi999"
)


@pytest.fixture
def vendor(tmp_path_factory, monkeypatch):
    """Install a package of one module."""

    def install(module, text):
        site = tmp_path_factory.mktemp("site")
        (site / f"{module}.py").write_text(text)
        folder = site / f"{module}-1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {module}\nVersion: 1\nRequires-Dist: topoplan-core\n"
        )
        (folder / "entry_points.txt").write_text(f"[topoplan]\n{module} = {module}\n")
        monkeypatch.syspath_prepend(str(site))

    return install


def test_a_vendor_ships_a_machine_in_less_than_thirty_lines(vendor, run):
    assert len(PACKAGE.strip().splitlines()) < 30
    vendor("amd", PACKAGE)
    assert run("plugins", "show", "MI325X")[1].startswith("machine mi325x (amd 1)")
    words = ("alexnet", "--servers", "2", "--budget", "0", "--precision", "bf16", "--json")
    status, out, err = run("optimize", *words, "--device", "mi325X")
    assert status == 0, err
    assert "MI325X" in json.dumps(json.loads(out))
    assert run("optimize", *words, "-e", "roofline:device=mi325x")[0] == 0
    status, _, err = run("optimize", *words, "--device", "MI325")
    assert (status, err.splitlines()[0]) == (
        2,
        "error: cluster.device: no machine named 'MI325'; did you mean 'mi325x'?",
    )


def test_hosts_may_hold_different_machines(vendor):
    vendor("amd", PACKAGE)
    groups = (HostGroup(servers=1, device="MI325X"), HostGroup(servers=1, device="h100"))
    cluster = build_cluster(ClusterOptions(hosts=groups))
    assert cluster.device_preset == ("MI325X", "H100")
    assert cluster.device_memory.tolist() == [256e9, 80e9]
    assert len(cluster.machines["mi325x"].links) == 28


def test_a_broken_machine_harms_only_those_who_name_it(vendor):
    vendor("nobody", BROKEN)
    host = Host.discover()
    cluster = build_cluster(ClusterOptions(servers=1), host)
    assert "mi999" not in cluster.machines
    message = r"cluster.device: machine 'mi999' (nobody 1): build raised ValueError: no such chip"
    with pytest.raises(TopoplanError, match=re.escape(message)):
        build_cluster(attrs.evolve(ClusterOptions(servers=1), device="MI999"), host)
