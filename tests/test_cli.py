"""The command line: what a person at a terminal, and a program behind a pipe, get."""

from __future__ import annotations

import json
import math

import pytest

SMALL = ["optimize", "dlrm", "-o", "arch-embedding-size=1000-1000", "--servers", "4", "--batch-size", "64"]
#: With FlexFlow's cuts, which its strategy files can say: no operator is cut along what its output lacks.
WRITABLE = [*SMALL, "-o", "dialect=flexnet"]


def test_optimize_prints_one_json_object_and_nothing_else(run):
    status, out, err = run(*SMALL, "--budget", "20", "--seed", "5", "--json")
    report = json.loads(out)
    assert (status, err) == (0, "")
    keys = {
        "iteration_time_s",
        "initial_iteration_time_s",
        "lower_bound_s",
        "evaluations",
        "evaluations_per_s",
        "seed",
        "model",
        "topology",
        "searcher",
        "simulator",
        "outputs",
    }
    assert keys <= report.keys()
    assert report["seed"] == 5
    assert report["evaluations"] == 21
    assert 0 < report["lower_bound_s"] <= report["iteration_time_s"] <= report["initial_iteration_time_s"]
    assert (report["model"], report["topology"], report["searcher"]) == ("dlrm", "bigswitch", "auto")


def test_optimize_prints_a_table(run):
    status, out, _ = run(*SMALL, "--budget", "5", "--details")
    assert status == 0
    first, _, _ = out.partition("in full")
    assert len(first.splitlines()) < 20
    assert all(row in first for row in ("iteration time", "limited by", "speedup", "memory per device"))
    for row in (
        "where the time goes",
        "initial iteration time",
        "iteration time",
        "speedup",
        "exposed communication",
        "busiest link",
        "memory per device",
        "lower bound",
    ):
        assert row in out


def test_one_seed_gives_one_plan(run, tmp_path):
    for name, seed in (("a", "3"), ("b", "3"), ("c", "4")):
        assert run(*SMALL, "--budget", "20", "--seed", seed, "-x", f"json={name}.json")[0] == 0
    first, repeat, second = ((tmp_path / f"{name}.json").read_bytes() for name in "abc")
    assert first == repeat
    assert first != second


def test_budget_zero_prices_the_initial_strategy_only(run):
    report = json.loads(run(*SMALL, "--budget", "0", "--json")[1])
    assert report["evaluations"] == 1
    assert report["iteration_time_s"] == report["initial_iteration_time_s"]


@pytest.mark.parametrize("suffix", [".fbuf", ".json"])
def test_what_optimize_wrote_simulates_to_the_same_time(run, suffix):
    exporter = {".fbuf": "flatbuffer", ".json": "json"}[suffix]
    report = json.loads(run(*SMALL, "--budget", "30", "-x", f"{exporter}=plan{suffix}", "--json")[1])
    assert report["outputs"] == {exporter: f"plan{suffix}"}
    # A task graph file does not say what simulated it, and is simulated with its program's transport otherwise.
    simulator = ["--simulator", "fluid:transport=wire"] if suffix == ".fbuf" else []
    replay = json.loads(run("simulate", f"plan{suffix}", *simulator, "--json")[1])
    # A plan holds every bit; the task graph file holds single-precision milliseconds.
    tolerance = 0 if suffix == ".json" else 1e-6
    assert math.isclose(replay["iteration_time_s"], report["iteration_time_s"], rel_tol=tolerance)
    for told in (report, replay):
        assert set(told["bounds"]) == {"device", "link", "chain", "collective"}
        assert max(told["bounds"].values()) == told["lower_bound_s"] <= told["iteration_time_s"] * (1 + 1e-9)
    of_plan, of_file = report["time_breakdown"], replay["time_breakdown"]
    assert of_file == pytest.approx(of_plan, rel=max(tolerance, 1e-12), abs=1e-9)
    assert of_file["wall_s"] == replay["iteration_time_s"]
    assert of_file["computation_s"] > 0
    assert of_file["communication_s"] > 0


def test_tables_show_what_a_device_does(run):
    for words in ([*SMALL, "--budget", "0", "--details", "-x", "json=plan.json"], ["simulate", "plan.json"]):
        rows = run(*words)[1]
        assert all(name in rows for name in ("wall time of device", "computation", "communication", "overlap", "idle"))


def test_simulate_on_another_topology_and_speed(run):
    run(*SMALL, "--budget", "0", "-x", "flatbuffer=plan.fbuf")
    times = {}
    for label, extra in {
        "own": [],
        "slow": ["--interface-bandwidth-gbps", "1"],
        "fattree": ["-t", "fattree"],
        "mesh": ["-t", "fully-connected", "--degree", "3"],
        "rings": ["-t", "topoopt", "--degree", "2"],
    }.items():
        status, out, err = run("simulate", "plan.fbuf", "--json", *extra)
        assert (status, err) == (0, "")
        times[label] = json.loads(out)["iteration_time_s"]
    assert times["slow"] > times["own"]
    assert times["mesh"] <= times["own"]


