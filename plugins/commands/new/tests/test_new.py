"""``topoplan new``: packages whose tests pass at once; and what it refuses."""

from __future__ import annotations

import ast
import builtins
import importlib
import keyword
import os
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import attrs
import numpy as np
import pytest
from packaging.requirements import Requirement

from topoplan import Host, TopoplanError, __version__
from topoplan.cli import main
from topoplan.testing import reference
from topoplan_command_new.packages import KINDS, package_files, usage, write_package
from topoplan_samples.long_tail import at_night

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """Return a folder with a package of every kind, by their folders' names."""
    folder = tmp_path_factory.mktemp("packages")
    for kind in KINDS:
        write_package(folder / kind, package_files(kind, f"my-{kind}"))
    return folder


def run(*words, cwd, **variables):
    environment = {**os.environ, **variables}
    return subprocess.run(
        [str(word) for word in words], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def refusal(capsys, *words):
    """Return what a command line says on standard error, which it must end with status 2."""
    with pytest.raises(SystemExit) as ended:
        main(["new", *words])
    out, err = capsys.readouterr()
    assert (ended.value.code, out, err.count("\n")) == (2, "", 1)
    return err


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [("topology",), pytest.param(KINDS, marks=pytest.mark.slow)], ids=["one", "all"])
def test_tests_of_a_package_pass_at_once(packages, kinds):
    path = " ".join(str(packages / kind / "src") for kind in kinds)
    tests = [packages / kind / "tests" for kind in kinds]
    options = ("-q", "-n", "0", "-p", "no:cacheprovider", "--rootdir", packages, "-o", f"pythonpath={path}")
    process = run(sys.executable, "-m", "pytest", *options, *tests, cwd=packages)
    assert process.returncode == 0, process.stdout[-3000:]
    assert "skipped" not in process.stdout


def test_a_machine_is_a_module_of_thirty_lines_at_most():
    module = package_files("machine", "mine")["src/topoplan_machine_mine/__init__.py"]
    assert len(module.splitlines()) <= 30


def test_host_finds_the_component_that_the_entry_point_names(packages, monkeypatch):
    host = Host()
    for kind in KINDS:
        project = tomllib.loads((packages / kind / "pyproject.toml").read_text("utf-8"))["project"]
        ((name, module),) = project["entry-points"]["topoplan"].items()
        assert name == f"{kind}-my-{kind}"
        monkeypatch.syspath_prepend(str(packages / kind / "src"))
        host.add(__import__(module))
        assert host.get(kind, f"my-{kind}").summary
        needs = [Requirement(text) for text in project["dependencies"]]
        assert next(need for need in needs if need.name == "topoplan-core").specifier.contains(__version__)


def test_command_says_what_to_do_next(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["new", "topology", "de-bruijn"])
    out = capsys.readouterr().out
    assert not ended.value.code
    assert "src/topoplan_topology_de_bruijn/__init__.py" in out
    assert "topoplan optimize alexnet -t de-bruijn" in out
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {f"topoplan-topology-de-bruijn/{path}" for path in package_files("topology", "de-bruijn")}
    assert "de-bruijn is there already" in refusal(capsys, "topology", "de-bruijn")


def test_a_class_has_no_name_that_its_module_uses_already():
    module = package_files("topology", "fabric")["src/topoplan_topology_fabric/__init__.py"]
    assert "class FabricTopology(Topology):" in module
    assert '    name = "fabric"' in module


