"""The fullest moment along an order of passes, beside a list of all that is held in every pass, and by hand."""

from __future__ import annotations

import numpy as np
import pytest

from topoplan import Pass
from topoplan_engine.lowering.pass_peaks import WHOLE, peaks_of
from topoplan_engine.pass_orders import named_order

MICRO_BATCHES = 6
#: Name -> chunks of each of two ranks.
ORDERS = {"gpipe": 1, "1f1b": 1, "interleaved": 2, "zero-bubble": 1}


def drawn(kind):
    """An order, and whole bytes by chance of what its passes bring, free and have beside them."""
    chunks, rng = 2 * ORDERS[kind], np.random.default_rng(len(kind))
    order = named_order(kind, 2, MICRO_BATCHES, ORDERS[kind])
    change = np.zeros((2, 2, WHOLE + 1, chunks))
    change[0, :, Pass.FORWARD] = kept = rng.integers(10, 99, (2, chunks))
    change[0, :, WHOLE] = -kept
    change[0, :, Pass.BACKWARD] = -(kept // 3)
    change[0, :, Pass.WEIGHTS] = kept // 3 - kept
    change[1, :, Pass.BACKWARD] = waiting = rng.integers(1, 9, (2, chunks))
    change[1, :, Pass.WEIGHTS] = -waiting
    return order, change, rng.integers(0, 40, (2, chunks)), *rng.integers(0, 60, (2, chunks))


@pytest.mark.parametrize("kind", ORDERS)
def test_it_is_that_of_all_that_is_held(kind):
    """Written down pass by pass: what each micro-batch holds in each chunk, and what there is for a moment."""
    order, change, rise, gathered, accumulated = drawn(kind)
    peak = peaks_of(order, np.arange(2), change, *(each.astype(float) for each in (rise, gathered, accumulated)))
    for rank in range(2):
        first, end = order.rank_ptr[rank : rank + 2]
        columns = (column[first:end].tolist() for column in (order.kind, order.chunk, order.micro_batch))
        rows = [*zip(*columns, strict=True)]
        held, moments = {}, []
        for place, (pass_kind, chunk, number) in enumerate(rows):
            before = sum(map(sum, held.values()))
            whole = pass_kind == Pass.BACKWARD and (Pass.WEIGHTS, chunk, number) not in rows
            brought = change[:, rank, WHOLE if whole else pass_kind, chunk]
            held[chunk, number] = tuple(np.array(held.get((chunk, number), (0, 0))) + brought)
            sums = 0
            for each in {chunk for _, chunk, _ in rows}:
                backward = [n for n, row in enumerate(rows) if row[:2] == (Pass.BACKWARD, each)]
                last = max(n for n, row in enumerate(rows) if row[1] == each)
                sums += accumulated[each] if min(backward) <= place <= last else 0
            if pass_kind == Pass.BACKWARD:
                moments.append(before + rise[rank, chunk] + sums)
            else:
                beside = 0 if pass_kind == Pass.WEIGHTS else gathered[chunk]
                moments.append(sum(map(sum, held.values())) + beside + sums)
        assert not np.any([*held.values()]), "all is free at the end"
        assert peak.most[rank] == max(moments)
        assert peak.row[rank] - first == np.argmax(moments)


def test_stages_keep_as_many_micro_batches_as_stages_follow():
    """1F1B: Narayanan et al., SC'21, section 2.2.1; the first of four stages keeps four, the last one keeps one."""
    order = named_order("1f1b", 4, 8)
    change = np.zeros((1, 4, WHOLE + 1, 4))
    change[:, :, Pass.FORWARD], change[:, :, WHOLE] = 1.0, -1.0
    peak = peaks_of(order, np.arange(4), change, np.zeros((4, 4)))
    assert peak.most.tolist() == peak.kept.tolist() == [4, 3, 2, 1]


def test_devices_that_hold_nothing_have_no_fullest_pass():
    order = named_order("1f1b", 2, 2)
    peak = peaks_of(order, np.arange(2), np.zeros((1, 2, WHOLE + 1, 2)), np.zeros((2, 2)))
    assert peak.row.tolist() == [-1, -1]
    assert not np.any([peak.most, peak.summed, peak.kept])
