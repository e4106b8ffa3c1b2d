"""What users write for the inputs of a module: ``2x128:int64``, ``2x3x224x224-2x16``, ``input_ids=2x128:int64``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

import attrs

from topoplan import TopoplanError
from topoplan.errors import nearest, shown
from topoplan_frontend_torch.program import ITEMSIZES

__all__ = ["InputSpec", "parse_inputs", "with_batch_size"]

_INPUT = re.compile(r"(?:(?P<name>[A-Za-z_]\w*)=)?(?P<shape>[1-9]\d{0,8}(?:x[1-9]\d{0,8})*)(?::(?P<dtype>\w*))?")
_SYNTAX = "write 2x128:int64, or several with dashes between, such as 8x3x224x224-8x13; the first size is the samples"


@attrs.frozen
class InputSpec:
    """One input: its sizes, samples first, the type of its elements, and the argument's name if it goes by name."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    name: str = ""


def parse_inputs(text: str, where: str) -> tuple[InputSpec, ...]:
    """Read the shapes and types of a module's inputs.

    Args:
        text: ``SHAPE[:TYPE]`` for each input, with dashes between; ``NAME=`` before it passes it by name.
        where: start of error messages.

    Raises:
        TopoplanError: it is none; the message has the syntax.
    """
    specs = []
    for word in text.split("-"):
        match = _INPUT.fullmatch(word)
        if match is None:
            raise TopoplanError(f"{where}: {shown(word)} is no input ({_SYNTAX})")
        dtype = match["dtype"] if match["dtype"] is not None else "float32"
        if dtype not in ITEMSIZES:
            raise TopoplanError(
                f"{where}: {shown(word)}: no type of elements {shown(dtype)}{nearest(dtype, ITEMSIZES)}"
            )
        specs.append(InputSpec(tuple(map(int, match["shape"].split("x"))), dtype, match["name"] or ""))
    names = [spec.name for spec in specs if spec.name]
    if len(set(names)) != len(names):
        raise TopoplanError(f"{where}: {shown(text)}: an input is given twice")
    if any(not after.name for before, after in pairwise(specs) if before.name):
        raise TopoplanError(f"{where}: {shown(text)}: inputs without a name come before those with one")
    return tuple(specs)


def with_batch_size(specs: Sequence[InputSpec], batch_size: int | None) -> tuple[InputSpec, ...]:
    """Return inputs of ``batch_size`` samples: the first size of every input that has the first one's is replaced."""
    if batch_size is None or not specs:
        return tuple(specs)
    samples = specs[0].shape[0]
    return tuple(
        attrs.evolve(spec, shape=(batch_size, *spec.shape[1:])) if spec.shape[0] == samples else spec for spec in specs
    )
