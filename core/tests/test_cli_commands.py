"""Commands of plugins: the words they add, when they are loaded, and what happens when they are broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import types
from pathlib import Path

import pytest
import typer

from topoplan import Command, TopoplanError, hookimpl
from topoplan.cli import main
from topoplan.plugin.components import CORE_COMMANDS
from topoplan.plugin.entry_points import command_words
from topoplan.plugin.host import Host
from topoplan.testing import check_component, checks_for

PLUGIN = """
import json
import sys
from topoplan import Command, TopoplanError, hookimpl

def make():
    import typer
    app = typer.Typer(add_completion=False)

    @app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
    def WORD(words: list[str] = typer.Argument(None)):
        if words == ["fail"]:
            raise TopoplanError("file: field is 3 (must be 4)")
        print(words)

    return app

class Echo(Command):
    '''Echoes.'''

    name = "WORD"

    def app(self):
        return make()

@hookimpl
def topoplan_commands():
    return Echo
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a distribution with one command; nothing else is found."""
    for name in ("TOPOPLAN_PLUGINS", "TOPOPLAN_DISABLE_PLUGINS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    modules = []

    def _install(dist, word, source=PLUGIN, entry=None):
        module = dist.replace("-", "_")
        modules.append(module)
        (tmp_path / f"{module}.py").write_text(textwrap.dedent(source).replace("WORD", word))
        folder = tmp_path / f"{module}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {dist}\nVersion: 1.0\nSummary: Says it back.\nRequires-Dist: topoplan-core\n"
        )
        (folder / "entry_points.txt").write_text(f"[topoplan]\n{entry or 'command-' + word} = {module}\n")
        return module

    yield _install
    for module in modules:
        sys.modules.pop(module, None)


def run(capsys, *args):
    with pytest.raises(SystemExit) as stop:
        main(list(args))
    out = capsys.readouterr()
    return stop.value.code or 0, out.out, out.err


def plugin(*commands):
    @hookimpl
    def topoplan_commands():
        return list(commands)

    return types.SimpleNamespace(topoplan_commands=topoplan_commands)


def small():
    app = typer.Typer(add_completion=False)
    app.command()(lambda: None)
    return app


def command(name="echo", **changes):
    members = {"__doc__": "Echoes.", "__module__": __name__, "name": name, "app": lambda self: small()}
    return type(Command)("Made", (Command,), members | changes)


def test_help_lists_a_plugins_word_without_loading_it(install, capsys):
    module = install("acme-echo", "echo")
    status, out, _ = run(capsys, "--help")
    assert status == 0
    words = [line.split()[0] for line in out.partition("Commands:")[2].splitlines() if line.strip()]
    assert words[: len(CORE_COMMANDS)] == list(CORE_COMMANDS)
    (line,) = [line for line in out.splitlines() if line.split()[:1] == ["echo"]]
    assert line.split()[1:] == ["Says", "it", "back."]
    assert module not in sys.modules


def test_what_follows_the_word_is_the_plugins_alone(install, capsys):
    install("acme-echo", "echo")
    assert run(capsys, "echo", "a", "-ll:gpu", "1", "--help", "--", "-x") == (
        0,
        "['a', '-ll:gpu', '1', '--help', '--', '-x']\n",
        "",
    )


def test_errors_of_users_are_one_line_and_status_2(install, capsys):
    install("acme-echo", "echo")
    assert run(capsys, "echo", "fail") == (2, "", "error: file: field is 3 (must be 4)\n")


def test_the_plugin_list_shows_it(install, capsys):
    install("acme-echo", "echo")
    (line,) = [line for line in run(capsys, "plugins")[1].splitlines() if "acme-echo" in line]
    assert line.split() == ["command", "echo", "acme-echo", "1.0", "Echoes"]
    status, out, _ = run(capsys, "plugins", "show", "echo")
    assert status == 0
    assert "topoplan echo --help" in out


def test_a_broken_one_harms_nobody_and_is_named(install, capsys):
    install("acme-echo", "echo", source="1 / 0")
    install("acme-good", "good")
    assert run(capsys, "--help")[0] == 0
    assert run(capsys, "good", "x")[:2] == (0, "['x']\n")
    status, _, err = run(capsys, "echo")
    assert status == 2
    assert "no command named 'echo'" in err
    assert "plugin 'command-echo' (acme-echo 1.0) is broken" in err
    assert "ZeroDivisionError" in err


def test_two_of_one_name_are_a_conflict(install, capsys):
    install("acme-one", "echo", entry="command-echo")
    install("acme-two", "echo", entry="command-echo-again")
    status, _, err = run(capsys, "echo", "x")
    assert status == 2
    assert "command 'echo' is provided by both acme-one 1.0 and acme-two 1.0" in err


def test_one_that_breaks_the_naming_rule_works_but_is_not_in_the_help(install, capsys):
    install("acme-echo", "echo", entry="acme")
    assert "echo" not in command_words()
    assert run(capsys, "echo", "x")[:2] == (0, "['x']\n")


def test_a_disabled_one_is_neither_listed_nor_found(install, capsys, monkeypatch):
    install("acme-echo", "echo")
    monkeypatch.setenv("TOPOPLAN_DISABLE_PLUGINS", "acme-echo")
    assert "echo" not in command_words()
    status, _, err = run(capsys, "echo")
    assert status == 2
    assert "disabled by TOPOPLAN_DISABLE_PLUGINS" in err


def test_an_unknown_word_names_the_nearest_of_core_and_plugins(install, capsys):
    install("acme-echo", "echo")
    assert run(capsys, "optimise")[2].startswith("error: no command named 'optimise'; did you mean 'optimize'?\n")
    assert run(capsys, "ecko")[2].startswith("error: no command named 'ecko'; did you mean 'echo'?\n")


@pytest.mark.parametrize("name", CORE_COMMANDS)
def test_words_of_core_cannot_be_taken(name):
    with pytest.raises(TopoplanError, match=f"command '{name}': topoplan itself has one"):
        Host().add(command(name))


def test_core_lists_all_its_words(capsys):
    for name in CORE_COMMANDS:
        assert run(capsys, name, "--help")[0] == 0


def test_half_a_plugin_is_not_added():
    host = Host()
    with pytest.raises(TopoplanError, match="must return classes of Command"):
        host.add(plugin(command(), "nonsense"), name="half")
    assert "echo" not in {row.name for row in host.listing()}
    host.add(plugin(command()), name="whole")
    assert host.get("command", "echo")().app().registered_commands
    assert "echo" not in {component.name for component in host.components()}


def test_conformance_catches_an_application_that_fails(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))  # a check imports this module by its name
    check_component(Small)
    with pytest.raises(AssertionError, match="check_summary_is_one_line"):
        check_component(command(__doc__="two\nlines"))
    with pytest.raises(RuntimeError, match="no typer"):
        checks_for(command(app=fails))["check_app_shows_its_help"]()


class Small(Command):
    """Does nothing."""

    name = "small"

    def app(self):
        return small()


def fails(self):
    raise RuntimeError("no typer")


def test_help_loads_no_plugin_that_is_installed():
    script = "import sys\nfrom topoplan.cli import main\ntry:\n    main(['--help'])\nfinally:\n    print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not [name for name in done.stdout.split() if name.startswith("topoplan_")]


RAISING = """
import typer
from topoplan import Command, hookimpl

