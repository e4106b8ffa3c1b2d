"""A machine of another vendor is a small package: its devices are known wherever devices are named."""

from __future__ import annotations

import json
import re

import attrs
import numpy as np
import pytest

from topoplan import Host, HostNode, TopologyContext, TopoplanError
from topoplan_engine import ClusterOptions
from topoplan_engine.experiment import build_cluster
from topoplan_engine.host_models import at_machine
from topoplan_engine.network.host_paths import host_paths
from topoplan_engine.options import HostGroup
from topoplan_samples.tasks import collective, task_graph, transfer

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


def test_a_plan_keeps_what_is_inside_its_hosts(run, tmp_path):
    path = tmp_path / "plan.json"
    words = (
        "alexnet",
        "--servers",
        "2",
        "-m",
        "dgx-h100",
        "-t",
        "rail-optimized",
        "--budget",
        "0",
        "-x",
        f"json={path}",
    )
    status, out, err = run("optimize", *words, "--json")
    assert status == 0, err
    said = json.loads(out)
    assert said["machine"].startswith("dgx-h100: 8 x H100 at 3600 Gbps inside, 8 NICs of 400 Gbps")
    status, out, err = run("simulate", str(path), "--json")
    assert status == 0, err
    assert json.loads(out)["iteration_time_s"] == said["iteration_time_s"]
    document = json.loads(path.read_text())
    document["cluster"]["host"]["nodes"][0] = "gpu"
    path.write_text(json.dumps(document))
    status, _, err = run("simulate", str(path))
    assert (status, len(err.splitlines())) == (2, 1)
    assert "'gpu' is no node of a host (expected device, switch, pcie, cpu, nic)" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-m", "dgxh100"], "cluster.machine: no machine named 'dgxh100'; did you mean 'dgx-h100'?"),
        (["-m", "dgx-h100", "--gpus-per-server", "16"], "machine dgx-h100 has 8 devices (at most 8)"),
        (["-m", "dgx-h100", "--degree", "9"], "machine dgx-h100 has 8 NICs (at most 8)"),
        (["-m", "dgx-h100", "--gpus-per-device", "4"], "whose GPUs are modelled one by one"),
        (["-m", "dgx-h100", "--devices", "8,16"], "dgx-h100 says what every host has"),
        (["-m", "dgx-h100", "--device", "h100,v100"], "dgx-h100 says what every host has"),
        (["-m", "dgx-h100:rails=2"], "machine dgx-h100: no option 'rails' (have: cross-rail)"),
        (["-m", "flexflow"], "machine flexflow: no file"),
        (["--device", "server"], "machine 'server' names no kind of device"),
    ],
)
def test_a_bad_machine_is_named_in_one_line(run, words, message):
    status, _, err = run("optimize", "alexnet", "--servers", "2", "--budget", "0", *words)
    assert (status, len(err.splitlines())) == (2, 1), err
    assert message in err


@pytest.mark.parametrize("machine", ["dgx-a100", "dgx-h100", "dgx-b200", "gb200-nvl72", "mi300x"])
def test_messages_reach_a_nic_over_the_gpu_that_owns_it(machine):
    """As NCCL's PXN does; a GPU beside that one, below the same PCIe switch, is as near (DGX A100 to B200)."""
    model = Host.discover().get("machine", machine)().build()
    ways, devices = host_paths(model), model.n_devices
    places = [place for place, node in enumerate(model.nodes) if node is HostNode.DEVICE]
    for nic, (owner,) in enumerate(model.nic_owners):
        for device in range(devices):
            for source, target in ((device, devices + nic), (devices + nic, device)):
                row = source * ways.n_endpoints + target
                ends = ways.ends[ways.links[ways.ptr[row] : ways.ptr[row + 1]]]
                assert {node for node in ends.ravel().tolist() if node in places} <= {places[device], places[owner]}


def test_options_go_over_what_a_machine_says():
    options = ClusterOptions(
        machine="dgx-h100",
        servers=3,
        gpus_per_server=4,
        degree=2,
        interface_bandwidth_gbps=200.0,
        inter_gpu_bandwidth_gbps=800.0,
        device="H200",
    )
    cluster = build_cluster(options)
    assert (cluster.n_hosts, cluster.n_devices, cluster.device_preset[0]) == (3, 12, "H200")
    assert cluster.interfaces.tolist() == [2, 2, 2]
    assert set(cluster.interface_bandwidth) == {25e9}
    assert set(cluster.inside_bandwidth) == {100e9}
    assert (cluster.host.n_devices, cluster.host.n_nics, cluster.host.nic_owners) == (4, 2, ((0,), (1,)))
    switch = [link.bandwidth for link in cluster.host.links if "switch" in {cluster.host.nodes[link.second]}]
    assert switch == [100e9] * 4


