"""Parameters that are only read in parts, as a parameter for each part.

`torch.nn.MultiheadAttention` keeps three projections in one parameter.  Where queries and keys differ, it takes the
parameter apart before it multiplies.  As one operator that takes it apart, no device would hold the part that it needs
alone, and the parts would count as computed.  As parameters of their own they are what they are: weights.

A parameter is taken apart if all its readers take slices along one axis, and the slices are each of its elements once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import attrs

from topoplan_frontend_torch.program import Node, Program, Ref
from topoplan_frontend_torch.simplify import operator_of

__all__ = ["taken_apart"]

_SPLITS = frozenset({"chunk", "split", "split_with_sizes", "tensor_split", "unbind", "unsafe_split"})


@attrs.frozen(order=True)
class _Slice:
    """Elements ``start`` to before ``stop`` of an axis, as the value ``name``."""

    axis: int
    start: int
    stop: int
    name: str


def taken_apart(program: Program) -> Program:
    """Return the program with a parameter for each part of those that are only read in parts."""
    readers: defaultdict[str, list[Node]] = defaultdict(list)
    for node in program.nodes:
        for name in dict.fromkeys(node.reads):
            readers[name].append(node)
    shared = Counter(program.parameters.values())
    parameters = dict(program.parameters)
    gone: set[str] = set()
    for name, parameter in program.parameters.items():
        if shared[parameter] > 1 or name in program.outputs:
            continue
        slices = sorted(each for node in readers[name] for each in _slices(program, node, name))
        whole = program.values[name].shape
        if not _once_each(slices, whole) or not all(readers[each.name] for each in slices):
            continue
        del parameters[name]
        parameters.update((each.name, f"{parameter}.part{number}") for number, each in enumerate(slices, 1))
        gone.update(node.name for node in readers[name])
    nodes = tuple(node for node in program.nodes if node.name not in gone)
    return attrs.evolve(program, nodes=nodes, parameters=parameters)


def _slices(program: Program, node: Node, name: str) -> list[_Slice]:
    """Return the slices of the value ``name`` that a node takes; one of the axis -1 if it does anything else."""
    operator, shape = operator_of(node.target), program.values[name].shape
    axis = node.arguments.get("dim", 0)
    if not isinstance(axis, int) or node.arguments.get("self") != Ref(name) or not -len(shape) <= axis < len(shape):
        return [_Slice(-1, 0, 0, name)]
    axis %= len(shape)
    size = shape[axis]
    if operator in _SPLITS:
        sizes = [1 if operator == "unbind" else program.values[each].shape[axis] for each in node.outputs]
        stops = [sum(sizes[: k + 1]) for k in range(len(sizes))]
        return [
            _Slice(axis, stop - size, stop, each) for each, size, stop in zip(node.outputs, sizes, stops, strict=True)
        ]
    start, stop, step = (node.arguments.get(key) for key in ("start", "end", "step"))
    if operator == "select" and isinstance(index := node.arguments.get("index"), int):
        return [_Slice(axis, index % size, index % size + 1, node.outputs[0])]
    if operator == "slice" and step in (None, 1):
        bounds = (each if isinstance(each, int) else None for each in (start, stop))
        first, last, _ = slice(*bounds).indices(size)
        return [_Slice(axis, first, last, node.outputs[0])]
    return [_Slice(-1, 0, 0, name)]


def _once_each(slices: Sequence[_Slice], shape: Sequence[int]) -> bool:
    """Whether several slices along one axis, in their order, are each element of a tensor once."""
    if len(slices) < 2 or slices[0].axis < 0 or len({each.axis for each in slices}) > 1:
        return False
    ends = [0, *(each.stop for each in slices)]
    return [each.start for each in slices] == ends[:-1] and ends[-1] == shape[slices[0].axis]
