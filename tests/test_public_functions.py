"""Everything that the command line does is a public function with types; the guide to Python names it."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
import typing
from pathlib import Path

import pytest
import typer

import topoplan
from topoplan import Host
from topoplan.cli import _plugins

ROOT = Path(__file__).resolve().parents[1]
GUIDE = (ROOT / "docs" / "guides" / "python.md").read_text(encoding="utf-8")
#: Command -> the dotted names of what the guide says of it.
ROWS = {
    command: re.findall(r"`(topoplan\w*\.[\w.]+)`", functions)
    for command, functions in re.findall(r"^\| `topoplan ([a-z ]+)` \| (.*) \|$", GUIDE, re.MULTILINE)
}
FUNCTIONS = sorted({name for names in ROWS.values() for name in names})


def found(name):
    """Return what a dotted name names, with the module that it is in."""
    parts = name.split(".")
    for split in range(len(parts) - 1, 0, -1):
        try:
            value = module = importlib.import_module(".".join(parts[:split]))
        except ModuleNotFoundError:
            continue
        for part in parts[split:]:
            value = getattr(value, part)
        return value, module
    raise AssertionError(name)


def words_of(name, app):
    """Return the words of a command, or those of the commands below it; both where it runs without one."""
    command = typer.main.get_command(app)
    below = set(getattr(command, "commands", {name: command}))
    alone = {name} if below == {name} or command.invoke_without_command else set()
    return alone | {f"{name} {word}" for word in below - {name}}


def test_every_command_has_a_row():
    host, core = Host.discover(), typer.Typer()
    _plugins.register(core)
    apps = {row.name: host.get("command", row.name)().app() for row in host.listing() if row.kind == "command"}
    apps |= {group.name: group.typer_instance for group in core.registered_groups}
    names = {words for name, app in apps.items() for words in words_of(name, app)}
    assert {"sweep", "profile fit", "plugins", "plugins doctor"} <= names
    assert names == ROWS.keys()
    assert all(ROWS.values())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_public_typed_and_documented(name):
    function, module = found(name)
    assert function.__doc__
    assert name.split(".")[-1] in module.__all__ or inspect.isclass(found(name.rpartition(".")[0])[0])
    known = {each: getattr(topoplan, each) for each in topoplan.__all__}  # some modules import these for types alone
    hints = typing.get_type_hints(inspect.unwrap(function), localns=known)
    parameters = [each for each in inspect.signature(function).parameters if each != "self"]
    assert hints.keys() >= {*parameters, "return"}


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/guides/python.md"])
def test_examples_are_typed(page, tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(encoding="utf-8"), re.M | re.S)
    # Those that plan, by themselves; tests/test_readme.py has those that show a plugin, which come in several blocks.
    whole = [text for text in blocks if text.startswith(("import", "from")) and "class " not in text]
    for number, text in enumerate(text for text in whole if "parametrize_with_checks" not in text):
        (tmp_path / f"example_{number}.py").write_text(text, encoding="utf-8")
    # Without this project's settings: as somebody has it who installed topoplan.  Networkx has no types.
    words = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--disable-error-code=import-untyped", "."]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
