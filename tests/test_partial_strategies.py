"""Strategies that name some operators only: the rest is data parallel if users say so, and an error if not."""

from __future__ import annotations

import json

import pytest

# Warnings are what these tests are about: they reach standard error, as in the command.
pytestmark = pytest.mark.filterwarnings("always::topoplan.errors.TopoplanWarning")

ALEXNET = ["optimize", "alexnet", "--servers", "1", "--gpus-per-server", "4", "--batch-size", "256", "--budget", "0"]
REST = ["--strategy-rest", "data-parallel"]

#: The AlexNet strategy of FlexFlow's README (commit 327e4717): name, parts along (w h) c n, devices.
README = {
    "conv1": ([1, 1, 1, 4], [0, 1, 2, 3]),
    "pool1": ([1, 1, 1, 4], [0, 1, 2, 3]),
    "conv2": ([2, 2, 1, 1], [0, 2, 1, 3]),
    "pool2": ([2, 2, 1, 1], [0, 2, 1, 3]),
    "flat1": ([1, 2], [0, 2]),
    "linear1": ([3, 1], [0, 2, 3]),
    "linear2": ([3, 1], [0, 1, 2]),
    "linear3": ([1, 1], [0]),
}
MISSING = "conv3, conv4, conv5, pool3, softmax1"


def text_of(rows):
    lines = [str(len(rows))]
    for name, (degrees, devices) in rows.items():
        lines += [name, "0", str(len(degrees)), *map(str, degrees), str(len(devices)), *map(str, devices)]
    return "\n".join(lines)


def test_the_table_of_flexflows_readme_as_it_is_printed(run, tmp_path):
    (tmp_path / "eight.txt").write_text(text_of(README))
    words = [*ALEXNET, "--strategy", "strategy=eight.txt"]
    status, _, err = run(*words)
    assert status == 2
    assert f"eight.txt: says nothing about {MISSING}" in err
    assert "--strategy-rest data-parallel" in err
    note = f"eight.txt: names 8 of 13 operators of 'alexnet'; the other 5 run data parallel ({MISSING})"
    assert note in run(*words, *REST, "-x", "strategy=all.strategy", "--json")[2]
    written = (tmp_path / "all.strategy").read_text().split("\n")
    assert written[0] == "13"
    for name, (degrees, devices) in README.items():
        start = written.index(name)
        assert list(map(int, written[start + 3].split())) == degrees
        assert list(map(int, written[start + 5].split())) == devices
    start = written.index("conv4")
    assert written[start + 3].split() == ["1", "1", "1", "4"]
    assert written[start + 5].split() == ["0", "1", "2", "3"]


def test_one_operator_and_no_other(run, tmp_path):
    (tmp_path / "one.txt").write_text(text_of({"Conv2D_100": ([1, 1, 1, 2], [1, 2])}))
    words = [*ALEXNET, "-o", "dialect=flexnet", "--strategy", "strategy=one.txt", *REST, "--json"]
    _, out, err = run(*words)
    assert "names 1 of 13 operators" in err
    groups = json.loads(out)["strategy"]["groups"]
    assert [group["data"] for group in groups] == [2, 4]


def test_operators_that_a_plan_does_not_name(run, tmp_path):
    words = ["optimize", "dlrm", "--servers", "4", "--batch-size", "64", "--budget", "0", "--json"]
    assert run(*words, "-o", "arch-embedding-size=1000-1000", "-x", "json=plan.json")[0] == 0
    words += ["-o", "arch-embedding-size=1000-1000-1000", "-o", "arch-mlp-top=8-4-2", "--strategy", "plan.json"]
    status, _, err = run(*words)
    assert status == 2
    assert "plan.json: says nothing about emb2, top1 " in err
    status, _, err = run(*words, *REST)
    assert status == 0
    assert "the other 2 run data parallel (emb2, top1)" in err


def test_a_rest_without_a_file(run):
    status, _, err = run(*ALEXNET, *REST)
    assert status == 2
    assert "strategy-rest: no file names some operators only (give --strategy FILE, too)" in err


@pytest.mark.parametrize("word", ["model-parallel", ""])
def test_another_word(run, word):
    assert run(*ALEXNET, "--strategy", "x.strategy", "--strategy-rest", word)[0] == 2
