"""Files never run code: one that names a module, or a program that answers with objects, is refused by every command.

Nor does a run or an experiment of somebody else write where its reader has not said so.
"""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import pytest

from topoplan import Host, TopoplanError
from topoplan.errors import CodeRefusedError
from topoplan.options import option, structure
from topoplan.plugin.components import Frontend
from topoplan_command_sensitivity.provenance import experiment_of
from topoplan_command_share.shared_cluster import shared_cluster_from
from topoplan_engine import Experiment, optimize
from topoplan_engine.experiment import Choice, experiment_from_document, experiment_from_options
from topoplan_engine.options import ClusterOptions, ComponentOptions, RunOptions
from topoplan_engine.search.run_record import experiment_from_record, run_record
from topoplan_studies.study import study_from

EVIL = {"module": "evil_of_a_file:make", "inputs": "8x8"}
MARK = "--allow-code"


@pytest.fixture
def here(run, tmp_path):
    """Return an empty folder, the current one, but for a module that leaves a trace when it is imported."""
    Path("evil_of_a_file.py").write_text("open('trace', 'w').close()\n", encoding="utf-8")
    yield tmp_path
    assert not Path("trace").exists()


def small(**options):
    return Experiment(model="alexnet", cluster=ClusterOptions(servers=2), run=RunOptions(budget=0), **options)


def test_an_option_that_runs_code_is_refused_unless_allowed():
    @attrs.frozen
    class Options:
        script: str = option("", help="a script", runs_code=True)
        size: int = option(1, help="a size")

    assert structure(Options, {"size": 2}, "x") == Options(size=2)
    assert structure(Options, {"script": ""}, "x") == Options()  # the default runs nothing
    assert structure(Options, {"script": "a.py"}, "x", allow_code=True) == Options(script="a.py")
    with pytest.raises(CodeRefusedError, match=r"^x: script: 'a.py' runs code that a file names \(--allow-code"):
        structure(Options, {"script": "a.py"}, "x")


def test_every_component_that_runs_code_says_so():
    """Options that import something are those of PyTorch modules; a name of one elsewhere needs the mark as well."""
    marked = {
        (cls.kind.value, cls.name, field.name)
        for cls in Host.discover().components()
        for field in attrs.fields(cls)
        if field.metadata.get("runs_code")
    }
    assert marked == {("frontend", "torch", "module")}
    suspicious = ("module", "script", "plugin", "function", "callable", "import", "executor")
    named = {
        (cls.kind.value, cls.name, field.name)
        for cls in Host.discover().components()
        for field in attrs.fields(cls)
        if field.name in suspicious
    }
    assert named == marked


def test_a_typed_module_is_allowed_and_a_recorded_one_is_not(here):
    typed = experiment_from_options(
        "torch:module=evil_of_a_file:make", ComponentOptions(), ClusterOptions(), RunOptions()
    )
    assert typed.model.allow_code
    document = {"model": {"use": "torch", **EVIL}}
    for form in (document, {"model": "torch:module=evil_of_a_file:make"}):
        read = experiment_from_document(form, "x.toml")
        with pytest.raises(CodeRefusedError, match=r"^x.toml: model: frontend torch: module: .*--allow-code"):
            read.model.make(Host.discover(), Frontend)
        allowed = experiment_from_document(form, "x.toml", allow_code=True)
        assert allowed.model.make(Host.discover(), Frontend).module == EVIL["module"]
    with pytest.raises(CodeRefusedError, match=MARK):
        optimize(experiment_from_document(document, "x.toml"))


def test_a_plan_a_study_and_a_shared_cluster_name_no_module(here):
    plan = optimize(small()).plan
    record = dict(plan.provenance)
    record["components"] = [
        {**part, "name": "torch", "options": EVIL} if part["kind"] == "frontend" else part
        for part in record["components"]
    ]
    evil = attrs.evolve(plan, provenance=record)
    with pytest.raises(CodeRefusedError, match=r"^plan.json: provenance: frontend torch: module: "):
        optimize(experiment_of(evil, "plan.json"))
    document = {"model": [{"use": "torch", **EVIL}], "network": [{"use": "bigswitch"}]}
    study = study_from(document, "s", "s.toml")
    with pytest.raises(CodeRefusedError, match=r"^s.toml: model\[0\]: frontend torch: module: "):
        study.models[0].choice.make(Host.discover(), Frontend)
    assert study_from(document, "s", "s.toml", allow_code=True).models[0].choice.allow_code
    shared = shared_cluster_from({**document, "cluster": {"servers": 64}}, "s", "s.toml")
    assert not shared.study.models[0].choice.allow_code


def test_a_recorded_scheduler_is_not_asked(here):
    """A Dask scheduler answers with pickled objects, which are code."""
    with pytest.raises(CodeRefusedError, match=r"^x.toml: run: executor: "):
        experiment_from_document({"model": "alexnet", "run": {"executor": "dask:address=tcp://a:1"}}, "x.toml")


def test_a_run_names_no_module_and_no_output_elsewhere(here, run):
    record = run_record(Host.discover(), small(outputs=((Choice("json"), "plan.json"),)))
    record["experiment"]["model"] = {"name": "torch", "options": EVIL}
    experiment = experiment_from_record(record, "run.json")
    with pytest.raises(CodeRefusedError, match=r"^run.json: experiment: model: frontend torch: module: "):
        experiment.model.make(Host.discover(), Frontend)

    small_run = ("optimize", "alexnet", "--servers", "2", "--budget", "0", "--run", "kept", "-x", "json=plan.json")
    assert run(*small_run)[0] == 0
    file = here / "kept" / "run.json"
    kept = json.loads(file.read_text(encoding="utf-8"))
    for place, why in (
        ("../out.json", "lies elsewhere"),
        (".hidden/out.json", "is hidden"),
        ("/etc/x", "lies elsewhere"),
    ):
        kept["experiment"]["outputs"] = [[{"name": "json", "options": {}}, place]]
        file.write_text(json.dumps(kept), encoding="utf-8")
        status, out, err = run("resume", "kept")
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert err.startswith("error: kept/run.json: outputs: json: ")
        assert why in err
        assert "-x json=FILE" in err
    assert not (here.parent / "out.json").exists()


def test_an_experiment_writes_where_its_reader_is(here, run):
    text = '[model]\nuse = "alexnet"\n[cluster]\nservers = 2\n[run]\nbudget = 0\n[outputs]\njson = "../out.json"\n'
    (here / "e.toml").write_text(text, encoding="utf-8")
    status, _, err = run("run", "e.toml")
    assert (status, "--set outputs.json=FILE" in err) == (2, True)
    assert run("run", "e.toml", "--set", 'outputs.json="../out.json"')[0] == 0
    assert (here.parent / "out.json").exists()
    (here / "e.toml").write_text(text.replace("../", ""), encoding="utf-8")
    assert run("run", "e.toml")[0] == 0


def test_a_component_of_a_plan_is_made_without_code():
    with pytest.raises(TopoplanError, match=MARK):
        Host.discover().make(Frontend, "torch", EVIL)


@pytest.mark.parametrize(
    "changed", [{"name": {"x": 1}}, {"name": None}, {"options": 8.0}, {"options": ["ab"]}, {"kind": 1}]
)
def test_components_of_a_plan_that_are_none_are_named(changed):
    plan = optimize(small()).plan
    components = [{**part, **changed} for part in plan.provenance["components"]]
    damaged = attrs.evolve(plan, provenance={**plan.provenance, "components": components})
    with pytest.raises(TopoplanError, match=r"^p.json: provenance: is damaged \(TypeError: components: "):
        experiment_of(damaged, "p.json")
