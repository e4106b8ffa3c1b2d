"""Operators and models whose numbers name what there is not are refused."""

from __future__ import annotations

import attrs
import pytest

from topoplan import Axis, Tensor, Term, TopoplanError
from topoplan.testing import reference


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"work": (Term(1.0, (0, 10)),)}, "work names dimension 10"),
        ({"traffic": (Term(1.0, (-1,)),)}, "traffic names dimension -1"),
        ({"combines": (7,)}, "combines names dimension 7"),
        ({"linear_in": ((0,), (9,))}, "linear_in names argument 9"),
    ],
)
def test_numbers_of_an_operator_name_what_it_has(changes, message):
    operator = reference.graph(("dense1", "dense2")).operators[0]
    with pytest.raises(TopoplanError, match=f"^operator 'dense1': {message} "):
        attrs.evolve(operator, **changes)


@pytest.mark.parametrize("edge", [(0, 5, 1, 0), (0, 0, 1, 5), (0, -1, 1, 0)])
def test_edges_join_tensors_that_there_are(edge):
    graph = reference.graph(("dense1", "dense2"))
    with pytest.raises(TopoplanError, match=r"an edge joins output -?\d of 'dense1' to input \d of 'dense2', which"):
        attrs.evolve(graph, edges=[edge])


@pytest.mark.parametrize("itemsize", [0, -4])
def test_elements_have_bytes(itemsize):
    """A weight of no bytes would have gradients of other bytes that nothing can be divided by."""
    for axes in ((Axis(4),), ()):
        with pytest.raises(TopoplanError, match=f"^tensor 'kernel': itemsize {itemsize}, .*an itemsize from 1 on"):
            Tensor("kernel", axes, itemsize)
