"""Experiments: from a TOML file and `--set` to values in seconds and bytes/s."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from topoplan import TopoplanError
from topoplan_engine import ClusterOptions, Experiment
from topoplan_engine.experiment import build_cluster, experiment_from_options, experiment_from_toml
from topoplan_engine.options import ComponentOptions, HostGroup, RunOptions

TEXT = """
[model]
use = "dlrm"
preset = "dlrm16"
[topology]
use = "topoopt"
[[searcher]]
use = "mcmc"
alpha = 50.0
[[searcher]]
use = "totientperm"
[cluster]
servers = 4
degree = 8
[run]
budget = 10
[outputs]
flatbuffer = "out.fbuf"
"""


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "e.toml"
        path.write_text(text)
        return path

    return write


def test_a_file_fills_every_part(write):
    experiment = experiment_from_toml(write(TEXT))
    assert experiment.model.name == "dlrm"
    assert experiment.model.options == {"preset": "dlrm16"}
    assert [choice.name for choice in experiment.searchers] == ["mcmc", "totientperm"]
    assert experiment.cluster.degree == 8
    assert experiment.run.budget == 10
    assert [(choice.name, path) for choice, path in experiment.outputs] == [("flatbuffer", "out.fbuf")]


def test_set_overrides_and_adds(write):
    changes = [
        "cluster.degree=2",
        "searcher.0.alpha=7",
        "run.seed=3",
        "estimator.use=measured",
        "estimator.file=m.json",
    ]
    experiment = experiment_from_toml(write(TEXT), changes)
    assert experiment.cluster.degree == 2
    assert experiment.searchers[0].options == {"alpha": 7}
    assert experiment.run.seed == 3
    assert experiment.estimator.options == {"file": "m.json"}


@pytest.mark.parametrize(
    ("text", "changes", "message"),
    [
        ("[model", [], r"e\.toml: is not TOML"),
        ("[run]\nbudget = 1", [], r"needs a section \[model\]"),
        ("[modell]\nuse = 'x'", [], "no section 'modell'; did you mean 'model'"),
        ("[model]\npreset = 'x'", [], "model: needs use ="),
        ("model = 'dlrm'\n[cluster]\nservers = 0", [], "cluster: servers: 0 is too small"),
        ("model = 'dlrm'\n[cluster]\nserver = 2", [], "cluster: no option 'server'; did you mean 'servers'"),
        ("model = 'dlrm'", ["degree=3"], "expected section.key=value"),
        ("model = 'dlrm'\n[[cluster.hosts]]\nspeed = -1", [], r"cluster\.hosts\[0\]: speed: -1"),
    ],
)
def test_a_mistake_names_the_file_and_the_key(write, text, changes, message):
    with pytest.raises(TopoplanError, match=message):
        experiment_from_toml(write(text), changes)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(TopoplanError, match=r"no\.toml: cannot be read"):
        experiment_from_toml(tmp_path / "no.toml")


def test_units_are_converted_at_the_edge(write):
    text = """
    model = "dlrm"
    [cluster]
    interface-bandwidth-gbps = 100
    latency-us = 2
    [[cluster.hosts]]
    servers = 2
    device = "V100"
    [[cluster.hosts]]
    gpus-per-server = 3
    degree = 1
    speed = 0.5
    memory-gb = 10
    interface-bandwidth-gbps = 40
    """
    cluster = build_cluster(experiment_from_toml(write(text)).cluster)
    assert cluster.n_hosts == 3
    assert cluster.device_host.tolist() == [0, 1, 2, 2, 2]
    assert cluster.device_preset == ("V100", "V100", "A100-40", "A100-40", "A100-40")
    assert cluster.interface_bandwidth.tolist() == [12.5e9, 12.5e9, 5e9]
    assert cluster.interfaces.tolist() == [4, 4, 1]
    assert cluster.device_speed.tolist() == [1, 1, 0.5, 0.5, 0.5]
    assert cluster.device_memory.tolist()[2:] == [10e9] * 3
    assert cluster.latency == 2e-6


def test_components_may_be_text():
    experiment = Experiment(model="dlrm:preset=dlrm16", searchers=["mcmc", "totientperm:every=9"])
    assert experiment.model.options == {"preset": "dlrm16"}
    assert experiment.searchers[1].options == {"every": "9"}


def test_hosts_are_where_their_devices_end():
    cluster = build_cluster(ClusterOptions(devices=(3, 4, 8), interface_bandwidth_gbps=8.0))
    assert cluster.device_host.tolist() == [0, 0, 0, 1, 2, 2, 2, 2]
    assert cluster.interface_bandwidth.tolist() == [1e9] * 3


def test_ends_of_hosts_come_from_toml(write):
    experiment = experiment_from_toml(write(TEXT.replace("servers = 4", "devices = [8, 16]")))
    assert build_cluster(experiment.cluster).n_devices == 16


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ClusterOptions(devices=(8, 8)),
            r"devices 8,8: 8 does not come after 8 "
            r"\(these are where each host's devices end, ascending: \[8,16\] is 2 hosts of 8\)",
        ),
        (ClusterOptions(devices=(4, 2, 2)), r"2 does not come after 4 .*: \[4,6,8\] is 3 hosts of 4,2,2\)"),
        (ClusterOptions(devices=(0, 4)), r"devices 0,4: 0 does not come after 0 .*: \[8,16\] is two hosts of 8\)"),
        (ClusterOptions(devices=(4,), hosts=(HostGroup(servers=2),)), "hosts are given twice"),
    ],
)
def test_hosts_that_make_no_sense_are_refused(options, message):
    with pytest.raises(TopoplanError, match=message):
        build_cluster(options)


@pytest.mark.parametrize("stated", [{"plan": "dp=16"}, {"plan_from": Path("run.sh")}])
def test_no_candidates_leave_no_place_for_a_stated_plan(stated):
    components = attrs.evolve(ComponentOptions(), **stated)
    with pytest.raises(TopoplanError, match=r"^--budget 0 prices the initial strategy"):
        experiment_from_options("vgg", components, ClusterOptions(), RunOptions(budget=0))
