"""DualPipe: micro-batches enter a pipeline at both of its ends.

Each rank has two chunks, that of its own place and that of the opposite one, so that the model is there twice.  Half of
the micro-batches go down the ranks through chunks ``0 .. p - 1``, the other half up through chunks ``p .. 2p - 1``,
where chunk ``p + k`` has the layers of chunk ``k`` and is on rank ``p - 1 - k``.  In the middle of the batch a forward
pass of one direction and a backward pass of the other run in pairs, and each hides what the other one sends.

Bubble: ``(p / 2 - 1)(F&B + B' - 3W)``, where ``F&B`` is such a pair and ``B'`` a whole backward pass; activations kept:
``p + 1``.  Source: DeepSeek-AI, DeepSeek-V3 (2024), section 3.2.1, and the eight steps of DualPipe's released program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from topoplan import Pass, PassOrder, PipelineSchedule, TopoplanError, hookimpl

if TYPE_CHECKING:
    from topoplan_engine.pass_orders import Rows

__all__ = ["DualPipe", "topoplan_schedules"]


class DualPipe(PipelineSchedule):
    """Micro-batches from both ends of the pipeline at once; the model is there twice (DeepSeek-V3)."""

    name = "dualpipe"

    def order(self, ranks: int, micro_batches: int) -> PassOrder:
        """Run the eight steps of each rank."""
        from topoplan_engine.pass_orders import pass_order

        if ranks % 2:
            raise TopoplanError(f"schedule dualpipe: {ranks} ranks (must be even: {ranks - 1 or 2})")
        if micro_batches % 2 or micro_batches < 2 * ranks:
            nearest = max(2 * ranks, micro_batches - micro_batches % 2)
            raise TopoplanError(
                f"schedule dualpipe: {micro_batches} micro-batches on {ranks} ranks "
                f"(must be even, and at least two for each rank: {nearest})"
            )
        return pass_order(self.name, [_Rank(ranks, micro_batches, rank).rows() for rank in range(ranks)])


class _Rank:
    """Collects the passes of one rank.

    Direction 0 is that which begins at the nearer end of the pipeline, 1 the other one.
    """

    def __init__(self, ranks: int, micro_batches: int, rank: int) -> None:
        upper = rank >= ranks // 2
        chunks = (ranks + ranks - 1 - rank, rank) if upper else (rank, ranks + ranks - 1 - rank)
        first = micro_batches // 2
        self._chunk = chunks
        self._begin = (first, 0) if upper else (0, first)
        self._counts = {(kind, way): 0 for kind in Pass for way in (0, 1)}
        self._put_off: list[tuple[int, int]] = []
        self._passes: list[tuple[int, int, int]] = []
        self._from_end = min(rank, ranks - 1 - rank)
        self._half, self._ranks, self._pairs = ranks // 2, ranks, first

    def rows(self) -> Rows:
        """Return the passes in order."""
        import numpy as np

        from topoplan_engine.pass_orders import Rows

        to_middle = self._half - self._from_end - 1
        for _ in range(2 * to_middle):
            self._forward(0)
        for _ in range(self._from_end + 1):
            self._forward(0)
            self._forward(1)
        for _ in range(to_middle):
            self._backward(1, late=True)
            self._weights()
            self._forward(1)
        for _ in range(self._pairs - self._ranks + self._from_end + 1):
            self._forward(0)
            self._backward(1)
            self._forward(1)
            self._backward(0)
        for _ in range(to_middle):
            self._backward(1)
            self._forward(1)
            self._backward(0)
        self._drain(to_middle)
        kind, chunk, micro_batch = np.array(self._passes, dtype=np.int32).T
        return Rows(kind, chunk, micro_batch)

    def _drain(self, to_middle: int) -> None:
        """Run the backward passes that are left; those of the second half put off their gradients of weights."""
        late, count = False, self._from_end + 1
        for index in range(count):
            late = late or (index == count // 2 and self._from_end % 2 == 1)
            self._backward(1, late=late)
            late = late or (index == count // 2 and self._from_end % 2 == 0)
            self._backward(0, late=late)
        for _ in range(to_middle):
            self._weights()
            self._backward(0, late=True)
        while self._put_off:
            self._weights()

    def _add(self, kind: Pass, way: int) -> tuple[int, int]:
        micro_batch = self._begin[way] + self._counts[kind, way]
        self._counts[kind, way] += 1
        self._passes.append((kind, self._chunk[way], micro_batch))
        return self._chunk[way], micro_batch

    def _forward(self, way: int) -> None:
        self._add(Pass.FORWARD, way)

    def _backward(self, way: int, *, late: bool = False) -> None:
        passed = self._add(Pass.BACKWARD, way)
        if late:
            self._put_off.append(passed)

    def _weights(self) -> None:
        self._passes.append((Pass.WEIGHTS, *self._put_off.pop(0)))


@hookimpl
def topoplan_schedules() -> type[PipelineSchedule]:
    """Register the schedule."""
    return DualPipe
