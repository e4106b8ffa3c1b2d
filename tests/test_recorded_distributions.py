"""Where two distributions have components of one name, a plan is read with those of the one that made it."""

from __future__ import annotations

import json

import pytest

from topoplan import Host
from topoplan_engine.exporting import read_plan
from topoplan_engine.provenance import recorded_name
from topoplan_engine.what_if import what_if

#: A topology, an estimator, a simulator and a searcher that are ours, by the same names, from another distribution.
PACKAGE = """
from topoplan import hookimpl
from topoplan_estimator_roofline import Roofline
from topoplan_searcher_random import Random
from topoplan_simulator_fluid import Fluid
from topoplan_topology_torus import Torus

class TheirTorus(Torus):
    name = "torus"

class TheirRoofline(Roofline):
    name = "roofline"

class TheirFluid(Fluid):
    name = "fluid"

class TheirRandom(Random):
    name = "random"

@hookimpl
def topoplan_topologies():
    return TheirTorus

@hookimpl
def topoplan_estimators():
    return TheirRoofline

@hookimpl
def topoplan_simulators():
    return TheirFluid

@hookimpl
def topoplan_searchers():
    return TheirRandom
"""
THEIRS = ("-t", "acme/torus", "-e", "acme/roofline", "--simulator", "acme/fluid", "-s", "acme/random")


@pytest.fixture
def plan_file(tmp_path, monkeypatch, run):
    """Install the other distribution, and return a plan that was made with it."""
    (tmp_path / "acme_module.py").write_text(PACKAGE)
    folder = tmp_path / "acme-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1\nRequires-Dist: topoplan-core\n")
    (folder / "entry_points.txt").write_text("[topoplan]\nacme = acme_module\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    words = ("alexnet", "--servers", "4", "--batch-size", "64", "--budget", "3")
    status, _, err = run("optimize", *words, *THEIRS, "-x", "json=plan.json")
    assert status == 0, err
    return tmp_path / "plan.json"


def test_names_begin_with_the_recorded_distribution_where_two_have_one(plan_file):
    host = Host.discover()
    record = read_plan(host, plan_file).provenance["components"]
    names = {part["kind"]: recorded_name(host, part) for part in record if not part.get("companion")}
    assert names == {
        "frontend": "alexnet",
        "topology": "acme/torus",
        "estimator": "acme/roofline",
        "simulator": "acme/fluid",
        "searcher": "acme/random",
    }
    torus = {"kind": "topology", "name": "torus"}
    assert recorded_name(host, torus) == "torus"
    assert recorded_name(host, {**torus, "distribution": "gone"}) == "torus"
    assert recorded_name(host, {**torus, "distribution": "topoplan-topology-torus"}) == "topoplan-topology-torus/torus"


def test_sensitivity_and_replays_use_the_recorded_distribution(plan_file, run):
    status, out, err = run("sensitivity", str(plan_file), "--json", "--more", "10", "--budget", "3")
    assert status == 0, err
    assert json.loads(out)
    for words in (("simulate", str(plan_file), "--json"), ("show", str(plan_file))):
        status, _, err = run(*words)
        assert status == 0, err


def test_more_interfaces_are_wired_by_the_recorded_topology(plan_file):
    host = Host.discover()
    changes = what_if(read_plan(host, plan_file), host)
    assert not [change.remark for change in changes if "provided by both" in change.remark]
    assert any(change.remark.startswith("wired by torus for this plan") for change in changes)
