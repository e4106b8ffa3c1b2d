"""Statistics of searchers over seeds and problems, against values worked out by hand or published."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys

import numpy as np
import pytest

from topoplan import Host, Searcher
from topoplan.errors import TopoplanError
from topoplan_studies import compare_searchers
from topoplan_studies.listing import searcher_choices, seeds_of
from topoplan_studies.searchers.places import Place, SearcherRuns, comparison
from topoplan_studies.searchers.report import _too_few, as_json, notes, places_table
from topoplan_studies.searchers.statistics import (
    best_after,
    holm,
    least_p,
    median_interval,
    paired_test,
    ranking,
    seeds_needed,
    summary,
)

INF = float("inf")


@pytest.mark.parametrize(
    ("count", "ranks", "coverage"),
    [
        (10, (2, 9), 1 - 22 / 1024),
        (6, (1, 6), 1 - 2 / 64),
        (5, (1, 5), 1 - 2 / 32),
        (1, (1, 1), 0.0),
        (20, (6, 15), None),
    ],
)
def test_the_interval_of_a_median_are_order_statistics(count, ranks, coverage):
    interval = median_interval([float(value) for value in reversed(range(1, count + 1))])
    assert (interval.low, interval.high) == ranks
    expected = 1 - 2 * sum(math.comb(count, k) for k in range(ranks[0])) / 2**count if count > 1 else 0.0
    assert interval.coverage == pytest.approx(expected)
    assert coverage is None or interval.coverage == pytest.approx(coverage)


def test_a_summary_has_quartiles_and_takes_plans_that_do_not_fit():
    assert summary([4.0, 1.0, 3.0, 2.0, 5.0]).lower_quartile == 2
    with_misfits = summary([1.0, 2.0, 3.0, INF, INF])
    assert (with_misfits.median, with_misfits.upper_quartile, with_misfits.most) == (3, INF, INF)


def test_a_difference_that_all_seeds_show_is_as_unlikely_as_so_many_heads():
    assert paired_test([1, 2, 3, 4, 5, 6], [1.1, 2.3, 3.6, 5.0, 6.5, 8.4]) == pytest.approx(2 / 2**6)
    assert paired_test([1, 2, 3], [1, 2, 3]) == 1
    assert paired_test([1, INF], [2, 2]) is None


def test_holms_correction_is_that_of_his_paper():
    assert holm([0.01, 0.04, 0.03, None, 0.005]) == [
        pytest.approx(0.03),
        pytest.approx(0.06),
        pytest.approx(0.06),
        None,
        pytest.approx(0.02),
    ]
    assert holm([0.9, 0.8]) == [1, 1]


def test_ranks_and_the_critical_difference_are_those_of_demsar():
    """Demsar (2006), section 3.2.2: q is 2.569 for four searchers, so the difference is 1.25 over 14 problems."""
    rng = np.random.default_rng(1)
    ranks = ranking(rng.random((14, 4)))
    assert ranks.critical_difference == pytest.approx(1.25, abs=0.005)
    ordered = ranking(np.tile([1.0, 2.0, 2.0], (10, 1)))
    assert ordered.mean_ranks.tolist() == [1, 2.5, 2.5]
    assert ordered.p is not None
    assert ordered.p < 0.001
    assert ranking(np.ones((4, 3))).p == 1
    assert ranking(np.ones((1, 3))).p is None
    assert "Wilcoxon" in ranking(np.array([[1.0, 2.0]] * 6)).method


def test_the_best_cost_is_a_staircase():
    history = np.array([[1, 9.0], [10, 5.0], [30, 4.0]])
    assert best_after(history, np.array([0.5, 1, 9, 10, 29, 100])).tolist() == [INF, 9, 9, 5, 5, 4]


def runs_of(label, times, steps):
    """Runs that begin at 9 s and end at their times after as many evaluations as ``steps`` says."""
    return SearcherRuns(
        label=label,
        runs=tuple(
            {
                "seed": seed,
                "iteration_time_s": time,
                "fits": True,
                "evaluations": 100,
                "search_s": 1.0,
                "history": [[1.0, 0.0, 9.0], [float(step), 0.5, time]],
            }
            for seed, (time, step) in enumerate(zip(times, steps, strict=True))
        ),
    )


def test_searchers_are_compared_by_medians_and_evaluations():
    slow, fast = runs_of("slow", [4.0, 5.0, 6.0], [80, 90, 100]), runs_of("fast", [2.0, 2.5, 8.0], [10, 30, 20])
    one = comparison(
        [Place(name="p", searchers=(slow, fast), pairs=()), Place(name="q", searchers=(slow, slow), pairs=())]
    )
    assert one.ratios.tolist() == pytest.approx([1, math.sqrt(0.5)])
    assert one.ranking.mean_ranks.tolist() == [1.75, 1.25]
    assert slow.middle_cost == 5
    assert slow.evaluations_to(5.0) == [80, 90, INF]
    assert fast.evaluations_to(5.0) == [10, 30, INF]
    assert fast.curve(0, np.array([1.0, 10, 30]))[1].tolist() == [9, 9, 2.5]
    assert fast.curve(1, np.array([0.0, 0.5]))[0].tolist() == [9, 2]


@pytest.mark.parametrize(
    ("searchers", "seeds", "least", "needed"),
    [
        (2, 5, "0.0625", 6),
        (3, 6, "0.09375", 7),
        (5, 6, "0.3125", 9),
        (5, 8, "0.07812", 9),
        (2, 6, "", 6),
        (5, 9, "", 9),
    ],
)
def test_where_no_difference_can_be_significant_the_least_p_is_said(searchers, seeds, least, needed):
    """Wilcoxon's test of n differences of one sign has p 2/2^n; Holm multiplies the least by the number of pairs."""
    times = [[10.0**number * (1 + 0.01 * number * seed) for seed in range(seeds)] for number in range(searchers)]
    runs = tuple(runs_of(f"s{number}", of_one, [10] * seeds) for number, of_one in enumerate(times))
    chances = holm([paired_test(a.times, b.times) for a, b in itertools.combinations(runs, 2)])
    pairs = len(chances)
    assert min(chances) == pytest.approx(least_p(seeds, pairs))
    assert seeds_needed(pairs) == needed
    notes = _too_few(seeds, pairs, 1.0)
    assert (min(chances) > 0.05) == bool(notes) == bool(least)
    assert all(f"is {least}; {needed} seeds at least can" in line for line in notes)


