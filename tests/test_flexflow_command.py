"""``topoplan flexflow``: FlexFlow's own command lines: each flag is read, or listed with its reason."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from topoplan_command_flexnet.flexflow.flags import FLAGS, PROGRAMS
from topoplan_command_flexnet.programs import program_of

# Warnings are part of what these tests are about: they reach standard error, as in the command.
pytestmark = pytest.mark.filterwarnings("always::topoplan.errors.TopoplanWarning")

#: The command line of FlexFlow's README of 2019 (commit 327e4717), behind the program's name.
README = (
    "-e 10 -b 256 --lr 0.1 --wd 1e-4 -p 10 -d path_to_dataset -s path_to_strategy "
    "-ll:gpu 4 -ll:fsize 90000 -ll:zsize 5000 -ll:cpu 4"
)
STRATEGY = "2\nconv1 0 4 1 1 1 4 4 3 2 1 0\nlinear1 0 2 3 1 3 0 2 3\n"


def line_of(out):
    """The words of ``the same in one line``."""
    return shlex.split(re.search(r"^the same in one line: topoplan (.*)$", out, re.MULTILINE)[1])


def rows_of(out):
    """Flag -> what became of it."""
    table = out.partition("\n\n")[0].splitlines()[1:]
    return {row.split()[0]: re.split(r"\s{2,}", row)[-1] for row in table}


def test_the_command_line_of_flexflows_readme(run, tmp_path):
    (tmp_path / "path_to_strategy").write_text(STRATEGY)
    status, out, err = run("flexflow", "./alexnet", *README.split())
    assert status == 0
    rows = rows_of(out)
    assert rows["-b"] == "--batch-size 256"
    assert rows["-s"] == "--strategy strategy=path_to_strategy --strategy-rest data-parallel"
    assert rows["-ll:gpu"] == "--gpus-per-server 4"
    assert rows["-ll:fsize"] == "--memory-gb 94.3718, of each GPU"  # 90000 MiB
    for flag in ("-e", "--lr", "--wd", "-p", "-d"):
        assert rows[flag] == "nothing: for training runs; nothing is trained here"
    for flag in ("-ll:zsize", "-ll:cpu"):
        assert rows[flag] == "nothing: out of scope: for Legion, which maps and runs tasks"
    assert "note: nothing is trained: one iteration is planned and simulated." in err
    assert "Legion, which maps and runs FlexFlow's tasks, is out of scope." in err
    assert "names 2 of 13 operators of 'alexnet'; the other 11 run data parallel" in err
    assert "90.0 GB" not in out
    assert "of 87.9 GiB" in out  # 94.4 GB


def test_the_line_that_is_printed_gives_the_same(run, tmp_path):
    (tmp_path / "s.txt").write_text(STRATEGY)
    words = ["-b", "256", "-s", "s.txt", "-ll:gpu", "2", "--nodes", "2", "-ll:fsize", "15000", "--budget", "20"]
    words += ["--alpha", "0.05", "--overlap"]
    status, out, err = run("flexflow", "--seed", "3", "--json", "alexnet", *words)
    assert status == 0
    report = json.loads(out)
    again = json.loads(run(*line_of(err), "--json")[1])
    for key in ("iteration_time_s", "initial_iteration_time_s", "evaluations", "strategy"):
        assert report[key] == again[key]


def test_without_a_strategy_it_is_data_parallelism(run):
    status, out, _ = run("flexflow", "alexnet", "-ll:gpu", "2")
    assert status == 0
    assert rows_of(out)["--strategy"] == "data parallelism, as in FlexFlow"


@pytest.mark.parametrize(
    ("program", "frontend"),
    [
        ("./alexnet", "alexnet"),
        ("examples/cpp/DLRM/dlrm", "dlrm"),
        ("inception", "inception-v3"),
        ("InceptionV3", "inception-v3"),
        ("resnet", "resnet50"),
        ("candle_uno", "candle-uno"),
        ("transformer", "transformer"),
        ("mixture_of_experts", "moe"),
        ("python/alexnet.py", "alexnet"),
        ("alexnetsim", "alexnet"),
    ],
)
def test_programs(program, frontend):

    assert program_of(program, PROGRAMS).frontend == frontend


def test_options_of_a_program(run):
    words = (
        "-ll:gpu 2 --arch-embedding-size 1000-1000 --arch-sparse-feature-size 4 --arch-mlp-bot 8-4 --arch-mlp-top 12-2"
    )
    out = run("flexflow", "dlrm", *words.split(), "--strategy", "dlrm.pb")[2]
    assert "dlrm.pb: cannot be read" in out
    status, out, _ = run("flexflow", "dlrm", *words.split())
    assert status == 0
    assert "-o arch-embedding-size=1000-1000" in out


def test_files_that_are_written_can_be_read_again(run, tmp_path):
    assert run("flexflow", "alexnet", "-ll:gpu", "2", "--export", "a.pb", "--taskgraph", "a.dot")[0] == 0
    assert (tmp_path / "a.dot").read_text().startswith("digraph")
    first = json.loads(run("flexflow", "--json", "alexnet", "-ll:gpu", "2")[1])
    again = json.loads(run("flexflow", "--json", "alexnet", "-ll:gpu", "2", "--import", "a.pb")[1])
    assert again["iteration_time_s"] == first["iteration_time_s"]


def test_names_of_later_versions_choose_the_dialect(run, tmp_path):
    (tmp_path / "s.txt").write_text("1\nConv2D_100 0 4 1 1 1 2 2 1 0\n")
    status, out, err = run("flexflow", "alexnet", "-ll:gpu", "2", "-s", "s.txt")
    assert status == 0
    assert rows_of(out)["-s"].endswith(", -o dialect=flexnet for its names")
    assert "names 1 of 13 operators" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nmt"], "'nmt' is no program of FlexFlow that is planned here (programs: alexnet, candle_uno, dlrm,"),
        (["alexnet", "-ll:gpu", "0"], "-ll:gpu: '0' must be a whole number of at least 1"),
        (["alexnet", "-b"], "-b: needs a value"),
        (["alexnet", "-ll:fsize", "15k"], "-ll:fsize: '15k' must be a whole number of at least 1"),
        (["alexnet", "-s", "missing.pb"], "missing.pb: cannot be read (No such file or directory)"),
    ],
)
def test_bad_words_are_one_line(run, words, message):
    status, _, err = run("flexflow", *words)
    assert status == 2
    assert message in err.splitlines()[-1]


def test_unknown_words_are_skipped_with_a_warning(run):
    status, out, err = run("flexflow", "alexnet", "-ll:gpu", "2", "--bugdet", "5", "-lg:prof", "1", "-dm:memoize")
    assert status == 0
    assert "warning: skipped, as FlexFlow skips it: --bugdet 5 (did you mean --budget?)" in err
    assert "warning: out of scope, Legion's own: -lg:prof, -dm:memoize" in err
    assert rows_of(out)["--bugdet"] == "nothing: FlexFlow does not know it"


def test_flexnet_points_to_flexflow(run):
    assert "`topoplan flexflow` takes those of FlexFlow" in run("flexnet", "./alexnet", "-e", "10")[2]
    words = ["alexnetsim", "--nsimnode", "2", "--topology", "fattree", "-s", "s.txt"]
    status, out, _ = run("flexnet", *words)
    assert status == 0
    assert "`topoplan flexflow` takes FlexFlow's" in out


def test_the_page_names_every_flag_and_program():
    page = (Path(__file__).parents[1] / "docs" / "flexflow.md").read_text()
    for name in (name for flag in FLAGS for name in flag.names):
        assert f"`{name}`" in page, name
    for program in PROGRAMS:
        assert f"`{program.frontend}`" in page
        assert any(f"`{name}`" in page for name in program.names)
