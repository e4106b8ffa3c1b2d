"""FlexNet's measurement file: its names of operators and of cuts, and how it is written.

A file is an object ``{batch_size, ngpus, measurements: [{name, pc_str, fw_time, bw_time, mem_req}]}``: times in ms and
memory in bytes, both of one part.  The name of an operator has its kind and sizes, without input shapes; frontends put
it into the tag ``flexnet``.  ``pc_str`` is the number of axes of the operator's output and its degrees along them,
innermost axis first: ``4-1-1-1-8`` cuts the samples of an image tensor into eight.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import attrs

from topoplan.model.graph import Operator, Slices

__all__ = ["Cut", "Measurement", "cut_of", "document", "name_of", "output_dims", "pc_str"]

#: Degrees along the axes of an operator's output, outermost axis first.
Cut = tuple[int, ...]


@attrs.frozen
class Measurement:
    """One entry: name of the operator, cut, seconds forward and backward, bytes.

    Times of None say that the part did not fit into memory; FlexNet writes -1.
    """

    name: str
    cut: Cut
    forward: float | None
    backward: float | None
    memory: int


def name_of(op: Operator) -> str:
    """Return the name under which FlexNet measures an operator; empty for one that FlexNet does not have."""
    return op.tags.get("flexnet", "")


def output_dims(op: Operator) -> tuple[int, ...]:
    """Dimension (or -1) of each axis of the first output, outermost axis first: what FlexNet cuts."""
    return tuple(axis.dim for axis in op.outputs[0].axes)


def cut_of(op: Operator, degrees: tuple[int, ...]) -> Cut | str:
    """Return ``degrees`` as a cut of the output's axes, or the reason if FlexNet cannot measure it."""
    if len(degrees) != len(op.dims):
        return f"{len(degrees)} degrees for {len(op.dims)} dimensions"
    axes = output_dims(op)
    for index, (dim, degree) in enumerate(zip(op.dims, degrees, strict=True)):
        if isinstance(degree, Slices):
            return f"dimension {dim.name!r} is cut into slices of {degree} (equal parts were measured)"
        if degree < 1 or dim.size % degree:
            return f"dimension {dim.name!r} of size {dim.size} is not divisible by {degree} (equal parts were measured)"
        if degree > 1 and dim.role is None:
            return f"dimension {dim.name!r} cannot be cut (degree {degree})"
        if degree > 1 and index not in axes:
            return f"a cut of dimension {dim.name!r}, which is no axis of the output, was not measured"
    return tuple(degrees[dim] if dim >= 0 else 1 for dim in axes)


def pc_str(cut: Cut) -> str:
    """Write a cut as FlexNet does."""
    return "-".join(map(str, (len(cut), *reversed(cut))))


def document(batch_size: int, devices: int, measurements: Sequence[Measurement]) -> bytes:
    """Return the content of a file; numbers have six digits, as FlexNet prints them."""

    def ms(seconds: float | None) -> float:
        return -1 if seconds is None else float(f"{seconds * 1000:.6g}")

    rows = [
        {
            "name": entry.name,
            "pc_str": pc_str(entry.cut),
            "fw_time": ms(entry.forward),
            "bw_time": ms(entry.backward),
            "mem_req": entry.memory,
        }
        for entry in measurements
    ]
    lines = ",\n".join(json.dumps(row) for row in rows)
    head = f'{{"batch_size": {batch_size}, "ngpus": {devices}, "measurements": [\n'
    return f"{head}{lines}\n]}}\n".encode()