def test_fewer_gpus_of_a_rack_leave_the_nics_of_the_others_out():
    """A Grace CPU without its GPUs is joined to nothing: 64 of 72 GPUs have 64 NICs, as the rack of 64 says itself."""
    fewer, rack = (
        build_cluster(ClusterOptions(machine=machine, servers=2, **gpus))
        for machine, gpus in (("gb200-nvl72", {"gpus_per_server": 64}), ("gb200-nvl72:gpus=64", {}))
    )
    assert fewer.interfaces.tolist() == rack.interfaces.tolist() == [64, 64]
    assert fewer.host.nic_owners == rack.host.nic_owners
    assert host_paths(fewer.host).own_nics.tolist() == host_paths(rack.host).own_nics.tolist()
    assert build_cluster(ClusterOptions(machine="dgx-h100", gpus_per_server=4)).host.n_nics == 8, "CPUs join them"


def test_a_machine_says_what_options_leave_open():
    cluster = build_cluster(ClusterOptions(machine="dgx-a100", servers=2))
    assert (cluster.n_devices, cluster.device_preset[0]) == (16, "A100-80")
    assert (cluster.interfaces[0], cluster.interface_bandwidth[0], cluster.inside_bandwidth[0]) == (8, 25e9, 300e9)
    assert build_cluster(ClusterOptions(machine="h100")).host is None, "an accelerator alone says nothing of hosts"


def test_a_broken_machine_harms_only_those_who_name_it(vendor):
    vendor("nobody", BROKEN)
    host = Host.discover()
    cluster = build_cluster(ClusterOptions(servers=1), host)
    assert "mi999" not in cluster.machines
    message = r"cluster.device: machine 'mi999' (nobody 1): build raised ValueError: no such chip"
    with pytest.raises(TopoplanError, match=re.escape(message)):
        build_cluster(attrs.evolve(ClusterOptions(servers=1), device="MI999"), host)


def test_hosts_of_several_machines_are_endpoints_with_what_each_machine_says():
    cluster = build_cluster(ClusterOptions(machine="dgx-h100*2 + dgx-a100"))
    assert cluster.host is None
    assert (cluster.n_hosts, cluster.n_devices) == (3, 24)
    assert cluster.device_preset == ("H100",) * 16 + ("A100-80",) * 8
    assert cluster.interface_bandwidth.tolist() == [50e9, 50e9, 25e9]
    assert cluster.inside_bandwidth.tolist() == [450e9, 450e9, 300e9]
    assert cluster.interfaces.tolist() == [8, 8, 8]
    assert build_cluster(ClusterOptions(machine="dgx-h100+dgx-a100", servers=2)).n_hosts == 2


def test_options_with_hosts_of_several_machines_may_be_completed_again(run):
    host = Host.discover()
    options, _ = at_machine(ClusterOptions(machine="dgx-h100*2+dgx-a100"), host)
    assert at_machine(options, host) == (options, None)
    words = ["compare", "transformer", "-n", "bigswitch", "-m", "dgx-h100+dgx-a100", "--batch-size", "64"]
    status, out, error = run(*words, "--plan", "dp=16", "--json")
    assert status == 0, error
    words = ["optimize", "transformer", "-m", "dgx-h100+dgx-a100", "--batch-size", "64", "--plan", "dp=16", "--json"]
    assert repr(json.loads(run(*words)[1])["iteration_time_s"]) in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"machine": "dgx-h100+nope"}, "cluster.machine: no machine named 'nope'"),
        ({"machine": "dgx-h100*0+dgx-a100"}, "0 hosts of dgx-h100 \\(must be 1 to"),
        ({"machine": "dgx-h100*4"}, "dgx-h100.4 names one kind of host \\(write dgx-h100, and servers=4"),
        ({"machine": "dgx-h100*2+dgx-a100:cross-rail=fabric"}, "no list of machines \\(write NAME.HOSTS"),
        ({"machine": "dgx-h100*2+"}, "no list of machines"),
        ({"machine": "dgx-h100*x+dgx-a100"}, "no list of machines"),
        ({"machine": "dgx-h100+server"}, "server says no device of its own"),
        ({"machine": "dgx-h100+h100"}, "h100 says no host of its own"),
        ({"machine": "dgx-h100+dgx-a100", "servers": 5}, "cluster.servers: 5, but dgx-h100.dgx-a100 are 2 hosts"),
        ({"machine": "dgx-h100+dgx-a100", "degree": 4}, "cluster.degree: .* says what the hosts of each machine have"),
        ({"machine": "dgx-h100+dgx-a100", "device": "H200"}, "cluster.device: .* says what the hosts"),
        ({"machine": "dgx-h100+dgx-a100", "gpus_per_device": 8}, "cluster.gpus-per-device: .* says what the hosts"),
    ],
)
def test_bad_mixes_of_machines_are_refused_in_one_line(options, message):
    with pytest.raises(TopoplanError, match=message) as error:
        build_cluster(ClusterOptions(**options))
    assert "\n" not in str(error.value)


def test_a_stage_on_slower_devices_sets_the_pace(run):
    """Two equal stages: on mixed machines an iteration takes nearly what it takes on the slower ones alone."""

    def seconds(machine):
        words = ["optimize", "transformer", "-m", machine, "--batch-size", "64", "--plan", "dp=8,pp=2,micro-batch=2"]
        status, out, _ = run(*words, *([] if "+" in machine else ["--servers", "2"]), "--json")
        assert status == 0
        return json.loads(out)["iteration_time_s"]

    fast, slow, mixed = seconds("dgx-h100"), seconds("dgx-a100"), seconds("dgx-a100+dgx-h100")
    assert fast < mixed < 1.05 * slow
    assert mixed > (fast + slow) / 2


