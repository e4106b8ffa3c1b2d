"""The conversions between all forms of a value, for meshes of any sizes, and their seconds on one.

Which collectives a conversion consists of follows from the forms, and from the sizes of a mesh follows how long each
takes.  Many conversions consist of the same few collectives, which are priced once for all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64, I64
from topoplan.model.sharding import MeshSharding
from topoplan_engine.sharding.mesh import AnyMeshStep, any_mesh_steps

__all__ = ["Conversions", "conversions_of"]


class Conversions(NamedTuple):
    """The conversions between F forms; the code of a form is its index plus 1, and 0 is none.

    Attributes:
        exists: (F+1, F+1) whether a form can be converted to another one; False for equal ones.
        steps: the collectives of all conversions, each once.
        forward, backward: (K, F+1, F+1) numbers in ``steps``, plus 1, of the first, second, ... collective of each
            conversion and of that of the gradients; 0 if it has fewer.
    """

    exists: np.ndarray
    steps: tuple[AnyMeshStep, ...]
    forward: I64
    backward: I64

    def seconds(self, price: Callable[[AnyMeshStep], float]) -> tuple[F64, F64]:
        """(F+1, F+1) seconds of each conversion, and of that of the gradients; infinite if there is none."""
        prices = np.array([0.0, *map(price, self.steps)])
        seconds_of_pass = []
        for numbers in (self.forward, self.backward):
            seconds = np.where(self.exists, 0.0, np.inf)
            for those in numbers:
                seconds += prices[those]
            seconds_of_pass.append(seconds)
        return seconds_of_pass[0], seconds_of_pass[1]


def conversions_of(forms: Sequence[MeshSharding], stored: Callable[[MeshSharding], MeshSharding]) -> Conversions:
    """Return the conversions between some forms; ``stored`` says from which form one is made that exists."""
    count = len(forms) + 1
    exists = np.zeros((count, count), dtype=bool)
    numbers: dict[AnyMeshStep, int] = {}
    rows: tuple[list[tuple[int, int, int, int]], ...] = ([], [])
    for (a, source), (b, target) in itertools.permutations(enumerate(forms, 1), 2):
        if any_mesh_steps(source, target) is None:
            continue
        exists[a, b] = True
        steps = any_mesh_steps(stored(source), target)
        assert steps is not None, "a parameter is read from where it is stored"
        for pass_steps, pass_rows in zip(steps, rows, strict=True):
            sending = [step for step in pass_steps if not step.step.free]
            pass_rows += [(k, a, b, numbers.setdefault(step, len(numbers) + 1)) for k, step in enumerate(sending)]
    forward, backward = (_table(pass_rows, count) for pass_rows in rows)
    return Conversions(exists, tuple(numbers), forward, backward)


def _table(rows: Sequence[tuple[int, int, int, int]], count: int) -> I64:
    """Return the numbers of rows (place of the step, code of the source, of the target, number) as an array."""
    table = np.zeros((1 + max((row[0] for row in rows), default=-1), count, count), dtype=np.int64)
    if rows:
        place, source, target, number = np.array(rows).T
        table[place, source, target] = number
    return table
