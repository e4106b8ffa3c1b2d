"""``topoplan compare`` with planners beside each other, and published values beside the results."""

from __future__ import annotations

import copy
import json

import pytest

from topoplan import Host, TopoplanError
from topoplan_studies.beside import PublishedValues, order_sentence, times_beside
from topoplan_studies.prices import default_prices
from topoplan_studies.results import network_results
from topoplan_studies.runspecs import run_specs
from topoplan_studies.study import study_from

TEXT = """# topoplan compare planned.toml
title = "Planned"
[cluster]
servers = 2
[vary]
gpus-per-server = [1, 2]
[estimator]
use = "hidup"
[[model]]
name = "B"
use = "bert-switch"
world-size = "{devices}"
experts = "{devices}"
layers = 2
width = 16
hidden = 32
heads = 2
positions = 8
words = 60
[[network]]
name = "switch"
use = "bigswitch"
[[planner]]
name = "shared"
[[planner.searcher]]
use = "baseline"
rule = "fastmoe"
[[planner]]
[[planner.searcher]]
use = "baseline"
[[claim]]
faster = "baseline"
slower = "shared"
[[published]]
model = "B"
of = "shared"
iteration-time = [1.0, 2.0]
overlap = [0.0, 0.5]
[[published]]
model = "B"
of = "baseline"
iteration-time = [0.5, "out of memory"]
"""


@pytest.fixture
def document():
    import tomllib

    return copy.deepcopy(tomllib.loads(TEXT))


@pytest.fixture
def study(document):
    return study_from(document, "planned", "planned.toml")


def test_every_planner_runs_at_every_setting(study):
    specs = run_specs(study, Host.discover(), default_prices(), None)
    assert [(spec.settings["gpus-per-server"], spec.planner) for spec in specs] == [
        (1, "shared"),
        (1, "baseline"),
        (2, "shared"),
        (2, "baseline"),
    ]
    assert [spec.experiment.model.options["experts"] for spec in specs] == [2, 2, 4, 4]
    assert [spec.experiment.searchers[0].options for spec in specs] == [{"rule": "fastmoe"}, {}] * 2


def test_planners_on_several_networks_are_named_by_both(document):
    document["network"].append({"use": "fully-connected", "name": "mesh"})
    document["claim"] = [{"faster": "shared on mesh", "slower": "shared on switch"}]
    document["published"] = []
    study = study_from(document, "f", "f.toml")
    assert study.labels == ("shared on switch", "baseline on switch", "shared on mesh", "baseline on mesh")


@pytest.mark.slow
def test_rows_have_planners_breakdowns_and_published_values(run, tmp_path):
    (tmp_path / "planned.toml").write_text(TEXT)
    status, out, err = run("compare", "planned.toml", "--json", "--write", "page.md")
    assert (status, err) == (0, "")
    report = json.loads(out)
    rows = {(row["planner"], row["at"]["gpus-per-server"]): row for row in report["rows"]}
    assert list(rows) == [("shared", 1), ("baseline", 1), ("shared", 2), ("baseline", 2)]
    for row in rows.values():
        breakdown = row["time_breakdown"]
        assert breakdown["wall_s"] == row["iteration_time_s"]["median"]
        assert 0 <= breakdown["overlap_ratio"] <= 1
    seconds = rows["shared", 2]["iteration_time_s"]["median"]
    assert rows["shared", 2]["published"] == {"iteration-time": 2.0, "overlap": 0.5}
    assert rows["shared", 2]["error"] == pytest.approx(seconds / 2 - 1)
    assert rows["baseline", 2]["published"] == {"iteration-time": "out of memory"}
    assert rows["baseline", 2]["error"] is None
    (claim,) = report["claims"]
    assert [place["ratio"] for place in claim["places"]] == [
        rows["shared", count]["iteration_time_s"]["median"] / rows["baseline", count]["iteration_time_s"]["median"]
        for count in (1, 2)
    ]
    page = (tmp_path / "page.md").read_text()
    assert "| model | gpus-per-server | shared, s (published) | baseline, s (published) |" in page
    assert f"{seconds:.4f} (2.0000, -100%)" in page
    assert "(out of memory)" in page
    assert "| model | gpus-per-server | planner | overlap (published) |" in page
    assert "| B | 2 | shared | 0.0% (50.0%) |" in page
    status, out, err = run("compare", "planned.toml")
    assert (status, err) == (0, "")
    for word in ("planner", "computation", "communication", "overlap", "published iteration time", "out of memory"):
        assert word in out


def test_published_order_by_hand(study):
    """Ours are in the published order at the first setting; at the second there is one published value alone."""
    specs = run_specs(study, Host.discover(), default_prices(), None)
    run = {
        "exposed_communication_s": 0.0,
        "lower_bound_s": 0.0,
        "fabric_lower_bound_s": None,
        "bandwidth_tax": None,
        "bounds": {"device": 0.0},
        "memory_bytes": 1.0,
        "memory_capacity_bytes": 2.0,
        "fits": True,
        "lacks": "",
        "interfaces": 1,
        "interfaces_used": 1,
        "interface_bandwidth_gbps": 1.0,
        "parts": [],
        "devices": {"A100-40": 2},
        "time_breakdown": {},
    }
    runs = [{**run, "iteration_time_s": seconds} for seconds in (1.1, 0.6, 1.0, 1.0)]
    runs[1]["lower_bound_s"] = 0.55
    results = network_results(specs, runs, default_prices())
    sentence = order_sentence(study, results)
    assert sentence.startswith(
        "Of 1 pairs at the same setting, 1 are in the published order, 0 in the other one, and 0 "
    )
    assert "published one at 1 of 1 settings" in sentence
    assert "by 20% in the median and 50% at most. 1 of 3 published times are below the lower bound" in sentence
    assert "| B | 1 | 1.1000 (1.0000, +10%) | 0.6000 (0.5000, +20%) |" in times_beside(study, results)
    assert PublishedValues.of(study).error(results[0]) == pytest.approx(0.1)


BAD = [
    ({"planner": [{"name": "x"}]}, "planner[0]: needs at least one [[planner.searcher]]"),
    ({"searcher": [{"use": "mcmc"}]}, "has [[planner]] and [[searcher]]"),
    ({"planner": [{"searcher": [{"use": "mcmc"}], "speed": 1}]}, "planner[0]: no key 'speed'"),
    ({"planner": [{"searcher": [{"use": "mcmc"}]}] * 2}, "planner: 'mcmc' is there twice"),
    ({"claim": [{"faster": "shared", "slower": "basline"}]}, "slower: no network or planner 'basline'; did you mean"),
    ({"published": [3]}, "published[0]: must be a table"),
    ({"published": [{"model": "C", "of": "shared"}]}, "published[0]: model: no 'C'"),
    ({"published": [{"model": "B", "of": "share"}]}, "published[0]: of: no 'share'; did you mean 'shared'"),
    ({"published": [{"model": "B", "of": "shared", "overlap": [1]}]}, "overlap: expected 2 values, one a setting"),
    ({"published": [{"model": "B", "of": "shared", "overlap": [1, True]}]}, "overlap: expected numbers, or a text"),
    ({"published": [{"model": "B", "of": "shared", "wall": [1, 2]}]}, "published[0]: no key 'wall'"),
]


@pytest.mark.parametrize(("changes", "message"), BAD, ids=[message for _, message in BAD])
def test_a_bad_study_is_told_by_section_and_key(document, changes, message):
    with pytest.raises(TopoplanError) as error:
        study_from({**document, **changes}, "f", "f.toml")
    assert message in str(error.value)
    assert str(error.value).startswith("f.toml: ")
