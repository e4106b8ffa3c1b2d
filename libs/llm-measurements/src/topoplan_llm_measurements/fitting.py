"""Constants of a stack, fitted to its public rows, and what they say of rows that were left out.

    rows ─► predictions, and by how much 1 % of each constant changes them ─► least mean of |log(predicted / measured)|

Near a set of constants the logarithm of a prediction is linear in those of the constants, so that a fit, and one
without the rows of each model in turn, needs no further prediction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import attrs
import numpy as np

from topoplan.arrays import F64, f64
from topoplan.errors import TopoplanError
from topoplan_llm_measurements.prediction import Predictor
from topoplan_llm_measurements.rows import MeasuredRow
from topoplan_llm_measurements.stacks import Constants, Stack

__all__ = ["Slopes", "fitted_stack", "left_out_values", "slopes_of"]

#: Change of a constant by which slopes are found.
_STEP = 0.05
#: What a change of a constant by a factor e adds to the mean error: constants that rows say nothing of stay.
_RIDGE = 0.01
_ROUNDS = 60
#: Errors below this are weighted as if they were so large.
_SMALL = 0.01


@attrs.frozen(kw_only=True, eq=False)
class Slopes:
    """Predictions of the rows of one stack near its constants; n rows, k constants that a fit changes.

    Attributes:
        stack: whose.
        rows: the rows.
        predicted: (n,) quantity of each.
        slopes: (n, k) change of its logarithm with that of each constant.
    """

    stack: Stack
    rows: tuple[MeasuredRow, ...]
    predicted: F64
    slopes: F64


def slopes_of(
    rows: Sequence[MeasuredRow],
    stack: Stack,
    predictor: Predictor,
    on_progress: Callable[[str], None] = lambda name: None,
) -> Slopes:
    """Predict rows at constants of a stack, and a little beside each that a fit changes; other rows are left out.

    Args:
        rows: of this stack.
        stack: whose constants are to be fitted.
        predictor: of runs.
        on_progress: called with the name of each row that is finished.
    """
    variants = [stack, *(_changed(stack, {name: -_STEP}) for name in stack.fitted)]
    predictions_of_rows: list[tuple[MeasuredRow, list[float]]] = []
    for row in rows:
        try:
            predictions = predictor.beside(row.run, stack, variants[1:])
        except TopoplanError:
            continue
        finally:
            on_progress(row.name)
        predictions_of_rows.append((row, [row.quantity.of(row.run, prediction) for prediction in predictions]))
    values = np.array([each for _, each in predictions_of_rows]).reshape(len(predictions_of_rows), len(variants))
    return Slopes(
        stack=stack,
        rows=tuple(row for row, _ in predictions_of_rows),
        predicted=f64(values[:, 0]),
        slopes=f64(np.log(values[:, :1] / values[:, 1:]) / _STEP),
    )


def fitted_stack(point: Slopes) -> Stack:
    """Return the stack with the constants that fit all of its rows best."""
    return _changed(
        point.stack, dict(zip(point.stack.fitted, _fit(point, np.ones(len(point.rows), bool)), strict=True))
    )


def left_out_values(point: Slopes) -> F64:
    """Return the (n,) predictions of rows, each by constants fitted without the rows of its model (`left_out`)."""
    names = np.array([row.left_out for row in point.rows])
    values = point.predicted.copy()
    for name in np.unique(names):
        is_out = names == name
        if not is_out.all():
            values[is_out] *= np.exp(point.slopes[is_out] @ _fit(point, ~is_out))
    return f64(values)


def _fit(point: Slopes, used: np.ndarray) -> F64:
    """(k,) changes of the logarithms of the constants that fit some rows best: weighted least squares, repeated."""
    measured = np.array([row.measured for row in point.rows])
    errors, slopes = np.log(point.predicted / measured)[used], point.slopes[used]
    change = np.zeros(slopes.shape[1])
    if not len(errors) or not len(change):
        return f64(change)
    low, high = _room(point.stack)
    for _ in range(_ROUNDS):
        weights = 1 / np.maximum(np.abs(errors + slopes @ change), _SMALL)
        matrix = (slopes.T * weights) @ slopes / len(errors) + _RIDGE * np.eye(len(change))
        change = _least(matrix, -(slopes.T * weights) @ errors / len(errors), low, high)
    return f64(change)


def _least(matrix: np.ndarray, right: np.ndarray, low: F64, high: F64) -> np.ndarray:
    """Return x between limits where x A x / 2 - b x is least: those beyond a limit stay there, others are found again.

    Examples:
        >>> _least(np.array([[2.0, 1.0], [1.0, 2.0]]), np.array([3.0, 0.0]), np.zeros(2), np.full(2, 9.0)).tolist()
        [1.5, 0.0]
    """
    change = np.zeros(len(right))
    is_free = np.ones(len(right), bool)
    while is_free.any():
        remainder = right[is_free] - matrix[np.ix_(is_free, ~is_free)] @ change[~is_free]
        solution = np.linalg.solve(matrix[np.ix_(is_free, is_free)], remainder)
        change[is_free] = np.clip(solution, low[is_free], high[is_free])
        is_beyond = is_free & (change != _placed(solution, is_free))
        if not is_beyond.any():
            break
        is_free &= ~is_beyond
    return change


def _placed(values: np.ndarray, where: np.ndarray) -> np.ndarray:
    placed = np.zeros(len(where))
    placed[where] = values
    return placed


def _room(stack: Stack) -> tuple[F64, F64]:
    """(k,) least and largest change of the logarithm of each constant within its limits."""
    limits = {field.name: field.metadata for field in attrs.fields(Constants)}
    low, high = [], []
    for name in stack.fitted:
        value = getattr(stack.constants, name)
        low.append(math.log(max(limits[name]["minimum"], 1e-3) / value))
        high.append(math.log(limits[name]["maximum"] / value))
    return f64(np.array(low)), f64(np.array(high))


def _changed(stack: Stack, logs: dict[str, float]) -> Stack:
    """Return a stack with constants changed by factors whose logarithms are given, within their limits."""
    limits = {field.name: field.metadata for field in attrs.fields(Constants)}
    values = {name: getattr(stack.constants, name) * math.exp(log) for name, log in logs.items()}
    values = {name: min(max(value, limits[name]["minimum"]), limits[name]["maximum"]) for name, value in values.items()}
    return attrs.evolve(stack, constants=attrs.evolve(stack.constants, **values))
