"""``topoplan plugins`` and the manners of the whole command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
import warnings

import attrs
import pytest

from topoplan import Estimator, Searcher, Topology, TopoplanError, hookimpl, option
from topoplan.cli import main
from topoplan.cli._plugins import remedy
from topoplan.options import describe
from topoplan.plugin._registering import check_requirements
from topoplan.plugin.host import Broken, Conflict, Host, Provider
from topoplan.testing import reference


@attrs.frozen(kw_only=True)
class Acme(Topology):
    """A ring."""

    name = "acme"
    link_speed: float = option(2.5, help="of every link", unit="Gbps", above=0)

    def build(self, context):
        return reference.ring(context.cluster.n_hosts)


@hookimpl
def topoplan_topologies():
    return Acme


@pytest.fixture
def host(monkeypatch):
    found = Host()
    found.add(types.SimpleNamespace(topoplan_topologies=topoplan_topologies), name="topology-acme")
    monkeypatch.setattr(Host, "discover", classmethod(lambda cls, strict=False: found))
    return found


def run(capsys, *args):
    with pytest.raises(SystemExit) as stop:
        main(list(args))
    out = capsys.readouterr()
    return stop.value.code or 0, out.out, out.err


def test_list_shows_kind_name_and_summary(host, capsys):
    code, out, _ = run(capsys, "plugins")
    assert code == 0
    (line,) = [line for line in out.splitlines() if "acme" in line]
    assert line.split() == ["topology", "acme", "topology-acme", "A", "ring"]


def test_list_as_json(host, capsys):
    _, out, _ = run(capsys, "plugins", "--json")
    rows = json.loads(out)["components"]
    assert {
        "kind": "topology",
        "name": "acme",
        "distribution": "topology-acme",
        "version": "",
        "summary": "A ring",
    } in rows


@pytest.mark.parametrize("name", ["acme", "topology:acme"])
def test_show_lists_every_option(host, capsys, name):
    code, out, _ = run(capsys, "plugins", "show", name)
    assert code == 0
    (line,) = [line for line in out.splitlines() if "link-speed" in line]
    assert " ".join(line.split()) == "link-speed number [Gbps] 2.5 of every link (more than 0)"


def test_list_of_one_kind(host, capsys):
    _, out, _ = run(capsys, "plugins", "--kind", "topology")
    assert {line.split()[0] for line in out.splitlines()} == {"KIND", "topology"}
    code, _, err = run(capsys, "plugins", "--kind", "topologies")
    assert code == 2
    assert err.startswith("error: --kind 'topologies': no such kind (have: frontend, ")


def test_list_fits_eighty_columns(host, capsys, monkeypatch):
    from topoplan.cli import _plugins

    monkeypatch.setattr(_plugins, "_columns", lambda: 80)
    _, out, _ = run(capsys, "plugins")
    assert max(map(len, out.splitlines())) <= 80
    assert "A ring" in out


@pytest.mark.parametrize(
    ("limits", "range"),
    [
        ({}, ""),
        ({"minimum": 1}, "at least 1"),
        ({"above": 0, "maximum": 8}, "more than 0, at most 8"),
        ({"minimum": 0, "maximum": 1}, "0 to 1"),
    ],
)
def test_ranges_of_options_are_told(limits, range):
    made = attrs.make_class("Made", {"number": option(1, help="x", **limits)})
    made.__annotations__ = {"number": int}
    assert [one.range for one in describe(made)] == [range]


def test_short_help_and_module_are_the_same_command(capsys):
    long, short = run(capsys, "--help"), run(capsys, "-h")
    assert long == short
    assert run(capsys, "plugins", "-h")[0] == 0
    done = subprocess.run([sys.executable, "-m", "topoplan", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("topoplan ")


def test_the_shell_completes_words():
    environment = {
        **os.environ,
        "_TOPOPLAN_COMPLETE": "complete_bash",
        "COMP_WORDS": "topoplan plug",
        "COMP_CWORD": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv[0] = 'topoplan'; from topoplan.cli import main; main()"],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert "plugins" in done.stdout


def test_show_of_an_unknown_name_is_one_line_and_status_2(host, capsys):
    code, out, err = run(capsys, "plugins", "show", "acne")
    assert (code, out) == (2, "")
    assert err == "error: no component named 'acne'; did you mean 'acme'?\n"


def test_doctor_is_content(host, capsys):
    code, out, _ = run(capsys, "plugins", "doctor")
    assert code == 0
    assert "all plugins load and build" in out


def test_doctor_names_cause_and_remedy(host, capsys):
    host.broken.append(
        Broken(name="topology-x", dist="acme-x", version="1", error="does not load", details="Trace\n  it")
    )
    code, out, _ = run(capsys, "plugins", "doctor")
    assert code == 1
    assert "plugin 'topology-x' (acme-x 1) is broken: does not load" in out
    assert "Trace" in out
    assert "pip uninstall acme-x" in out


def test_doctor_tells_what_is_deprecated(host, capsys):
    class Old(Topology):
        name = "old"

        def build(self, context):
            warnings.warn("old_name is deprecated; use new_name", DeprecationWarning, stacklevel=2)
            return reference.ring(context.cluster.n_hosts)

    host.add(Old, name="theirs")
    code, out, _ = run(capsys, "plugins", "doctor")
    assert code == 0
    assert "WARNING old_name is deprecated; use new_name (" in out


def test_doctor_tells_who_says_no_version_of_the_contract(host, capsys, monkeypatch):
    needs = {"acme-a": ["attrs", "topoplan-machine-nvidia"], "acme-b": ["topoplan_core>=0.1,<0.2"]}

    def discover():
        for dist, requires in needs.items():
            check_requirements(dist, requires)
        return host

    monkeypatch.setattr(Host, "discover", discover)
    code, out, _ = run(capsys, "plugins", "doctor")
    assert code == 0
    assert "WARNING acme-a does not say which topoplan-core it needs (such as topoplan-core>=0.1,<0.2)" in out
    assert "acme-b" not in out


def test_doctor_finds_what_loads_and_does_not_build(host, capsys):
    class Raises(Topology):
        name = "raises"

        def build(self, context):
            raise ValueError("boom")

    class Dict(Topology):
        name = "dict"

        def build(self, context):
            return {}

    class Absent(Searcher):
        name = "absent"
        axis = "strategy"

        def build(self, problem, rng):
            return None

    class Zero(Estimator):
        name = "zero"

        def build(self, graph, cluster):
            return 0

    host.add([Absent, Zero], name="theirs")
    host.add(Raises, name="mine")
    host.add(Dict, name="yours")
    code, out, _ = run(capsys, "plugins", "doctor")
    assert code == 1
    assert "BROKEN topology 'raises' (plugin 'mine'): build raised ValueError: boom" in out
    assert 'raise ValueError("boom")' in out
    assert (
        "BROKEN topology 'dict' (plugin 'yours'): build returned dict {} (must return Fabric or ReconfigurableFabric)"
        in out
    )
    assert "BROKEN searcher 'absent' (plugin 'theirs'): build returned None (must return Search)" in out
    assert "BROKEN estimator 'zero' (plugin 'theirs'): build returned int 0 (must return CostFunction)" in out


def test_the_author_of_a_plugin_is_told_where_it_is(tmp_path, monkeypatch):
    installed = tmp_path / "acme_ring-1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-ring\nVersion: 1\n")
    (installed / "direct_url.json").write_text('{"url": "file:///home/me/ring", "dir_info": {"editable": true}}')
    monkeypatch.syspath_prepend(tmp_path)
    assert remedy("acme-ring", "x").startswith("correct it in /home/me/ring, where acme-ring is being developed")
    assert "pip uninstall numpy" in remedy("numpy", "x")


def test_doctor_names_both_sides_of_a_conflict(host, capsys):
    sides = tuple(Provider(name="x", dist=dist, version="1") for dist in ("acme-a", "acme-b"))
    host._shared_names.append(Conflict(subject="entry point 'x'", providers=sides))
    code, out, _ = run(capsys, "plugins", "doctor")
    assert code == 1
    assert "acme-a 1 and acme-b 1" in out


def test_usage_errors_are_status_2(capsys):
    assert run(capsys, "no-such-command")[0] == 2
    assert run(capsys, "plugins", "--no-such-option")[0] == 2


def test_errors_of_users_have_no_traceback(monkeypatch, capsys):
    def fails(*_, **__):
        raise TopoplanError("file: field is 3 (must be 4)")

    monkeypatch.setattr(Host, "discover", fails)
    assert run(capsys, "plugins") == (2, "", "error: file: field is 3 (must be 4)\n")


def test_help_loads_neither_numpy_nor_plugins():
    script = (
        "import sys\nfrom topoplan.cli import main\n"
        "try:\n    main(['--help'])\nfinally:\n    print('LOADED', *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    out, _, loaded = done.stdout.partition("LOADED")
    assert "plugins" in out
    assert "typer" in loaded.split()
    assert not {"numpy", "numba", "networkx", "topoplan.plugin.host"} & set(loaded.split())


def test_list_is_a_word_for_what_plugins_alone_does(capsys):
    assert run(capsys, "plugins", "list") == run(capsys, "plugins")
    assert run(capsys, "plugins", "list", "--kind", "topology") == run(capsys, "plugins", "--kind", "topology")
    assert "Did you mean 'list'?" in run(capsys, "plugins", "lits")[2]
