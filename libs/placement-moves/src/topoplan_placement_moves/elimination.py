"""The least sum of functions of one or two variables each, by elimination of variables.

A variable is removed by a minimum over its values, for each combination of values of its neighbours, which becomes a
function of these.  For a graph of operators this is the elimination of nodes and edges of Jia et al., "Exploring Hidden
Dimensions in Parallelizing Convolutional Neural Networks" (OptCNN), ICML 2018, section 5, without its limit to two
neighbours; in general, Bertele and Brioschi, "Nonserial Dynamic Programming", 1972.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from topoplan.arrays import F64
from topoplan.search.stopping import stop_if_wanted

__all__ = ["least_sum"]

#: Entries of the largest function that elimination may make.
_MOST = 2_000_000


def least_sum(unary: Sequence[F64], pairs: Mapping[tuple[int, int], F64], most: int = _MOST) -> list[int]:
    """Return a value for each variable, so that the sum of all functions is least.

    The answer is exact unless a function of more than ``most`` entries would be needed; then the variable with the most
    neighbours gets the value that its own functions make the best.

    Args:
        unary: (C,) for each variable, by value.
        pairs: (C, C') for pairs of variables.
    """
    functions: list[tuple[tuple[int, ...], F64]] = [((number,), table) for number, table in enumerate(unary)]
    functions += list(pairs.items())
    sizes = [len(table) for table in unary]
    neighbours: dict[int, set[int]] = {number: set() for number in range(len(unary))}
    for u, v in pairs:
        neighbours[u].add(v)
        neighbours[v].add(u)
    values: dict[int, int] = {}
    choices: list[tuple[int, list[int], np.ndarray]] = []
    while neighbours:
        stop_if_wanted()
        entries = {x: sizes[x] * math.prod(sizes[y] for y in around) for x, around in neighbours.items()}
        variable = min(entries, key=lambda x: (entries[x], x))
        if entries[variable] > most:
            variable = max(neighbours, key=lambda x: (len(neighbours[x]), -x))
            values[variable] = _best_alone(functions, variable)
            functions = [_with_value(function, variable, values[variable]) for function in functions]
            scope: list[int] = []
        else:
            scope = sorted(neighbours[variable])
            table = _sum_of(functions, [variable, *scope], sizes)
            functions = [function for function in functions if variable not in function[0]]
            functions.append((tuple(scope), table.min(axis=0)))
            choices.append((variable, scope, table.argmin(axis=0)))
        for peer in neighbours.pop(variable):
            neighbours[peer].discard(variable)
            neighbours[peer].update(set(scope) - {peer})
    for variable, scope, best in reversed(choices):
        values[variable] = int(best[tuple(values[peer] for peer in scope)])
    return [values[number] for number in range(len(unary))]


def _sum_of(functions: list[tuple[tuple[int, ...], F64]], axes: list[int], sizes: list[int]) -> F64:
    """Return the sum of all functions of the first variable of ``axes``, as a function of ``axes``."""
    total = np.zeros([sizes[axis] for axis in axes])
    for scope, table in functions:
        if axes[0] in scope:
            order = sorted(range(len(scope)), key=lambda k, scope=scope: axes.index(scope[k]))  # type: ignore[misc]
            shape = [sizes[axis] if axis in scope else 1 for axis in axes]
            total += table.transpose(order).reshape(shape)
    return total


def _best_alone(functions: list[tuple[tuple[int, ...], F64]], variable: int) -> int:
    return int(np.argmin(sum(table for scope, table in functions if scope == (variable,))))


def _with_value(function: tuple[tuple[int, ...], F64], variable: int, value: int) -> tuple[tuple[int, ...], F64]:
    scope, table = function
    if variable not in scope:
        return function
    reduced_table: F64 = np.take(table, value, axis=scope.index(variable))
    return tuple(x for x in scope if x != variable), reduced_table
