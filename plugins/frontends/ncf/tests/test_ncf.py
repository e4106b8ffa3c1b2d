"""NCF: conformance, and what its options do."""

from __future__ import annotations

import pytest

from topoplan.errors import TopoplanError
from topoplan.testing import parametrize_with_checks
from topoplan_frontend_ncf import Ncf
from topoplan_samples.frontends import builder_of, dense_parameters

build = builder_of(Ncf)


@parametrize_with_checks(Ncf)
def test_conformance(check) -> None:
    check()


def test_published_configuration() -> None:
    graph = build(preset="ncf128", dialect="flexnet")
    assert (graph.batch_size, len(graph.operators)) == (65536, 142)
    assert sum(len(op.weights) for op in graph.operators) == 145
    assert round(dense_parameters(graph) / 1e6) == 134
    assert {op.outputs[0].itemsize for op in graph.operators} == {8}  # of the indices, from operator to operator
    assert [op.name for op in graph.operators if op.kind == "multiply"] == ["gmf_231"]
    assert {op.outputs[0].itemsize for op in build(preset="ncf128").operators} == {4}


def test_factorization_has_no_bias() -> None:
    weights = {op.name: len(op.weights) for op in build().operators}
    assert (weights["gmf_linear"], weights["predict"]) == (1, 2)


def test_options_reach_the_tables() -> None:
    graph = build(**{"ntables": 2, "unum-per-table": 7, "inum_per_table": 9, "factor-num": 3, "edim-per-table": 5})
    shapes = [op.weights[0].shape for op in graph.operators if op.kind == "embedding"]
    assert shapes == [(7, 3), (7, 3), (9, 3), (9, 3), (7, 5), (7, 5), (9, 5), (9, 5)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ntables": 0}, "ntables: 0 is too small"),
        ({"factor-num": -2}, "factor-num: -2 is too small"),
        ({"arch-mlp-top": "8"}, "arch-mlp-top: 8 alone has no layer"),
    ],
)
def test_bad_options_are_named(given, message) -> None:
    with pytest.raises(TopoplanError, match=message):
        build(**given)