def test_ranges_of_seeds_are_written_out():
    assert seeds_of("1..3", "f: seeds") == [1, 2, 3]
    assert seeds_of([1, "5..6", 9], "f: seeds") == [1, 5, 6, 9]
    assert seeds_of([1, "x"], "f: seeds") == [1, "x"]
    for text in ("3..1", "0..99999"):
        with pytest.raises(TopoplanError, match=rf"^f: seeds: '{text}' is no range \(write FIRST\.\.LAST"):
            seeds_of(text, "f: seeds")


def test_a_plus_sign_joins_searchers_and_no_number():
    first, second = searcher_choices("mcmc:alpha=1e+2 + relink:every=3", "f")
    assert (first.name, first.options) == ("mcmc", {"alpha": "1e+2"})
    assert (second.name, second.options) == ("relink", {"every": "3"})
    for text in ("mcmc+", "+mcmc", "mcmc++relink"):
        with pytest.raises(TopoplanError, match=r"^f: .*nothing stands before or behind a plus sign"):
            searcher_choices(text, "f")
    with pytest.raises(TopoplanError, match=r"^f: expected a searcher, such as .*, got 3"):
        searcher_choices(3, "f")


class Refusing(Searcher):
    """Cannot search anything."""

    name = "refusing"
    axis = "strategy"

    def build(self, problem, rng):
        raise TopoplanError("searcher refusing: wants three layers")


