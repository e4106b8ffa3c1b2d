"""Data-parallel training: against a clock that ticks, and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topoplan_pipeline_planning.layers import Layers, OperatorColumns
from topoplan_pipeline_planning.machine import Bandwidths, Machine
from topoplan_pipeline_planning.states import prefix_states
from topoplan_searcher_hpgo.baselines import Memory, corrected, released, released_memory

PLENTY = Memory(device=1e18, sample=1.0)
# Two hosts of one device: an all-reduce of b bytes takes b seconds.
PAIR = Machine.split([1, 2], Bandwidths(inside=1.0, transfer=1.0, allreduce=1.0))


def columns_of(forward, backward, parameters):
    return OperatorColumns(forward=forward, backward=backward, parameters=parameters, activations=np.ones(len(forward)))


def ticking(forward, backward, summing, *, urgent_first):
    """Return when the next forward pass ends (or, first come first served, when all is summed), tick by tick."""
    count = len(forward)
    left, ready, clock = list(summing), [], 0
    for layer in reversed(range(count)):
        clock += backward[layer]
        ready.append((clock, layer))
    came = {layer: at for at, layer in ready}
    done, now = {}, 0
    while len(done) < count:
        there = [layer for layer in range(count) if came[layer] <= now and layer not in done]
        done.update({layer: now for layer in there if left[layer] == 0})
        there = [layer for layer in there if left[layer]]
        if there:
            left[min(there) if urgent_first else max(there)] -= 1
        now += 1
    if not urgent_first:
        return max([clock, *done.values()])
    end = clock
    for layer in range(count):
        end = max(end, done[layer]) + forward[layer]
    return end


layers = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 9)), min_size=1, max_size=7)


@given(layers.filter(lambda rows: any(f + b for f, b, _ in rows)))
def test_overlap_is_what_a_ticking_clock_shows(rows):
    forward, backward, summing = ([row[k] for row in rows] for k in range(3))
    compute = sum(forward) + sum(backward)
    baselines = corrected(columns_of(np.multiply(2, forward), np.multiply(2, backward), summing), PAIR, 2, PLENTY)
    assert baselines.steps == 1
    assert baselines.no_overlap == pytest.approx(2 * compute / (compute + sum(summing)))
    seconds = ticking(forward, backward, summing, urgent_first=True) + 0
    assert baselines.p3 == pytest.approx(2 * compute / seconds)
    assert baselines.accumulated_p3 == baselines.p3
    seconds = sum(forward) + ticking(forward, backward, summing, urgent_first=False)
    assert baselines.accumulated == pytest.approx(2 * compute / seconds)
    assert baselines.no_overlap - 1e-9 <= baselines.accumulated <= baselines.p3 + 1e-9 <= 2 + 1e-9


def test_accumulation_hides_communication_behind_its_last_step_only():
    columns = columns_of([4.0, 4.0], [8.0, 8.0], [1.0, 3.0])
    whole = corrected(columns, PAIR, 8, PLENTY)
    # Of 6 seconds backward of layer 1, 4 are left when its 3 seconds begin; layer 0 follows with its second.
    assert whole.accumulated == pytest.approx(24 / (12 + 1))
    memory = Memory(device=4.0 + 2.0, sample=2.0)  # beside the weights, one sample: four steps
    stepped = corrected(columns, PAIR, 8, memory)
    assert stepped.steps == 4
    assert (stepped.no_overlap, stepped.p3) == (None, None)
    # Backward steps of 1 s: gradients of layer 1 come at 1, are summed at 4; layer 0 at 5; backward ends at 2.
    assert stepped.accumulated == pytest.approx(24 / (12 + 3))
    # Layer 0 first: 2 to 3, then layer 1 until 5; the first forward steps of 0.5 s run at 3 and 5, not 2 and 2.5.
    assert stepped.accumulated_p3 == pytest.approx(24 / (12 + 2.5))


def test_weights_that_fill_a_device_leave_no_way_to_train():
    columns = columns_of([4.0], [8.0], [10.0])
    full = corrected(columns, PAIR, 8, Memory(device=9.0, sample=1.0))
    assert (full.no_overlap, full.p3, full.accumulated, full.accumulated_p3, full.steps) == (None,) * 5
    as_released = released(Layers.of(prefix_states([[]]), columns), PAIR, 8, Memory(device=9.0, sample=1.0))
    assert as_released.no_overlap == pytest.approx(12 / 16)
    assert (as_released.accumulated, as_released.accumulated_p3, as_released.steps) == (None, None, None)


def test_no_activations_need_no_steps():
    assert Memory(device=5.0, sample=0.0).samples(5.0) > 10**9
    assert Memory(device=5.0, sample=0.0, weight_copies=2.0).samples(5.0) == 0
    assert released_memory(1e9, 2.0).samples(4e9) == 8


def test_released_formula_by_hand():
    columns = columns_of([2.0, 1.0, 3.0], [2.0, 3.0, 1.0], [2.0, 5.0, 4.0])
    chain = Layers.of(prefix_states([[1], [2], []]), columns)
    baselines = released(chain, PAIR, 4, Memory(device=1e9, sample=1.0))
    # Halves 2, 2, 2: every slot is 2 s backward, and 2 s forward with P3.  Layer 0's 2 s are never hidden.
    assert baselines.accumulated == pytest.approx(12 / (6 + 2 + (5 - 2) + (4 - 2)))
    assert baselines.p3 == pytest.approx(12 / (6 + 2 + (5 - 4) + 0))


def test_released_accumulation_divides_the_whole_batch():
    columns = columns_of([2.0], [2.0], [4.0])
    layer = Layers.of(prefix_states([[]]), columns)
    assert released(layer, PAIR, 12, Memory(device=4.0 + 5.0, sample=1.0)).steps == 3
    assert corrected(columns, PAIR, 12, Memory(device=4.0 + 5.0, sample=1.0)).steps == 2
