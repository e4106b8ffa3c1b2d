"""Packages are what the table packages.toml says, and every one has what a package needs."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from flit_core import buildapi

from topoplan.errors import TopoplanError
from topoplan.plugin.host import Host

ROOT = Path(__file__).resolve().parents[1]


def load(file):
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


packages, kernels = (load(ROOT / f"tools/{name}.py") for name in ("packages", "kernels"))
TABLE = packages.Table.read(ROOT)
PACKAGES = list(TABLE.packages.values())


def test_packages_are_as_the_table_says(capsys):
    status = packages.main(["--check"])
    out, err = capsys.readouterr()
    assert status == 0, out + err


def test_components_are_those_of_the_table():
    host = Host.discover()
    names = {package.name for package in PACKAGES}
    rows = {f"{row.kind} {row.name} {row.distribution}" for row in host.listing() if row.distribution in names}
    assert rows == {f"{component} {package.name}" for package in PACKAGES for component in package.components}


def test_a_component_that_is_not_installed_names_its_package():
    host = Host()
    for kind, name, package in (
        ("simulator", "fluid", "topoplan-simulator-fluid"),
        ("frontend", "vit-switch", "topoplan-frontend-hidup"),
        ("machine", "H100", "topoplan-machine-nvidia"),
    ):
        with pytest.raises(TopoplanError, match=rf"^no {kind} named .*; `pip install {package}` brings it$"):
            host.get(kind, name)
    with pytest.raises(TopoplanError, match=r"^no simulator named 'fluit' \(have: none\)$"):
        host.get("simulator", "fluit")


def test_every_folder_of_plugins_is_a_package():
    folders = {str(path.relative_to(ROOT)) for path in ROOT.glob("plugins/*/*") if any(path.rglob("*.py"))}
    assert folders == {package.folder for package in PACKAGES if package.folder.startswith("plugins/")}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_a_package_has_a_module_a_readme_and_tests(package):
    folder = ROOT / package.folder
    assert (folder / "src" / package.module / "__init__.py").is_file()
    assert (folder / "README.md").is_file()
    assert list((folder / "tests").glob("test_*.py"))


def test_version_of_core_is_that_of_the_table():
    text = (ROOT / "core/src/topoplan/__init__.py").read_text()
    assert re.search(r'^__version__ = "(.*)"$', text, re.M).group(1) == TABLE.common["version"]


@pytest.fixture
def checkout(tmp_path):
    """What the tool needs of a checkout, with few packages: ocs and those that it needs."""
    (tmp_path / "tools").mkdir()
    for name in (
        "LICENSE",
        "pyproject.toml",
        *(f"tools/{name}.py" for name in ("checkout_backend", "checkout_wheels", "kernels")),
    ):
        shutil.copy(ROOT / name, tmp_path / name)
    text = (ROOT / "packages.toml").read_text()
    rows = re.findall(r"^(?:\w[\w-]* = .*|#.*|\[.*\]|)$", text.partition("\n[packages]\n")[0], re.M)
    ocs = [line for line in text.splitlines() if re.match("topoplan-(topology-ocs|directconnect|testing) ", line)]
    (tmp_path / "packages.toml").write_text("\n".join([*rows, "[packages]", *ocs, ""]))
    assert packages.main([], tmp_path) == 0
    return tmp_path


def test_a_row_becomes_a_package(checkout):
    document = tomllib.loads((checkout / "plugins/topologies/ocs/pyproject.toml").read_text())
    project = document["project"]
    assert project["name"] == "topoplan-topology-ocs"
    assert project["dependencies"][0] == "topoplan-core>=0.1,<0.2"
    assert "topoplan-directconnect>=0.1,<0.2" in project["dependencies"]
    assert project["entry-points"] == {"topoplan": {"topology-ocs": "topoplan_topology_ocs"}}
    assert project["license-files"] == ["LICENSE"]
    assert {"topoplan-core", "topoplan-directconnect"} <= set(document["tool"]["uv"]["sources"])
    root = tomllib.loads((checkout / "pyproject.toml").read_text())
    assert root["project"]["dependencies"] == [
        "topoplan-core @ {root:uri}/core/.",
        "topoplan-engine @ {root:uri}/engine/.",
        "topoplan-directconnect @ {root:uri}/libs/directconnect/.",
        "topoplan-testing @ {root:uri}/libs/testing/.",
        "topoplan-topology-ocs @ {root:uri}/plugins/topologies/ocs/.",
    ]
    assert root["tool"]["mypy"]["strict"] is True  # what stands below the lists is left


def test_a_package_may_lie_anywhere(checkout):
    with (checkout / "packages.toml").open("a") as file:
        file.write('topoplan-rings = { folder = "libs/rings", description = "Rings", dependencies = ["numpy"] }\n')
    assert packages.main([], checkout) == 0
    project = tomllib.loads((checkout / "libs/rings/pyproject.toml").read_text())["project"]
    assert project["dependencies"] == ["numpy>=2.0"]
    assert "entry-points" not in project
    root = tomllib.loads((checkout / "pyproject.toml").read_text())
    assert root["tool"]["uv"]["workspace"]["members"] == [
        "core",
        "engine",
        "libs/directconnect",
        "libs/testing",
        "plugins/*/*",
        "libs/rings",
    ]
    assert root["tool"]["mypy"]["files"] == [
        "core/src",
        "engine/src",
        "libs/directconnect/src",
        "libs/testing/src",
        "plugins/*/*/src",
        "libs/rings/src",
        "tools",
    ]
    assert root["tool"]["pytest"]["ini_options"]["testpaths"][-1] == "libs/rings/tests"


@pytest.mark.parametrize(
    ("path", "edit", "message"),
    [
        ("plugins/topologies/ocs/pyproject.toml", lambda text: text.replace("numpy>=2.0", "numpy>=3"), "numpy>=2"),
        ("plugins/topologies/ocs/LICENSE", lambda text: None, "+MIT License"),
        ("core/src/topoplan/py.typed", lambda text: None, "core/src/topoplan/py.typed: missing"),
        ("pyproject.toml", lambda text: text.replace("-ocs @", "-ecs @"), "-ocs @ {root:uri}/plugins"),
    ],
)
def test_what_differs_is_shown(checkout, path, edit, message, capsys):
    file = checkout / path
    text = edit(file.read_text())
    file.unlink() if text is None else file.write_text(text)
    assert packages.main(["--check"], checkout) == 1
    out, _ = capsys.readouterr()
    assert path in out
    assert message in out
    assert "1 files differ" in out
    assert packages.main([], checkout) == 0
    assert packages.main(["--check"], checkout) == 0


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('topoplan-x = { description = "X" }', "topoplan-x: neither a plugin"),
        ('topoplan-topology-x = { descripton = "X" }', "topoplan-topology-x: unknown field 'descripton'"),
        ("topoplan-topology-x = {}", "topoplan-topology-x: no description"),
        (
            'topoplan-topology-x = { description = "X", dependencies = ["sympy"] }',
            "topoplan-topology-x: 'sympy' is neither a package nor in [bounds]",
        ),
    ],
)
def test_a_wrong_row_is_named(checkout, row, message, capsys):
    with (checkout / "packages.toml").open("a") as file:
        file.write(row + "\n")
    assert packages.main(["--check"], checkout) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import topoplan, attrs, topoplan_engine", "depends on topoplan-directconnect, which it does not import"),
        ("def late():\n    import scipy.sparse", "imports scipy, which is not among its dependencies"),
    ],
)
def test_dependencies_are_what_is_imported(checkout, code, message, capsys):
    module = checkout / "plugins/topologies/ocs/src/topoplan_topology_ocs/__init__.py"
    module.write_text("import json, topoplan, topoplan_directconnect, topoplan_engine, attr, numpy.linalg\n")
    assert packages.main(["--check"], checkout) == 0
    module.write_text(code)
    assert packages.main(["--check"], checkout) == 1
    assert f"topoplan-topology-ocs: {message}" in capsys.readouterr().out


def test_a_package_without_a_row_is_named(checkout, capsys):
    folder = checkout / "plugins/topologies/chord"
    folder.mkdir()
    (folder / "pyproject.toml").write_text("")
    assert packages.main(["--check"], checkout) == 2
    assert "plugins/topologies/chord/pyproject.toml is of no package" in capsys.readouterr().err


def requirements(metadata):
    return re.findall(r"^Requires-Dist: (.*)$", metadata.partition("\n\n")[0], re.M)


def test_no_address_looks_as_if_it_had_a_version():
    """Pip keeps the wheel of such an address, and installs it again after the folder has changed."""
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    assert len(dependencies) > 50
    assert not [address for address in dependencies if "-" in address.rstrip("/").rpartition("/")[2]]


def test_pip_is_told_where_other_packages_lie(tmp_path, monkeypatch):
    folder = ROOT / "plugins/topologies/ocs"
    backend = load(folder / "checkout_backend.py")
    monkeypatch.chdir(folder)
    name = backend.prepare_metadata_for_build_wheel(str(tmp_path))
    assert requirements((tmp_path / name / "METADATA").read_text()) == [
        f"topoplan-core @ {ROOT.as_uri()}/core/.",
        f"topoplan-directconnect @ {ROOT.as_uri()}/libs/directconnect/.",
        f"topoplan-engine @ {ROOT.as_uri()}/engine/.",
        "attrs>=24.2",
        "numpy>=2.0",
    ]
    with zipfile.ZipFile(tmp_path / backend.build_wheel(str(tmp_path))) as wheel:
        siblings = [f"topoplan-{name}>=0.1,<0.2" for name in ("core", "directconnect", "engine")]
        plain = [*siblings, "attrs>=24.2", "numpy>=2.0"]
        assert requirements(wheel.read(f"{name}/METADATA").decode()) == plain
        assert wheel.read(f"{name}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()


def test_an_extra_of_another_package_lies_in_the_checkout_too(tmp_path, monkeypatch):
    folder = ROOT / "core"
    monkeypatch.chdir(folder)
    name = load(folder / "checkout_backend.py").prepare_metadata_for_build_wheel(str(tmp_path))
    extra = f'topoplan-testing @ {ROOT.as_uri()}/libs/testing/. ; extra == "testing"'
    assert requirements((tmp_path / name / "METADATA").read_text())[-2:] == ['pytest>=8 ; extra == "testing"', extra]


def test_outside_a_checkout_metadata_is_that_of_the_wheel(tmp_path, monkeypatch):
    folder = shutil.copytree(ROOT / "plugins/topologies/ocs", tmp_path / "ocs")
    monkeypatch.chdir(folder)
    name = load(folder / "checkout_backend.py").prepare_metadata_for_build_wheel(str(tmp_path))
    assert "topoplan-core>=0.1,<0.2" in requirements((tmp_path / name / "METADATA").read_text())


def test_a_copied_package_says_what_to_install_first(tmp_path, monkeypatch):
    folder = shutil.copytree(ROOT / "plugins/topologies/ocs", tmp_path / "ocs")
    monkeypatch.chdir(folder)
    backend = load(folder / "checkout_backend.py")
    monkeypatch.setattr("importlib.metadata.distributions", lambda path: [])
    with pytest.raises(SystemExit, match=r"^error: topoplan-topology-ocs needs topoplan-core, topo") as caught:
        backend.prepare_metadata_for_build_wheel(str(tmp_path))
    assert "topoplan-engine: install them first, or install topoplan-topology-ocs from a whole checkout" in str(
        caught.value
    )
    (folder / "PKG-INFO").write_text("")  # an sdist has one
    (tmp_path / "metadata").mkdir()
    assert backend.prepare_metadata_for_build_wheel(str(tmp_path / "metadata")).endswith(".dist-info")


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_a_wheel_of_a_checkout_is_that_of_flit(package, tmp_path, monkeypatch):
    folder = ROOT / package.folder
    monkeypatch.chdir(folder)
    monkeypatch.setattr(kernels, "compile_kernels", lambda: True)
    (tmp_path / "flit").mkdir()
    ours, theirs = (
        zipfile.ZipFile(target / build(str(target)))
        for target, build in (
            (tmp_path, load(folder / "checkout_backend.py").build_wheel),
            (tmp_path / "flit", buildapi.build_wheel),
        )
    )
    assert sorted(ours.namelist()) == sorted(theirs.namelist())
    for name in ours.namelist():
        if name.endswith("/METADATA"):
            fields = [wheel.read(name).decode().partition("\n\n") for wheel in (ours, theirs)]
            header, flits = ({*text[0].splitlines()} for text in fields)
            assert {
                line for line in header ^ flits if not line.startswith(("Metadata-Version", "Import-Name"))
            } == set()
            assert fields[0][2].strip() == fields[1][2].strip()
        elif not name.endswith(("/RECORD", "/WHEEL")):
            assert ours.read(name).split() == theirs.read(name).split(), name


@pytest.mark.slow
def test_pip_shows_what_a_copied_package_needs(tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    folder = shutil.copytree(ROOT / "plugins/topologies/ocs", tmp_path / "ocs")
    ended = subprocess.run([tmp_path / "venv/bin/pip", "install", folder], capture_output=True, text=True)
    assert ended.returncode == 1
    assert "topoplan-topology-ocs needs topoplan-core, topoplan-directconnect, topoplan-engine" in ended.stderr


@pytest.mark.slow
def test_one_package_installs_from_a_checkout(tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    words = [tmp_path / "venv/bin/pip", "install", "./plugins/topologies/ocs"]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
    listed = subprocess.run([tmp_path / "venv/bin/topoplan", "plugins"], check=True, capture_output=True, text=True)
    assert "topoplan-topology-ocs 0.1.0" in listed.stdout
    installed = subprocess.run([words[0], "freeze"], check=True, capture_output=True, text=True).stdout
    assert {"topoplan-core", "topoplan-directconnect", "topoplan-topology-ocs"} <= set(
        re.findall(r"^[\w-]+", installed, re.M)
    )
    assert "topoplan-topology-topoopt" not in installed


def test_files_of_kernels_that_are_no_more_are_told_from_the_others(tmp_path):
    module = tmp_path / "package" / "parts.py"
    module.parent.mkdir()
    module.write_text(
        "import x\n\n\n@kernel\ndef first(a):\n    pass\n\n\n@kernel\n@other(\n    1,\n)\ndef second(a):\n    pass\n"
    )
    there = ["package.parts.first-4", "package.parts.second-9"]
    gone = ["package.parts.first-5000", "package.parts.first-9", "package.parts.third-4", "package.others.first-4"]
    assert [name for name in there + gone if kernels._has_kernel(tmp_path, name)] == there