def test_run_reads_everything_from_a_file(run, tmp_path):
    (tmp_path / "experiment.toml").write_text(
        """
        [model]
        use = "dlrm"
        dialect = "flexnet"
        arch-embedding-size = [1000, 1000]
        [cluster]
        servers = 4
        [run]
        batch-size = 64
        budget = 20
        seed = 5
        [outputs]
        strategy = "best.strategy"
        """
    )
    from_file = json.loads(run("run", "experiment.toml", "--json")[1])
    assert (tmp_path / "best.strategy").exists()
    from_flags = json.loads(run(*WRITABLE, "--budget", "20", "--seed", "5", "-x", "strategy=a.strategy", "--json")[1])
    for key in ("iteration_time_s", "initial_iteration_time_s", "evaluations", "tasks"):
        assert from_file[key] == from_flags[key]
    overridden = json.loads(run("run", "experiment.toml", "--set", "run.budget=3", "--json")[1])
    assert overridden["evaluations"] == 4


def test_a_strategy_file_is_where_the_search_starts(run):
    first = json.loads(run(*WRITABLE, "--budget", "40", "-x", "strategy=a.strategy", "--json")[1])
    report = json.loads(run(*WRITABLE, "--budget", "0", "--strategy", "a.strategy", "--json")[1])
    assert report["iteration_time_s"] == first["iteration_time_s"]


