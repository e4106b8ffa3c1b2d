"""Errors about what a file names say the file and the table, whatever kind of component is wrong."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from topoplan import TopoplanError, optimize
from topoplan.plugin.host import Host
from topoplan_engine.experiment import experiment_from_document
from topoplan_studies.prices import default_prices
from topoplan_studies.runspecs import run_specs
from topoplan_studies.study import study_from

EXPERIMENT = """
[model]
use = "alexnet"
[cluster]
servers = 4
[run]
budget = 1
"""
STUDY = """
budget = 1
[cluster]
servers = 4
[[model]]
use = "alexnet"
[[network]]
use = "bigswitch"
"""


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (('"alexnet"', '"alexnex"'), "x.toml: model: no frontend named 'alexnex'"),
        (('"alexnet"', '"huggingface"\npreset = "llama9"'), "x.toml: model: frontend huggingface: preset: 'llama9'"),
        (('"alexnet"', '"onnx"\nfile = "no.onnx"'), "x.toml: model: no.onnx: cannot be read"),
        (("4", '4\nmachine = "dgx-h101"'), "x.toml: cluster.machine: no machine named 'dgx-h101'"),
        (("[run]", '[topology]\nuse = "torus"\nsides = "3"\n[run]'), "x.toml: topology: topology torus: sides 3 are 3"),
        (("[run]", '[simulator]\nuse = "flud"\n[run]'), "x.toml: simulator: no simulator named 'flud'"),
        (("[run]", '[estimator]\nuse = "profile"\n[run]'), "x.toml: estimator: estimator profile: operator 'conv1'"),
        (
            ("[run]", '[[searcher]]\nuse = "mcmc"\n[[searcher]]\nuse = "mcmc"\nalpha = "q"\n[run]'),
            "x.toml: searcher[1]",
        ),
        (("[run]", '[[searcher]]\nuse = "stated"\ntp = 3\n[run]'), "x.toml: searcher[0]: plan: tp=3 x cp=1 x pp=1"),
        (("[run]", '[outputs]\njsn = "x.json"\n[run]'), "x.toml: outputs: no exporter named 'jsn'"),
    ],
    ids=["name", "build", "file", "machine", "fabric", "simulator", "price", "searcher", "plan", "output"],
)
def test_an_experiment_says_the_table(change, expected):
    document = tomllib.loads(EXPERIMENT.replace(*change, 1))
    with pytest.raises(TopoplanError, match=re.escape(expected)):
        optimize(experiment_from_document(document, "x.toml"))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (('"alexnet"', '"alexnet"\nmeasured = {use = "measured", fle = "x"}'), "s.toml: model[0]: measured"),
        (('"bigswitch"', '"topoopt"\ndegre = 3'), "s.toml: network[0]: network 'topoopt': topology topoopt: no option"),
        (('"bigswitch"', '"torus"\nsides = "3"'), "s.toml: network[0]: network 'torus': topology torus: sides 3 are 3"),
        (("[cluster]", 'searchers = ["mcmc", "mcmcc"]\n[cluster]'), "s.toml: searchers[1]: no searcher named 'mcmcc'"),
        (
            ("[[model]]", '[[planner]]\n[[planner.searcher]]\nuse = "state"\n[[model]]'),
            "s.toml: planner[0]: searcher[0]",
        ),
        (
            ("[[model]]", '[[machine]]\nname = "b"\nmachine = "dgx"\n[[model]]'),
            "s.toml: machine[0]: cluster.machine: no",
        ),
        (("[[model]]", '[simulator]\nuse = "fluid"\nlevl = "x"\n[[model]]'), "s.toml: simulator: simulator fluid: no"),
    ],
    ids=["measured", "option", "fabric", "searchers", "planner", "machine", "simulator"],
)
def test_a_study_says_the_table(change, expected):
    study = study_from(tomllib.loads(STUDY.replace(*change, 1)), "s", "s.toml")
    with pytest.raises(TopoplanError, match=re.escape(expected)):
        run_all(study)


def run_all(study):
    """Run a study's experiments one after the other."""
    host = Host.discover()
    for spec in run_specs(study, host, default_prices(), Path()):
        optimize(spec.experiment, host=host)


def test_what_is_typed_names_no_file():
    study = study_from(tomllib.loads(STUDY.replace("bigswitch", "bigswich")), "s", "s.toml", typed=["network"])
    with pytest.raises(TopoplanError, match=r"^network 'bigswich': no topology named 'bigswich'"):
        run_specs(study, Host.discover(), default_prices(), None)
