"""Synchronous schedules with one backward pass for inputs and weights: GPipe, 1F1B and the interleaved one.

Bubble and kept activations of ``p`` ranks and ``m`` micro-batches, whose forward and whole backward pass take ``F`` and
``B`` on a rank:

    schedule      bubble               activations kept on the first rank
    gpipe         (p - 1)(F + B)       m
    1f1b          (p - 1)(F + B)       min(m, p)
    1f1b-deep     (p - 1)(F + B)       min(m, 2p - 1)
    interleaved   (p - 1)(F + B) / v   p (1 + (p - 1) / pv), with v chunks on each rank
"""

from __future__ import annotations

import attrs

from topoplan import PassOrder, PipelineSchedule, TopoplanError, hookimpl, option

__all__ = ["DeepOneFOneB", "Gpipe", "Interleaved", "OneFOneB", "topoplan_schedules"]


class _Named(PipelineSchedule):
    """A schedule that `topoplan_engine.pass_orders.named_order` knows by its name."""

    def order(self, ranks: int, micro_batches: int) -> PassOrder:
        """Warm up with forward passes as its name says."""
        from topoplan_engine.pass_orders import named_order

        return named_order(self.name, ranks, micro_batches)


class Gpipe(_Named):
    """All forward passes, then all backward passes (Huang et al., NeurIPS 2019).

    Example:
        >>> print(Gpipe().order(2, 2))
        rank 0: F0 F1 B0 B1
        rank 1: F0 F1 B0 B1
    """

    name = "gpipe"


class OneFOneB(_Named):
    """Forward passes for the ranks to come, then a backward and a forward pass in turn (DAPPLE, PPoPP 2021).

    Example:
        >>> print(OneFOneB().order(2, 3))
        rank 0: F0 F1 B0 F2 B1 B2
        rank 1: F0 B0 F1 B1 F2 B2
    """

    name = "1f1b"


class DeepOneFOneB(_Named):
    """1F1B with twice as many forward passes ahead, which hides transfers as long as passes (DAPPLE, section 3.2)."""

    name = "1f1b-deep"


@attrs.frozen(kw_only=True)
class Interleaved(PipelineSchedule):
    """1F1B where every rank has several chunks of the model (Narayanan et al., SC'21, section 2.2).

    Example:
        >>> print(Interleaved(chunks=2).order(2, 2))
        rank 0: F0/0 F1/0 F0/2 F1/2 B0/2 B1/2 B0/0 B1/0
        rank 1: F0/1 F1/1 F0/3 B0/3 F1/3 B1/3 B0/1 B1/1
    """

    name = "interleaved"

    chunks: int = option(2, help="chunks of the model on each rank", minimum=1, maximum=1024)

    def order(self, ranks: int, micro_batches: int) -> PassOrder:
        """Warm up with two forward passes for each rank to come, and all chunks but the last of ``ranks`` of them.

        Raises:
            TopoplanError: micro-batches are no multiple of the ranks.
        """
        from topoplan_engine.pass_orders import named_order

        if self.chunks == 1:
            return attrs.evolve(named_order("1f1b", ranks, micro_batches), name=self.name)
        if micro_batches % ranks:
            raise TopoplanError(
                f"schedule interleaved: {micro_batches} micro-batches on {ranks} ranks (must be a multiple: "
                f"{max(ranks, micro_batches - micro_batches % ranks)})"
            )
        return named_order(self.name, ranks, micro_batches, self.chunks)


@hookimpl
def topoplan_schedules() -> list[type[PipelineSchedule]]:
    """Register the schedules."""
    return [Gpipe, OneFOneB, DeepOneFOneB, Interleaved]
