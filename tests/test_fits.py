"""A plan that does not fit, as users meet it: marked, explained, written all the same, and status 2."""

from __future__ import annotations

import json

import pytest

from topoplan_samples.long_tail import at_night

#: Two linear layers of 1024 channels: Adam keeps 16 bytes for each of 2.1 M parameters, 33.6 MB.
MODEL = """
[model]
use = "dlrm"
arch-embedding-size = [8]
arch-sparse-feature-size = 8
arch-mlp-bot = [8, 1024, 1024, 8]
arch-mlp-top = [16, 1024, 1]
[cluster]
servers = 4
[run]
batch-size = 64
budget = 5
"""


@pytest.fixture
def experiment(tmp_path):
    (tmp_path / "small.toml").write_text(MODEL)
    return "small.toml"


def test_what_does_not_fit_is_marked_and_ends_with_status_2(run, experiment, tmp_path):
    short = ("--set", "cluster.memory-gb=0.012", "--set", "outputs.json=plan.json", "--set", "run.budget=0")
    status, out, err = run("run", experiment, *short, "--json")
    report = json.loads(out)
    assert (status, report["fits"], report["speedup"]) == (2, False, None)
    parts = report["memory"]
    device = parts.pop("device")
    assert sum(parts.values()) == report["memory_bytes"] > report["memory_capacity_bytes"] == 12e6
    looked_up = 64 * (8 * 4 + 8)  # the gradient of the table: a row and an index for each sample
    assert parts["optimizer_bytes"] == 2 * (parts["gradients_bytes"] - looked_up) > 0
    for words in (
        f"device {device} needs",
        "of 10.5 MiB (11.4 MiB less a reserve of 8 %)",
        "optimizer state",
        "what would help",
        "-s spmd",
    ):
        assert words in report["lacks"]
    saved = json.loads((tmp_path / "plan.json").read_text())["memory"]
    columns = ("weights", "gradients", "optimizer", "activations", "undivided")
    assert sum(saved[name][device] for name in columns) == report["memory_bytes"]
    replay = json.loads(run("simulate", "plan.json", "--json")[1])
    assert (replay["fits"], replay["memory"]) == (False, {"device": device, **parts})
    assert "DOES NOT FIT" in run("simulate", "plan.json")[1]
    status, out, err = run("run", experiment, *short)
    assert status == 2
    assert "DOES NOT FIT" in out
    assert "too much" in out
    assert "no plan that was tried fits: device" in err


def test_what_fits_says_so(run, experiment):
    status, out, _ = run("run", experiment, "--json")
    report = json.loads(out)
    assert (status, report["fits"], report["lacks"]) == (0, True, None)
    assert report["speedup"] >= 1
    status, out, _ = run("run", experiment, "--set", "run.optimizer=sgd", "--json")
    assert json.loads(out)["memory"]["optimizer_bytes"] == 0


def test_ignored_memory_is_said_and_is_no_failure(run, experiment):
    ignored = ("--set", "cluster.memory-gb=0.000001", "--set", "simulator.use=fluid:memory=ignore")
    status, out, _ = run("run", experiment, *ignored, "--json")
    assert (status, json.loads(out)["fits"]) == (0, False)
    assert "(memory is ignored, as asked)" in run("run", experiment, *ignored)[2]


@pytest.mark.slow
@pytest.mark.parametrize("searcher", at_night(["spmd", "pipeline", "hpgo"], "spmd"))
def test_planners_do_not_save_memory_that_is_ignored(run, experiment, searcher):
    choice = ("--set", f"searcher.use={searcher}", "--json")
    ignored = ("--set", "simulator.use=fluid:memory=ignore")
    status, scarce, _ = run("run", experiment, *choice, *ignored, "--set", "cluster.memory-gb=0.000001")
    plenty = run("run", experiment, *choice, *ignored)[1]
    assert status == 0
    assert json.loads(scarce)["iteration_time_s"] == json.loads(plenty)["iteration_time_s"]
    assert (json.loads(scarce)["fits"], json.loads(plenty)["fits"]) == (False, True)


@pytest.mark.parametrize(
    ("searcher", "megabytes"),
    [
        *(
            (searcher, 4.0) for searcher in ("mcmc", "spmd", "pipeline", "hpgo", "hidup")
        ),  # less than what all must hold
        *((searcher, 4.7) for searcher in ("mcmc", "pipeline", "hpgo")),  # enough for slices, but not for these
    ],
)
def test_every_searcher_says_what_would_help(run, experiment, searcher, megabytes):
    small = ("--set", f"cluster.memory-gb={megabytes / 1e3}")
    status, _, err = run("run", experiment, "--set", f"searcher.use={searcher}", *small)
    assert status == 2
    assert "Traceback" not in err
    (line,) = [line for line in err.splitlines() if "what would help" in line]
    assert "devices of" in line


@pytest.mark.filterwarnings("always::topoplan.errors.TopoplanWarning")
def test_a_searcher_that_finds_nothing_leaves_the_others_to_search(run, experiment, tmp_path):
    """Stages keep weights whole, which takes more than a device has; programs cut them."""
    document = MODEL.replace("[run]", '[[searcher]]\nuse = "pipeline"\n[[searcher]]\nuse = "spmd"\n[run]')
    (tmp_path / "both.toml").write_text(document)
    status, out, err = run("run", "both.toml", "--set", "cluster.memory-gb=0.0052", "--json")
    assert err.startswith("warning: searcher pipeline: model 'dlrm': no pipeline fits")
    assert "what else there is goes on" in err
    assert (status, json.loads(out)["fits"]) == (0, True)


