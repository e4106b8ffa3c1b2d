"""Outputs that no plan can be written to are refused before the search; plans that one refuses are kept."""

from __future__ import annotations

import json
import re

import attrs
import networkx as nx
import pytest

from topoplan import Fabric, Host, TopoplanError
from topoplan_engine import ClusterOptions, Experiment, RunOptions, optimize, rebuilding
from topoplan_engine.experiment import Choice
from topoplan_exporter_flatbuffer import network, tables

HOST = Host.discover()


def experiment(output: str, searcher: str, budget: int = 5, **changes) -> Experiment:
    return attrs.evolve(
        Experiment(
            model="alexnet",
            cluster=ClusterOptions(servers=4),
            searchers=(Choice.parse(searcher, "searcher"),),
            run=RunOptions(batch_size=16, budget=budget),
            outputs=((Choice(output), "unused"),),
        ),
        **changes,
    )


def no_search(event, progress):
    raise AssertionError("the search began")


@pytest.mark.parametrize("output", ["strategy", "strategy-pb"])
@pytest.mark.parametrize(
    ("searcher", "kind"), [("spmd", "programs and pipelines"), ("pipeline", "programs and pipelines")]
)
def test_a_format_that_cannot_say_what_a_searcher_proposes_is_refused_before(output, searcher, kind):
    with pytest.raises(TopoplanError, match=f"^{output}: searcher '{searcher}' proposes {kind} alone, .*mcmc"):
        optimize(experiment(output, searcher), host=HOST, on_progress=no_search)


@pytest.mark.parametrize(("searcher", "budget"), [("spmd", 0), ("hpgo", 5), ("hidup", 5), ("mcmc", 5)])
def test_where_a_plan_may_be_said_it_is_searched_for(searcher, budget):
    plan = optimize(experiment("strategy", searcher, budget), host=HOST).plan
    assert HOST.make("exporter", "strategy").write(plan)


@pytest.mark.slow
def test_several_searchers_find_the_best_that_can_be_said():
    given = experiment("strategy", "mcmc", 60)
    both = attrs.evolve(given, searchers=(Choice("mcmc"), Choice("spmd")))
    free = optimize(attrs.evolve(both, outputs=()), host=HOST).plan
    plan = optimize(both, host=HOST).plan
    assert type(plan.strategy).__name__ == "PlacedStrategy"
    assert plan.timeline.makespan >= free.timeline.makespan


@pytest.mark.parametrize("output", ["megatron", "torchtitan", "deepspeed", "torchrun", "torch-schedule"])
def test_devices_that_stand_for_several_gpus_are_no_ranks(output):
    cluster = ClusterOptions(servers=4, gpus_per_device=2)
    assert HOST.make("exporter", output).refuses(built(cluster), None).startswith("a device of the plan stands for 2")
    with pytest.raises(SystemExit):
        refused(["optimize", "alexnet", "--servers", "4", "--gpus-per-device", "2", "-x", f"{output}=a"])


def built(options):
    from topoplan_engine import build_cluster

    return build_cluster(options, HOST)


def refused(words):
    from topoplan.cli import main

    main(words)


def test_half_precision_is_refused_by_torchtitan_before():
    run = RunOptions(batch_size=16, budget=5, precision="fp16")
    with pytest.raises(TopoplanError, match=r"^torchtitan: model 'alexnet' is planned in fp16, .*--precision bf16"):
        optimize(experiment("torchtitan", "spmd", run=run), host=HOST, on_progress=no_search)


def test_routes_of_all_pairs_are_counted_before(monkeypatch):
    monkeypatch.setattr(network, "MOST_PATHS", 20)
    from topoplan_exporter_flatbuffer import foreseen

    monkeypatch.setattr(foreseen, "MOST_PATHS", 20)
    tree = experiment("flatbuffer", "mcmc", topology=Choice("fattree"), cluster=ClusterOptions(servers=16))
    with pytest.raises(TopoplanError, match=r"^flatbuffer: the routes of 240 pairs of hosts have more than 20 paths"):
        optimize(tree, host=HOST, on_progress=no_search)


def test_links_of_one_way_are_found_before():
    from topoplan_engine.search.problems import problem_on_fabric

    exporter = HOST.make("exporter", "flatbuffer")
    ring = nx.DiGraph(name="one way")
    ring.add_nodes_from(range(4), kind="host")
    ring.add_edges_from(((a, (a + 1) % 4) for a in range(4)), bandwidth=1e9, latency=1e-6)
    fabric = Fabric.from_networkx(ring)
    graph = HOST.make("frontend", "alexnet").build(16)
    cluster = built(ClusterOptions(servers=4, interface_bandwidth_gbps=8.0))
    costs = HOST.make("estimator", "roofline").build(graph, cluster)
    problem = problem_on_fabric(graph, cluster, costs, fabric)
    assert "has no equal link back" in exporter.refuses_problem(problem, fabric)
    assert exporter.refuses_problem(problem, None) == ""


