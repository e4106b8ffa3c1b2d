"""The list of packages stands in several places; they must agree, and every package must follow the naming rule."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
KINDS = {
    "frontends": "frontend",
    "topologies": "topology",
    "estimators": "estimator",
    "searchers": "searcher",
    "exporters": "exporter",
    "commands": "command",
}
FOLDERS = sorted(path.parent for path in ROOT.glob("plugins/*/*/pyproject.toml"))


def read(folder: Path) -> dict:
    return tomllib.loads((folder / "pyproject.toml").read_text())


def distribution(folder: Path) -> str:
    return f"topoplan-{KINDS[folder.parent.name]}-{folder.name}"


def test_folders_and_root_dependencies_agree():
    wanted = {"topoplan-core": "core"} | {distribution(f): str(f.relative_to(ROOT)) for f in FOLDERS}
    listed = {}
    for text in read(ROOT)["project"]["dependencies"]:
        name, _, place = text.partition(" @ {root:uri}/")
        listed[name] = place
    assert listed == wanted


def test_uv_sources_name_every_package():
    sources = read(ROOT)["tool"]["uv"]["sources"]
    assert set(sources) == {"topoplan-core", *map(distribution, FOLDERS)}
    assert all(source == {"workspace": True} for source in sources.values())


def test_every_folder_of_plugins_is_a_package():
    folders = {path for path in ROOT.glob("plugins/*/*") if path.is_dir() and any(path.rglob("*.py"))}
    assert folders == set(FOLDERS)


@pytest.mark.parametrize("folder", FOLDERS, ids=distribution)
def test_plugin_follows_the_naming_rule(folder):
    document = read(folder)
    name = distribution(folder)
    module = name.replace("-", "_")
    assert document["project"]["name"] == name
    assert document["project"]["entry-points"] == {"topoplan": {name.removeprefix("topoplan-"): module}}
    assert (folder / "src" / module / "__init__.py").is_file()
    assert document["build-system"]["build-backend"] == "flit_core.buildapi"
    assert document["tool"]["uv"]["sources"]["topoplan-core"] == {"workspace": True}


@pytest.mark.parametrize("folder", FOLDERS, ids=distribution)
def test_plugin_admits_this_core(folder):
    version = read(ROOT / "core")["project"]["version"]
    requirements = [Requirement(text) for text in read(folder)["project"]["dependencies"]]
    (core,) = [r for r in requirements if r.name == "topoplan-core"]
    assert version in core.specifier
    assert str(core.specifier), "a plugin must say which versions of core it works with"


@pytest.mark.parametrize("folder", FOLDERS, ids=distribution)
def test_plugin_has_readme_and_tests(folder):
    assert (folder / "README.md").is_file()
    assert list((folder / "tests").glob("test_*.py"))


def test_version_of_core_is_told_once():
    text = (ROOT / "core/src/topoplan/__init__.py").read_text()
    assert re.search(r'^__version__ = "(.*)"$', text, re.M).group(1) == read(ROOT / "core")["project"]["version"]
