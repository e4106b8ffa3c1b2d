"""Iterations of many rounds of micro-batches are predicted from few, and equal runs once."""

import attrs
import pytest

from topoplan_llm_measurements.groups.llama import llama_model
from topoplan_llm_measurements.prediction import Predictor
from topoplan_llm_measurements.rows import Run
from topoplan_llm_measurements.stacks import stack_of, stacks

RUN = Run(
    model=llama_model(1024, 4096, 8, 8, 8, 8192),
    sequence_length=1024,
    batch=64,
    devices=8,
    cluster={"machine": "dgx-h100"},
    plan={"pp": 4, "dp": 2, "zero": 1, "micro_batch": 1, "schedule": "interleaved:2", "overlap": "megatron"},
)


@pytest.mark.by_day(1)
@pytest.mark.parametrize(
    ("plan", "batch"),
    [
        ({}, 64),
        ({"schedule": "interleaved:2"}, 72),
        ({"schedule": "1f1b"}, 104),
        ({"schedule": "zb-h1", "overlap": "all"}, 64),
        ({"pp": 1, "dp": 8, "zero": 3, "schedule": "1f1b", "overlap": "fsdp"}, 80),
        ({"pp": 2, "tp": 2, "dp": 2, "sp": True, "recompute": "full"}, 40),
    ],
)
def test_many_rounds_of_micro_batches_take_what_few_say(plan, batch):
    run = attrs.evolve(RUN, plan={**RUN.plan, **plan}, batch=batch)
    predictor, stack = Predictor(), stack_of(stacks(), "H100, Megatron-Bridge")
    whole, predicted = predictor._simulated(run, stack), predictor.predicted(run, stack)
    assert predicted.seconds == pytest.approx(whole.seconds, rel=0.01)  # messages of small models line up slowly
    assert predicted.memory == whole.memory


def test_few_rounds_and_batches_of_no_whole_number_of_micro_batches_are_simulated():
    predictor, stack = Predictor(), stack_of(stacks(), "H100, Megatron-Bridge")
    run = attrs.evolve(RUN, batch=16)
    assert predictor.predicted(run, stack) == predictor._simulated(run, stack)
    with pytest.raises(Exception, match="no multiple of dp=2"):
        predictor.predicted(attrs.evolve(RUN, batch=63), stack)


def test_equal_runs_are_predicted_once():
    predictor, stack = Predictor(), stack_of(stacks(), "H100, Megatron-Bridge")
    run = attrs.evolve(RUN, batch=8)
    assert predictor.predicted(run, stack) is predictor.predicted(attrs.evolve(run), stack)


@pytest.mark.slow
@pytest.mark.parametrize("plan", [{}, {"pp": 2, "tp": 2, "dp": 2, "sp": True, "recompute": "full"}])
def test_constants_a_little_different_need_no_further_lowering(plan):
    run = attrs.evolve(RUN, plan={**RUN.plan, "schedule": "1f1b", **plan}, batch=16)
    stack = stack_of(stacks(), "H100, Megatron-Bridge")
    products = 1.1 * stack.constants.products
    changes = ({"products": products}, {"passes": 1.1}, {"inside": 0.8}, {"between": 0.8}, {"latency_us": 2.0})
    others = [attrs.evolve(stack, constants=attrs.evolve(stack.constants, **change)) for change in changes]
    predictor = Predictor()
    found = predictor.beside(run, stack, others)
    assert predictor.predicted(run, stack) is predictor.predicted(run, stack) == found[0]
    truth = [Predictor().predicted(run, each).seconds for each in others]
    assert [each.seconds for each in found[1:]] == pytest.approx(truth, rel=2e-3)
    assert found[1].seconds > 1.02 * found[0].seconds


@pytest.mark.parametrize("plan", [{}, {"schedule": "interleaved:2"}, {"schedule": "1f1b", "recompute": "full"}])
def test_a_plan_of_one_device_sends_nothing(plan):
    """It takes longer than its products at the peak: 6 FLOP for each weight of eight layers and token."""
    one = {"micro_batch": 1, "overlap": "megatron", **plan}
    predicted = Predictor().predicted(
        attrs.evolve(RUN, devices=1, plan=one), stack_of(stacks(), "H100, Megatron-Bridge")
    )
    weights = 8 * (2 * 1024 * 1024 + 2 * 1024 * 1024 + 3 * 1024 * 4096)
    assert predicted.seconds > 6 * 64 * 1024 * weights / 989e12
