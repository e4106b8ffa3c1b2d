"""The messages of an ONNX file: nodes, tensors, inputs and the shapes of values.

Field numbers are those of onnx.proto3 (onnx 1.23, Apache-2.0).  The file is mapped, and of tensors no more is read than
their shapes and, where they are small, their values: a constant may be the target of a reshape.  External data are not
looked at.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from topoplan import TopoplanError
from topoplan.errors import shown
from topoplan_engine.files import check_readable
from topoplan_frontend_onnx.wire import Field, fields, integers, reals, signed, text

__all__ = ["SMALL", "File", "Input", "Node", "Stored", "read"]

#: Elements of the largest tensor whose values are read.
SMALL = 1 << 16
#: Nodes of the largest graph, and bytes of the largest file.
_MOST_NODES, _LARGEST = 500_000, 64 << 30

#: Bytes of the longest list of numbers that an attribute may be.
_LONGEST_LIST = 1 << 22

#: Number of an element type -> numpy's name and bytes; types of less than a byte are rounded up.
_TYPES: Mapping[int, tuple[str, int]] = {
    1: ("float32", 4),
    2: ("uint8", 1),
    3: ("int8", 1),
    4: ("uint16", 2),
    5: ("int16", 2),
    6: ("int32", 4),
    7: ("int64", 8),
    8: ("", 1),
    9: ("bool", 1),
    10: ("float16", 2),
    11: ("float64", 8),
    12: ("uint32", 4),
    13: ("uint64", 8),
    14: ("complex64", 8),
    15: ("complex128", 16),
    16: ("bfloat16", 2),
    **dict.fromkeys(range(17, 21), ("float8", 1)),
    21: ("uint4", 1),
    22: ("int4", 1),
    23: ("float4", 1),
}
_FLOATS = ("float16", "bfloat16", "float32", "float64", "float8", "float4")


@attrs.frozen(eq=False)
class Stored:
    """A tensor of the file.

    Attributes:
        shape: see above.
        kind: numpy's name of the element type, or one of those that numpy lacks.
        itemsize: bytes of an element.
        value: the elements, where they are few and in the file.
    """

    shape: tuple[int, ...]
    kind: str
    itemsize: int
    value: np.ndarray[Any, Any] | None

    @property
    def real(self) -> bool:
        """Whether elements are real numbers, of any precision."""
        return self.kind in _FLOATS


@attrs.frozen(eq=False)
class Node:
    """One operation.

    Attributes:
        name: may be empty, or that of another node, too.
        kind: its operator, with its domain unless that is ONNX's own.
        inputs, outputs: names of values; an empty one is left out.
        attributes: integers, floats, strings, tensors and lists of them; a graph is ``None``.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]

    @property
    def where(self) -> str:
        """What messages call it."""
        return f"node {shown(self.name or next(iter(self.outputs), ''))} ({shown(self.kind)})"


@attrs.frozen
class Input:
    """A value with its type; sizes are numbers, names of symbolic dimensions, or empty if not known."""

    name: str
    shape: tuple[int | str, ...] | None
    kind: str
    itemsize: int


@attrs.frozen(eq=False)
class File:
    """A model.

    Attributes:
        name: of its graph.
        opset: version of ONNX's operators.
        nodes: in the order of the file, which is topological.
        tensors: name -> initializer.
        inputs: those that are no initializers.
        outputs: names.
        shapes: name -> type and shape of values, where the file has them.
    """

    name: str
    opset: int
    nodes: tuple[Node, ...]
    tensors: Mapping[str, Stored]
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    shapes: Mapping[str, Input]


def read(path: Path) -> File:
    """Read a file.

    Raises:
        TopoplanError: it cannot be read, or is no ONNX model.
    """
    size = check_readable(path)
    if not 0 < size <= _LARGEST:
        raise TopoplanError(f"{path}: is no ONNX model ({size} bytes)")
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return _model(memoryview(data))
    except (OSError, ValueError) as error:
        raise TopoplanError(f"{path}: cannot be read ({error})") from None
    except TopoplanError as error:
        raise TopoplanError(f"{path}: is no ONNX model, or a broken one: {error}") from None


def _model(message: memoryview) -> File:
    graph, opset, functions = None, 1, 0
    for number, value in fields(message):
        if number == 7:
            graph = _bytes(value)
        elif number == 8:
            domain, version = "", 1
            for place, part in fields(_bytes(value)):
                domain = text(part) if place == 1 else domain
                version = signed(part) if place == 2 else version
            opset = version if domain in ("", "ai.onnx") else opset
        elif number == 25:
            functions += 1
    if graph is None:
        raise TopoplanError("it has no graph")
    if functions:
        raise TopoplanError(f"it has {functions} local functions (inline them: onnx.inliner.inline_local_functions)")
    return _graph(graph, opset)


def _bytes(value: int | memoryview) -> memoryview:
    if not isinstance(value, memoryview):
        raise TopoplanError("a message is a number")
    return value


