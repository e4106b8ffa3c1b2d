"""The host: what it finds, what it refuses, and how it tells."""

from __future__ import annotations

import re
import sys
import textwrap
import types
import warnings

import attrs
import pluggy
import pytest

from topoplan import Exporter, Searcher, Topology, TopoplanError, hookimpl, option
from topoplan.errors import TopoplanWarning
from topoplan.plugin import hookspecs
from topoplan.plugin._registering import unknown
from topoplan.plugin.components import Kind, unguarded
from topoplan.plugin.entry_points import InstalledPlugin
from topoplan.plugin.host import Host


def wrapping(hook):
    """Return a plugin whose only function wraps a hook."""

    def wrap(run):
        return (yield)

    return types.SimpleNamespace(**{hook: hookimpl(wrapper=True)(wrap)})


def named(**options):
    """Return a plugin whose function has another name than its hook."""

    def mine():
        return topology()

    return types.SimpleNamespace(mine=hookimpl(**options)(mine))


def topology(name="ring", **changes):
    """Return a class of topology with one option."""
    members = {"__doc__": "A ring.", "__module__": __name__, "name": name, "build": lambda self, context: None}
    radix = {"__annotations__": {"radix": int}, "radix": option(4, help="ports", minimum=2)}
    return attrs.frozen(kw_only=True)(type(Topology)("Ring", (Topology,), members | radix | changes))


def plugin(*components, hook="topoplan_topologies", marker=hookimpl):
    def registers():
        return list(components)

    registers.__name__ = hook
    return types.SimpleNamespace(**{hook: marker(registers)})


class Undecorated(Topology):
    name = "ring"
    radix: int = option(4, help="ports", minimum=2)

    def build(self, context):
        return None


class Abstract(Topology):
    name = "ring"


class Dotless(Exporter):
    name = "plain"
    suffix = "txt"

    def write(self, plan):
        return b""


class Searching(Searcher):
    name = "walk"

    def build(self, problem, rng):
        return None


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a distribution with one module and one entry point."""
    monkeypatch.delenv("TOPOPLAN_PLUGINS", raising=False)
    monkeypatch.delenv("TOPOPLAN_DISABLE_PLUGINS", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    installed = []

    def _install(dist, source=None, *, entry=None, requires="topoplan-core>=0.1", version="1.0"):
        module = dist.replace("-", "_")
        if source is None:
            source = GOOD.replace("NAME", entry or dist)
        (tmp_path / f"{module}.py").write_text(textwrap.dedent(source))
        folder = tmp_path / f"{module}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {dist}\nVersion: {version}\nRequires-Dist: {requires}\n"
        )
        (folder / "entry_points.txt").write_text(f"[topoplan]\n{entry or dist} = {module}\n")
        installed.append(module)

    yield _install
    # Only what was installed here: a module with compiled parts, as numpy, cannot be loaded a second time.
    for name in installed:
        sys.modules.pop(name, None)


GOOD = """
from topoplan import Topology, hookimpl

class Works(Topology):
    '''Works.'''

    name = "NAME"

    def build(self, context):
        return None

@hookimpl
def topoplan_topologies():
    return [Works]
