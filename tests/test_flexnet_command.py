"""FlexNet's users move over: command lines from its README and scripts run unchanged, to the times that it prints."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from pathlib import Path

import pytest

from topoplan.cli import main
from topoplan.plugin.host import Host
from topoplan_command_flexnet.flags import FLAGS, MISSPELT, TOPOLOGIES
from topoplan_command_flexnet.programs import PROGRAMS
from topoplan_command_profile import operators_command
from topoplan_command_profile.torch_timer import Runs
from topoplan_operator_times.table import Bench
from topoplan_samples.long_tail import at_night

PAGE = (Path(__file__).parents[1] / "docs/flexnet.md").read_text(encoding="utf-8")

TABLES = "-".join(["10000000"] * 16)
#: The two lines of FlexNet's README, its slips included; NAMES in capitals are for the reader to fill in.
MODEL = (
    "./dlrmsim -ll:gpu 1 -ll:cpu 1 -ll:zsize 20000 -ll:fsize 39000 -ll:util 4  -dm:memoize --embedding-bag-size 100 "
    f"--arch-sparse-feature-size 256 --arch-embedding-size {TABLES} --arch-mlp-bot {'-'.join(['1024'] * 4)} "
    f"--arch-mlp-top {'-'.join(['2048'] * 8)}-1 "
)
PROFILING = MODEL + (
    "--search-budget 1 --interface-bandwidth 100 --inter-gpu-bandwidth 256 --gpu-dram-bandwidth 200 "
    "--network-latency 1 --net-opt 1 ---batch-size 4096  --nsimnode 16 --big-gpu 4 "
    "--simulator-workspace-size 38654705664 --measure"
)
EXECUTION = MODEL + (
    "--search-budget 5000 --interface-bandwidth 100 --degree 4 --inter-gpu-bandwidth 256 --gpu-dram-bandwidth 200 "
    "--network-latency 1 --net-opt 1 --enable-propagation ---batch-size 4096  --nsimnode 16 --big-gpu 4 "
    "--simulator-workspace-size 65536 \u2013mfile MEASUREMENTS --taskgraph TASKGRAPH --topology topoopt"
)
#: What TopoOpt's scripts always say.
ALWAYS = (
    "-ll:gpu 1 -ll:cpu 1 -ll:zsize 20000 -ll:fsize 10000 -ll:util 4 -dm:memoize --inter-gpu-bandwidth 200 "
    "--gpu-dram-bandwidth 256 --network-latency 1 --net-opt 1 --enable-propagation --simulator-workspace-size 65536 "
    "--big-gpu 4 --interface-bandwidth 100 --node-degree 4 "
)
DLRM16 = (
    f"DLRMsim/dlrmsim --embedding-bag-size 100 --arch-sparse-feature-size 256 --arch-embedding-size {TABLES} "
    f"--arch-mlp-bot {'-'.join(['1024'] * 8)} --arch-mlp-top {'-'.join(['2048'] * 16)}-1 "
    "--batch-size 16384 --nsimnode 16"
)
CANDLE16 = (
    f"candle_unosim/candle_unosim --dense-feature-layers {'-'.join(['4096'] * 12)} "
    f"--dense-layers {'-'.join(['4096'] * 8)}-1 --batch-size 16384 --nsimnode 16"
)
BERT16 = (
    "Transformersim//transformersim --num-layers 6 --sequence-length 256 --hidden-size 768 --num-heads 12 "
    "--batch-size 1024 --nsimnode 16"
)
VGG16 = "vgg16sim/vggsim --batch-size 4096 --nsimnode 16"
SMALL = {"ncfsim": "--ntables 2", "candle_unosim": "--dense-layers 64 --dense-feature-layers 64"}


@pytest.fixture
def flexnet(capsys, monkeypatch, tmp_path):
    """Run a command line in an empty folder; return (exit status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def run(line, *own, command="flexnet"):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([command, *own, *shlex.split(line)])
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    return run


@pytest.fixture
def measurements(flexnet_file, tmp_path):
    """Times of the README's operators for its batch of 4096 samples: those of four times the parts of 16384."""
    document = json.loads(flexnet_file("dlrm16").read_text())
    rows = []
    for row in document["measurements"]:
        axes, *inner, parts = row["pc_str"].split("-")
        if row["name"].startswith("Embed"):
            rows.append(row)
        elif int(parts) % 4 == 0:
            rows.append({**row, "pc_str": "-".join([axes, *inner, str(int(parts) // 4)])})
    path = tmp_path / "measure_4096_16.json"
    path.write_text(json.dumps({**document, "batch_size": 4096, "measurements": rows}))
    return path


@pytest.mark.slow
def test_line_of_the_readme_runs_to_its_task_graph(flexnet, measurements, tmp_path):
    line = EXECUTION.replace("MEASUREMENTS", measurements.name).replace("TASKGRAPH", "dlrm.fbuf")
    status, out, err = flexnet(line.replace("--search-budget 5000", "--search-budget 100"))
    assert status == 0, err
    assert re.search(r"^---batch-size +4096 +--batch-size 4096$", out, re.M)
    assert re.search(r"^--degree +4 +--degree 4$", out, re.M)
    assert re.search(rf"^\u2013mfile +{measurements.name} +-e measured:file={measurements.name},", out, re.M)
    for typed, name in (("--degree", "--node-degree"), ("---batch-size", "--batch-size"), ("\u2013mfile", "--mfile")):
        assert f"warning: {typed} is read as {name}; FlexNet skips it" in err
    exporter = Host.discover().make("exporter", "flatbuffer")
    plan = exporter.read((tmp_path / "dlrm.fbuf").read_bytes(), "dlrm.fbuf")
    assert plan.cluster.n_hosts == 16
    assert plan.fabric.link_count.sum() == 16 * 4
    assert plan.fabric.rings


def test_readmes_measuring_line_says_what_replaces_it(flexnet, tmp_path):
    status, out, err = flexnet(PROFILING)
    assert status == 2
    assert re.search(r"^--measure +nothing: `topoplan profile operators` measures$", out, re.M)
    assert "writes measure_4096_16.json, which --mfile takes" in err
    assert list(tmp_path.iterdir()) == []


def test_the_command_that_replaces_measuring_makes_the_file_for_the_next_line(flexnet, monkeypatch, tmp_path):
    """Steps 1 and 2 of FlexNet's README: the line that was printed instead of a measurement, then the execution."""
    monkeypatch.setattr(operators_command, "TorchTimer", _Timer)
    monkeypatch.setattr(operators_command, "check_torch", lambda word: None)
    line = re.search(r"`topoplan (profile .*?)`", flexnet(PROFILING)[2])[1]
    status, _, err = flexnet(line.removeprefix("profile "), command="profile")
    assert status == 0, err
    line = EXECUTION.replace("MEASUREMENTS", "measure_4096_16.json").replace("TASKGRAPH", "dlrm.fbuf")
    status, _, err = flexnet(line.replace("--search-budget 5000", "--search-budget 20"))
    assert status == 0, err
    assert (tmp_path / "dlrm.fbuf").stat().st_size > 1000


class _Timer:
    """Times without torch: a nanosecond for each byte."""

    bench = Bench("some processor", "2.9", 2, "fp32")

    def __init__(self, *options):
        pass

    def __call__(self, part):
        return Runs([1e-9 * part.nbytes], [2e-9 * part.nbytes])


def test_a_measurement_file_of_another_batch_is_refused(flexnet, flexnet_file, tmp_path):
    file = flexnet_file("dlrm16")
    status, _, err = flexnet(EXECUTION.replace("MEASUREMENTS", str(file)).replace("TASKGRAPH", "dlrm.fbuf"))
    assert status == 2
    assert "batch_size 16384 is not that of model 'dlrm', 4096 (use --batch-size 16384" in err
    assert list(tmp_path.iterdir()) == []


def test_a_measurement_file_of_another_node_count_is_refused(flexnet, measurements, tmp_path):
    line = EXECUTION.replace("MEASUREMENTS", measurements.name).replace("TASKGRAPH", "dlrm.fbuf")
    status, _, err = flexnet(line.replace("--nsimnode 16", "--nsimnode 8"))
    assert status == 2
    assert f"{measurements.name}: ngpus 16 is not the number of devices of the cluster, 8 (use --servers 16" in err
    assert list(tmp_path.iterdir()) == [measurements]


@pytest.mark.by_day(3)
@pytest.mark.parametrize(
    ("line", "file", "topology", "milliseconds"),
    [
        (DLRM16, "dlrm16", "fattree", 58.6007),
        (VGG16, "vgg16", "fattree", 212.0002),
        (BERT16, "transformer16", "fattree", 63.9835),
        (CANDLE16, "candle16", "fattree", 759.5721),
        (VGG16, "vgg16", "topoopt", 100.4792),
        (BERT16, "transformer16", "topoopt", 62.7494),
        (CANDLE16, "candle16", "topoopt", 218.3566),
    ],
)
def test_lines_of_the_scripts_give_flexnets_times(flexnet, flexnet_file, line, file, topology, milliseconds):
    """With no budget: what FlexNet prints for its initial strategy."""
    program, _, arguments = line.partition(" ")
    flags = f"{ALWAYS} {arguments} --mfile {flexnet_file(file)} --topology {topology} --search-budget 0"
    status, out, err = flexnet(f"{program} {flags}", "--json")
    assert status == 0, err
    assert json.loads(out)["iteration_time_s"] * 1e3 == pytest.approx(milliseconds, abs=1e-4)


PAIRS = list(itertools.product((program.names[0] for program in PROGRAMS), TOPOLOGIES))


@pytest.mark.by_day(2)
@pytest.mark.parametrize(("program", "topology"), at_night(PAIRS, *PAIRS[::5]))
def test_every_program_runs_on_every_topology(flexnet, tmp_path, program, topology):
    line = f"{program} {SMALL.get(program, '')} --nsimnode 4 --topology {topology} --budget 2 --taskgraph a --export b"
    status, out, err = flexnet(line, "--json")
    assert status == 0, err
    report = json.loads(out)
    assert report["outputs"] == {"flatbuffer": "a", "strategy": "b"}
    assert (tmp_path / "a").stat().st_size > 0
    assert report["iteration_time_s"] <= report["initial_iteration_time_s"]


@pytest.mark.slow
def test_the_line_that_is_shown_finds_the_same(flexnet):
    line = "dlrmsim --arch-embedding-size 1000-1000 --nsimnode 4 --topology topoopt --budget 60 --net-opt 1"
    status, out, err = flexnet(line, "--json", "--seed", "4")
    assert status == 0, err
    (shown,) = re.findall(r"the same in one line: topoplan optimize (.*)", err)
    status, repeat, err = flexnet(shown, "--json", command="optimize")
    assert status == 0, err
    reports = [json.loads(text) for text in (out, repeat)]
    for report in reports:
        del report["evaluations_per_s"], report["planning_seconds"], report["history"]["seconds"]
    assert reports[0] == reports[1]


@pytest.mark.parametrize("command", ["flexnet", "flexflow"])
def test_details_that_the_table_promises_are_printed(flexnet, command):
    program = "./alexnetsim --nsimnode 2 --topology fattree" if command == "flexnet" else "./alexnet -b 64"
    assert "more: --details" in flexnet(program, command=command)[1]
    status, out, err = flexnet(program, "--details", command=command)
    assert status == 0, err
    assert re.search(r"network of a host +│ +1 x 2\d", out) or command == "flexflow"
    assert re.search(r"evaluations +│ +1 ", out)


def test_a_strategy_that_was_exported_is_imported_whatever_its_name(flexnet):
    line = "dlrmsim --arch-embedding-size 1000-1000 --nsimnode 4 --topology fc --net-opt 1"
    first = json.loads(flexnet(f"{line} --budget 60 --export best.txt", "--json")[1])
    assert first["iteration_time_s"] < first["initial_iteration_time_s"]
    status, out, err = flexnet(f"{line} --import-strategy best.txt", "--json")
    assert status == 0, err
    assert json.loads(out)["initial_iteration_time_s"] == first["iteration_time_s"]


def test_errors_of_components_are_one_line_and_leave_nothing(flexnet, tmp_path):
    for flags, message in (
        ("--mfile missing.json", "missing.json: cannot be read"),
        ("--import missing.txt", "missing.txt: cannot be read"),
        ("--taskgraph no/such/folder/a.fbuf", "does not exist"),
    ):
        status, _, err = flexnet(f"dlrmsim --nsimnode 4 --topology fc --net-opt 1 --taskgraph a.fbuf {flags}")
        assert status == 2
        assert err.startswith("error: ")
        assert message in err
        assert err.count("\n") == 1
        assert list(tmp_path.iterdir()) == []


def test_the_page_names_every_flag_and_program():
    for flag in (*FLAGS, *(flag for program in PROGRAMS for flag in program.flags)):
        for name in flag.names:
            assert re.search(rf"`{re.escape(name)}( \w+)?`", PAGE), name
    for name in (*MISSPELT, *(name for program in PROGRAMS for name in program.names)):
        assert f"`{name}`" in PAGE, name


def test_the_example_on_the_page_runs(flexnet, tmp_path):
    (line,) = re.findall(r"^topoplan flexnet (.*)$", PAGE, re.M)
    status, _, err = flexnet(line)
    assert status == 0, err
    assert (tmp_path / "dlrm.fbuf").exists()
