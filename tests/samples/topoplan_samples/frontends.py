"""How tests of frontends build models and count their parameters."""

from __future__ import annotations

import math

from topoplan.options import structure

__all__ = ["builder_of", "dense_parameters", "multiplications"]


def builder_of(frontend):
    """Return a function from a batch size and options, as users write them, to the graph of a frontend."""

    def build(batch_size=None, **options):
        return structure(frontend, options, f"frontend {frontend.name}").build(batch_size)

    return build


def dense_parameters(graph):
    """Count the parameters of a model outside its embedding tables."""
    return sum(w.elements for op in graph.operators for w in op.weights if op.kind != "embedding")


def multiplications(graph):
    """Count the multiplications of a model's convolutions and linear layers, forward."""
    terms = [(op, op.work[0]) for op in graph.operators if op.kind in ("conv2d", "linear")]
    return sum(term.coefficient / 2 * math.prod(op.sizes[dim] for dim in term.dims) for op, term in terms)
