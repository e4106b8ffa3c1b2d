"""What commands load: ``--help`` no numbers and no tables, and installed plugins none of what is heavy."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("attr", "cattrs", "networkx", "numba", "numpy", "pydantic", "rich")


def loaded(script):
    """Return those of `HEAVY` that a process has imported when it ends."""
    ending = f"import atexit, sys\natexit.register(lambda: print('LOADED', *({set(HEAVY)!r} & sys.modules.keys())))\n"
    done = subprocess.run([sys.executable, "-c", ending + script], capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("LOADED")[2].split())


def test_help_imports_nothing_heavy():
    assert loaded("from topoplan.cli import main\nmain(['--help'])") == set()


def test_loading_all_plugins_compiles_draws_and_converts_nothing():
    assert loaded("from topoplan import Host\nHost.discover()") <= {"attr", "numpy"}


def test_a_commands_own_help_loads_no_other_plugin():
    script = "import sys\nfrom topoplan.cli import main\ntry:\n    main(['optimize', '--help'])\nfinally:\n"
    script += "    print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not [name for name in done.stdout.split() if name.startswith(("topoplan_topology", "topoplan_searcher"))]
