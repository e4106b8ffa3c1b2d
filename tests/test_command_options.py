"""Options of commands: what several commands share is one option, with one help, one range and one default."""

from __future__ import annotations

import re
from collections import defaultdict

import attrs
import pytest
import typer

from topoplan import Host
from topoplan_engine import ClusterOptions, RunOptions
from topoplan_engine.options import ComponentOptions

HOST = Host.discover(prefix="command-")
COMMANDS = ("compare", "flexnet", "optimize", "run", "sensitivity", "share", "simulate", "sweep")
#: Options that mean something else in each command.
OWN = {"jobs", "seeds"}
#: Commands whose default is one of their own, and those that take what a file says.
DEFAULTS = {("sweep", "searcher"): "pipeline"}
FROM_FILES = ("sensitivity", "simulate")


@attrs.frozen
class Said:
    """What the help says of an option, but for its default."""

    flags: tuple[str, ...]
    metavar: str | None
    meaning: str
    range: str


def options_of(word):
    """Return the options of a command by name: what is said of them, and their defaults."""
    found = {}
    for parameter in typer.main.get_command(HOST.get("command", word)().app()).params:
        if parameter.param_type_name != "option":
            continue
        meaning, brackets = re.fullmatch(r"(.*?)(?:  \[(.*)\])?", parameter.help, re.DOTALL).groups()
        words = (brackets or "").split("; ")
        default = next((one.removeprefix("default: ") for one in words if one.startswith("default: ")), "")
        limits = "; ".join(one for one in words if not one.startswith("default: "))
        metavar = parameter.metavar and parameter.metavar.replace(",...>", ">")
        meaning = meaning.replace("; several with commas between", "")
        found[parameter.name] = Said(tuple(parameter.opts), metavar, meaning, limits), default
    return found


def test_an_option_of_several_commands_is_the_same_in_all():
    said, defaults = defaultdict(dict), defaultdict(dict)
    for word in COMMANDS:
        for name, (what, default) in options_of(word).items():
            said[name][word] = what
            if word not in FROM_FILES:
                defaults[name][word] = default
    shared = {name for name, ways in said.items() if len(ways) > 1} - OWN
    assert {"servers", "degree", "latency_us", "budget", "seed", "topology", "searcher", "prices"} <= shared
    for name in shared:
        assert len(set(said[name].values())) == 1, said[name]
        usual = {value for word, value in defaults[name].items() if (word, name) not in DEFAULTS}
        assert len(usual) <= 1, (name, defaults[name])
    for (word, name), default in DEFAULTS.items():
        assert defaults[name][word] == default


@pytest.mark.parametrize("cls", [ClusterOptions, ComponentOptions, RunOptions])
def test_optimize_has_every_option_that_a_file_has(cls):
    options = options_of("optimize")
    for field in attrs.fields(cls):
        if field.name == "hosts":  # tables, in a file
            continue
        _, default = options[field.name]
        if isinstance(field.default, attrs.Factory):  # it depends on other options, as the help says
            assert default, field.name
        elif field.default not in (None, ()) and field.default is not False:  # a flag has no default to show
            value = ",".join(field.default) if isinstance(field.default, tuple) else str(field.default)
            assert default == value, field.name


@pytest.mark.parametrize("word", FROM_FILES)
def test_a_command_that_reads_a_file_says_that_it_goes_by_it(word):
    for name in {"budget", "topology", "simulator", "degree", "latency_us"} & options_of(word).keys():
        assert options_of(word)[name][1] == "the file's"


def test_the_help_says_defaults_of_what_is_unset(run):
    out = " ".join(run("compare", "--help")[1].split())
    assert "[default: 1 to a switch, 4 between hosts; 1 to 1024]" in out
    assert "Number of hosts; several with commas between. [default: 16; 1 to 131072]" in out


@pytest.mark.parametrize("word", [*COMMANDS, "profile", "plugins"])
def test_every_command_shows_its_help_and_refuses_what_it_does_not_know(run, word):
    status, out, _ = run(word, "--help")
    usage = out.strip().splitlines()[0].split()  # the program may be `python -m pytest`
    assert (status, usage[0], usage.count(word)) == (0, "Usage:", 1)
    status, out, err = run(word, "--nonsense")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: No such option: --nonsense")
    assert err.endswith(f"{word} -h lists all)\n")


@pytest.mark.parametrize(
    ("words", "nearest"),
    [
        (["optimize", "ncf", "--degre", "4"], "--degree"),
        (["compare", "ncf", "--network", "ocs"], "--networks"),
        (["simulate", "plan.json", "--latency", "1"], "--latency-us"),
        (["sweep", "ncf", "--batch-size", "64"], "--batch-sizes"),
        (["share", "file.toml", "--price", "file"], "--prices"),
        (["sensitivity", "plan.json", "--seed", "1"], "--seeds"),
        (["run", "file.toml", "--sett", "a.b=1"], "--set"),
        (["plugins", "--knd", "topology"], "--kind"),
    ],
)
def test_an_unknown_option_names_the_nearest(run, words, nearest):
    status, out, err = run(*words)
    assert (status, out) == (2, "")
    assert re.search(rf"Possible options: .*{nearest}\b", err)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["optimize", "alexnet", "--interfaces", "0"], "(interfaces: --degree; "),
        (["optimize", "alexnet", "--hosts", "4"], "(hosts: --servers; "),
        (["optimize"], "Missing argument 'model'."),
        (["optimize", "alexnet", "vgg16"], "Got unexpected extra argument(s) (vgg16)"),
        (["optimize", "alexnet", "--servers"], "Option '--servers' requires an argument."),
        (["plugins", "show"], "Missing argument 'name'."),
    ],
)
def test_words_that_a_command_does_not_take_are_one_line(run, words, said):
    status, out, err = run(*words)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: ")
    assert said in err
    assert err.endswith(" -h lists all)\n")


def test_every_component_shows_its_options(run, monkeypatch):
    host = Host.discover()
    monkeypatch.setattr(Host, "discover", classmethod(lambda cls, **given: host))
    for row in host.listing():
        status, out, err = run("plugins", "show", f"{row.kind}:{row.name}")
        assert (status, err) == (0, ""), row
        assert out.startswith(f"{row.kind} {row.name} (")
        component = host.get(row.kind, row.name)
        for field in attrs.fields(component) if attrs.has(component) else ():
            assert f"  {field.name.replace('_', '-')} " in out, (row, field.name)
