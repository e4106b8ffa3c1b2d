"""Every kind of operator by brute force: what its parts compute of their slices is, put together, the whole.

A case is an operator and a numpy function that computes a part.  It gets the slices that the axis maps give the part,
and where the part begins in each dimension; a window that reaches beyond a tensor holds the fill value there.  What it
returns is written where the axis maps of the outputs say, and added up where parts hold partial sums.  Gradients of
inputs and weights, by differences, must add up in the same way: those of a weight over its replicas, which is its
all-reduce.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping

import attrs
import numpy as np
import pytest

from topoplan.model.graph import Axis, Operator, Slices, Tensor
from topoplan.model.sharding import arguments
from topoplan_engine.partition import part_bounds, replica_groups, slice_elements
from topoplan_reference.operators import CASES as OTHERS
from topoplan_reference.operators import Case
from topoplan_reference.resampled import resampling_cases
from topoplan_samples.long_tail import at_night

CASES = {**OTHERS, **resampling_cases()}
#: Cuts of each operator that are tried, besides the finest one.
CUTS = 12
STEP = 1e-6


@attrs.frozen
class Region:
    """The iterations of one part: dimension -> first, and one behind the last."""

    bounds: Mapping[str, tuple[int, int]]

    def along(self, op: Operator, axis: Axis) -> np.ndarray:
        """Positions of ``axis`` that the part touches, those beyond its ends too."""
        if axis.dim < 0:
            return np.arange(axis.size)
        start, stop = self.bounds[op.dims[axis.dim].name]
        return np.arange(start * axis.scale + axis.offset, (stop - 1) * axis.scale + axis.offset + axis.extent)


def regions(op: Operator, degrees: tuple[int, ...]) -> list[Region]:
    """The parts of a cut, in the order of the engine."""
    bounds = [
        list(zip(*(edge.tolist() for edge in part_bounds(dim.size, degree)), strict=True))
        for dim, degree in zip(op.dims, degrees, strict=True)
    ]
    names = [dim.name for dim in op.dims]
    return [Region(dict(zip(names, chosen, strict=True))) for chosen in itertools.product(*bounds)]


def window(array: np.ndarray, op: Operator, tensor: Tensor, region: Region, fill: float) -> np.ndarray:
    """What a part reads of a tensor; ``fill`` beyond its ends."""
    for place, axis in enumerate(tensor.axes):
        touched = region.along(op, axis)
        inside = (touched >= 0) & (touched < axis.size)
        array = array.take(np.clip(touched, 0, max(axis.size - 1, 0)), place)
        array[(slice(None),) * place + (~inside,)] = fill
    return array


def add_to(whole: np.ndarray, value: np.ndarray, op: Operator, tensor: Tensor, region: Region) -> None:
    """Add what a part computed to the slice that it holds."""
    touched = [region.along(op, axis) for axis in tensor.axes]
    assert value.shape == tuple(map(len, touched))
    inside = [(t >= 0) & (t < axis.size) for t, axis in zip(touched, tensor.axes, strict=True)]
    if touched:
        target = np.ix_(*(t[keep] for t, keep in zip(touched, inside, strict=True)))
        whole[target] += value[np.ix_(*inside)]
    else:
        whole += value


def read(case: Case, values: list[np.ndarray], region: Region) -> list[np.ndarray]:
    pairs = zip(values, arguments(case.op), strict=True)
    return [window(value, case.op, tensor, region, case.fill) for value, tensor in pairs]


def put_together(case: Case, values: list[np.ndarray], degrees: tuple[int, ...]) -> list[np.ndarray]:
    outputs = [np.zeros(tensor.shape) for tensor in case.op.outputs]
    for region in regions(case.op, degrees):
        answers = case.function(region.bounds, *read(case, values, region))
        for whole, answer, tensor in zip(outputs, answers, case.op.outputs, strict=True):
            add_to(whole, np.asarray(answer), case.op, tensor, region)
    return outputs


def cuts(case: Case) -> list[tuple[int, ...]]:
    """Some cuts of an operator: even ones, uneven ones, and the finest into at most three parts a dimension."""
    choices: list[list[int]] = []
    for dim in case.op.dims:
        options: list[int] = [1]
        if dim.role is not None and dim.name not in case.uncut:
            options += [degree for degree in (2, 3) if degree <= dim.size]
            options += [Slices((dim.size - 1, 1))] if dim.size > 2 else []
        choices.append(options)
    every = list(itertools.product(*choices))
    picked = np.random.default_rng(0).permutation(len(every))[:CUTS]
    finest = tuple(options[-2] if len(options) > 3 else options[-1] for options in choices)
    return [finest, *(every[k] for k in picked)]


@pytest.mark.by_day(24)
@pytest.mark.parametrize("name", CASES)
def test_parts_put_together_are_the_whole(name: str) -> None:
    case = CASES[name]
    values = case.values()
    expected = [np.asarray(answer) for answer in case.whole(*values)]
    assert [answer.shape for answer in expected] == [tensor.shape for tensor in case.op.outputs]
    for degrees in cuts(case):
        for answer, whole in zip(put_together(case, values, degrees), expected, strict=True):
            np.testing.assert_allclose(answer, whole, atol=1e-9, err_msg=f"{name} cut {degrees}")


@pytest.mark.parametrize("name", CASES)
def test_slices_have_the_elements_that_the_engine_counts(name: str) -> None:
    op = CASES[name].op
    for degrees in cuts(CASES[name]):
        for tensor in (*arguments(op), *op.outputs):
            counted = slice_elements(op, tensor, degrees).tolist()
            inside = [
                [int(((t := region.along(op, axis)) >= 0).sum() - (t >= axis.size).sum()) for axis in tensor.axes]
                for region in regions(op, degrees)
            ]
            assert counted == [math.prod(lengths) for lengths in inside]


def gradients(function: Callable[..., float], values: list[np.ndarray], wanted: list[int]) -> list[np.ndarray]:
    """Of a number that depends on arrays, by central differences."""
    found = []
    for place in wanted:
        gradient = np.zeros(values[place].shape)
        for index in np.ndindex(*gradient.shape):
            sides = []
            for step in (STEP, -STEP):
                moved = [value.copy() if k == place else value for k, value in enumerate(values)]
                moved[place][index] += step
                sides.append(function(*moved))
            gradient[index] = (sides[0] - sides[1]) / (2 * STEP)
        found.append(gradient)
    return found


DIFFERENTIABLE = [name for name, case in CASES.items() if case.differentiable]
#: Their differences take a second each; "transposed convolution with positions behind" has what they have.
LARGE = (
    "transposed convolution",
    "transposed convolution with positions behind",
    "dilated transposed convolution",
    "depthwise convolution",
)


@pytest.mark.by_day(20)
@pytest.mark.parametrize("name", at_night(DIFFERENTIABLE, *(name for name in DIFFERENTIABLE if name not in LARGE)))
def test_gradients_of_parts_add_up(name: str) -> None:
    case, op = CASES[name], CASES[name].op
    values = case.values()
    rng = np.random.default_rng(1)
    incoming = [rng.normal(size=tensor.shape) for tensor in op.outputs]
    wanted = [k for k, tensor in enumerate(arguments(op)) if tensor.name not in case.integers]

    def loss(*given: np.ndarray) -> float:
        return float(sum((g * y).sum() for g, y in zip(incoming, case.whole(*given), strict=True)))

    expected = gradients(loss, values, wanted)
    degrees = cuts(CASES[name])[0]
    found = [np.zeros(values[k].shape) for k in wanted]
    for region in regions(op, degrees):
        arriving = [window(g, op, tensor, region, 0.0) for g, tensor in zip(incoming, op.outputs, strict=True)]

        def part_loss(*given: np.ndarray, bounds=region.bounds, arriving=arriving) -> float:
            return float(sum((g * y).sum() for g, y in zip(arriving, case.function(bounds, *given), strict=True)))

        for total, k, gradient in zip(
            found, wanted, gradients(part_loss, read(case, values, region), wanted), strict=True
        ):
            add_to(total, gradient, op, arguments(op)[k], region)
    for total, gradient in zip(found, expected, strict=True):
        np.testing.assert_allclose(total, gradient, atol=1e-6, err_msg=f"{name} cut {degrees}")


@pytest.mark.parametrize("name", CASES)
def test_replicas_of_a_weight_hold_the_same_slice(name: str) -> None:
    op = CASES[name].op
    degrees = cuts(CASES[name])[0]
    for weight in op.weights:
        groups = replica_groups(op, weight, degrees)
        slices = [[tuple(r.along(op, a).tolist()) for a in weight.axes] for r in regions(op, degrees)]
        assert all(slices[part] == slices[row[0]] for row in groups.tolist() for part in row)