@pytest.mark.slow
def test_a_searcher_that_refuses_a_problem_is_compared_all_the_same():
    given = {"servers": 2, "batch_size": 8, "budget": 3, "seeds": [1, 2]}
    report = compare_searchers("alexnet", ["random", Refusing], **given)
    (place,) = report.comparison.places
    random, refusing = place.searchers
    assert (random.refusal, refusing.refusal) == ("", "searcher refusing: wants three layers")
    assert refusing.times == [INF, INF]
    assert refusing.evaluations_to(INF) == [INF, INF]
    assert report.comparison.ranking.mean_ranks.tolist() == [1, 2]
    assert f"{place.name}: refusing has no plan and counts as the slowest: {refusing.refusal}" in notes(report)
    table = places_table(report)
    assert [table.cells(row)[2:4] for row in table.rows][1] == ["-", "no plan"]
    json.dumps(as_json(report), allow_nan=False)
    with pytest.raises(TopoplanError, match=r"^searcher refusing: wants three layers$"):
        compare_searchers("alexnet", [Refusing], **given)


def test_an_operator_graph_is_compared_and_its_runs_are_kept(tmp_path):
    graph = Host.discover().make("frontend", "alexnet", {}).build(8)
    given = {"servers": 2, "budget": 3, "seeds": [1]}
    report = compare_searchers(graph, ["random", "mcmc"], runs=tmp_path, **given)
    assert [place.name for place in report.comparison.places] == ["alexnet"]
    kept = {path.name for path in tmp_path.glob("*.json")}
    assert len(kept) == 2
    again = compare_searchers(graph, ["random", "mcmc"], runs=tmp_path, **given)
    assert {path.name for path in tmp_path.glob("*.json")} == kept
    times = [[searcher.times for searcher in each.comparison.places[0].searchers] for each in (report, again)]
    assert times[0] == times[1]
    other = Host.discover().make("frontend", "alexnet", {}).build(16)
    compare_searchers(other, ["random"], runs=tmp_path, **given)
    assert len({path.name for path in tmp_path.glob("*.json")}) == 3


SCRIPT = """
from topoplan import Candidate, Search, Searcher
from topoplan.errors import TopoplanError
from topoplan_studies import compare_searchers


class Still(Searcher):
    \"\"\"Proposes the state that it has.\"\"\"

    name = "still"
    axis = "strategy"

    def build(self, problem, rng):
        return StillSearch()


class StillSearch(Search):
    def ask(self):
        return [Candidate(base=self.state)]


if __name__ == "__main__":
    given = {"servers": 2, "batch_size": 8, "budget": 3, "seeds": [1, 2]}
    report = compare_searchers("alexnet", [Still(), "random", ["random", Still]], jobs=2, **given)
    (place,) = report.comparison.places
    print(report.comparison.labels, [run["evaluations"] for run in place.searchers[0].runs])
    assert "<td>random+still</td>" in report._repr_html_()
    for wrong in ({"searchers": [Still()], "runs": "kept"}, {"searchers": ["random", "random"]}):
        try:
            compare_searchers("alexnet", **wrong, **given)
        except TopoplanError as error:
            print(error)
"""


@pytest.mark.slow
def test_a_searcher_of_no_package_is_compared_in_worker_processes(tmp_path):
    (tmp_path / "notebook.py").write_text(SCRIPT)
    ended = subprocess.run(
        [sys.executable, "notebook.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
    )
    assert ended.returncode == 0, ended.stderr
    first, unkept, repeated = ended.stdout.splitlines()
    assert first == "('still', 'random', 'random+still') [4, 4]"
    assert unkept.startswith("compare_searchers: runs: searcher 'still' is in no package")
    assert repeated.endswith("must be one or more different ones")