def test_a_model_that_fits_nowhere_is_refused_at_once(run):
    tables = ("-o", "arch-sparse-feature-size=512", "-o", "arch-mlp-bot=4-512")
    tables += ("-o", "arch-embedding-size=" + "-".join(["100000000"] * 4))
    status, out, err = run("optimize", "dlrm", *tables, "--servers", "4")
    assert (status, out) == (2, "")
    assert err.startswith("error: model 'dlrm': no plan fits: its weights take 762.9 GiB, ")
    assert "but the 4 devices hold 137.1 GiB together (149.0 GiB less a reserve of 8 %)" in err
    assert "what would help: (1) at least 23 devices of 37.3 GiB" in err  # 40 GB: 819.2 / 36.8
    assert "devices of at least 207.4 GiB (--device, --memory-gb 223)" in err


def test_a_toy_is_called_one(run):
    """The published DLRM script without options has tables of four rows: nothing that one would plan for."""
    status, out, err = run("optimize", "dlrm", "--servers", "2", "--batch-size", "64", "--budget", "0")
    assert status == 0
    assert "28 parameters" in out
    assert "is a toy; published configurations are -o preset=dlrm16, " in err
    for words in (("alexnet",), ("dlrm", "-o", "arch-embedding-size=100000-100000")):
        assert "toy" not in run("optimize", *words, "--servers", "2", "--batch-size", "64", "--budget", "0")[2]


def test_a_batch_that_was_not_asked_for_and_is_too_small_is_said(run):
    """The frontend's 64 samples on 128 devices."""
    words = ("optimize", "huggingface", "-o", "preset=gpt2", "-m", "dgx-h100", "--budget", "0")
    said = "a batch of 64 is huggingface's own, fewer samples than the 128 devices (--batch-size N trains on N)"
    for more, is_said in (((), True), (("--batch-size", "64"), False)):
        status, _, err = run(*words, "--servers", "16", *more)
        assert (status, said in err) == (0, is_said)
    status, _, err = run(*words, "--servers", "8")
    assert (status, "fewer samples" in err) == (0, False)


def test_a_reserve_is_left_free(run, experiment):
    """A plan that fills 93 % of a device fits beside a reserve of 5 %, and not of 8 %, the default."""
    needed = json.loads(run("run", experiment, "--set", "run.budget=0", "--json")[1])["memory_bytes"]
    tight = ("--set", f"cluster.memory-gb={needed / 0.93 / 1e9!r}", "--set", "run.budget=0")
    reports = {}
    for percent in ("0", "5", "8", "50"):
        reserve = () if percent == "8" else ("--set", f"cluster.memory-reserve-percent={percent}")
        reports[percent] = json.loads(run("run", experiment, *tight, *reserve, "--json")[1])
    assert {percent: report["fits"] for percent, report in reports.items()} == {
        "0": True,
        "5": True,
        "8": False,
        "50": False,
    }
    capacity = reports["8"]["memory_capacity_bytes"]
    assert reports["8"]["memory_reserve_bytes"] == pytest.approx(0.08 * capacity)
    assert "a smaller reserve than 8 % (--memory-reserve-percent)" in reports["8"]["lacks"]
    assert "  reserve" in run("run", experiment, *tight, "--details")[1]
    status, _, err = run("run", experiment, "--set", "cluster.memory-reserve-percent=100")
    assert (status, "cluster: memory-reserve-percent: 100.0 is too large (at most 99)" in err) == (2, True), err


#: A plan that keeps all activations of the batch on each device, three times what data parallelism keeps in all.
WASTEFUL = (
    *("optimize", "transformer", "--servers", "1", "--gpus-per-server", "8", "--batch-size", "64"),
    *("--plan", "tp=8,sp=no,micro-batch=64", "--memory-gb", "3"),
)


def test_a_stated_plan_that_does_not_fit_is_no_other_plan(run, tmp_path):
    """The start of the search fits, and is not what users stated: it is named beside the plan, which gets no file."""
    files = {name: tmp_path / f"plan.{name}" for name in ("dtensor", "json")}
    outputs = [word for name, file in files.items() for word in ("-x", f"{name}={file}")]
    status, out, err = run(*WASTEFUL, *outputs)
    assert status == 2
    assert "DOES NOT FIT" in out
    assert "beside it: initial strategy" in out
    assert "to launch" not in out
    assert "the plan does not fit: device" in err
    assert "the nearest plan that fits: --plan tp=8" in err
    assert "plan.dtensor is not written" in err
    assert [file.exists() for file in files.values()] == [False, True]
    assert json.loads(run("simulate", str(files["json"]), "--json")[1])["fits"] is False
    assert run(*WASTEFUL, "--keep", "fastest")[0] == 0


def test_a_stated_plan_that_a_hard_limit_refuses_is_an_error(run, tmp_path):
    file = tmp_path / "plan.json"
    status, out, err = run(*WASTEFUL, "--simulator", "fluid:memory=limit", "-x", f"json={file}")
    assert (status, out, file.exists()) == (2, "", False)
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert "the stated plan does not fit: device" in line
    assert "the nearest plan that fits: --plan tp=8" in line