def run(how: str = "none"):
    if how == "exit":
        raise typer.Exit(3)
    if how == "usage":
        raise typer.BadParameter("wrong")
    if how == "key":
        raise KeyError("oops")
    raise OSError("no disk")

class Raises(Command):
    '''Raises.'''

    name = "WORD"

    def app(self):
        WHERE
        app = typer.Typer(add_completion=False)
        app.command()(run)
        return app

@hookimpl
def topoplan_commands():
    return Raises
"""


@pytest.mark.parametrize(
    ("where", "words", "line"),
    [
        ("raise OSError('no app')", [], ": app raised OSError: no app"),
        ("raise SystemExit(0)", [], ": app raised SystemExit: 0"),
        ("return 3", [], ": app returned int 3 (must return Typer)"),
        ("", [], " raised OSError: no disk"),
        ("", ["--how", "key"], " raised KeyError: 'oops'"),
    ],
)
def test_a_command_that_raises_is_one_line_that_names_it(install, capsys, where, words, line):
    install("acme-raise", "c-raise", RAISING.replace("WHERE", where))
    status, out, err = run(capsys, "c-raise", *words)
    assert (status, out) == (2, "")
    assert err.splitlines()[0] == f"error: command 'c-raise' (acme-raise 1.0){line}"
    assert "Traceback" not in err
    assert "Traceback" in run(capsys, "c-raise", *words, "--debug")[2] or "returned" in line


def test_what_ends_a_command_as_it_should_is_left_alone(install, capsys):
    install("acme-raise", "c-raise", RAISING.replace("WHERE", ""))
    assert run(capsys, "c-raise", "--how", "exit")[::2] == (3, "")
    status, _, err = run(capsys, "c-raise", "--how", "usage")
    assert status == 2
    assert "Invalid value: wrong" in err
    assert run(capsys, "c-raise", "--no-such")[0] == 2


def test_what_a_plugin_prints_while_it_is_imported_is_no_result(install, capsys):
    install("acme-loud", "loud", "print('HELLO FROM IMPORT')\n" + textwrap.dedent(PLUGIN))
    status, out, err = run(capsys, "plugins", "--json")
    assert status == 0
    assert "loud" in [row["name"] for row in json.loads(out)["components"]]
    assert "HELLO FROM IMPORT" in err.splitlines()


WRITES = """
import os, subprocess, sys
print("print"); sys.__stdout__.write("stream\\n"); os.write(1, b"descriptor\\n"); subprocess.run(["echo", "program"])
"""


def test_what_a_plugin_writes_past_python_is_no_result(install, tmp_path):
    """Libraries in C and programs that a plugin starts write to the descriptor, not to ``sys.stdout``."""
    install("acme-loud", "loud", WRITES + textwrap.dedent(PLUGIN))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-m", "topoplan", "plugins", "--json"], env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 0
    assert "loud" in [row["name"] for row in json.loads(ended.stdout)["components"]]
    assert sorted(ended.stderr.splitlines()) == ["descriptor", "print", "program", "stream"]


def test_a_plugin_that_takes_long_to_import_is_shown(install, capsys, monkeypatch):
    monkeypatch.setattr("topoplan.cli._plugins._SLOW", 0.05)
    monkeypatch.setenv("TOPOPLAN_PLUGINS", "command-slow")  # no other one is loaded and built
    install("acme-slow", "slow", "import time\ntime.sleep(0.06)\n" + textwrap.dedent(PLUGIN))
    _, out, _ = run(capsys, "plugins", "doctor")
    (line,) = [line for line in out.splitlines() if line.startswith("SLOW") and "acme-slow" in line]
    assert line.startswith("SLOW plugin 'command-slow' (acme-slow 1.0): 0.")
    assert line.endswith(" s to import, in every command")
