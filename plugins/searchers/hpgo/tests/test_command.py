"""The command ``python -m topoplan_searcher_hpgo``: what it prints, and what it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from topoplan_layer_profiles.graphs import graph_of_profile
from topoplan_searcher_hpgo import plan
from topoplan_searcher_hpgo.__main__ import main, table

NODE = "node{} -- Layer -- forward_compute_time={}, backward_compute_time=2.0, activation_size=8.0, parameter_size=4.0"
HELP = "usage: python -m topoplan_searcher_hpgo"


def test_a_plan_is_a_line_and_a_row_for_each_stage(capsys):
    assert main(["xlnet-36", "--batch-size", "128", "--devices", "[8, 16]"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "speedup 14.81619428055626, 8|8 @22, 8 x 16 micro-batches",
        "start    end  replication  devices",
        "    0     22            1  [0, 1, 2, 3, 4, 5, 6, 7]",
        "   22     41            1  [8, 9, 10, 11, 12, 13, 14, 15]",
    ]


def test_options_are_those_of_the_call(capsys):
    assert main(["bert-48", "--devices", "8,16", "--profile-batch", "4", "--micro-batch", "2"]) == 0
    graph = graph_of_profile("bert-48", 4, None)
    assert capsys.readouterr().out == table(plan(graph, devices=[8, 16], micro_batch=2)) + "\n"


def test_a_path_is_a_file(capsys, tmp_path):
    file = tmp_path / "graph"
    file.write_text("\n".join([NODE.format(0, 1.0), NODE.format(1, 1.0), "\tnode0 -- node1"]))
    assert main([str(file), "--devices", "1,2", "--batch-size", "8", "--profile-batch", "2"]) == 0
    assert capsys.readouterr().out.startswith("speedup ")
    assert main([str(file), "--devices", "1,2"]) == 2
    assert f"{file}: profile-batch is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("profile", "words", "message"),
    [
        ("bert-49", "--devices 8", "profile: no 'bert-49'; did you mean 'bert-48'?"),
        ("no.txt", "--devices 8", "no.txt: cannot be read (No such file or directory)"),
        ("./", "--devices 8", ".: cannot be read (is a folder)"),
        ("gnmt-32", "--devices 8", "more than 4000 layers"),
        ("bert-48", "--devices 8,8", "host 1 ends at 8, before it has a device"),
        ("bert-48", "--devices 8 --micro-batch 3", "micro-batch 3 is larger than the batch of 2 samples"),
    ],
)
def test_what_is_wrong_is_said(capsys, profile, words, message):
    assert main([profile, *words.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert message in err


def test_a_field_that_is_wrong_is_named(capsys, tmp_path):
    file = tmp_path / "graph-pbs-2.txt"
    file.write_text(NODE.format(0, "much"))
    assert main([str(file), "--devices", "8"]) == 2
    assert "forward_compute_time" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "the following arguments are required: --devices"),
        ("--devices 8x", "--devices: '8x' is no list of ends (wanted: such as 8,16, two hosts of eight)"),
        ("--devices 99999999", "--devices: 99999999 is too many devices (at most 65536)"),
        ("--devices 8 --batch-size 0", "--batch-size: '0' is no number of samples (wanted: 1 to 1073741824)"),
        ("--devices 8 --batch 64", "unrecognized arguments: --batch 64"),
    ],
)
def test_options_that_are_wrong_are_said(capsys, words, message):
    with pytest.raises(SystemExit) as ended:
        main(["bert-48", *words.split()])
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert message in err


def test_it_is_a_program_that_loads_little():
    words = [sys.executable, "-X", "importtime", "-m", "topoplan_searcher_hpgo", "vgg-19"]
    words += ["--batch-size", "2048", "--devices", ",".join(map(str, range(1, 17)))]
    ended = subprocess.run(words, capture_output=True, text=True, check=True)
    assert ended.stdout.startswith("speedup 11.98553015094")
    modules = {line.rpartition("|")[2].strip() for line in ended.stderr.splitlines()}
    assert "numpy" in modules
    assert not {"numba", "networkx", "pandas", "typer", "rich", "importlib.metadata"} & modules
    helped = subprocess.run([*words[:1], "-m", words[4], "-h"], capture_output=True, text=True, check=True)
    assert helped.stdout.startswith(HELP)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
def test_what_cannot_be_written_is_said():
    words = [sys.executable, "-m", "topoplan_searcher_hpgo", "vgg-19", "--devices", "8"]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True)
    message = "error: standard output cannot be written (No space left on device)"
    assert (ended.returncode, ended.stderr.strip()) == (2, message)
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(words, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (1, "")
