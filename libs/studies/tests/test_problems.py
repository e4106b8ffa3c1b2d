"""The set of benchmark problems: it can be read, built and run, and says what is wrong with a file."""

from __future__ import annotations

import pytest

from topoplan.errors import TopoplanError
from topoplan.plugin.host import Host
from topoplan_engine import optimize
from topoplan_studies.problems import named_problems, read_problems, standard_problems

NAMES = [problem.name for problem in standard_problems()]


def test_there_are_problems_of_every_kind():
    kinds = [problem.kind for problem in standard_problems()]
    assert len(kinds) >= 12
    assert {kind: kinds.count(kind) >= 3 for kind in set(kinds)} == {"placement": True, "spmd": True, "pipeline": True}
    assert all(problem.source for problem in standard_problems())


QUICK = ("alexnet-switch", "vgg-19-pipeline", "candle-uno-topoopt")


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
