"""SPMD programs as strategies: one stage on a mesh of all devices, or parts of a program whose micro-batches overlap.

    program ─► program_strategy: one stage, the whole batch at once
            └► overlapped_strategy: a stage for each part, whose passes micro-batches take in turn
    strategy ─► `topoplan.Strategy.program`: the program again

Every device has one compute stream and one communication stream (`topoplan.StagedStrategy.one_stream`), both in the
order of passes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import attrs
import numpy as np

from topoplan.errors import TopoplanError
from topoplan.model.graph import OperatorGraph
from topoplan.model.mesh import DeviceMesh
from topoplan.model.pass_order import Pass, PassOrder
from topoplan.model.placement import Placement
from topoplan.model.spmd import SpmdProgram
from topoplan.model.staged import Stage, StagedStrategy
from topoplan.model.strategy import Strategy
from topoplan.search.stopping import stop_if_wanted

__all__ = [
    "overlapped_strategy",
    "program_of",
    "program_strategy",
    "strategy_of_parts",
    "two_microbatch_order",
    "with_program",
]


def program_strategy(program: SpmdProgram, graph: OperatorGraph) -> StagedStrategy:
    """Return the strategy of a program that takes the whole batch at once, in the order of operators.

    >>> from topoplan.model.graph import Operator
    >>> from topoplan_engine.sharding.signatures import signatures
    >>> op = Operator(name="loss", kind="loss", dims=(), outputs=())
    >>> graph = OperatorGraph(name="loss", operators=(op,), edges=(), batch_size=1)
    >>> program = SpmdProgram(mesh=(4,), rules=(signatures(op)[:1],), stored=((),))
    >>> program_strategy(program, graph).program == program
    True
    """
    return overlapped_strategy(program, graph, np.zeros(len(graph.operators), dtype=np.int64), 1)


def overlapped_strategy(
    program: SpmdProgram, graph: OperatorGraph, part_of: Sequence[int] | np.ndarray, micro_batches: int
) -> StagedStrategy:
    """Return the strategy of a program whose micro-batches take turns in each of its parts.

    One micro-batch computes while another one communicates (HiDup, Zhang et al., SoCC 2022, section 3.3, with two).

    Args:
        program: of all operators.
        graph: the model.
        part_of: (n_ops,) part of each operator, from 0 without gaps; never falls along an edge.
        micro_batches: equal parts of the batch.

    Raises:
        TopoplanError: there is no operator in a part, or no part or signature for each operator.

    >>> from topoplan.model.graph import Operator
    >>> from topoplan_engine.sharding.signatures import signatures
    >>> op = Operator(name="loss", kind="loss", dims=(), outputs=())
    >>> graph = OperatorGraph(name="loss", operators=(op,), edges=(), batch_size=2)
    >>> program = SpmdProgram(mesh=(4,), rules=(signatures(op)[:1],), stored=((),))
    >>> print(overlapped_strategy(program, graph, [0], 2).order)
    rank 0: F0 F1 B1 B0
    """
    return strategy_of_parts(program, [len(op.dims) for op in graph.operators], part_of, micro_batches)


def strategy_of_parts(
    program: SpmdProgram, n_dims: Sequence[int], part_of: Sequence[int] | np.ndarray, micro_batches: int
) -> StagedStrategy:
    """Return `overlapped_strategy`, given the number of dimensions of each operator alone."""
    parts, count = np.asarray(part_of, dtype=np.int64), len(n_dims)
    if parts.shape != (count,) or len(program.rules) != count or len(program.stored) != count:
        raise TopoplanError(
            f"program: signatures of {len(program.rules)} operators and parts of {len(parts)}, the model has {count}"
        )
    missing = np.setdiff1d(np.arange(parts.max() + 1), parts)
    if parts.min() < 0 or len(missing):
        raise TopoplanError(f"stage {missing[0] if len(missing) else parts.min()} has no operator (stages begin at 0)")
    mesh = DeviceMesh(axes=tuple(f"d{axis}" for axis in range(len(program.mesh))), sizes=program.mesh)
    stages: list[Stage] = []
    placements: dict[int, Placement] = {}
    for number in range(int(parts.max()) + 1):
        stop_if_wanted()
        operators = np.flatnonzero(parts == number).tolist()
        rules, stored = ([rows[op] for op in operators] for rows in (program.rules, program.stored))
        body = attrs.evolve(program, rules=tuple(rules), stored=tuple(stored))  # type: ignore[arg-type]
        stages.append(Stage(operators=operators, mesh=mesh, body=body))
        placements |= {op: stages[-1].placement(position, n_dims[op]) for position, op in enumerate(operators)}
    order = two_microbatch_order(len(stages), micro_batches)
    in_order = tuple(placements[op] for op in range(count))
    return StagedStrategy(in_order, tuple(stages), order, micro_batches, one_stream=True)


def two_microbatch_order(parts: int, micro_batches: int = 2) -> PassOrder:
    """Return the order in which micro-batches take turns in each part of a program, and back in the opposite one.

    >>> print(two_microbatch_order(2))
    rank 0: F0/0 F1/0 F0/1 F1/1 B1/1 B0/1 B1/0 B0/0
    """
    forward = [*itertools.product(range(parts), range(micro_batches))]
    chunk, micro_batch = np.array(forward + forward[::-1]).T
    kind = np.repeat([Pass.FORWARD, Pass.BACKWARD], len(forward))
    return PassOrder(name="two-microbatch", rank_ptr=[0, len(kind)], kind=kind, chunk=chunk, micro_batch=micro_batch)


def program_of(strategy: Strategy) -> SpmdProgram:
    """Return the program that the stages of a strategy are parts of.

    Raises:
        TopoplanError: they are not.
    """
    if strategy.program is None:
        raise TopoplanError("strategy: its stages are no parts of one program with one communication stream")
    return strategy.program


def with_program(strategy: StagedStrategy, program: SpmdProgram, graph: OperatorGraph) -> StagedStrategy:
    """Return a strategy of one program with another program, in as many parts and micro-batches."""
    return overlapped_strategy(program, graph, strategy.stage_of, strategy.micro_batches)