"""


def names(host):
    return {row.name for row in host.listing() if row.kind == "topology"}


def broken(host, name):
    (found,) = [b for b in host.broken if b.name == name]
    return found


def test_host_alone_has_only_what_core_brings():
    assert {row.distribution for row in Host().listing()} <= {"topoplan-core"}
    assert Host().broken == []


def test_added_component_is_found_and_built_from_text():
    host = Host()
    host.add(plugin(topology()), name="mine")
    cls = host.get("topology", "ring")
    assert host.make("topology", "ring:radix=6") == cls(radix=6)
    assert host.make("topology", "ring", {"radix": 8}) == cls(radix=8)
    assert isinstance(cls(radix=8), Topology)


def test_option_given_twice_is_an_error():
    host = Host()
    host.add(plugin(topology()), name="mine")
    with pytest.raises(TopoplanError, match="'radix' is given twice"):
        host.make("topology", "ring:radix=6", {"radix": 8})


def test_wrong_option_names_component_and_key():
    host = Host()
    host.add(plugin(topology()), name="mine")
    with pytest.raises(TopoplanError, match="topology ring: radix: 1 is too small"):
        host.make("topology", "ring:radix=1")


def test_unknown_component_names_the_nearest():
    host = Host()
    host.add(plugin(topology("fat-tree")), name="mine")
    with pytest.raises(TopoplanError, match="no topology named 'fattree'; did you mean 'fat-tree'"):
        host.get("topology", "fattree")


def test_unknown_kind_names_the_nearest():
    with pytest.raises(TopoplanError, match="did you mean 'topology'"):
        Host().get("topolgy", "ring")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (plugin(hook="topoplan_topologys"), "unknown hook 'topoplan_topologys'; did you mean 'topoplan_topologies'"),
        (plugin(topology(), marker=lambda f: f), "topoplan_topologies is not marked with @hookimpl"),
        (types.SimpleNamespace(), "provides nothing"),
        (plugin(topology(), topology()), "provides topology 'ring' twice"),
        (plugin("ring"), r"returned str 'ring' \(must return classes of Topology\)"),
        *(
            (plugin(topology(), marker=hookimpl(**{key: True})), rf"@hookimpl\({key}=True\) of a registration hook")
            for key in ("tryfirst", "trylast")
        ),
        (plugin(topology(), marker=hookimpl(wrapper=True)), "topoplan_topologies: is a wrapper, but no generator"),
        (wrapping("topoplan_topologies"), r"@hookimpl\(wrapper=True\) of a registration hook does nothing"),
        (wrapping("topoplan_evaluted"), "unknown hook 'topoplan_evaluted'; did you mean 'topoplan_evaluated'"),
        (named(specname="topoplan_topologys"), "unknown hook 'topoplan_topologys'; did you mean"),
        (plugin(topology(), hook="topoplan_exporters"), r"returned Ring \(must return classes of Exporter\)"),
        (plugin(Undecorated), r"topology 'ring': its options are none yet \(write @attrs.frozen above the class\)"),
        (
            plugin(topology("My Ring")),
            r"topology Ring: 'My Ring' is no name of a component \(write name = \"\.\.\.\": ",
        ),
        (plugin(topology(None)), r"topology Ring: None is no name of a component \(write name = "),
        (
            plugin(topology("ring", radix=option(1, help="ports", minimum=2))),
            r"topology 'ring': default of radix: 1 is too small \(at least 2\)",
        ),
        (
            plugin(topology("ring", radix=option(9, help="ports", maximum=8))),
            r"topology 'ring': default of radix: 9 is too large \(at most 8\)",
        ),
        (plugin(Dotless, hook="topoplan_exporters"), r"exporter 'plain': suffix is 'txt' \(must begin with a dot"),
        (plugin(Abstract), "topology 'ring': has no method build"),
        (plugin(Searching, hook="topoplan_searchers"), "searcher 'walk': axis is missing"),
        (
            plugin(type("Sideways", (Searching,), {"axis": "routes"}), hook="topoplan_searchers"),
            r"searcher 'walk': axis is 'routes' \(must be one of strategy, network, joint\)",
        ),
    ],
)
def test_bad_plugin_is_refused_and_leaves_nothing_behind(bad, message):
    host = Host()
    before = host.listing()
    with pytest.raises(TopoplanError, match=message):
        host.add(bad, name="bad")
    assert host.listing() == before
    host.add(plugin(topology()), name="bad")
    assert names(host) == {"ring"}


def test_half_a_plugin_is_not_added():
    both = plugin(topology())
    both.topoplan_exporters = plugin("nonsense", hook="topoplan_exporters").topoplan_exporters
    host = Host()
    with pytest.raises(TopoplanError, match="must return classes of Exporter"):
        host.add(both, name="half")
    assert names(host) == set()


def observers(events, **functions):
    """Return plugins, each with one observer that writes its name down, in the order in which they are added."""
    plugins = []
    for name, options in functions.items():

        def plain(run, name=name):
            events.append(name)

        def wrap(run, name=name):
            events.append(f"{name} before")
            result = yield
            events.append(f"{name} after")
            return result

        function = wrap if options.get("wrapper") or options.get("hookwrapper") else plain
        plugins.append((types.SimpleNamespace(topoplan_run_started=hookimpl(**options)(function)), name))
    return plugins


def test_observers_are_called_as_pluggy_calls_them():
    options = {
        "last": {"trylast": True},
        "a": {},
        "around": {"wrapper": True},
        "b": {},
        "first": {"tryfirst": True},
        "old": {"hookwrapper": True},
        "c": {"specname": "topoplan_run_started"},
    }
    ours, theirs = [], []
    host, manager = Host(), pluggy.PluginManager("topoplan")
    manager.add_hookspecs(hookspecs)
    for plugin, name in observers(ours, **options):
        host.add(plugin, name=name)
    for plugin, name in observers(theirs, **options):
        manager.register(plugin, name)
    host.hook.topoplan_run_started(run=None)
    manager.hook.topoplan_run_started(run=None)
    assert ours == theirs
    assert ours[0] == "old before"
    assert ours[2:6] == ["first", "c", "b", "a"]


@pytest.mark.parametrize("options", [{}, {"wrapper": True}, {"hookwrapper": True}])
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_observer_that_raises_is_told_of_once_and_the_others_run(options, when):
    events = []
    raising = [when]

    def plain(run):
        raise KeyError("oops")

    def wrap(run):
        if "before" in raising:
            raise KeyError("oops")
        yield
        raise KeyError("oops")

    host = Host()
    (around, _), (one, _) = observers(events, around={"wrapper": True}, one={})
    function = wrap if options else plain
    host.add(one, name="one")
    host.add(types.SimpleNamespace(topoplan_run_started=hookimpl(**options)(function)), name="bad")
    host.add(around, name="around")
    with pytest.warns(TopoplanWarning, match=r"^plugin 'bad': topoplan_run_started raised KeyError: 'oops'; it obs"):
        host.hook.topoplan_run_started(run=None)
    host.hook.topoplan_run_started(run=None)  # a second warning would be an error
    assert events == ["around before", "one", "around after"] * 2


def test_a_hook_may_have_a_function_of_another_name():
    host = Host()
    host.add(named(specname="topoplan_topologies"), name="mine")
    assert [row.name for row in host.listing()] == ["ring"]


def test_a_plugin_of_optional_hooks_alone_is_accepted():
    """As pluggy's documentation says: a missing specification is no error then."""

    @hookimpl(optionalhook=True)
    def topoplan_of_a_later_version(run):
        raise AssertionError

    plugin = types.SimpleNamespace(topoplan_of_a_later_version=topoplan_of_a_later_version)
    host, manager = Host(), pluggy.PluginManager("topoplan")
    manager.add_hookspecs(hookspecs)
    manager.register(plugin, "later")
    manager.check_pending()
    host.add(plugin, name="later")
    host.hook.topoplan_run_started(run=None)
    assert (host.broken, host.listing()) == ([], [])


