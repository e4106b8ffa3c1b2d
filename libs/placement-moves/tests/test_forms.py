"""Which operators are of one form."""

from __future__ import annotations

import attrs

from topoplan_placement_moves import operators_of_same_form
from topoplan_samples.graphs import two_linears


def test_operators_of_one_form_differ_in_names_alone():
    graph = two_linears()
    first, relu, second = graph.operators
    assert operators_of_same_form(graph) == [(0,), (1,), (2,)]
    twin = attrs.evolve(first, name=second.name)
    assert operators_of_same_form(attrs.evolve(graph, operators=(first, relu, twin), edges=[])) == [
        (0, 2),
        (1,),
        (0, 2),
    ]