UNEQUAL = (
    *("optimize", "huggingface", "-o", "preset=llama-3-8b", "-o", "layers=1", "-o", "sequence-length=256"),
    *("-m", "dgx-h100*1+gb200-nvl72*1", "--batch-size", "80", "--json"),
)


@pytest.mark.parametrize("algorithm", ["hierarchical", "multi-ring", "tree"])
def test_a_mesh_over_unequal_hosts_is_one_line_that_says_what_runs_there(run, algorithm):
    words = (*UNEQUAL, "--plan", "dp=80", "--collective")
    status, _, err = run(*words, f"all-reduce={algorithm}")
    assert (status, len(err.splitlines())) == (2, 1)
    assert re.search(r"hosts of 8 and of 72 members \(must be equal; NAME\+ring runs rings\)$", err.strip())
    status, out, err = run(*words, f"all-reduce={algorithm}+ring")
    assert status == 0, err
    assert {row["algorithm"] for row in json.loads(out)["algorithms"]} == {"ring"}


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        ("tp=32", "tp=32 x cp=1 x pp=1 = 32 does not divide 80 devices (nearest: tp=20 or 40)"),
        ("tp=16,dp=4", "tp=16 x cp=1 x pp=1 x dp=4 = 64 for 80 devices (nearest: dp=5)"),
    ],
)
def test_a_mesh_that_unequal_hosts_do_not_hold_is_one_line(run, plan, why):
    assert run(*UNEQUAL, "--plan", plan)[::2] == (2, f"error: plan: {why}\n")


def test_files_of_networks_and_machines_are_named_beside_their_options(run, tmp_path):
    plan, network = tmp_path / "plan.json", tmp_path / "two.json"
    nodes = [{"id": number, "kind": "host"} for number in range(2)]
    network.write_text(json.dumps({"nodes": nodes, "edges": [{"source": 0, "target": 1}]}))
    small = ("optimize", "alexnet", "--budget", "0", "--servers", "4")
    assert run(*small, "-x", f"json={plan}")[0] == 0
    missing = f"{tmp_path}/none.json: cannot be read (No such file or directory)"
    again = "a network of 4, or a plan for 2 hosts: optimize --servers 2"
    other = f"topology file: path: {network}: 2 hosts, but the cluster has 4 ({again})"
    for words, why in (
        (("simulate", str(plan), "-t", f"file:path={network}"), other),
        (("simulate", str(plan), "-t", f"file:path={tmp_path}/none.json"), f"topology file: path: {missing}"),
        ((*small, "-t", f"file:path={tmp_path}/none.json"), f"topology file: path: {missing}"),
        ((*small, "-m", f"flexflow:file={tmp_path}/none.json"), f"cluster.machine: machine flexflow: file: {missing}"),
    ):
        assert run(*words)[::2] == (2, f"error: {why}\n")


@pytest.mark.parametrize("lost", range(8))
@pytest.mark.parametrize("hosts", [3, 4])
def test_seven_nics_of_a_host_behind_pcie_switches_carry_seven_rings(hosts, lost):
    """By hand: 2 (n-1) / n S over seven NICs of 50 GB/s."""
    host = Host.discover()
    cluster = build_cluster(ClusterOptions(machine="dgx-h100", servers=hosts, latency_us=0.0), host)
    topology = host.make("topology", "degraded", {"of": "rail-optimized", "failed": f"host 0~leaf 0 rail {lost}"})
    fabric = topology.build(TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0)))
    n, size = 8 * hosts, 1 << 30
    run = host.make("simulator", "fluid", {"protocol": "none"}).build()
    seconds = run.makespan(task_graph([collective(range(n), size)], n_devices=n), fabric, cluster)
    assert seconds == pytest.approx(2 * (n - 1) / n * size / (7 * 50e9))


@pytest.mark.parametrize("lost", [0, 2, 7])
@pytest.mark.parametrize("back", [False, True])
def test_messages_on_the_rails_that_are_left_take_their_own_nics(lost, back):
    """By hand: each GPU sends a GiB to that of another host on its rail, over a NIC of 50 GB/s of its own."""
    host = Host.discover()
    cluster = build_cluster(ClusterOptions(machine="dgx-h100", servers=3, latency_us=0.0), host)
    topology = host.make("topology", "degraded", {"of": "rail-optimized", "failed": f"host 0~leaf 0 rail {lost}"})
    fabric = topology.build(TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0)))
    ends = [(gpu, 16 + gpu) for gpu in range(8) if gpu != lost]
    tasks = [transfer(*(pair[::-1] if back else pair), 1 << 30) for pair in ends]
    run = host.make("simulator", "fluid", {"protocol": "none"}).build()
    seconds = run.makespan(task_graph(tasks, n_devices=24), fabric, cluster)
    assert seconds == pytest.approx((1 << 30) / 50e9)