@pytest.mark.parametrize("kind", at_night(KINDS, "topology", "searcher"))
def test_a_name_that_is_a_word_of_python_is_no_name_of_a_class(kind):
    words = [*keyword.kwlist, *keyword.softkwlist, *dir(builtins)]
    names = {word.lower().strip("_").replace("_", "-") for word in words} - {""}
    for name in sorted(names | {"self", "cls", "attrs", "host", "option", "topoplan", "test", "int", "path"}):
        for path, text in package_files(kind, name).items():
            if path.endswith(".py"):
                defined = [node.name for node in ast.parse(text, path).body if isinstance(node, ast.ClassDef)]
                assert not {*defined} & {*dir(builtins)}, (path, defined)


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("topolgy", "x", "did you mean 'topology'?"),
        ("collective", "ring", "topoplan-collective-rings 0.1.0 has a collective 'ring'"),
        ("topology", "Slim Fly", "lower case letters, digits and single dashes"),
        ("topology", "x" * 61, "at most 60"),
        ("topology", "fattree", "topoplan-topology-fattree 0.1.0 has a topology 'fattree'"),
        ("command", "plugins", "topoplan-core 0.1.0 has a command 'plugins'"),
    ],
)
def test_bad_names_are_refused(capsys, tmp_path, monkeypatch, kind, name, message):
    monkeypatch.chdir(tmp_path)
    assert message in refusal(capsys, kind, name)
    assert not list(tmp_path.iterdir())


def test_nothing_is_left_where_the_folder_cannot_be_written(tmp_path):
    with pytest.raises(TopoplanError, match="cannot be written"):
        write_package(tmp_path / "missing" / "mine", {"a": ""})
    with pytest.raises(TopoplanError, match="cannot be written"):
        write_package(tmp_path / "mine", {"a": "", "a/b": ""})
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_packages_are_typed_and_clean(packages):
    for kind in KINDS:
        typed = run(sys.executable, "-m", "mypy", "--strict", "--ignore-missing-imports", "src", cwd=packages / kind)
        assert typed.returncode == 0, typed.stdout
    rules = ("--isolated", "--line-length", "120", "--select", "E,F,B,UP")
    linted = run(sys.executable, "-m", "ruff", "check", *rules, packages, cwd=packages)
    assert linted.returncode == 0, linted.stdout


@pytest.mark.slow
def test_packages_are_installed_and_used(packages, tmp_path):
    """As a user does it: in an environment with topoplan, `pip install`, `plugins show`, and the printed command."""
    venv.create(tmp_path / "venv", with_pip=True, symlinks=True)
    python = tmp_path / "venv/bin/python"
    command = tmp_path / "venv/bin/topoplan"
    folders = [packages / kind for kind in KINDS]
    installed = run(python, "-m", "pip", "install", "-q", ROOT, *folders, cwd=ROOT)
    assert installed.returncode == 0, installed.stderr[-3000:]
    for kind in KINDS:
        name = f"my-{kind}"
        sheet = run(command, "plugins", "show", f"{kind}:{name}", cwd=tmp_path)
        assert f"topoplan-{kind}-{name} 0.1.0" in sheet.stdout, sheet.stderr
        words = usage(kind, name).split()[1:]
        budget = ["--budget", "3"] if words[0] == "optimize" else []
        used = run(command, *words, *budget, cwd=tmp_path)
        assert used.returncode == 0, (words, used.stderr)
    assert run(command, "plugins", "doctor", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_estimator_counts_memory_as_the_roofline_model_does(packages, monkeypatch, precision):
    monkeypatch.syspath_prepend(packages / "estimator" / "src")
    (path,) = (packages / "estimator" / "src").glob("*/__init__.py")
    module = importlib.import_module(path.parent.name)
    (cls,) = (value for value in vars(module).values() if isinstance(value, type) and value.__name__ == "MyEstimator")
    host, cluster = Host.discover(), reference.cluster()
    graph = attrs.evolve(host.make("frontend", "alexnet").build(64), precision=precision)
    ours, roofline = cls().build(graph, cluster), host.make("estimator", "roofline").build(graph, cluster)
    for op, operator in enumerate(graph.operators):
        degrees = tuple(4 if dim == operator.sample_dim else 1 for dim in range(len(operator.dims)))
        prices = [costs.price(op, degrees, np.arange(4, dtype=np.int32)) for costs in (ours, roofline)]
        assert np.array_equal(*(price.states for price in prices)), operator.name
        assert (prices[0].memory >= prices[0].states.sum(axis=0)).all()
