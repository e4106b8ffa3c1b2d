"""Plans that a search did not take: in order, with reasons that follow from their parts, and stated again by --plan."""

from __future__ import annotations

import json

import attrs
import pytest

from topoplan import Host, Searcher, TopoplanError, optimize
from topoplan_engine.experiment import Choice
from topoplan_engine.reporting.runners_up import plans_json, print_plans, runners_up_rows
from topoplan_frontend_huggingface import HuggingFace
from topoplan_samples.stated import LLAMA
from topoplan_searcher_stated.construct import strategy_of
from topoplan_searcher_stated.estimates import Estimate
from topoplan_searcher_stated.runners_up import KnownPlans, PlanParts, best_plans, front
from topoplan_searcher_stated.settings import Settings, settings_of

GIB = 2**30
#: Seconds and GiB of plans, and their parts.
PLANS = {
    Settings(tp=2, zero=1): (10.0, 60.0, PlanParts(8.0, 1.0, 1.0)),
    Settings(pp=4, zero=1): (12.0, 50.0, PlanParts(8.0, 0.5, 3.5)),
    Settings(tp=8, zero=1): (13.0, 40.0, PlanParts(8.5, 3.5, 1.0)),
    Settings(tp=2, zero=0): (9.0, 80.0, PlanParts(8.0, 1.0, 0.0)),
    Settings(tp=2, zero=1, recompute="full"): (11.0, 30.0, PlanParts(9.0, 1.0, 1.0)),
}


def known(*simulated):
    def estimate(plan):
        if plan not in PLANS:
            raise TopoplanError("cannot be built")
        return Estimate(PLANS[plan][0], PLANS[plan][1] * GIB)

    plans = list(PLANS)[:3]
    return KnownPlans(
        simulated={plans[k]: PLANS[plans[k]][0] for k in simulated},
        estimated=plans,
        usable=70.0 * GIB,
        estimate=estimate,
        parts=lambda plan: PLANS[plan][2],
        words=lambda plan: f"tp={plan.tp},pp={plan.pp},zero={plan.zero},recompute={plan.recompute}",
    )


def test_reasons_by_hand():
    """The bubble of four stages, traffic of eight tensor parallel devices, and memory without ZeRO."""
    best, bubble, traffic, large = best_plans(known(0, 1))
    assert (best["seconds"], best["simulated"], best["lost_by"]) == (10.0, True, "")
    assert bubble["lost_by"] == "bubble +25.0%"
    assert (traffic["simulated"], traffic["lost_by"]) == (False, "exposed traffic +25.0%, computation +5.0%")
    assert (large["fits"], large["lost_by"], large["plan"]) == (
        False,
        "memory: 10.0 GiB too much",
        "tp=2,pp=1,zero=0,recompute=none",
    )
    assert best_plans(known()) == []


def test_the_front_has_no_plan_that_is_slower_and_larger():
    """Twelve seconds for 50 GiB are worse than eleven for 30; what does not fit is left out."""
    assert [(point["seconds"], point["memory_gib"]) for point in front(known(0, 1))] == [(10.0, 60.0), (11.0, 30.0)]


def test_a_plan_of_the_front_has_the_seconds_that_were_simulated():
    """Four stages were estimated at 12 s for 50 GiB, and simulated at 9.9: the first plan is slower and larger."""
    plans = known(0)
    plans = plans._replace(simulated={**plans.simulated, Settings(pp=4, zero=1): 9.9})
    assert [(point["seconds"], point["memory_gib"]) for point in front(plans)] == [(9.9, 50.0), (11.0, 30.0)]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    path = tmp_path_factory.mktemp("llama") / "config.json"
    path.write_text(json.dumps(LLAMA))
    options = {"servers": 2, "gpus_per_server": 2, "batch_size": 8, "device": "h100", "precision": "bf16"}
    return optimize(
        HuggingFace(config=str(path)), searchers=["hybrid:shortlist=3,planners=no,divided=no,placed=no"], **options
    ).plan


@pytest.mark.slow
def test_plans_of_a_search_are_stated_again(found, capsys):
    lists = plans_json(found)
    best, points = lists["best_plans"], lists["front"]
    assert best[0]["plan"] == found.provenance["reports"]["hybrid"]["short"]
    assert best[0]["seconds"] == pytest.approx(found.timeline.makespan)
    simulated = [row["seconds"] for row in best if row["simulated"]]
    assert simulated == sorted(simulated)
    assert all(row["lost_by"] for row in best[1:])
    assert [row["memory_gib"] for row in points] == sorted((row["memory_gib"] for row in points), reverse=True)
    for row in (*best, *points):
        options = Choice.parse(f"stated:{row['plan']}", "searcher").make(Host.discover(), Searcher)
        assert strategy_of(settings_of(options, found.graph), found.graph, 4)
    print_plans(found)
    printed = capsys.readouterr().out.splitlines()
    assert all(any(line.endswith(f"  {row['plan']}") for line in printed) for row in (*best, *points))
    assert len(runners_up_rows(found)) == (len(simulated) > 1)


def test_what_is_no_list_of_plans_is_not_shown(capsys):
    found = optimize("alexnet", servers=2, batch_size=8, budget=0).plan
    for value in ("text", [1], [{"plan": "tp=2"}], [{"plan": 1, "seconds": 2, "memory_gib": 3, "lost_by": ""}]):
        plan = attrs.evolve(found, provenance={"reports": {"hybrid": {"best_plans": value, "front": value}}})
        assert plans_json(plan) == {}
        print_plans(plan)
        assert capsys.readouterr().out == ""
