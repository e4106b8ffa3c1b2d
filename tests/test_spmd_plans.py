"""SPMD programs through the command line: planned, simulated, exported, read again, and changed."""

from __future__ import annotations

import json
import re

import pytest

from topoplan.cli import main
from topoplan.model.taskgraph import TaskKind
from topoplan_exporter_flatbuffer import Flatbuffer
from topoplan_exporter_json import Json
from topoplan_samples.as_flows import as_flows

SIZES = ("world-size=4", "layers=2", "width=64", "hidden=128", "heads=2", "positions=8", "words=60")
MODEL = ["bert-sgmoe", *(word for size in SIZES for word in ("-o", size)), "-e", "hidup"]
CLUSTER = ["--servers", "4", "--degree", "1", "--interface-bandwidth-gbps", "10"]


def run(capsys, *words):
    """Return the exit status, standard output and standard error of a command line."""
    with pytest.raises(SystemExit) as ending:
        main([str(word) for word in words])
    out, err = capsys.readouterr()
    return ending.value.code, out, err


def optimized(capsys, *words):
    status, out, err = run(capsys, "optimize", *MODEL, *CLUSTER, "--json", *words)
    assert status == 0, err
    return json.loads(out)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return a folder with a two-microbatch plan, of HiDup, in formats that can hold it."""
    folder = tmp_path_factory.mktemp("spmd")
    words = ["-s", "hidup", "-x", f"json={folder / 'plan.json'}", "-x", f"dot={folder / 'plan.dot'}"]
    with pytest.raises(SystemExit) as ending:
        main(["optimize", *MODEL, *CLUSTER, *words])
    assert ending.value.code == 0
    return folder


@pytest.mark.slow
def test_spmd_is_no_slower_than_the_plans_that_it_knows(capsys):
    spmd, hidup = (optimized(capsys, "-s", name) for name in ("spmd", "hidup"))
    said = spmd["planners"]["spmd"]
    assert said["simulated_s"]["hidup"] == hidup["iteration_time_s"]
    programs = {k: v for k, v in said["simulated_s"].items() if k not in ("initial strategy", "data parallelism")}
    assert spmd["iteration_time_s"] == min(programs.values())
    assert said["simulated_s"][said["chosen"]] == spmd["iteration_time_s"]
    fastest = optimized(capsys, "-s", "spmd", "--keep", "fastest")
    assert fastest["iteration_time_s"] == min(said["simulated_s"].values())
    assert hidup["schedule"]["kind"] == "two-microbatch"
    assert hidup["schedule"]["micro_batches"] == 2


def test_the_schedule_of_an_older_plan_is_read(saved):
    text = (saved / "plan.json").read_bytes()
    older = text.replace(b'"two-microbatch"', b'"duplex"')
    assert older != text
    assert Json().read(older, "plan.json").strategy == Json().read(text, "plan.json").strategy


def test_a_program_survives_in_a_plan(saved):
    plan = Json().read((saved / "plan.json").read_bytes(), "plan.json")
    assert plan.strategy.program is not None
    assert plan.strategy.program.mesh == (4,)
    assert (saved / "plan.dot").stat().st_size > 1000


@pytest.mark.parametrize(
    "simulator",
    ["fluid", "fluid:level=stepped", "flexnet", "fluid:gradient-sync=barrier", "fluid:collective=parameter-server"],
)
def test_a_saved_program_can_be_simulated(saved, capsys, simulator):
    status, out, err = run(capsys, "simulate", saved / "plan.json", "--simulator", simulator, "--json")
    assert status == 0, err
    report = json.loads(out)
    assert report["lower_bound_s"] <= report["iteration_time_s"] * (1 + 1e-9)


def test_a_search_can_start_from_a_program(saved, capsys):
    words = ("--strategy", f"{saved / 'plan.json'}", "--budget", "30")
    report = optimized(capsys, "-s", "mcmc", *words)
    hidup = optimized(capsys, "-s", "hidup")
    assert report["initial_iteration_time_s"] == hidup["iteration_time_s"]


@pytest.mark.slow
def test_networks_are_searched_for_a_program(capsys):
    report = optimized(capsys, "-s", "spmd", "-s", "totientperm", "--topology", "topoopt", "--degree", "2")
    said = report["planners"]["spmd"]["simulated_s"]  # under the one draw of paths that is searched
    assert report["draws"]["searched_iteration_time_s"] <= said["hidup"]
    assert report["iteration_time_s"] == pytest.approx(report["draws"]["searched_iteration_time_s"], rel=0.05)


@pytest.mark.parametrize(
    ("topology", "searcher"),
    [
        ("bigswitch", "hidup"),
        pytest.param("bigswitch", "spmd", marks=pytest.mark.slow),
        ("fully-connected", "hidup"),
        pytest.param("fully-connected", "spmd", marks=pytest.mark.slow),
    ],
)
def test_a_task_graph_for_flexnetpacket_takes_as_long(capsys, tmp_path, searcher, topology):
    """As flows: packets depend on the order of messages, too, and collectives are written out in another one."""
    file, saved = tmp_path / "plan.fbuf", tmp_path / "plan.json"
    optimized(capsys, "-s", searcher, "-t", topology, "-x", f"flatbuffer={file}", "-x", f"json={saved}")
    written, plan = Flatbuffer().read(file.read_bytes(), "x"), Json().read(saved.read_bytes(), "y")
    assert (written.taskgraph.kind == TaskKind.BARRIER).any()  # collectives written out
    seconds = [as_flows().makespan(one.taskgraph, one.fabric, one.cluster) for one in (written, plan)]
    assert seconds[0] == pytest.approx(seconds[1], rel=1e-5)


def test_a_format_that_cannot_say_it_says_so(capsys, tmp_path):
    file = tmp_path / "plan"
    status, _, err = run(capsys, "optimize", *MODEL, *CLUSTER, "-s", "hidup", "-x", f"strategy={file}")
    assert status == 2
    assert "this format cannot say" in " ".join(err.split())
    assert not file.exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.update(mesh=[2]), r"is cut by \(.*\), its placement by"),
        (lambda p: p.update(mesh=[]), r"\$\.strategy\.program: program: a mesh of \(\)"),
        (lambda p: p["rules"].pop(), r"signatures of \d+ operators"),
        (lambda p: p["rules"][0][0]["outputs"].clear(), "does not fit"),
        (lambda p: p["rules"][0][0]["outputs"][0].update(holding="gather", axis=9), "is none that computes the same"),
        (lambda p: p["rules"][0][0]["outputs"][0].update(holding="full", axis=1), "sharding full has no axis"),
        (lambda p: p["rules"][0][0]["outputs"][0].update(holding="half"), "expected full or gather or reduce"),
        (lambda p: p.update(sharded_state=1), "expected true or false, got 1"),
        (lambda p: p["stored"][0].pop(), "shardings of 2 arguments"),
    ],
)
def test_a_damaged_program_is_named(saved, capsys, tmp_path, change, message):
    document = json.loads((saved / "plan.json").read_text())
    change(document["strategy"]["program"])
    (tmp_path / "damaged.json").write_text(json.dumps(document))
    status, _, err = run(capsys, "simulate", tmp_path / "damaged.json")
    assert status == 2
    assert "Traceback" not in err
    assert re.search(message, " ".join(err.split())), err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-s", "spmd:shortlist=0"), "shortlist"),
        (("-s", "spmd:meshes=cube"), "meshes"),
        (("-s", "spmd:max-states=5"), "more than 5 states"),
        (("-s", "spmd", "--memory-gb", "0.0001"), "no plan fits: its weights take .* what would help"),
    ],
)
def test_what_cannot_be_planned_is_refused(capsys, words, message):
    status, _, err = run(capsys, "optimize", *MODEL, *CLUSTER, *words)
    assert status == 2
    assert re.search(message, " ".join(err.split())), err
