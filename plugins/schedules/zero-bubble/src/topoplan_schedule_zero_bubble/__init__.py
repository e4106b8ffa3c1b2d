"""Schedules that put off the gradients of weights into what would be bubbles.

Bubble and kept activations of ``p`` ranks, whose passes take ``F``, ``B`` (gradients of inputs) and ``W`` (of weights):

    schedule   bubble                   activations kept     where F = B = W
    zb-h1      (p - 1)(F + B - W)       p
    zb-h2      (p - 1)(F + B - 2W)      2p - 1               no bubble
    zb-2p      (p - 1)(F + B - 2W)      2p                   no bubble
    zbv        -                        p                    no bubble
    v-half     -                        about p / 2          about half the bubble of 1F1B
    v-min      -                        about p / 3          about two thirds of it

The bubble of a rank is what it is idle between its first and its last pass: ranks begin one after the other, and end
so, which assumes that the optimizer's check of gradients does not make them wait for each other.  Where W takes longer
than F, the bubble of ZB-H1 is (p - 1)B: a rank then waits for nothing but gradients of inputs.

Sources: Qi et al., Zero Bubble Pipeline Parallelism (ICLR 2024), sections 2 and 4; Qi et al., Pipeline Parallelism
with Controllable Memory (NeurIPS 2024), section 3.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, ClassVar

from topoplan import PassOrder, PipelineSchedule, hookimpl

if TYPE_CHECKING:
    from topoplan_engine.pass_orders import Block

__all__ = ["VHalf", "VMin", "Zb2p", "ZbH1", "ZbH2", "Zbv", "topoplan_schedules"]


class ZbH1(PipelineSchedule):
    """1F1B whose rank ``r`` puts off the gradients of weights by ``r`` micro-batches; it keeps what 1F1B does.

    Example:
        >>> print(ZbH1().order(2, 3))
        rank 0: F0 F1 B0 W0 F2 B1 W1 B2 W2
        rank 1: F0 B0 F1 B1 W0 F2 B2 W1 W2
    """

    name = "zb-h1"

    def order(self, ranks: int, micro_batches: int) -> PassOrder:
        """Put off more the later a rank begins."""
        from topoplan_engine.pass_orders import alternating_order

        return alternating_order(self.name, range(ranks)[::-1], micro_batches, weights_late=range(ranks))


class ZbH2(PipelineSchedule):
    """Twice the warm-up of ZB-H1 and gradients of weights put off by twice as much, for about twice its activations."""

    name = "zb-h2"

    def order(self, ranks: int, micro_batches: int) -> PassOrder:
        """Run ``2 (ranks - rank) - 1`` forward passes before the first backward pass."""
        from topoplan_engine.pass_orders import alternating_order

        twice = [2 * rank for rank in range(ranks)]
        return alternating_order(self.name, twice[::-1], micro_batches, weights_late=twice)


class Zb2p(PipelineSchedule):
    """ZB-H2 with one micro-batch more in flight on each rank: all of the activations that ZB-2p's search may keep."""

    name = "zb-2p"

    def order(self, ranks: int, micro_batches: int) -> PassOrder:
        """Run ``2 (ranks - rank)`` forward passes before the first backward pass."""
        from topoplan_engine.pass_orders import alternating_order

        sooner = [2 * (ranks - rank) - 1 for rank in range(ranks)]
        return alternating_order(self.name, sooner, micro_batches, weights_late=[2 * rank for rank in range(ranks)])


class _VShaped(PipelineSchedule):
    """Two chunks on each rank, down the ranks and up again, in a block of passes that repeats for each micro-batch.

    Attributes:
        steps: units between neighbours: forward passes down and up, backward passes down and up.
    """

    steps: ClassVar[tuple[int, int, int, int]]
    forward_sooner: ClassVar[bool] = False

    def order(self, ranks: int, micro_batches: int) -> PassOrder:
        """Repeat the block."""
        from topoplan_engine.pass_orders import block_order

        ranks_of_chunks = [*range(ranks), *reversed(range(ranks))]
        block = _v_block(ranks, self.steps)
        return block_order(self.name, ranks_of_chunks, block, micro_batches, forward_sooner=self.forward_sooner)


class Zbv(_VShaped):
    """No bubble where all passes take the same time, with the activations of 1F1B."""

    name = "zbv"
    steps = (4, 2, 4, 2)
    forward_sooner = True


class VHalf(_VShaped):
    """About half the bubble and half the activations of 1F1B."""

    name = "v-half"
    steps = (2, 1, 2, 1)


class VMin(_VShaped):
    """About two thirds of the bubble of 1F1B, with a third of its activations."""

    name = "v-min"
    steps = (1, 1, 1, 1)


def _v_block(ranks: int, steps: tuple[int, int, int, int]) -> Block:
    """Return the passes of one micro-batch, where the next one begins six units later: the time of all six passes.

    Passes wait at both turns and at the loss for as short as no two passes of one rank meet.
    """
    import numpy as np

    from topoplan_engine.pass_orders import Block

    interval, down, up = 6, np.arange(ranks), np.arange(ranks)[::-1]
    for waits in sorted(itertools.product(range(interval), repeat=3), key=lambda each: (sum(each), each)):
        first_forward = steps[0] * down
        second_forward = first_forward[-1] + 1 + waits[0] + steps[1] * up
        first_backward = second_forward[0] + 1 + waits[1] + steps[2] * down
        second_backward = first_backward[-1] + 1 + waits[2] + steps[3] * up
        units = np.stack([first_forward, second_forward, first_backward, second_backward]) % interval
        if all(len(set(row)) == len(row) for row in units.T.tolist()):
            forward = np.append(first_forward, second_forward[::-1])
            return Block(forward, np.append(second_backward, first_backward[::-1]), interval)
    raise AssertionError(f"no block for {ranks} ranks and steps {steps}")


@hookimpl
def topoplan_schedules() -> list[type[PipelineSchedule]]:
    """Register the schedules."""
    return [ZbH1, ZbH2, Zb2p, Zbv, VHalf, VMin]
