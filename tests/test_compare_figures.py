"""Figures of ``topoplan compare``: what a file may say, seeds, claims, measurements; and those under experiments/."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import attrs
import pytest

from topoplan import Host, TopoplanError
from topoplan_engine.tomlfiles import read_toml
from topoplan_estimator_measured import profiles
from topoplan_samples.long_tail import at_night
from topoplan_studies.hypotheses import Comparison
from topoplan_studies.prices import Basis, default_prices
from topoplan_studies.results import NetworkResult, Spread
from topoplan_studies.runspecs import all_measured, run_specs
from topoplan_studies.store import inputs
from topoplan_studies.study import study_from
from topoplan_studies.tables import StudyReport, study_table

ROOT = Path(__file__).parents[1]
#: Other commands have experiments too.
EXPERIMENTS = sorted(
    path for path in (ROOT / "experiments").glob("*.toml") if path.read_text().startswith("# topoplan compare ")
)
#: Experiments of many runs, whose networks are all built to be priced.
LARGE = ("dedicated-d4", "dedicated-d8", "degree")
BAD_FIGURES = [
    ({"titel": "x"}, "no section 'titel'; did you mean 'title'"),
    ({"model": []}, "needs at least one [[model]]"),
    ({"model": [{"name": "D"}]}, 'model[0]: needs use = "name of a component"'),
    ({"model": [{"use": "dlrm", "batch-size": "x"}]}, "model[0]: batch-size: expected a positive integer"),
    (
        {"model": [{"use": "dlrm", "measured": {"use": "measured", "file": 3}}]},
        "measured: file: expected the name of a file",
    ),
    ({"network": [{"use": "topoopt", "name": 3}]}, "network[0]: name: expected text"),
    ({"network": [{"use": "topoopt", "costs-as": "x"}], "claim": []}, "costs-as: no network 'x'"),
    ({"network": [{"use": "topoopt", "costs-as": "topoopt"}], "claim": []}, "has no cost of its own to go by"),
    ({"vary": {"device": ["A", "B"]}}, "vary: 'device' cannot vary (have: batch-size,"),
    ({"vary": {"degree": 4}}, "vary: degree: expected a list of numbers"),
    ({"vary": {"degree": ["x"]}}, "vary: degree: expected integer, got 'x'"),
    ({"claim": [{"faster": "panel", "slower": "trees"}]}, "slower: no network 'trees'; did you mean 'tree'"),
    ({"claim": [{"faster": "panel", "slower": "tree", "by": 2}]}, "claim[0]: no key 'by'"),
    ({"cluster": [1]}, "cluster: must be a table"),
    ({"searcher": 3}, "searcher: must be a list of tables"),
]


@pytest.mark.parametrize(("changes", "message"), BAD_FIGURES, ids=[message for _, message in BAD_FIGURES])
def test_a_bad_figure_is_told_by_section_and_key(comparison, changes, message):
    with pytest.raises(TopoplanError) as error:
        study_from({**comparison, **changes}, "f", "f.toml")
    assert message in str(error.value)
    assert str(error.value).startswith("f.toml: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[cluster\nservers = 4",
            "small.toml: is not TOML (Expected ']' at the end of a table declaration (at line 1, column 9)",
        ),
        ("budget = 'many'", "small.toml: budget: expected integer"),
    ],
)
def test_a_broken_file_ends_with_one_line(run, tmp_path, text, message):
    (tmp_path / "small.toml").write_text(text)
    status, out, err = run("compare", "small.toml")
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("key", ["precision-speedup", "precision_speedup"])
def test_a_setting_of_two_words_is_read_as_options_are(comparison, key):
    assert study_from({**comparison, "precision": "bf16", key: 2}, "f", "f.toml").run.precision_speedup == 2
    with pytest.raises(TopoplanError, match=r"no section 'precision-speed'; did you mean 'precision-speedup'\?$"):
        study_from({**comparison, "precision-speed": 2}, "f", "f.toml")


def test_a_network_that_cannot_be_as_cheap_keeps_its_bandwidth_and_says_so(comparison):
    dear = {"name": "all", "use": "fully-connected", "costs-as": "tree"}
    comparison.update(network=[{"name": "tree", "use": "bigswitch"}, dear], cluster={"servers": 32}, claim=[])
    specs = run_specs(study_from(comparison, "f", "f.toml"), Host.discover(), default_prices(), None)
    slow = next(cell for cell in specs if cell.network == "all" and cell.settings["interface-bandwidth-gbps"] == 10)
    assert slow.experiment.cluster.interface_bandwidth_gbps == 10
    assert slow.target.network == "tree"
    assert "it keeps its bandwidth, as prices of topoplan: the network costs" in slow.target.reason


def test_a_network_that_cannot_be_built_is_told_with_its_place(comparison):
    comparison.update(network=[{"name": "odd", "use": "fattree", "k": 3}], claim=[])
    with pytest.raises(TopoplanError, match=r"network 'odd', interface-bandwidth-gbps 10: .*k 3 is odd"):
        run_specs(study_from(comparison, "f", "f.toml"), Host.discover(), default_prices(), None)


@pytest.mark.slow
def test_a_price_file_that_lacks_a_part_is_told(run, finished, tmp_path):
    text = (ROOT / "libs/studies/src/topoplan_studies/prices/default.toml").read_text()
    (tmp_path / "own.toml").write_text(text.replace("[[patch-panel-port]]\nprice = 100\n", "[[patch-panel-port]]\n"))
    status, out, err = run("compare", "small.toml", "--prices", "own.toml")
    assert (status, out) == (2, "")
    assert err.startswith("error: prices own.toml: patch-panel-port[0]: price: is missing")
    (tmp_path / "own.toml").write_text(text[: text.index("[[patch-panel-port]]")] + text[text.index("[[ocs-port]]") :])
    status, out, err = run("compare", "small.toml", "--prices", "own.toml")
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert "prices own.toml: no [[patch-panel-port]], which the network needs" in err


@pytest.mark.slow
def test_seeds_are_repeated_and_their_spread_shown(run, rows, finished):
    status, out, _ = run("compare", "small.toml", "--json")
    assert status == 0
    for row in rows(out).values():
        times = sorted(one["iteration_time_s"] for one in row["runs"])
        assert [one["seed"] for one in row["runs"]] == [1, 2]
        assert row["iteration_time_s"] == {"least": times[0], "median": sum(times) / 2, "most": times[1]}


def test_a_claim_is_judged_at_every_place(run, rows, finished):
    _, out, _ = run("compare", "small.toml")
    assert "\npanel is faster than tree: holds in " in out
    _, out, _ = run("compare", "small.toml", "--json")
    judgement, by_place = json.loads(out)["claims"][0], rows(out)
    assert judgement["claim"] == "panel is faster than tree"
    assert judgement["holds"] + judgement["equal"] + judgement["fails"] == len(judgement["places"]) == 2
    for one in judgement["places"]:
        gbps = one["at"]["interface-bandwidth-gbps"]
        panel, tree = (by_place[name, gbps]["iteration_time_s"]["median"] for name in ("panel", "tree"))
        ratio = tree / panel
        assert one["ratio"] == pytest.approx(ratio)
        assert one["outcome"] == ("equal" if abs(ratio - 1) < 0.0099 else "holds" if ratio > 1 else "fails")
        assert ("causes" in one) == (one["outcome"] == "fails")


def row(network, seconds, *, gbps=100.0, interfaces=1, tax=1.0):
    return NetworkResult(
        model="m",
        network=network,
        settings={},
        time=Spread(*seconds),
        exposed=0.0,
        bound=0.0,
        fabric_bound=None,
        tax=tax,
        compute=0.5,
        memory=0.0,
        capacity=1.0,
        interfaces=interfaces,
        used=interfaces,
        gbps=gbps,
        cost=1.0,
        target=None,
        basis=Basis.LISTED,
        runs=(),
    )


def test_a_plan_that_fits_goes_before_one_that_does_not(comparison):
    fits, lacks = row("panel", (3.0, 3.0, 3.0)), attrs.evolve(row("tree", (1.0, 1.0, 1.0)), fits=False, lacks="1 GiB")
    assert Comparison(faster=fits, slower=lacks).outcome == "holds"
    fails = Comparison(faster=lacks, slower=fits)
    assert fails.outcome == "fails"
    assert fails.causes[0] == "the plan of tree does not fit into memory"
    report = StudyReport(
        study=study_from({**comparison, "vary": {}}, "f", "f.toml"),
        results=[fits, lacks],
        tests=[],
        prices=default_prices(),
        measured=False,
    )
    assert [study_table(report).cells(result)[3] for result in (fits, lacks)] == ["3,000 ms", "1,000 ms (DOES NOT FIT)"]


def test_what_does_not_fit_is_marked(run):
    """AlexNet keeps a gigabyte under Adam, on every device until matrices are cut, which so few proposals do not."""
    words = ("--networks", "bigswitch,fattree", "--seeds", "1,2", "--budget", "2", "-s", "mcmc", "--memory-gb", "0.4")
    words = ("compare", "alexnet", "--servers", "4", "--batch-size", "64", *words)
    status, out, _ = run(*words)
    assert status == 0
    for result in json.loads(run(*words, "--json")[1])["rows"]:
        assert not result["fits"]
        assert "what would help" in result["lacks"]
        assert result["memory_bytes"] > result["memory_capacity_bytes"] == 368e6  # 0.4 GB less 8 %
    assert out.count("DOES NOT FIT: alexnet") == 2


@pytest.mark.parametrize(
    ("panel", "tree", "causes"),
    [
        ({}, {"gbps": 440.0}, ["tree has 1.10 times the bandwidth at each host"]),
        ({"tax": 1.4}, {}, ["hosts of panel send 1.40 bytes for each byte asked, as they forward, those of tree 1.00"]),
        ({"tax": 1.4}, {"gbps": 800.0}, ["tree has 2.00 times", "hosts of panel send 1.40"]),
        ({}, {}, ["neither bandwidth nor forwarding"]),
        ({"tax": None}, {"tax": None}, ["neither bandwidth nor forwarding"]),
    ],
)
def test_where_a_claim_fails_it_is_told_why(panel, tree, causes):
    panel_row = row("panel", (2.0, 2.1, 2.2), **{"interfaces": 4, **panel})
    tree_row = row("tree", (1.0, 1.1, 1.2), **{"gbps": 400.0, **tree})
    comparison = Comparison(faster=panel_row, slower=tree_row)
    assert comparison.outcome == "fails"
    assert len(comparison.causes) == len(causes)
    assert all(told.startswith(cause) for told, cause in zip(comparison.causes, causes, strict=True))
    near = Comparison(faster=panel_row, slower=row("tree", (1.0, 1.1, 2.05), **{"gbps": 400.0, **tree}))
    assert near.causes == (*comparison.causes, "the seeds overlap")


def test_measurements_take_over_where_their_folder_is_given(tmp_path, comparison):
    (tmp_path / "d-64.json").write_text("{}")
    model = {"use": "dlrm", "batch-size": 64, "measured": {"use": "measured", "file": "d-{batch-size}.json"}}
    study = study_from({**comparison, "model": [model]}, "f", "f.toml")
    host, prices = Host.discover(), default_prices()
    assert {cell.experiment.estimator for cell in run_specs(study, host, prices, None)} == {None}
    assert not all_measured(study, None)
    assert all_measured(study, tmp_path)
    (estimator,) = {cell.experiment.estimator.options["file"] for cell in run_specs(study, host, prices, tmp_path)}
    assert estimator == str(tmp_path / "d-64.json")
    model["batch-size"] = 128
    with pytest.raises(TopoplanError, match=r"model 'dlrm': no file .*d-128\.json"):
        run_specs(study_from({**comparison, "model": [model]}, "f", "f.toml"), host, prices, tmp_path)


# ── The experiments of the repository ───────────────────────────────────────────────────────────────────


@cache
def study_and_runs(path):
    study = study_from(read_toml(path), path.stem, str(path))
    return study, run_specs(study, Host.discover(), default_prices(), None)


@pytest.mark.parametrize(
    "path", at_night(EXPERIMENTS, *(path for path in EXPERIMENTS if path.stem not in LARGE)), ids=lambda path: path.stem
)
def test_an_experiment_names_what_exists(path):
    study, todo = study_and_runs(path)
    if not study.compares_planners:
        assert {cell.experiment.topology.name for cell in todo} >= {"topoopt", "fattree", "bigswitch"}
    inputs(Host.discover(), todo[0].experiment)
    assert path.read_text().startswith(f"# topoplan compare experiments/{path.name}\n")


#: Those whose operators are measured by others; language models are priced by constants of their devices.
OF_NETWORKS = [path for path in EXPERIMENTS if not path.stem.startswith(("hidup-", "llama-", "deepseek-"))]


@pytest.mark.parametrize(
    "path", at_night(OF_NETWORKS, *(p for p in OF_NETWORKS if p.stem not in LARGE)), ids=lambda path: path.stem
)
def test_an_experiment_has_its_measurements(path):
    study, todo = study_and_runs(path)
    assert all_measured(study, None)
    for choice in {(choice.name, choice.options["profile"]) for choice in (cell.experiment.estimator for cell in todo)}:
        assert choice[0] == "measured"
        assert choice[1] in profiles.names()


@pytest.mark.slow
def test_an_experiment_runs_as_it_is(run):
    words = ["--servers", "4", "--budget", "0", "--seeds", "1", "--interface-bandwidth-gbps", "100"]
    status, out, err = run("compare", str(ROOT / "experiments/dedicated-d4.toml"), *words)
    assert status == 0, err
    assert "operator times: measured" in out
    _, out, _ = run("compare", str(ROOT / "experiments/dedicated-d4.toml"), *words, "--json")
    assert len(json.loads(out)["rows"]) == 6 * 5


def test_there_are_experiments():
    assert len(EXPERIMENTS) >= 4
