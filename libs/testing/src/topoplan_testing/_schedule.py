"""Promises of schedules: ``order(ranks, micro_batches) -> PassOrder``."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from topoplan import PassOrder, PipelineSchedule, TopoplanError
from topoplan_testing._common import example, global_randomness_untouched

_RANKS = (1, 2, 3, 4, 8)
_MICRO_BATCHES = (1, 2, 4, 7, 8, 16, 24)


def check_every_rank_and_micro_batch_has_its_passes(component: type[PipelineSchedule]) -> None:
    """An order has as many ranks and micro-batches as asked for; some numbers may be refused, not all."""
    count, refusals = 0, []
    for ranks, micro_batches, order in _same_orders(component):
        if isinstance(order, TopoplanError):
            refusals.append(f"{ranks} ranks, {micro_batches} micro-batches: {order}")
            continue
        count += 1
        assert isinstance(order, PassOrder), f"order returned {type(order).__name__}"
        assert order.n_ranks == ranks, f"asked for {ranks} ranks, got {order.n_ranks}"
        assert order.n_micro_batches == micro_batches, (
            f"asked for {micro_batches} micro-batches, got {order.n_micro_batches}"
        )
    assert count, f"no order for any of {_RANKS} ranks and {_MICRO_BATCHES} micro-batches: {refusals[0]}"


def check_same_numbers_same_order(component: type[PipelineSchedule]) -> None:
    """The same numbers give the same order; numpy's own generator is not used."""
    with global_randomness_untouched():
        for (ranks, micro_batches, first), (_, _, second) in zip(
            _same_orders(component), _orders(component), strict=True
        ):
            same = str(first) == str(second)
            assert same, f"two orders of {ranks} ranks and {micro_batches} micro-batches differ"


def check_order_bears_a_name(component: type[PipelineSchedule]) -> None:
    """An order is called as its schedule, so that reports and exporters can name it."""
    for _, _, order in _same_orders(component):
        if isinstance(order, PassOrder):
            assert order.name == component.name, f"the order is called {order.name!r}, the schedule {component.name!r}"


def _orders(component: type[PipelineSchedule]) -> Iterator[tuple[int, int, PassOrder | TopoplanError]]:
    """Yield ranks, micro-batches and their order, or why there is none.

    A `PassOrder` cannot be made in which a pass runs twice, is missing or comes before what it needs.
    """
    for ranks in _RANKS:
        for micro_batches in _MICRO_BATCHES:
            try:
                yield ranks, micro_batches, example(component).order(ranks, micro_batches)
            except TopoplanError as error:
                assert not str(error).startswith("pass order"), f"{ranks} ranks, {micro_batches} micro-batches: {error}"
                yield ranks, micro_batches, error


@functools.lru_cache(maxsize=1)  # checks of one component follow each other
def _same_orders(component: type[PipelineSchedule]) -> list[tuple[int, int, PassOrder | TopoplanError]]:
    """Return orders that several checks look at."""
    return list(_orders(component))
