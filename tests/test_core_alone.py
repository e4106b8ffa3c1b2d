"""Core by itself, in an environment of its own: its size, plugins from elsewhere, and what it says that it lacks.

The plugins are those that the README shows, each in a package that needs topoplan-core alone.  Their tests need the
conformance kit, which core's extra ``testing`` brings.
"""

from __future__ import annotations

import re
import subprocess
import venv
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
#: Module -> code, of every plugin that the README shows.
PLUGINS = {
    f"topoplan_plugin_{hook}": text
    for text in re.findall(r"^```python\n(.*?)^```$", README, re.M | re.S)
    for hook in re.findall(r"^def topoplan_(\w+)\(", text, re.M)
}
PYPROJECT = """
[build-system]
requires = ["flit_core>=3.11,<5"]
build-backend = "flit_core.buildapi"
[project]
name = "{module}"
version = "0.1.0"
description = "An example"
dependencies = ["topoplan-core"]
[project.entry-points.topoplan]
{module} = "{module}"
"""
MEGABYTES = 120


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Install core, and nothing else, as a user does; return the interpreter."""
    folder = tmp_path_factory.mktemp("core")
    venv.create(folder, with_pip=True)
    pip(folder / "bin/python", "install", str(ROOT / "core"))
    return folder / "bin/python"


@pytest.fixture(scope="module")
def python_with_plugins(python, tmp_path_factory):
    """Install the README's plugins, and what core brings for their tests."""
    folders = []
    for module, text in PLUGINS.items():
        folders.append(tmp_path_factory.mktemp(module))
        (folders[-1] / f"{module}.py").write_text(text, encoding="utf-8")
        (folders[-1] / "pyproject.toml").write_text(PYPROJECT.format(module=module), encoding="utf-8")
    alone = topoplan(python, "plugins", "doctor")
    assert alone.stdout.endswith("all plugins load (with topoplan-testing, this builds their examples, too)\n")
    kit = str(ROOT / "libs/testing")  # where an index has it, the extra brings it
    pip(python, "install", f"{ROOT / 'core'}[testing]", kit, *map(str, folders))
    return python


def pip(python, *words):
    process = subprocess.run([python, "-m", "pip", *words], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]


def topoplan(python, *words):
    command = [python.with_name("topoplan"), *words]
    return subprocess.run(command, cwd=python.parent, capture_output=True, text=True, check=False)


def test_core_is_light(python):
    (packages,) = python.parents[1].glob("lib/python*/site-packages")
    tools = ("pip", "setuptools", "pkg_resources", "_distutils_hack")
    files = (path for path in packages.rglob("*") if path.is_file() and not path.is_symlink())
    sizes = [path.stat().st_blocks * 512 for path in files if not path.relative_to(packages).parts[0].startswith(tools)]
    assert sum(sizes) <= MEGABYTES * 2**20, f"{sum(sizes) / 2**20:.0f} MB"


def test_plugins_keep_their_promises(python_with_plugins, tmp_path):
    listed = topoplan(python_with_plugins, "plugins")
    assert listed.returncode == 0, listed.stderr
    components = [tuple(line.split()[:2]) for line in listed.stdout.splitlines() if "topoplan_plugin" in line]
    assert len(components) == len(PLUGINS), listed.stdout + listed.stderr
    assert topoplan(python_with_plugins, "plugins", "doctor").returncode == 0
    test = tmp_path / "test_conformance.py"
    lines = ["from topoplan.plugin.host import Host", "from topoplan.testing import parametrize_with_checks"]
    for number, component in enumerate(components):
        lines += ["", f"@parametrize_with_checks(Host.discover().get(*{component}))"]
        lines += [f"def test_conformance_{number}(check):", "    check()"]
    test.write_text("\n".join(lines), encoding="utf-8")
    command = [python_with_plugins, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test)]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    assert re.search(r"^\d+ passed", process.stdout, re.M), process.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["optimize", "alexnet"], "`pip install topoplan-command-optimize` brings it"),
        (["optimist"], "error: no command named 'optimist'"),
    ],
)
def test_a_word_that_is_not_there_says_which_package_has_it(python, words, message):
    process = topoplan(python, *words)
    assert process.returncode == 2
    assert message in process.stderr
