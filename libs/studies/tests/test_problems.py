"""The set of benchmark problems: it can be read, built and run, and says what is wrong with a file."""

from __future__ import annotations

import gzip

import attrs
import pytest

from topoplan import Candidate, Exporter, Search, Searcher
from topoplan.errors import PluginError, TopoplanError
from topoplan.plugin.host import Host
from topoplan_engine import optimize
from topoplan_engine.search.setup import set_up_search
from topoplan_samples.long_tail import at_night
from topoplan_studies.problems import best, named_problems, read_problems, standard_problems
from topoplan_studies.problems.best import best_known, best_of_all, check, improve, seconds_in_table
from topoplan_studies.problems.bounds import lower_bound

NAMES = [problem.name for problem in standard_problems()]


def test_there_are_problems_of_every_kind():
    kinds = [problem.kind for problem in standard_problems()]
    assert len(kinds) >= 12
    assert {kind: kinds.count(kind) >= 3 for kind in set(kinds)} == {"placement": True, "spmd": True, "pipeline": True}
    assert all(problem.source for problem in standard_problems())


QUICK = ("alexnet-switch", "vgg-19-pipeline", "candle-uno-topoopt")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
)
def test_a_problem_can_be_searched(name):
    (problem,) = named_problems([name])
    outcome = optimize(problem.experiment(["random"], budget=1, seed=3), host=Host.discover())
    assert outcome.result.evaluations == 2
    assert 0 < outcome.seconds <= outcome.initial_seconds


def test_problems_are_named_by_set_kind_or_name():
    assert [problem.name for problem in named_problems(["standard"])] == NAMES
    chosen = named_problems(["alexnet-switch", "pipeline", "bert-48-pipeline"])
    assert [problem.name for problem in chosen] == [
        "alexnet-switch",
        *(problem.name for problem in standard_problems() if problem.kind == "pipeline"),
    ]
    with pytest.raises(TopoplanError, match=r"^no benchmark problem 'alexnet-swich'.*alexnet-switch"):
        named_problems(["alexnet-swich"])


def test_an_experiment_has_searchers_budget_and_seed_and_all_else_from_the_problem():
    (problem,) = named_problems(["llama-huggingface"])
    experiment = problem.experiment(["mcmc:alpha=40", "totientperm"], budget=7, seed=9)
    assert [choice.name for choice in experiment.searchers] == ["mcmc", "totientperm"]
    assert experiment.searchers[0].options == {"alpha": "40"}
    assert (experiment.run.budget, experiment.run.seed, experiment.run.batch_size) == (7, 9, 64)
    assert experiment.run.precision == "bf16"


MACHINE = "[machine.small]\nservers = 2\n"
GOOD = 'name = "a"\nmachine = "small"\nmodel = "alexnet"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"needs at least one \[\[problem\]\]"),
        ("[problems]", r"no section 'problems'.*problem"),
        ("[[problem]]\nlarge = 3", r"problem\[0\]: large: .*3"),
        (f"{MACHINE}[[problem]]\n{GOOD}topolgy = 'ocs'", r"problem\[0\]: no key 'topolgy'.*topology"),
        (f"{MACHINE}[[problem]]\nmachine = 'small'\nmodel = 'alexnet'", r"problem\[0\]: needs a name"),
        (
            f"{MACHINE}[[problem]]\n{GOOD.replace('small', 'smal')}",
            r"problem\[0\]: machine: no \[machine.smal\].*small",
        ),
        (f"{MACHINE}[[problem]]\n{GOOD}[[problem]]\n{GOOD}", r"problem: 'a' is there twice"),
        (f"{MACHINE}[[problem]]\n{GOOD}kind = 'placements'", r"problem\[0\]: kind: .*placement"),
        (f"{MACHINE}[[problem]]\n{GOOD}batch-size = 0", r"problem\[0\]: run: batch-size: .*0"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path, text, message):
    path = tmp_path / "set.toml"
    path.write_text(text)
    with pytest.raises(TopoplanError, match=f"^{path}: {message}"):
        read_problems(path)


def test_a_bound_is_below_every_strategy_that_is_tried():
    host = Host.discover()
    for name in ("vgg-19-pipeline", "dlrm16-topoopt"):
        (problem,) = named_problems([name])
        experiment = problem.experiment(["random"], budget=5, seed=1)
        bound = lower_bound(set_up_search(host, experiment).problem)
        assert 0 < max(bound.work, bound.part) * (1 - 1e-6) <= bound.seconds <= optimize(experiment, host=host).seconds


@pytest.fixture
def nothing_known(monkeypatch, tmp_path):
    """Let the standard set know no plan."""
    monkeypatch.setattr(best, "FOLDER", tmp_path / "of the set")


