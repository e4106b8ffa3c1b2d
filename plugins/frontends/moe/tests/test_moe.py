"""Mixture of experts: conformance, and what its options do."""

from __future__ import annotations

import pytest

from topoplan.errors import TopoplanError
from topoplan.testing import parametrize_with_checks
from topoplan_frontend_moe import Moe
from topoplan_samples.frontends import builder_of

build = builder_of(Moe)


@parametrize_with_checks(Moe)
def test_conformance(check) -> None:
    check()


def test_standard_layers() -> None:
    graph = build(batch_size=100)
    experts = [name for k in range(5) for name in (f"expert{k}", f"expert{k}_softmax")]
    names = ["gate1", "gate2", "choose", "dispatch", "gate_softmax", *experts, "combine"]
    assert [op.name for op in graph.operators] == names
    assert graph.operators[5].inputs[0].shape == (80, 784)  # 2 * 2 * 100 / 5 slots
    assert graph.operators[-1].outputs[0].shape == (100, 10)


def test_flexnet_layers() -> None:
    structures = [op.tags["flexnet"] for op in build(dialect="flexnet").operators]
    experts = ["Dense_784_10", "Softmax"] * 5
    gate = ["Dense_784_64", "Dense_64_5", "TopK", "Cache", "Group_by", "Softmax"]
    assert structures == [*gate, *experts, "Aggregate", "AggregateSpec"]


def test_experts_can_be_cut_and_priced() -> None:
    for op in build().operators:
        assert op.sample_dim >= 0
        assert op.work or op.kind == "group_by"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num-select": 6}, "num-select: 6 is more than num-exp 5"),
        ({"alpha": 0}, "alpha: 0.0 is too small"),
        ({"num-exp": 0}, "num-exp: 0 is too small"),
    ],
)
def test_bad_options_are_named(given, message) -> None:
    with pytest.raises(TopoplanError, match=message):
        build(**given)
