"""Promises of frontends: ``build(batch_size) -> OperatorGraph``."""

from __future__ import annotations

import math

from topoplan import Frontend, OperatorGraph
from topoplan_testing._common import example


def check_builds_a_graph(component: type[Frontend]) -> None:
    """The example builds an operator graph, with and without a batch size."""
    graph = example(component).build(None)
    assert isinstance(graph, OperatorGraph), f"build returned {type(graph).__name__}"
    assert graph.batch_size >= 1, f"batch size {graph.batch_size}"


def check_same_graph_twice(component: type[Frontend]) -> None:
    """The same options give the same graph."""
    assert example(component).build(None) == example(component).build(None)


def check_batch_size_is_kept(component: type[Frontend]) -> None:
    """The graph has the batch size that was asked for."""
    request = 2 * example(component).build(None).batch_size
    batch_size = example(component).build(request).batch_size
    assert batch_size == request, f"asked for {request} samples, got {batch_size}"


def check_each_input_has_one_producer(component: type[Frontend]) -> None:
    """No input of an operator is fed by two edges."""
    graph = example(component).build(None)
    fed = [(int(v), int(into)) for _, _, v, into in graph.edges.reshape(-1, 4)]
    for v, into in fed:
        assert fed.count((v, into)) == 1, f"input {into} of {graph.operators[v].name!r} has several producers"


def check_work_is_finite(component: type[Frontend]) -> None:
    """The work of every operator is finite and not negative."""
    graph = example(component).build(None)
    for index, op in enumerate(graph.operators):
        work = _work(graph, index)
        assert 0 <= work < math.inf, f"{op.name!r} needs {work} FLOP"


def check_work_is_linear_in_batch_size(component: type[Frontend]) -> None:
    """Twice the samples are twice the work, to one per cent."""
    once = example(component).build(None)
    twice = example(component).build(2 * once.batch_size)
    less, more = (sum(_work(graph, index) for index in range(len(graph.operators))) for graph in (once, twice))
    assert math.isclose(more, 2 * less, rel_tol=0.01), f"{less} FLOP become {more} when the batch size doubles"


def check_parameters_do_not_depend_on_batch_size(component: type[Frontend]) -> None:
    """The weights are those of the model, whatever the batch size."""
    once = example(component).build(None)
    twice = example(component).build(2 * once.batch_size)
    assert once.parameter_bytes == twice.parameter_bytes, f"{once.parameter_bytes} bytes become {twice.parameter_bytes}"


def _work(graph: OperatorGraph, index: int) -> float:
    op = graph.operators[index]
    return math.fsum(term.coefficient * math.prod(op.sizes[dim] for dim in term.dims) for term in op.work)