def test_hook_argument_that_does_not_exist_is_refused():
    @hookimpl
    def topoplan_run_started(run, colour):
        pass

    with pytest.raises(TopoplanError, match="colour"):
        Host().add(types.SimpleNamespace(topoplan_run_started=topoplan_run_started), name="observer")


def test_two_kinds_may_share_a_name():
    host = Host()
    members = {"name": "ring", "write": lambda self, plan: b"", "suffix": ".ring"}
    exporter = type(Exporter)("Ring", (Exporter,), members)
    host.add(plugin(topology()), name="one")
    host.add(plugin(exporter, hook="topoplan_exporters"), name="two")
    assert host.get("exporter", "ring").suffix == exporter.suffix


def test_observers_are_called():
    told = []

    @hookimpl
    def topoplan_run_finished(plans):
        told.append(plans)

    host = Host()
    host.add(types.SimpleNamespace(topoplan_run_finished=topoplan_run_finished), name="observer")
    host.hook.topoplan_run_finished(run=None, plans=["plan"])
    assert told == [["plan"]]


def test_discovery_finds_what_is_installed(install):
    install("acme-ring")
    host = Host.discover()
    (row,) = [row for row in host.listing() if row.name == "acme-ring"]
    assert (row.distribution, row.version, row.summary) == ("acme-ring", "1.0", "Works")


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("import does_not_exist_anywhere", "ModuleNotFoundError: No module named 'does_not_exist_anywhere'"),
        ("raise ValueError('two\\nlines')", "ValueError: two lines"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("x = 1", "provides nothing"),
        ("from topoplan import hookimpl\n@hookimpl\ndef topoplan_topologies():\n    return 1/0", "ZeroDivisionError"),
        ("from topoplan import hookimpl\n@hookimpl\ndef topoplan_topologies():\n    return None", "provides|NoneType"),
    ],
)
def test_broken_plugin_is_recorded_and_the_others_work(install, source, error):
    install("acme-broken", source)
    install("acme-ring")
    host = Host.discover()
    assert "acme-ring" in names(host)
    found = broken(host, "acme-broken")
    assert (found.dist, found.version) == ("acme-broken", "1.0")
    assert re.search(error, found.error)
    assert "\n" not in found.error
    with pytest.raises(TopoplanError, match="acme-broken"):
        Host.discover(strict=True)