def test_a_strategy_file_of_any_name_is_read_where_its_format_is_named(run):
    first = json.loads(run(*WRITABLE, "--budget", "40", "-x", "strategy=best=a.txt", "--json")[1])
    report = json.loads(run(*WRITABLE, "--budget", "0", "--strategy", "strategy=best=a.txt", "--json")[1])
    assert report["iteration_time_s"] == first["iteration_time_s"]
    status, _, err = run(*SMALL, "--strategy", "best=a.txt")
    assert status == 2
    assert "best=a.txt: no installed format reads this suffix" in err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["optimize", "dlmr"], "no frontend named 'dlmr'; did you mean 'dlrm'?"),
        ([*SMALL, "-t", "fat-tree"], "no topology named 'fat-tree'; did you mean 'fattree'?"),
        ([*SMALL, "-t", "fattree:oversubscription=0"], "topology fattree: oversubscription: 0"),
        ([*SMALL, "-s", "mcmc:alpha=-1"], "searcher mcmc: alpha: -1.0 is too small (more than 0)"),
        ([*SMALL, "-s", "mcmc:speed=1"], "searcher mcmc: no option 'speed'"),
        ([*SMALL, "-o", "arch-mlp-top"], "-o 'arch-mlp-top': expected KEY=VALUE"),
        ([*SMALL, "-x", "a.fbuf"], "-x 'a.fbuf': expected EXPORTER=PATH, such as flatbuffer=plan.fbuf"),
        ([*SMALL, "--strategy", "nofile"], "nofile: cannot be read (No such file or directory)"),
        ([*SMALL, "--devices", "8-16"], "got '8-16' (write integers with commas between, such as 8,16)"),
        ([*SMALL, "-o", "preset=x"], "preset: 'x' is none of dlrm16, dlrm32, dlrm128 (or leave it out)"),
        ([*SMALL, "--servers", "0"], "servers: 0 is too small (at least 1)"),
        ([*SMALL, "--interface-bandwidth-gbps", "0"], "interface-bandwidth-gbps: 0.0 is too small (more than 0)"),
        ([*SMALL, "--latency-us", "-1"], "latency-us: -1.0 is too small (at least 0)"),
        ([*SMALL, "--budget", "-1"], "budget: -1 is too small (at least 0)"),
        ([*SMALL, "--device", "A100"], "A100"),
        ([*SMALL, "-e", "measured"], "file"),
        ([*SMALL, "-e", "measured:file=missing.json"], "missing.json"),
        ([*SMALL, "-s", "totientperm"], "cannot be rewired"),
        ([*SMALL, "-x", "flatbufer=a.fbuf"], "no exporter named 'flatbufer'; did you mean 'flatbuffer'?"),
        ([*SMALL, "-x", "flatbuffer=no/such/folder/a.fbuf"], "does not exist"),
        ([*SMALL, "--strategy", "missing.strategy"], "missing.strategy: cannot be read"),
        (["simulate", "missing.fbuf"], "missing.fbuf: cannot be read"),
        (["simulate", __file__], "no installed format reads this suffix"),
        (["simulate", "plan.txt"], "plan.txt: cannot be read (No such file or directory)"),
        (["simulate", "."], ".: cannot be read (is a folder)"),
        (["run", "missing.toml"], "missing.toml: cannot be read"),
    ],
)
def test_bad_input_is_one_line_and_status_2(run, tmp_path, args, message):
    status, out, err = run(*args)
    assert status == 2
    assert out == ""
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["truncated", "garbage", "empty"])
@pytest.mark.parametrize("suffix", [".fbuf", ".json"])
def test_a_damaged_file_is_named(run, tmp_path, suffix, damage):
    exporter = {".fbuf": "flatbuffer", ".json": "json"}[suffix]
    run(*SMALL, "--budget", "0", "-x", f"{exporter}=plan{suffix}")
    path = tmp_path / f"plan{suffix}"
    data = path.read_bytes()
    path.write_bytes({"truncated": data[: len(data) // 2], "garbage": b"\x07" * 999, "empty": b""}[damage])
    status, out, err = run("simulate", str(path))
    assert (status, out) == (2, "")
    assert err.startswith(f"error: {path}")
    assert err.count("\n") == 1


def test_interrupt_writes_what_was_found(interrupted, tmp_path):
    status, out, err = interrupted(*SMALL, "--budget", "100000000", "-x", "json=plan.json", "--json")
    assert status == 130, err
    assert json.loads(out)["interrupted"] is True
    assert "interrupted" in err
    assert (tmp_path / "plan.json").exists()


def test_several_components_are_listed_with_commas_or_again(run):
    found = [
        json.loads(run(*SMALL, "--budget", "20", *words, "--json")[1])
        for words in (["-s", "mcmc,random"], ["-s", "mcmc", "-s", "random"])
    ]
    assert [one["searcher"] for one in found] == ["mcmc+random"] * 2
    assert found[0]["iteration_time_s"] == found[1]["iteration_time_s"]


def test_a_second_topology_is_refused_and_not_dropped(run):
    status, out, err = run(*SMALL, "-t", "bigswitch", "--budget", "5", "-t", "fattree")
    assert (status, out) == (2, "")
    assert err.startswith("error: --topology: is given 2 times (a run has one; topoplan compare -n NAME,NAME sets")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["optimize", "ncf", "--degree", "1.5"], "--degree: expected integer, got '1.5'"),
        (["optimize", "ncf", "--degree", "inf"], "--degree: expected integer, got 'inf'"),
        (["optimize", "ncf", "--degree", "0"], "--degree: 0 is too small (at least 1)"),
        (["optimize", "ncf", "--budget", "nan"], "--budget: expected integer, got 'nan'"),
        (["optimize", "ncf", "--budget="], "--budget: expected integer, got ''"),
        (["optimize", "ncf", "--latency-us", "fast"], "--latency-us: expected number, got 'fast'"),
        (["optimize", "ncf", "--latency-us", "nan"], "--latency-us: expected number, got 'nan'"),
        (["optimize", "ncf", "--degree="], "--degree: expected integer, got ''"),
        (["optimize", "ncf", "--servers", "1000000"], "--servers: 1000000 is too large (at most 131072)"),
        (["compare", "ncf", "-n", "bigswitch", "--servers", "4,0"], "--servers: 0 is too small (at least 1)"),
        (
            ["sweep", "ncf", "--batch-sizes", "8,x"],
            "--batch-sizes: expected integer, got 'x' (write integers with commas between, such as 8,16)",
        ),
        (["simulate", "plan.json", "--latency-us", "-1"], "--latency-us: -1.0 is too small (at least 0)"),
        (["sensitivity", "plan.json", "--budget", "-1"], "--budget: -1 is too small (at least 0)"),
        (["sensitivity", "plan.json", "--compute-noise", "0.2,1"], "--compute-noise: 1.0 is too large (less than 1)"),
        (["compare", "ncf", "-j", "1.5"], "--jobs: expected integer, got '1.5'"),
        (["compare", "ncf", "-j", "0"], "--jobs: 0 is too small (at least 1)"),
        (["sweep", "ncf", "--budget", "1e3"], "--budget: expected integer, got '1e3'"),
        (["flexnet", "--seed", "x", "dlrm"], "--seed: expected integer, got 'x'"),
        (["flexnet", "--seed", "-1", "dlrm"], "--seed: -1 is too small (at least 0)"),
    ],
)
def test_a_number_that_is_none_is_refused_in_one_line(run, words, message):
    assert run(*words) == (2, "", f"error: {message}\n")


@pytest.mark.parametrize("searcher", ["mcmc", "spmd", "pipeline"])
def test_a_batch_must_divide_over_data_parallelism_alone(run, searcher):
    """Six samples on four devices: two replicas of two parts, or stages of devices that have two samples and one."""
    words = ("optimize", "alexnet", "--servers", "4", "--batch-size", "6", "--budget", "4")
    status, out, err = run(*words, "-s", searcher, "--json")
    assert status == 0, err
    found = json.loads(out)
    assert 0 < found["iteration_time_s"] <= found["initial_iteration_time_s"]