@pytest.mark.filterwarnings("default::topoplan.errors.TopoplanWarning")
def test_what_is_likely_to_be_refused_is_told_and_the_plan_is_kept(monkeypatch, tmp_path, capsys):
    from topoplan_exporter_flatbuffer import foreseen

    for module in (tables, foreseen):
        monkeypatch.setattr(module, "MOST_TASKS", 30)
    monkeypatch.chdir(tmp_path)
    words = ["optimize", "alexnet", "--servers", "4", "--budget", "3", "-s", "mcmc", "-x", "flatbuffer=a.fbuf"]
    for _ in range(2):
        with pytest.raises(SystemExit) as ended:
            refused(words)
        assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "flatbuffer: of the plan that the search starts from" in said
    assert "error: flatbuffer: " in said
    assert "the plan is kept in a.fbuf.json (topoplan show a.fbuf.json)" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.fbuf.2.json", "a.fbuf.json"]
    assert json.loads((tmp_path / "a.fbuf.json").read_bytes())["strategy"]


@pytest.mark.filterwarnings("default::topoplan.errors.TopoplanWarning")
def test_very_many_tasks_of_a_plan_that_is_kept_are_left_out(monkeypatch, tmp_path, capsys):
    """12.6 million tasks of a mixture of experts on 1,024 hosts were kept as 1.2 GB of JSON, by 10 GB of memory."""
    monkeypatch.setattr(tables, "MOST_TASKS", 30)
    monkeypatch.chdir(tmp_path)
    words = ["optimize", "alexnet", "--servers", "4", "--budget", "3", "-s", "mcmc", "-x", "flatbuffer=a.fbuf"]
    times = []
    for most in (1 << 20, 30):
        monkeypatch.setattr(rebuilding, "_MOST_LISTED", most)
        with pytest.raises(SystemExit):
            refused(words)
        times.append(re.search(r"iteration time.*?(\S+ ms)", capsys.readouterr().out)[1])
    kept = [json.loads((tmp_path / name).read_bytes()) for name in ("a.fbuf.json", "a.fbuf.2.json")]
    lengths = [len(plan["taskgraph"]["kind"]) for plan in kept]
    assert (lengths[0] > 30, lengths[1]) == (True, 1)
    assert kept[0]["strategy"] == kept[1]["strategy"]
    with pytest.raises(SystemExit, match="0"):
        refused(["show", "a.fbuf.2.json"])
    assert re.search(r"iteration time.*?(\S+ ms)", capsys.readouterr().out)[1] == times[0] == times[1]


def test_without_a_search_the_plan_at_the_start_is_refused_before_it_is_simulated(monkeypatch, tmp_path, capsys):
    from topoplan_exporter_flatbuffer import foreseen

    for module in (tables, foreseen):
        monkeypatch.setattr(module, "MOST_TASKS", 30)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        refused(["optimize", "alexnet", "--servers", "4", "--budget", "0", "-x", "flatbuffer=a.fbuf"])
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.err.startswith("error: flatbuffer: of the plan that the search starts from ")
    assert (said.out, list(tmp_path.iterdir())) == ("", [])


def test_a_plan_that_another_file_holds_is_not_kept_twice(monkeypatch, tmp_path):
    monkeypatch.setattr(tables, "MOST_TASKS", 30)
    monkeypatch.chdir(tmp_path)
    words = ["optimize", "alexnet", "--servers", "4", "--budget", "3", "-s", "mcmc", "-x", "flatbuffer=a.fbuf"]
    with pytest.raises(SystemExit):
        refused([*words, "-x", "json=a.json"])
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize("given", ["", ",", " "])
def test_no_trainer_is_no_value(given):
    with pytest.raises(TopoplanError, match=r"^--for .*: names no trainer \(have: deepspeed, megatron, torch, torch"):
        optimize(experiment("json", "spmd", run=RunOptions(trainers=(given,))), host=HOST, on_progress=no_search)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--write", "a.csv"], "--write a.csv: the page is Markdown, not .csv (name it a.md; --table writes rows)"),
        (["--write", "a.TEX"], "--write a.TEX: the page is Markdown"),
        (["--table", "a.md", "--write", "a.md"], "a.md: --table and --write both write to it (name two files)"),
        (["--table", "a.csv", "--plot", "./a.csv"], "a.csv: --table and --plot both write to it"),
    ],
)
def test_outputs_of_studies_have_files_of_their_own(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.toml").write_text(
        'title = "S"\nsource = "n"\nbudget = 0\n[[model]]\nuse = "alexnet"\n[[network]]\nuse = "bigswitch"\n'
    )
    with pytest.raises(SystemExit) as ended:
        refused(["compare", "s.toml", *words])
    assert ended.value.code == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith(f"error: {message}")
    assert "\n" not in said
