"""A plan for a trainer has its kernels, where those of the device were measured."""

from __future__ import annotations

import json

import pytest

MODEL = "optimize huggingface -o preset=llama3.2-1b -o layers=1 -o sequence-length=512 --batch-size 8 --json"
ON = "-m dgx-h100 --servers 1 -t rail-optimized --plan tp=2,dp=4,zero=1"


def planned(run, words):
    status, out, err = run(*f"{MODEL} {words}".split())
    assert status == 0, err
    return json.loads(out)


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (f"{ON} --for megatron", "megatron's, in times and memory (--for megatron; --kernels says others)"),
        (
            f"{ON} --for megatron --kernels megatron-local",
            "megatron-local's, in times and memory (--kernels megatron-local)",
        ),
        (ON, None),
        ("--servers 1 --gpus-per-server 8 --plan tp=2,dp=4,zero=1 --for megatron", None),
    ],
    ids=["implied", "other-kernels", "no-trainer", "no-measured-kernels"],
)
def test_kernels_are_those_of_the_trainer(run, words, note):
    found = planned(run, words)
    assert found["notes_on_model"].get("kernels") == note
    assert (found["assumptions"] or {}).get("fused", False) == (note is not None and "local" not in note)


@pytest.mark.slow
def test_a_plan_for_a_trainer_is_that_of_its_kernels(run):
    implied, named = planned(run, f"{ON} --for megatron"), planned(run, f"{ON} --kernels megatron")
    for name in ("iteration_time_s", "memory_bytes"):
        assert implied[name] == named[name] < planned(run, ON)[name]