def _graph(message: memoryview, opset: int) -> File:
    name = ""
    nodes: list[Node] = []
    tensors: dict[str, Stored] = {}
    inputs: list[Input] = []
    outputs: list[str] = []
    shapes: dict[str, Input] = {}
    for number, value in fields(message):
        if number == 1:
            nodes.append(_node(_bytes(value)))
            if len(nodes) > _MOST_NODES:
                raise TopoplanError(f"it has more than {_MOST_NODES} nodes")
        elif number == 2:
            name = text(value)
        elif number == 5:
            key, tensor = _tensor(_bytes(value))
            tensors[key] = tensor
        elif number in (11, 12, 13):
            info = _info(_bytes(value))
            shapes[info.name] = info
            if number == 11:
                inputs.append(info)
            elif number == 12:
                outputs.append(info.name)
        elif number == 15:
            raise TopoplanError("it has sparse tensors (dense ones can be planned)")
    if not nodes:
        raise TopoplanError("its graph has no nodes")
    needed = tuple(declared for declared in inputs if declared.name not in tensors)
    return File(name, opset, tuple(nodes), tensors, needed, tuple(outputs), shapes)


def _node(message: memoryview) -> Node:
    inputs: list[str] = []
    outputs: list[str] = []
    strings = {3: "", 4: "", 7: ""}
    attributes: dict[str, Any] = {}
    for number, value in fields(message):
        if number == 1:
            inputs.append(text(value))
        elif number == 2:
            outputs.append(text(value))
        elif number in strings:
            strings[number] = text(value)
        elif number == 5:
            name, content = _attribute(_bytes(value))
            attributes[name] = content
    kind = strings[4] if strings[7] in ("", "ai.onnx") else f"{strings[7]}.{strings[4]}"
    return Node(strings[3], kind, tuple(inputs), tuple(outputs), attributes)


def _attribute(message: memoryview) -> tuple[str, Any]:
    name = ""
    content: Any = None
    floats: list[float] = []
    numbers: list[int] = []
    strings: list[str] = []
    for number, value in fields(message):
        if number in (7, 8) and isinstance(value, memoryview) and len(value) > _LONGEST_LIST:
            raise TopoplanError(f"attribute {shown(name)}: a list of {len(value)} bytes")
        if number == 1:
            name = text(value)
        elif number == 2:
            content = reals(value)[0] if reals(value) else 0.0
        elif number == 3:
            content = signed(value)
        elif number == 4:
            content = text(value)
        elif number == 5:
            content = _tensor(_bytes(value))[1]
        elif number == 7:
            floats += reals(value)
        elif number == 8:
            numbers += integers(value)
        elif number == 9:
            strings.append(text(value))
    return name, floats or numbers or strings or content


def _tensor(message: memoryview) -> tuple[str, Stored]:
    dims: list[int] = []
    name, number_of_type, raw, external = "", 0, None, False
    numbers: list[Field] = []
    for number, value in fields(message):
        if number == 1:
            dims += integers(value)
        elif number == 2:
            number_of_type = signed(value)
        elif number == 8:
            name = text(value)
        elif number == 9:
            raw = _bytes(value)
        elif number == 14:
            external = signed(value) == 1
        elif number in (4, 5, 7, 10, 11):
            numbers.append((number, value))
    if number_of_type not in _TYPES:
        raise TopoplanError(f"tensor {shown(name)}: element type {number_of_type} is unknown")
    if any(size < 0 for size in dims) or len(dims) > 64:
        raise TopoplanError(f"tensor {shown(name)}: shape {shown(tuple(dims))}")
    kind, itemsize = _TYPES[number_of_type]
    value_of = None
    if not external and math.prod(dims) <= SMALL:
        value_of = _value(kind, tuple(dims), raw, numbers)
    return name, Stored(tuple(dims), kind, itemsize, value_of)


def _value(
    kind: str, shape: tuple[int, ...], raw: memoryview | None, numbers: list[Field]
) -> np.ndarray[Any, Any] | None:
    """Return the elements of a small tensor; None where numpy has no such type, or the file not as many elements."""
    try:
        dtype = np.dtype(kind)
    except TypeError:
        return None
    if raw is not None:
        flat = np.frombuffer(raw.tobytes(), dtype=dtype) if len(raw) == math.prod(shape) * dtype.itemsize else None
    elif sum(len(value) if isinstance(value, memoryview) else 1 for _, value in numbers) > 10 * SMALL:
        flat = None
    else:
        column: list[float] = []
        for number, value in numbers:
            column += reals(value, "f" if number == 4 else "d") if number in (4, 10) else integers(value)
        # Bits of half precision stand in integers.
        half = dtype == np.float16
        flat = np.array(column, dtype=np.uint16).view(dtype) if half else np.array(column).astype(dtype)
    return flat.reshape(shape) if flat is not None and flat.size == math.prod(shape) else None


def _info(message: memoryview) -> Input:
    name, kind, itemsize = "", "", 4
    shape: tuple[int | str, ...] | None = None
    for number, value in fields(message):
        if number == 1:
            name = text(value)
        elif number == 2:
            for place, part in fields(_bytes(value)):
                if place == 1:
                    kind, itemsize, shape = _tensor_type(_bytes(part))
    return Input(name, shape, kind, itemsize)


def _tensor_type(message: memoryview) -> tuple[str, int, tuple[int | str, ...] | None]:
    kind, itemsize = "", 4
    shape: list[int | str] | None = None
    for number, value in fields(message):
        if number == 1:
            kind, itemsize = _TYPES.get(signed(value), ("", 4))
        elif number == 2:
            shape = []
            for place, part in fields(_bytes(value)):
                size: int | str = ""
                for key, entry in fields(_bytes(part)) if place == 1 else ():
                    size = signed(entry) if key == 1 else text(entry) if key == 2 else size
                if place == 1:
                    shape.append(size)
    return kind, itemsize, None if shape is None else tuple(shape)
