"""ZeRO is said of a plan where it changes what devices keep or send, and nowhere else."""

from __future__ import annotations

import itertools

import attrs
import pytest

from topoplan import TopoplanError
from topoplan_searcher_stated.construct import strategy_of
from topoplan_searcher_stated.degrees import degrees_of, short_words_of, words_of
from topoplan_searcher_stated.settings import Settings, without_idle_zero

DEVICES = 4


def grid():
    """Plans of four devices, with and without experts that have tensor parallelism of their own."""
    degrees = (1, 2, 4)
    for tp, cp, pp, ep, etp, zero in itertools.product(degrees, (1, 2), degrees, (1, 2), (0, 1, 2), (1, 2, 3)):
        if tp * cp * pp <= DEVICES:
            yield Settings(tp=tp, cp=cp, pp=pp, ep=ep, etp=etp, zero=zero, micro_batch=1)


@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_words_say_zero_where_the_strategy_is_another_one(model, name):
    """What is written is read from the strategies: those with and without ZeRO are equal, or they are not."""
    graph, said = model(name), set[bool]()
    for plan in grid():
        try:
            degrees = degrees_of(plan, graph, DEVICES)
            strategies = [strategy_of(attrs.evolve(plan, zero=zero), graph, DEVICES)[0] for zero in (0, plan.zero)]
        except TopoplanError:  # heads or layers do not divide, or a model without experts
            continue
        differs = strategies[0].key != strategies[1].key
        said.add(differs)
        assert (f",zero={plan.zero}," in words_of(plan, degrees)) == differs, plan
        assert ("zero=" in short_words_of(plan, degrees)) == differs, plan
    assert said == {False, True}


def test_what_needs_zero_is_not_said_without_it(model):
    """Words of a plan are read again, and a gather of weights is refused where nothing is gathered."""
    graph = model("llama")
    plan = Settings(tp=2, pp=2, zero=1, gather="fp8", overlap_gather=True)
    words = words_of(plan, degrees_of(plan, graph, DEVICES))
    assert "zero=0" in words
    assert "gather" not in words
    assert without_idle_zero(plan, 2 * DEVICES) == plan