def test_broken_plugin_is_told_where_its_absence_hurts(install):
    install("acme-broken", "import does_not_exist_anywhere")
    with pytest.raises(TopoplanError, match=r"(?s)no topology named 'acme'.*acme-broken 1.0.*plugins doctor"):
        Host.discover().get("topology", "acme")


def test_traceback_of_a_broken_plugin_is_kept(install):
    install("acme-broken", "def f():\n    raise RuntimeError('deep')\nf()")
    assert "in f" in broken(Host.discover(), "acme-broken").details


def test_incompatible_core_is_told_with_both_versions(install):
    install("acme-old", requires="topoplan-core<0.1")
    host = Host.discover()
    assert "needs topoplan-core <0.1, but 0.1.0 is installed" in broken(host, "acme-old").error
    assert "acme-old" not in names(host)


def test_requirement_of_an_extra_does_not_count(install):
    install("acme-ring", requires="topoplan-core<0.1 ; extra == 'old'")
    assert "acme-ring" in names(Host.discover())


def test_two_distributions_with_one_component_are_named_when_it_is_asked_for(install):
    install("acme-one", GOOD.replace("NAME", "same"))
    install("acme-two", GOOD.replace("NAME", "same"))
    host = Host.discover()
    with pytest.raises(TopoplanError, match=r"'same' is provided by both acme-one 1.0 and acme-two 1.0"):
        host.get("topology", "same")
    assert "same" not in {component.name for component in host.components()}
    assert len(host.conflicts) == 1


def test_two_distributions_with_one_entry_point_are_named(install):
    install("acme-one", GOOD.replace("NAME", "first"), entry="ring")
    install("acme-two", GOOD.replace("NAME", "second"), entry="ring")
    host = Host.discover()
    for name in ("first", "second"):
        with pytest.raises(
            TopoplanError, match=r"entry point 'ring' is provided by both acme-one 1.0 and acme-two 1.0"
        ):
            host.get("topology", name)
    with pytest.raises(TopoplanError, match="both"):
        Host.discover(strict=True)


def test_disabling_by_entry_point_or_distribution(install, monkeypatch):
    install("acme-one", entry="one")
    install("acme-two", entry="two")
    monkeypatch.setenv("TOPOPLAN_DISABLE_PLUGINS", "one, acme-two")
    host = Host.discover()
    assert not names(host) & {"one", "two"}
    assert host.disabled == ["one", "two"]
    with pytest.raises(TopoplanError, match="disabled by TOPOPLAN_DISABLE_PLUGINS or TOPOPLAN_PLUGINS: one, two"):
        host.get("topology", "one")


def test_allow_list_admits_only_what_it_names(install, monkeypatch):
    install("acme-one", entry="one")
    install("acme-two", entry="two")
    monkeypatch.setenv("TOPOPLAN_PLUGINS", "one")
    assert names(Host.discover()) == {"one"}
    monkeypatch.setenv("TOPOPLAN_PLUGINS", "")
    assert names(Host.discover()) == set()


def test_an_allow_list_that_names_nothing_names_the_nearest(install, monkeypatch):
    monkeypatch.setenv("TOPOPLAN_PLUGINS", "no-such-plugin")
    assert "no such plugin is installed" in broken(Host.discover(), "no-such-plugin").error
    monkeypatch.setenv("TOPOPLAN_PLUGINS", "topology-torsu")
    host = Host.discover()
    assert broken(host, "topology-torsu").error == (
        "TOPOPLAN_PLUGINS names it, but no such plugin is installed; did you mean 'topology-torus'?"
    )


@pytest.mark.parametrize(
    ("value", "messages"),
    [
        ("topology-torsu", ["no plugin 'topology-torsu' is installed; did you mean 'topology-torus'?"]),
        ("topoplan-topolgy-torus", ["no plugin 'topoplan-topolgy-torus' is installed; did you mean 'topoplan-topol"]),
        ("zzqq,one", ["no plugin 'zzqq' is installed"]),
        ("fluid", ["no plugin 'fluid' is installed; did you mean 'simulator-fluid'?"]),
        (
            "torus,json",
            [
                "no plugin 'json' is installed; did you mean 'exporter-json'?",
                "no plugin 'torus' is installed; did you mean 'topology-torus'?",
            ],
        ),
        ("one, acme-one,", []),
        ("b\x1b[31m", ["no plugin 'b\\x1b[31m' is installed"]),
        ("", []),
    ],
)
def test_a_list_of_disabled_plugins_that_names_what_is_not_installed_warns(install, monkeypatch, value, messages):
    install("acme-one", entry="one")
    monkeypatch.setenv("TOPOPLAN_DISABLE_PLUGINS", value)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Host.discover()
        Host.discover(prefix="command-")  # a part of all: whether others are installed is not known
    found = [str(warning.message) for warning in caught]
    assert len(found) == len(messages)
    for text, message in zip(found, messages, strict=True):
        assert text.startswith(f"TOPOPLAN_DISABLE_PLUGINS: {message}")


