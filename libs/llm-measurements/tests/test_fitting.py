"""Constants are found again, and rows of a left-out model do not count, where predictions are a formula."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from topoplan_llm_measurements.fitting import fitted_stack, left_out_values, slopes_of
from topoplan_llm_measurements.rows import MeasuredRow, Predicted, Run
from topoplan_llm_measurements.stacks import Constants, Stack

STACK = Stack(name="s", device="a100-80", fitted=("products", "inside"))
TRUE = Constants(products=1.4, inside=0.6)


class Formula:
    """Seconds of products and of messages, which the batch and the number of devices say."""

    def predicted(self, run, stack):
        constants = stack.constants
        return Predicted(seconds=run.batch * constants.products + run.devices / constants.inside, memory=0.0)

    def beside(self, run, stack, others):
        return [self.predicted(run, each) for each in (stack, *others)]


def row(batch, devices, left_out, factor=1.0):
    run = Run(model={}, sequence_length=1, batch=batch, devices=devices, cluster={}, plan={})
    measured = Formula().predicted(run, attrs.evolve(STACK, constants=TRUE)).seconds * factor
    return MeasuredRow(name="r", workload="w", left_out=left_out, stack="s", run=run, measured=measured)


ROWS = [row(8, 1, "a"), row(4, 3, "a"), row(9, 2, "b"), row(2, 8, "b"), row(5, 5, "c", factor=3.0)]


def test_constants_are_found_again():
    stack = STACK
    for _ in range(6):
        stack = fitted_stack(slopes_of(ROWS[:4], stack, Formula()))
    assert stack.constants.products == pytest.approx(1.4, rel=0.02)
    assert stack.constants.inside == pytest.approx(0.6, rel=0.02)


def test_rows_of_a_left_out_model_do_not_count():
    """The last row was measured three times too long; its own model is left out."""
    slopes = slopes_of(ROWS, attrs.evolve(STACK, constants=TRUE), Formula())
    values = left_out_values(slopes)
    assert values[4] == pytest.approx(ROWS[4].measured / 3, rel=0.01)


def test_constants_stay_within_their_limits():
    far = [attrs.evolve(each, measured=each.measured * 1e6) for each in ROWS[:4]]
    assert fitted_stack(slopes_of(far, STACK, Formula())).constants.products == 10


def test_a_constant_at_its_limit_leaves_the_others_to_fit():
    """Links cannot be faster than they are: what they take too long, products take less."""
    stack = attrs.evolve(STACK, constants=Constants(products=1.0, inside=1.0))
    rows = [attrs.evolve(each, measured=each.run.batch * 1.3 + each.run.devices * 0.5) for each in ROWS[:4]]
    found = fitted_stack(slopes_of(rows, stack, Formula())).constants
    assert found.inside == 1.0
    errors = [abs(np.log((each.run.batch * found.products + each.run.devices) / each.measured)) for each in rows]
    beside = [abs(np.log((each.run.batch * 1.05 * found.products + each.run.devices) / each.measured)) for each in rows]
    assert np.mean(errors) <= np.mean(beside)
