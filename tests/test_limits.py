"""Numbers that are too large, and files that nobody writes, end in one line that says what would be right."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

import topoplan
from topoplan import Axis, Dimension, Tensor, TopoplanError
from topoplan.errors import nearest
from topoplan.options import parse_component, structure
from topoplan.plugin.host import Host
from topoplan.testing import reference
from topoplan_engine import ClusterOptions, Experiment, RunOptions, optimize
from topoplan_engine.experiment import Choice, build_cluster, experiment_from_toml
from topoplan_engine.exporting import read_plan, write_outputs
from topoplan_engine.options import HostGroup
from topoplan_engine.tomlfiles import read_toml

HOST = Host.discover()


def refused(attempt, match="."):
    with pytest.raises(TopoplanError, match=match) as error:
        attempt()
    assert "\n" not in str(error.value)
    assert len(str(error.value)) <= 1000


@pytest.mark.parametrize(
    "flags",
    [
        {"servers": "1e20"},
        {"servers": 10**20},
        {"servers": 65_536, "gpus-per-server": 1024},
        {"degree": 1_000_000},
        {"latency-us": 1e15},
        {"interface-bandwidth-gbps": 1e308},
        {"interface-bandwidth-gbps": float("inf")},
        {"interface-bandwidth-gbps": 1e-300},
        {"memory-gb": "nan"},
        {"servers": "9" * 5000},
    ],
)
def test_a_cluster_has_upper_limits(flags):
    refused(lambda: build_cluster(structure(ClusterOptions, flags, "--"), HOST))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("servers", 0, "^--servers: 0 is too small"),
        ("batch-size", -1, "^--batch-size: -1 is too small"),
        ("precision", "fp4", "^--precision: 'fp4' is none of fp32, fp16, bf16, fp8$"),
        ("seed", 10**20, "^--seed: 100000000000000000000 is too large"),
    ],
)
def test_a_flag_is_named_as_it_is_typed(key, value, message):
    cls = ClusterOptions if key == "servers" else RunOptions
    refused(lambda: structure(cls, {key: value}, "--"), message)


@pytest.mark.parametrize(
    "text",
    [
        "simulator fluid:seed=1e20",
        "simulator flexnet:segment-bytes=100000000000000000000",
        "topology fattree:oversubscription=1e308",
        "topology fattree:k=1000000",
        "topology topoopt:paths=1e20",
        "searcher spmd:beam=1e20",
        "searcher hpgo:weight-copies=1e308",
        "searcher mcmc:alpha=inf",
        "frontend moe:alpha=inf",
        "frontend bert-sgmoe:capacity-factor=inf",
        "frontend bert-sgmoe:layers=1000000",
        "frontend ncf:ntables=1000000",
    ],
)
def test_options_of_components_have_upper_limits(text):
    kind, _, choice = text.partition(" ")
    refused(lambda: HOST.make(kind, choice), "too large|expected")


def test_an_empty_choice_is_told_as_one_to_leave_out():
    refused(lambda: HOST.make("frontend", "alexnet:preset=alex"), r"'alex' is none of alexnet \(or leave it out\)")


def test_options_after_a_comma_are_told_where_they_belong():
    refused(lambda: parse_component("fattree,k=4", "topology"), "write 'fattree:k=4'")


@pytest.mark.parametrize(
    "text",
    [
        "[" * 50_000,
        "x = " + "[" * 50_000,
        "x = " + "1" * 5000,
        ".".join("a" * 50_000) + " = 1",
        "[" + ".".join("a" * 50_000) + "]",
        '"a"."b".' * 20_000 + "c = 1",
    ],
    ids=["open", "nested", "digits", "dotted", "table", "quoted"],
)
def test_toml_that_would_take_for_ever_is_refused(tmp_path, text):
    path = tmp_path / "x.toml"
    path.write_text(text)
    refused(lambda: read_toml(path), "TOML")


def test_a_number_of_thousands_of_digits_is_told_as_one(tmp_path):
    path = tmp_path / "x.toml"
    path.write_text("x = " + "1" * 5000)
    refused(lambda: read_toml(path), "a number of too many digits")


def test_a_message_lists_long_names_cut_and_not_all_of_many():
    text = nearest("zzz", ["a" * 500, *(f"op{i}" for i in range(100))])
    assert len(text) < 400
    assert text.endswith(" and 71 more)")
    assert "did you mean" not in text


@pytest.mark.parametrize(
    "change",
    [
        "model.x.y=1",
        "searcher.²=1",
        "searcher.0.x=1",
        "a=1",
        ".".join("a" * 5000) + "=1",
        "cluster.servers=" + "[" * 9999,
    ],
)
def test_a_change_that_fits_nowhere_is_refused(tmp_path, change):
    path = tmp_path / "x.toml"
    path.write_text('model = "alexnet"\nsearcher = ["mcmc"]\n')
    refused(lambda: experiment_from_toml(path, [change]))


@pytest.mark.parametrize(
    "text",
    [
        'model = "alexnet"\ncluster.hosts = [1, 2]',
        'model = "alexnet"\n[outputs]\njson = 5',
        'model = "alexnet"\n[cluster]\ngpus-per-server = 2\ngpus_per_server = 2',
        'model = "alexnet"\n[run]\nbatch-size = 99999999999999999999',
    ],
)
def test_wrong_types_in_an_experiment_are_refused(tmp_path, text):
    path = tmp_path / "x.toml"
    path.write_text(text)
    refused(lambda: experiment_from_toml(path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": 2**31 - 1}, "device has 2147483647"),
        ({"group": 1_000_000}, "group has 1000000"),
        ({"src": -7}, "src has -7"),
        ({"seconds": 1e308}, "runs 1e.308 s"),
        ({"size": 2**62}, "4611686018427387904 bytes"),
    ],
)
def test_a_task_graph_is_checked_where_a_column_is_not_used_too(changes, message):
    tasks = reference.plan().taskgraph
    for kind in set(tasks.kind.tolist()):
        row = int(np.flatnonzero(tasks.kind == kind)[0])
        for column, value in changes.items():
            values = getattr(tasks, column).copy()
            values[row] = value
            refused(attrs.evolve(tasks, **{column: values}).check, message)


def test_a_group_that_names_a_member_twice_is_refused():
    tasks = reference.plan().taskgraph
    members = tasks.group_members.copy()
    assert len(members) > 1
    members[1] = members[0]
    refused(lambda: attrs.evolve(tasks, group_members=members).check(), f"names device {members[0]} twice")


def test_tensors_and_loops_have_upper_limits():
    refused(lambda: Dimension("n", 2**60))
    refused(lambda: Axis(2**60))
    refused(lambda: Axis(-1))
    refused(lambda: Tensor("t", (Axis(2**40), Axis(2**40))))
    refused(lambda: topoplan.Placement((2**32, 2**32), []))


@pytest.mark.parametrize(
    "attempt",
    [
        lambda: optimize(5),
        lambda: optimize(None),
        lambda: Experiment(model=lambda: None),
        lambda: Experiment(model=HOST.get("topology", "fattree")),
        lambda: Experiment(model="alexnet", topology=HOST.get("frontend", "alexnet")),
        lambda: Experiment(model="alexnet", searchers=[object()]),
        lambda: Experiment(model="alexnet", cluster={"servers": 4}),
        lambda: Experiment(model="alexnet", run=5),
        lambda: ClusterOptions(servers="16"),
        lambda: ClusterOptions(servers=True),
        lambda: ClusterOptions(hosts=(1,)),
        lambda: HostGroup(speed=0),
        lambda: RunOptions(budget=-1),
        lambda: RunOptions(precision="fp4"),
    ],
)
def test_the_python_interface_says_what_it_expected(attempt):
    refused(attempt, "expected|is too small")


def test_a_component_that_is_passed_itself_is_used():
    calls = []

    class Own(topoplan.Topology):
        """s"""

        name = "own"

        def build(self, context):
            calls.append(context)
            return HOST.make("topology", "bigswitch").build(context)

    experiment = Experiment(
        model=HOST.get("frontend", "alexnet"),
        cluster=ClusterOptions(servers=2),
        topology=Own,
        searchers=[HOST.get("searcher", "random")],
        run=RunOptions(batch_size=8, budget=0),
    )
    plan = optimize(experiment).plan
    assert calls
    assert [component["name"] for component in plan.provenance["components"]][:2] == ["alexnet", "own"]


def test_what_is_written_can_be_read_again(tmp_path):
    plan = reference.plan()
    larger = attrs.evolve(plan, fabric=attrs.evolve(plan.fabric, n_switches=plan.fabric.n_links + 5))
    path = tmp_path / "plan.json"
    assert not write_outputs(HOST, larger, ((Choice("json"), str(path)),)).refused
    assert read_plan(HOST, path).fabric.n_switches == plan.fabric.n_links + 5
    slow = attrs.evolve(plan.cluster, interface_bandwidth=[1.0] * plan.cluster.n_hosts)
    file = tmp_path / "plan.fbuf"
    fast = attrs.evolve(plan.fabric, link_bandwidth=[3e9] * plan.fabric.n_links)
    many = attrs.evolve(plan, cluster=slow, fabric=fast)
    assert (
        "no whole number of interfaces"
        in write_outputs(HOST, many, ((Choice("flatbuffer"), str(file)),)).refused["flatbuffer"]
    )


@pytest.mark.parametrize(
    ("rings", "message"), [({9: ((1,),)}, "rings of 9 members"), ({4: ((),)}, "no jumps"), ({4: ((2**40,),)}, "2.31")]
)
def test_rings_that_no_file_can_hold_are_refused(rings, message):
    refused(lambda: attrs.evolve(reference.ring(), rings=rings), message)


@pytest.mark.parametrize("hosts", ["/", [1], 5])
def test_hosts_that_are_no_tables_are_refused(hosts):
    refused(lambda: structure(ClusterOptions, {"hosts": hosts}, "x.toml: cluster"), "cluster: hosts: expected a table")


def test_a_message_is_one_line_that_a_terminal_can_show():
    text = str(TopoplanError("a\nb \x1b[2J \ud800 " + "x" * 5000))
    assert text.isprintable()
    assert text.startswith(r"a b \x1b[2J \ud800 xxx")
    assert len(text) <= 1100
