"""What commands load: ``--help`` no numbers and no tables, and installed plugins none of what is heavy."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import topoplan
from topoplan import testing
from topoplan.cli import main

HEAVY = ("attr", "cattrs", "networkx", "numba", "numpy", "packaging", "pydantic", "rich")


def loaded(script):
    """Return those of `HEAVY` that a process has imported when it ends."""
    ending = f"import atexit, sys\natexit.register(lambda: print('LOADED', *({set(HEAVY)!r} & sys.modules.keys())))\n"
    done = subprocess.run([sys.executable, "-c", ending + script], capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("LOADED")[2].split())


def test_help_imports_nothing_heavy():
    assert loaded("from topoplan.cli import main\nmain(['--help'])") == set()


def test_loading_all_plugins_compiles_draws_and_converts_nothing():
    assert loaded("from topoplan import Host\nHost.discover().components()") <= {"attr", "numpy"}


def test_commands_take_text_without_a_library_that_converts_it():
    script = "from topoplan.cli import main\ntry:\n    main(['run', 'missing.toml'])\nexcept SystemExit:\n    pass"
    assert loaded(script) <= {"attr", "numba", "numpy", "rich"}


def test_a_command_ends_without_a_search_for_garbage():
    script = (
        "import gc, sys, topoplan.__main__ as program\nsys.argv = ['topoplan', '--version']\ntry:\n    program.main()\n"
    )
    script += "except SystemExit:\n    print(gc.get_freeze_count() > 10_000, gc.get_threshold()[0])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "True 300000"


def test_a_commands_own_help_loads_no_other_plugin():
    script = "import sys\nfrom topoplan.cli import main\ntry:\n    main(['optimize', '--help'])\nfinally:\n"
    script += "    print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not [name for name in done.stdout.split() if name.startswith(("topoplan_topology", "topoplan_searcher"))]


def test_public_names_are_where_the_stub_says():
    assert len(topoplan.__all__) > 50
    for name in topoplan.__all__:
        assert getattr(topoplan, name) is not None


def test_names_of_the_conformance_kit_are_those_of_its_stub():
    stub = Path(testing.__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    assert dir(testing) == testing.__all__ == sorted(re.findall(r" as (\w+)", stub))
    for name in testing.__all__:
        assert getattr(testing, name) is not None


def test_core_without_the_conformance_kit_says_what_brings_it(monkeypatch, capsys):
    find_spec = importlib.util.find_spec
    monkeypatch.setitem(sys.modules, "topoplan_testing", None)
    with pytest.raises(ModuleNotFoundError, match=r"topoplan.testing needs .*pip install 'topoplan-core\[testing\]'"):
        testing.__getattr__("check_component")
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "topoplan_testing" else find_spec(name)
    )
    with pytest.raises(SystemExit, match="0"):
        main(["plugins", "doctor"])
    assert capsys.readouterr().out.endswith(
        "all plugins load (with topoplan-testing, this builds their examples, too)\n"
    )
