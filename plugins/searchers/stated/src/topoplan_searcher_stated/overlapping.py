"""Stated plans whose micro-batches take turns two by two: ``overlap=hidup``.

In a pipeline two of them run each pass of its schedule at the same time (`topoplan_engine.pass_orders.order_in_twos`).
Else the plan's one stage becomes a program in parts (`topoplan.overlapped_strategy`).  A part begins with each operator
that is the first one to read a tensor in another sharding, so that what one micro-batch sends hides behind the other.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from topoplan import OperatorGraph, Stage, StagedStrategy, TopoplanError
from topoplan_engine.program_strategies import overlapped_strategy
from topoplan_engine.sharding.programs import reshards_of, why_invalid
from topoplan_searcher_stated.degrees import Degrees
from topoplan_searcher_stated.settings import Settings

__all__ = ["overlapped", "turns_of"]


def turns_of(options: Settings, degrees: Degrees) -> int:
    """Return how many micro-batches run each pass of a pipeline at the same time.

    Raises:
        TopoplanError: an odd number of micro-batches, which two by two does not divide.
    """
    if options.overlap != "hidup" or degrees.pp == 1:
        return 1
    if count := degrees.micro_batches % 2 and degrees.micro_batches:
        raise TopoplanError(f"plan: overlap=hidup: {count} micro-batches (in a pipeline they take turns two by two)")
    return 2


def overlapped(graph: OperatorGraph, stages: Sequence[Stage], options: Settings, degrees: Degrees) -> StagedStrategy:
    """Return the plan with two micro-batches that take turns.

    Args:
        graph: the model.
        stages: of the plan without the overlap.
        options, degrees: of the plan.

    Raises:
        TopoplanError: there are other micro-batches than two, or the plan has what one program with one stream cannot
            say.
    """
    if len(stages) > 1:
        raise TopoplanError(f"plan: overlap=hidup: {len(stages)} chunks on one rank (schedule=1f1b has one)")
    if degrees.micro_batches != 2:
        count, samples = degrees.micro_batches, degrees.micro_batches * options.micro_batch // 2
        raise TopoplanError(f"plan: overlap=hidup: {count} micro-batches (two take turns: micro-batch={samples})")
    (stage,) = stages
    settings = {
        f"zero={options.zero}": stage.zero.level > 0,
        f"recompute={options.recompute}": len(stage.recomputed) > 0,
        f"cp-comm={options.cp_comm} or async-tp": len(stage.rings) > 0,
        f"skew={options.skew} or fewer key heads than tp": len(stage.shares) > 0,
        "zigzag=no": not stage.zigzag,
        "clip=yes": options.clip,
        "grads or gather": bool(stage.gradient_bytes or stage.gather_bytes),
    }
    if refused := [name for name, is_given in settings.items() if is_given]:
        raise TopoplanError(f"plan: overlap=hidup: has no {refused[0]}")
    try:
        reshards = reshards_of(stage.program, graph)
    except TopoplanError as error:
        raise TopoplanError(f"plan: overlap=hidup: {error}") from None
    begins = {reshard.users[0] for reshard in reshards if reshard.output >= 0}
    parts = np.cumsum([op in begins and op > 0 for op in range(len(graph.operators))])
    strategy = overlapped_strategy(stage.program, graph, parts, 2)
    placed = [attrs.evolve(each, mesh=stage.mesh) for each in strategy.stages]
    strategy = StagedStrategy.of(graph, placed, strategy.order, 2, False, False, True)
    if reason := why_invalid(strategy, graph, stage.mesh.n_devices):
        raise TopoplanError(f"plan: overlap=hidup: {reason}")
    return strategy
