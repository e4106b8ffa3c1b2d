"""The text of a layer profile, line by line, to nodes and edges.

The format is that of the graphs of PipeDream's profiler (msr-fiddle/pipedream, ``graph.py``)::

    node5 -- Conv2d(3, 64) -- forward_compute_time=1.2, backward_compute_time=2.4, activation_size=[8.0; 4.0],
        parameter_size=9.0 -- stage_id=0                                                         (on one line)
    <tab>node5 -- node6

Times are milliseconds and sizes bytes; activations in brackets are those of several outputs.  The stages
in a line are part of a plan and are ignored.  Any other line is an error that names line and field, so that a truncated
profile does not become a smaller model.
"""

from __future__ import annotations

from pathlib import Path

import attrs

from topoplan import TopoplanError
from topoplan.errors import shown
from topoplan_engine.files import read_text

__all__ = ["LayerProfile", "Node", "parse", "read"]

#: Milliseconds of the longest time (eleven days), and bytes of the largest size.
_LONGEST_MS, _MOST_BYTES = 1e9, 2.0**50
_FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")


@attrs.frozen
class Node:
    """A layer: milliseconds forward and backward, bytes of activations and parameters, of the profiled batch."""

    name: str
    description: str
    forward: float
    backward: float
    activations: float
    parameters: float


@attrs.frozen
class LayerProfile:
    """Nodes in the order of the file, and edges (parent, child) between their positions, each once."""

    nodes: tuple[Node, ...]
    edges: tuple[tuple[int, int], ...]


def read(path: Path) -> LayerProfile:
    """Read a profile.

    Raises:
        TopoplanError: it cannot be read, or a line is wrong; the message names line and field.
    """
    return parse(read_text(path, "a layer profile"), str(path))


def parse(text: str, context: str) -> LayerProfile:
    """Parse the text of a profile; ``context`` stands before the line number in messages."""
    nodes: list[Node] = []
    position: dict[str, int] = {}
    edges: dict[tuple[int, int], None] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        place = f"{context}: line {number}"
        if line[0] in " \t":
            edges[_edge(line, place, position)] = None
            continue
        node = _node(line, place)
        if node.name in position:
            raise TopoplanError(f"{place}: node {shown(node.name)} stands there twice (give each its own name)")
        position[node.name] = len(nodes)
        nodes.append(node)
    if not nodes:
        raise TopoplanError(f"{context}: has no nodes (a layer profile is needed)")
    return LayerProfile(tuple(nodes), tuple(edges))


def _node(line: str, place: str) -> Node:
    parts = [part.strip() for part in line.split(" -- ")]
    if len(parts) not in (3, 4) or not parts[0]:
        raise TopoplanError(f"{place}: {line.strip()[:60]!r} is no node (NAME -- DESCRIPTION -- {_FIELDS[0]}=..., ...)")
    if len(parts) == 4 and not parts[3].removeprefix("stage_id=").isdecimal():
        raise TopoplanError(f"{place}: stage_id: {shown(parts[3])} (expected stage_id=NUMBER)")
    fields = parts[2].split(", ")
    values = []
    for index, name in enumerate(_FIELDS):
        key, equals, text = (fields[index] if index < len(fields) else "").partition("=")
        if not equals or key.strip() != name:
            actual = shown(fields[index]) if index < len(fields) else "the line ends"
            raise TopoplanError(f"{place}: {name}: {actual} (expected {name}=NUMBER)")
        largest = _MOST_BYTES if name.endswith("_size") else _LONGEST_MS
        values.append(_amount(text, f"{place}: {name}", largest, several=name == "activation_size"))
    if len(fields) > len(_FIELDS):
        raise TopoplanError(f"{place}: {shown(fields[len(_FIELDS)])} follows {_FIELDS[-1]} (expected nothing)")
    return Node(parts[0], parts[1], *values)


def _amount(text: str, place: str, largest: float, *, several: bool) -> float:
    """Read a number from 0 to ``largest``, or the sum of several in brackets."""
    text = text.strip()
    items = text[1:-1].split(";") if several and text.startswith("[") and text.endswith("]") else [text]
    total = 0.0
    for item in items:
        try:
            value = float(item)
        except ValueError:
            raise TopoplanError(f"{place}: {shown(item.strip())} is no number") from None
        if not 0 <= value <= largest:
            raise TopoplanError(f"{place}: {value} (must be 0 to {largest:g})")
        total += value
    if total > largest:
        raise TopoplanError(f"{place}: {total} in all (must be 0 to {largest:g})")
    return total


def _edge(line: str, place: str, position: dict[str, int]) -> tuple[int, int]:
    ends = [end.strip() for end in line.strip().split(" -- ")]
    if len(ends) != 2 or not all(ends):
        raise TopoplanError(f"{place}: {line.strip()[:60]!r} is no edge (PARENT -- CHILD)")
    for name in ends:
        if name not in position:
            raise TopoplanError(
                f"{place}: no node {shown(name)} stands before this line (nodes come before their edges)"
            )
    return position[ends[0]], position[ends[1]]