@pytest.mark.parametrize(
    ("kind", "name", "plugin"),
    [
        ("topology", "bigswitch", "topology-bigswitch"),
        ("machine", "A100-40", "machine-nvidia"),
        ("simulator", "fluid", "simulator-fluid"),
        ("exporter", "json", "exporter-json"),
        ("command", "optimize", "command-optimize"),
        ("collective", "ring", "collective-rings"),
    ],
)
def test_what_is_disabled_is_named_and_nothing_else(monkeypatch, kind, name, plugin):
    monkeypatch.setenv("TOPOPLAN_PLUGINS", "frontend-alexnet")
    with pytest.raises(TopoplanError) as caught:
        Host.discover().get(kind, name)
    message = str(caught.value)
    assert message.endswith(f"; disabled by TOPOPLAN_DISABLE_PLUGINS or TOPOPLAN_PLUGINS: {plugin}")
    assert "(have: ;" not in message


def test_what_is_not_installed_can_be_installed_whatever_else_is_disabled(monkeypatch):
    monkeypatch.setenv("TOPOPLAN_DISABLE_PLUGINS", "topology-torus")
    rows = Host.discover().disabled
    message = unknown(Kind.TOPOLOGY, "bigswitch", ["ring"], [], rows)
    assert message.endswith("; `pip install topoplan-topology-bigswitch` brings it")


def test_hosts_share_nothing():
    one, two = Host(), Host()
    one.add(plugin(topology()), name="mine")
    assert "ring" not in names(two)


@pytest.mark.parametrize("replace", [False, True])
def test_a_component_that_a_host_hands_out_can_be_added(replace):
    host = Host()
    host.add(topology())
    found = host.get("topology", "ring")
    host.add(found, replace=replace)  # it is the one that is there
    assert unguarded(host.get("topology", "ring")) is unguarded(found)
    other = Host()
    other.add(found)
    assert unguarded(other.get("topology", "ring")) is unguarded(found)


def test_a_subclass_is_another_component():
    class Other(topology()):
        """Another."""

        name = "other"

    host = Host()
    host.add([topology(), Other])
    assert host.get("topology", "other").summary == "Another"
    assert host.make("topology", "other:radix=5").radix == 5


def test_plugins_of_this_project_are_loaded_when_one_of_their_components_is_asked_for(monkeypatch):
    """Those of others at once, so that their names and observers are known; what a name brings is in a table."""
    names = {"topology-ring": "topoplan-topology-ring", "topology-star": "topoplan-topology-star", "mine": "mine"}
    loaded = []
    monkeypatch.setattr(Host, "_load", lambda self, plugin, provider: loaded.append(provider.name))
    found = [InstalledPlugin(name, None, dist, "1", "", ()) for name, dist in names.items()]
    monkeypatch.setattr("topoplan.plugin.host.installed_plugins", lambda prefix: found)
    table = {"topoplan-topology-ring": [(Kind.TOPOLOGY, "ring")], "topoplan-topology-star": [(Kind.TOPOLOGY, "star")]}
    monkeypatch.setattr("topoplan.plugin.host.components_of", lambda: table)
    host = Host.discover()
    assert loaded == ["mine"]
    assert not host._known(Kind.TOPOLOGY, "star")
    assert loaded == ["mine", "topology-star"]
    assert not host.has(Kind.TOPOLOGY, "unknown")  # all, for one may bring it all the same
    assert loaded == ["mine", "topology-star", "topology-ring"]
    assert host.broken == []


def test_a_name_is_looked_for_once_among_plugins_that_wait(monkeypatch):
    host = Host.discover()
    found = host.get("topology", "torus")

    def looked_through() -> None:
        raise AssertionError("all plugins are looked through again")

    monkeypatch.setattr("topoplan.plugin.host.components_of", looked_through)
    assert host.get("topology", "torus") is found
    assert host.has("topology", "torus")
