"""Packages are what the table packages.toml says, and every one has what a package needs."""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.util
import json
import os
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
from topoplan.plugin._registering import REGISTRATION
from topoplan.plugin.host import Host
from topoplan_samples.long_tail import at_night

ROOT = Path(__file__).resolve().parents[1]


def load(file):
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


packages, kernels, backend = (load(ROOT / f"tools/{name}.py") for name in ("packages", "kernels", "workspace_backend"))
TABLE = packages.Table.read(ROOT)
PACKAGES = list(TABLE.packages.values())
#: What installs no compiled kernels, which takes long.
BARE = {"kernels": "none"}
NO_KERNELS = ["--config-settings", "kernels=none"]


def test_packages_are_as_the_table_says(capsys):
    status = packages.main(["--check"])
    out, err = capsys.readouterr()
    assert status == 0, out + err


def test_components_are_those_of_the_table():
    host = Host.discover()
    names = {package.name for package in PACKAGES}
    rows = {f"{row.kind} {row.name} {row.distribution}" for row in host.listing() if row.distribution in names}
    assert rows == {f"{component} {package.name}" for package in PACKAGES for component in package.components}


def test_no_plugin_of_the_table_observes_runs():
    """They are loaded when a component is asked for: one that observes would miss runs that ask for none of its own."""
    host = Host.discover()
    host.listing()
    observed = [name for name in vars(host.hook) if name.startswith("topoplan_") and name not in REGISTRATION]
    assert len(observed) == 4
    for name in observed:
        modules = [implementation.function.__module__ for implementation in getattr(host.hook, name).get_hookimpls()]
        assert not [module for module in modules if module.startswith("topoplan_")], name


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
    for name in ("LICENSE", "pyproject.toml", "tools/workspace_backend.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    text = (ROOT / "packages.toml").read_text()
    rows = re.findall(r"^(?:\w[\w-]* = .*|#.*|\[.*\]|)$", text.partition("\n[packages]\n")[0], re.M)
    ocs = [
        line
        for line in text.splitlines()
        if re.match("topoplan-(topology-ocs|directconnect|network-files|testing) ", line)
    ]
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
    assert root["dependency-groups"]["dev"] == [
        "topoplan-core",
        "topoplan-engine",
        "topoplan-directconnect",
        "topoplan-network-files",
        "topoplan-testing",
        "topoplan-topology-ocs",
        "topoplan-compiled-kernels",
    ]
    others = [
        "attrs",
        "cloudpickle",
        "llvmlite",
        "networkx",
        "numba",
        "numpy",
        "packaging",
        "pluggy",
        "pyyaml",
        "rich",
        "rustworkx",
    ]
    others.append("typer")
    assert [re.match(r"[\w-]+", line)[0] for line in root["project"]["dependencies"]] == others
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
        "libs/network-files",
        "libs/testing",
        "plugins/*/*",
        "libs/rings",
    ]
    assert root["tool"]["mypy"]["files"] == [
        "core/src",
        "engine/src",
        "libs/directconnect/src",
        "libs/network-files/src",
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
        ("pyproject.toml", lambda text: text.replace('"rustworkx>=', '"rustworks>='), "rustworkx>=0.15"),
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


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """The wheel of the checkout, and the editable one."""
    folder = tmp_path_factory.mktemp("wheels")
    (folder / "editable").mkdir()
    names = backend.build_wheel(str(folder), BARE), f"editable/{backend.build_editable(str(folder / 'editable'), BARE)}"
    return [zipfile.ZipFile(folder / name) for name in names]


INSIDE = "topoplan_workspace-0.data/purelib"


def checksum(content):
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def requirements(metadata):
    return re.findall(r"^Requires-Dist: (.*)$", metadata.partition("\n\n")[0], re.M)


def test_one_wheel_has_the_metadata_of_every_package(wheels):
    infos = {f"{package.name.replace('-', '_')}-{TABLE.common['version']}.dist-info" for package in PACKAGES}
    for wheel in wheels:
        names = {name.removeprefix(f"{INSIDE}/").split("/")[0] for name in wheel.namelist() if name.startswith(INSIDE)}
        assert infos == {name for name in names if name.endswith(".dist-info")}
        # an installer takes a wheel that has one such folder at its top
        assert {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" in name.split(INSIDE)[0]} == {
            "topoplan_workspace-0.dist-info"
        }


def test_the_wheel_requires_what_packages_require_from_others(wheels):
    for wheel in wheels:
        lines = requirements(wheel.read("topoplan_workspace-0.dist-info/METADATA").decode())
        plain = [line for line in lines if ";" not in line]
        assert plain == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
        assert not [line for line in plain if line.startswith(("topoplan", "scipy"))]
        assert 'scipy>=1.13 ; extra == "statistics"' in lines
        points = wheel.read("topoplan_workspace-0.dist-info/entry_points.txt").decode()
        assert "topoplan=topoplan.__main__:main" in points


def test_records_of_the_wheel_are_right(wheels):
    for wheel in wheels:
        record = list(csv.reader(wheel.read("topoplan_workspace-0.dist-info/RECORD").decode().splitlines()))
        assert {name for name, *_ in record} == set(wheel.namelist())
        wrong = [name for name, sum_, _ in record if sum_ and sum_ != checksum(wheel.read(name))]
        assert not wrong


@pytest.mark.parametrize("package", at_night(PACKAGES, *PACKAGES[::8]), ids=lambda package: package.name)
def test_what_a_package_installs_is_what_its_own_wheel_would(package, wheels, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT / package.folder)
    theirs = zipfile.ZipFile(tmp_path / buildapi.build_wheel(str(tmp_path)))
    wheel, editable = wheels
    info = f"{package.name.replace('-', '_')}-{TABLE.common['version']}.dist-info"
    record = list(csv.reader(wheel.read(f"{INSIDE}/{info}/RECORD").decode().splitlines()))
    assert {name for name, *_ in record} == {*theirs.namelist(), f"{info}/INSTALLER", f"{info}/direct_url.json"}
    for name, sum_, size in record[:-1]:
        content = wheel.read(f"{INSIDE}/{name}")
        assert (checksum(content), len(content)) == (sum_, int(size))
        if name == f"{info}/METADATA":
            fields = [text.decode().partition("\n\n") for text in (content, theirs.read(name))]
            header, flits = ({*text[0].splitlines()} for text in fields)
            assert not {line for line in header ^ flits if not line.startswith(("Metadata-Version", "Import-Name"))}
            assert fields[0][2].strip() == fields[1][2].strip()
        elif name not in (f"{info}/WHEEL", f"{info}/INSTALLER", f"{info}/direct_url.json"):
            assert content.split() == theirs.read(name).split(), name
    assert editable.read(f"{INSIDE}/{info}/METADATA") == wheel.read(f"{INSIDE}/{info}/METADATA")
    assert str(ROOT / package.folder / "src") in editable.read("topoplan_workspace.pth").decode().splitlines()
    origin = json.loads(editable.read(f"{INSIDE}/{info}/direct_url.json"))
    assert origin == {"url": (ROOT / package.folder).as_uri(), "dir_info": {"editable": True}}


def test_a_wheel_of_some_packages_has_what_they_require(tmp_path):
    wheel = zipfile.ZipFile(tmp_path / backend.build_wheel(str(tmp_path), {"packages": "topology-ocs, exporter-json"}))
    names = {name.split("/")[2] for name in wheel.namelist() if name.startswith(INSIDE)}
    modules = {"topoplan", "topoplan_engine", "topoplan_directconnect", "topoplan_topology_ocs"}
    assert {name for name in names if "." not in name} == {*modules, "topoplan_exporter_json"}
    lines = requirements(wheel.read("topoplan_workspace-0.dist-info/METADATA").decode())
    assert not [line for line in lines if line.startswith("flatbuffers")]
    assert "rustworkx>=0.15" in lines


@pytest.mark.parametrize("hook", [backend.get_requires_for_build_wheel, backend.get_requires_for_build_editable])
def test_a_build_needs_what_kernels_are_compiled_with(hook):
    needed = hook({"kernels": "few"})
    assert needed == hook() == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert hook(BARE) == hook({"packages": "topology-ocs"}) == []
    with pytest.raises(SystemExit, match=r"^error: kernels=all: wanted few or none$"):
        hook({"kernels": "all"})


def test_kernels_compiled_for_an_installation_belong_to_their_packages(tmp_path, monkeypatch):
    """Another program stands in for the compiler: it keeps one file, or fails."""
    asked = []

    def keep(words, check):
        asked.append(words[1:])
        folder = Path(words[-1], "topoplan_engine/compiled_kernels")
        assert (folder.parent / "kernels/caching.py").is_file()
        folder.mkdir(exist_ok=True)
        (folder / "a.kernel").write_text("kept")

    monkeypatch.setattr(backend.subprocess, "run", keep)
    with zipfile.ZipFile(tmp_path / backend.build_wheel(str(tmp_path))) as wheel:
        assert wheel.read(f"{INSIDE}/topoplan_engine/compiled_kernels/a.kernel") == b"kept"
        record = wheel.read(f"{INSIDE}/topoplan_engine-{TABLE.common['version']}.dist-info/RECORD").decode()
        assert "\ntopoplan_engine/compiled_kernels/a.kernel,sha256=" in record
        assert [name for name in wheel.namelist() if name.endswith(".kernel")] == [
            f"{INSIDE}/topoplan_engine/compiled_kernels/a.kernel"
        ]
    monkeypatch.setattr(backend.subprocess, "run", lambda words, check: asked.append(words[1:]))
    with zipfile.ZipFile(tmp_path / backend.build_wheel(str(tmp_path))) as wheel:
        assert f"{INSIDE}/topoplan_engine/kernels/caching.py" in wheel.namelist()
        assert not [name for name in wheel.namelist() if name.endswith(".kernel")]
    backend.build_editable(str(tmp_path))
    tool = str(ROOT / "tools/kernels.py")
    assert [words[:2] for words in asked] == [[tool, "--few"]] * 3
    assert [len(words) for words in asked] == [3, 3, 2]


#: Commands, and how many kernels each may compile after an installation, of some seventy.
AFTER = {
    "optimize alexnet --servers 16 --budget 0 -x json=plan.json -x flatbuffer=plan.fbuf": 2,
    "simulate plan.fbuf": 2,
    "optimize dlrm -o preset=dlrm16 --budget 20": 12,
}


@pytest.mark.slow
def test_after_an_installation_commands_compile_little(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # no kernels of another checkout
    wheel = zipfile.ZipFile(tmp_path / backend.build_wheel(str(tmp_path)))
    wheel.extractall(tmp_path / "wheel")
    installed = tmp_path / "wheel" / INSIDE
    assert (installed / "topoplan_simulator_fluid/compiled_kernels").is_dir()
    for number, (words, most) in enumerate(AFTER.items()):
        kept = tmp_path / f"kept{number}"
        environment = {key: value for key, value in os.environ.items() if not key.startswith("NUMBA_")}
        environment |= {"PYTHONPATH": str(installed), "NUMBA_CACHE_DIR": str(kept)}
        run = [sys.executable, "-m", "topoplan", *words.split()]
        subprocess.run(run, check=True, capture_output=True, cwd=tmp_path, env=environment)
        compiled = sorted(path.name for path in kept.rglob("*.nbi"))
        assert len(compiled) <= most, compiled


def test_a_package_that_is_not_there_is_named(tmp_path):
    with pytest.raises(SystemExit, match=r"^error: packages=topology-osc: no distribution of this checkout"):
        backend.build_wheel(str(tmp_path), {"packages": "topology-osc"})


def test_a_python_that_is_too_old_is_told_so(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 10, 13))
    name = backend.prepare_metadata_for_build_wheel(str(tmp_path))
    assert "\nRequires-Python: >=3.11\n" in (tmp_path / name / "METADATA").read_text()


def pip(environment, *words):
    ended = subprocess.run(
        [environment / "bin/pip", *words, "--disable-pip-version-check"], cwd=ROOT, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A fresh environment."""
    folder = tmp_path_factory.mktemp("environment") / "venv"
    venv.create(folder, with_pip=True)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("words", [["."], ["-e", "."]], ids=["copies", "editable"])
def test_a_plugin_can_be_uninstalled_replaced_and_installed_alone(words, environment, tmp_path):
    def listed():
        return set(re.findall(r"^topoplan-[\w-]+", pip(environment, "list", "--format=freeze"), re.M))

    def says():
        code = "from importlib.metadata import entry_points as e; print(e(group='topoplan')['topology-ocs'].load())"
        return subprocess.run([environment / "bin/python", "-c", code], capture_output=True, text=True).stdout

    pip(environment, "install", "--no-deps", *words, *NO_KERNELS)
    assert listed() == {package.name for package in PACKAGES} | {"topoplan-workspace"}
    pip(environment, "uninstall", "-y", "topoplan-topology-ocs")
    assert listed() == {package.name for package in PACKAGES} - {"topoplan-topology-ocs"} | {"topoplan-workspace"}

    copy = shutil.copytree(ROOT / "plugins/topologies/ocs", tmp_path / "ocs")
    module = copy / "src/topoplan_topology_ocs/__init__.py"
    module.write_text("changed = True\n")
    pip(environment, "install", "--no-deps", str(copy))
    assert "topoplan-topology-ocs" in listed()
    if words == ["."]:
        site = next((environment / "lib").glob("python*/site-packages"))
        assert (site / "topoplan_topology_ocs/__init__.py").read_text() == "changed = True\n"
    pip(environment, "install", "--no-deps", *words, *NO_KERNELS)
    assert listed() == {package.name for package in PACKAGES} | {"topoplan-workspace"}
    if words == ["."]:
        assert (site / "topoplan_topology_ocs/__init__.py").read_text() != "changed = True\n"
    pip(environment, "uninstall", "-y", "topoplan-workspace")
    assert listed() == set()


@pytest.mark.slow
def test_one_package_installs_from_a_checkout(tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    pip(tmp_path / "venv", "install", ".", "--config-settings", "packages=topology-ocs")
    pip(tmp_path / "venv", "install", "./plugins/topologies/fattree")
    shown = subprocess.run([tmp_path / "venv/bin/topoplan", "plugins"], check=True, capture_output=True, text=True)
    assert "topoplan-topology-ocs 0.1.0" in shown.stdout
    assert "topoplan-topology-fattree 0.1.0" in shown.stdout
    assert "topoplan-topology-topoopt" not in pip(tmp_path / "venv", "freeze")


def test_files_of_kernels_that_are_no_more_are_told_from_the_others(tmp_path):
    module = tmp_path / "package" / "parts.py"
    module.parent.mkdir()
    module.write_text(
        "import x\n\n\n@kernel\ndef first(a):\n    pass\n\n\n@kernel\n@other(\n    1,\n)\ndef second(a):\n    pass\n"
    )
    there = ["package.parts.first-4", "package.parts.second-9"]
    gone = ["package.parts.first-5000", "package.parts.first-9", "package.parts.third-4", "package.others.first-4"]
    assert [name for name in there + gone if kernels._has_kernel(tmp_path, name)] == there