@pytest.mark.slow
def test_a_stored_plan_takes_what_the_table_says_and_a_better_one_replaces_it(tmp_path, nothing_known):
    host = Host.discover()
    (problem,) = named_problems(["vgg-19-pipeline"])
    first, _ = improve(problem, "random", budget=0, seed=1, host=host, folder=tmp_path)
    assert first == best_known(tmp_path)[problem.name]
    assert check(problem, host, tmp_path).holds
    assert improve(problem, "random", budget=0, seed=2, host=host, folder=tmp_path) == (None, False)
    second, _ = improve(problem, "pipeline", budget=30, seed=1, host=host, folder=tmp_path)
    assert second.bound <= second.seconds < first.seconds
    assert check(problem, host, tmp_path).holds
    table = tmp_path / "best.csv"
    table.write_text(table.read_text().replace(repr(second.seconds), repr(second.seconds * 1.5)))
    assert not check(problem, host, tmp_path).holds
    table.write_text("problem,seconds\nvgg-19-pipeline,x\n")
    with pytest.raises(TopoplanError, match=r"best\.csv: line 2: seconds: 'x' is no number"):
        best_known(tmp_path)
    table.unlink()
    with pytest.raises(TopoplanError, match=r"best\.csv: has no row for 'vgg-19-pipeline'"):
        check(problem, host, tmp_path)


def test_what_is_worse_than_the_best_known_plan_of_the_set_is_not_stored(tmp_path):
    """A folder of one's own begins with the set's table: a plan that is ten times slower is no improvement."""
    host = Host.discover()
    (problem,) = named_problems(["alexnet-switch"])
    assert improve(problem, "random", budget=0, seed=1, host=host, folder=tmp_path) == (None, False)
    assert not list(tmp_path.iterdir())
    with pytest.raises(TopoplanError, match=r"best\.csv: is not there \(topoplan problems --improve writes it\)"):
        best_of_all(tmp_path)
    shipped = best_known()
    worse, better = shipped["ncf-switch"], shipped["alexnet-switch"]
    own = {
        "ncf-switch": attrs.evolve(worse, seconds=worse.seconds * 2),
        "alexnet-switch": attrs.evolve(better, seconds=(better.seconds + better.bound) / 2),
    }
    best._write_table(tmp_path, own)
    assert best_of_all(tmp_path) == {**shipped, "alexnet-switch": own["alexnet-switch"]}


@attrs.frozen
class Cheat(Searcher):
    """Proposes links that are a hundred times faster."""

    name = "cheat"
    axis = "network"

    def build(self, problem, rng):
        return Faster()


class Faster(Search):
    def ask(self):
        return [Candidate(base=self.state, fabric=_faster(self.state.fabric))]


def _faster(fabric):
    return attrs.evolve(fabric, link_bandwidth=100 * fabric.link_bandwidth)


@pytest.mark.parametrize(
    ("name", "axis", "reason"),
    [
        ("alexnet-topoopt", "network", r"a fabric that cannot be built: fabric 'topoopt': \d links of \d+ Gbps"),
        ("alexnet-topoopt", "strategy", r"a fabric of its own, though its axis is the strategy"),
        ("alexnet-switch", "joint", r"a fabric of its own, but topology 'bigswitch' cannot be rewired"),
    ],
)
def test_a_searcher_that_proposes_hardware_of_its_own_is_refused(tmp_path, name, axis, reason):
    host = Host.discover()
    host.add(type("Cheat", (Cheat,), {"axis": axis}), name="cheater")
    (problem,) = named_problems([name])
    with pytest.raises(PluginError, match=r"^searcher 'cheat' \(plugin 'cheater'\): ask proposed " + reason):
        improve(problem, "cheat", budget=3, seed=1, host=host, folder=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "message"),
    at_night(
        [
            ("alexnet-topoopt", "its network cannot be built: fabric"),
            ("alexnet-switch", "not the one that topology 'bigs"),
        ],
        ("alexnet-topoopt", "its network cannot be built: fabric"),
    ),
)
def test_a_stored_network_is_not_believed(tmp_path, name, message, nothing_known):
    host = Host.discover()
    (problem,) = named_problems([name])
    improve(problem, "random", budget=0, seed=1, host=host, folder=tmp_path)
    assert check(problem, host, tmp_path).holds
    path, json = tmp_path / "plans" / f"{name}.json.gz", host.make(Exporter, "json")
    plan = json.read(gzip.decompress(path.read_bytes()), name)
    path.write_bytes(gzip.compress(json.write(attrs.evolve(plan, fabric=_faster(plan.fabric)))))
    with pytest.raises(TopoplanError, match=message):
        check(problem, host, tmp_path)


@pytest.mark.slow
def test_the_best_known_plans_of_the_set_are_as_stored():
    host = Host.discover()
    rows = best_known()
    assert rows.keys() <= set(NAMES)
    for problem in standard_problems():
        if problem.name in rows:
            assert check(problem, host).holds, problem.name


def test_a_plan_is_priced_as_stored_ones_are():
    host, (problem,) = Host.discover(), named_problems(["alexnet-topoopt"])
    stored = best.FOLDER / "plans" / f"{problem.name}.json.gz"
    plan = host.make(Exporter, "json").read(gzip.decompress(stored.read_bytes()), stored.name)
    assert seconds_in_table(problem, plan, host) == best_known()[problem.name].seconds
    with pytest.raises(TopoplanError, match="alexnet-topoopt: the plan has no strategy"):
        seconds_in_table(problem, attrs.evolve(plan, strategy=None), host)
