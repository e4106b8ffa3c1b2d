"""ONNX files for tests, encoded by hand, so that no test needs the package onnx: nodes, tensors, and whole models."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["integers", "model", "node", "tensor", "value"]

Shape = Sequence[int | str]
_TYPES = {"float32": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7, "bool": 9, "float16": 10}


def _varint(number: int) -> bytes:
    number &= 2**64 - 1
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*digits, number])


def _field(number: int, content: int | float | str | bytes) -> bytes:
    if isinstance(content, int):
        return _varint(number << 3) + _varint(content)
    if isinstance(content, float):
        return _varint(number << 3 | 5) + struct.pack("<f", content)
    data = content.encode() if isinstance(content, str) else content
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def tensor(
    name: str, shape: Sequence[int], values: Any = None, kind: str = "float32", *, external: bool = False
) -> bytes:
    """A tensor; without values it has zeros."""
    array = np.zeros(shape) if values is None else np.asarray(values).reshape(shape)
    message = b"".join(_field(1, size) for size in shape) + _field(2, _TYPES[kind]) + _field(8, name)
    if external:
        return message + _field(13, _field(1, "location") + _field(2, "weights.bin")) + _field(14, 1)
    return message + _field(9, array.astype(kind).tobytes())


def integers(name: str, *values: int) -> bytes:
    """A tensor of integers with one axis, as shapes are."""
    return tensor(name, [len(values)], values, "int64")


def _attribute(name: str, content: Any) -> bytes:
    message = _field(1, name)
    if isinstance(content, list):
        return message + b"".join(_field(8, each) for each in content) + _field(20, 7)
    if isinstance(content, bytes):
        return message + _field(5, content) + _field(20, 4)
    if isinstance(content, str):
        return message + _field(4, content) + _field(20, 3)
    return message + (
        _field(2, content) + _field(20, 1) if isinstance(content, float) else _field(3, content) + _field(20, 2)
    )


def node(kind: str, inputs: str, outputs: str, *, domain: str = "", name: str = "", **attributes: Any) -> bytes:
    """A node; inputs and outputs are words, ``-`` is one that is left out, and bytes of an attribute are a tensor."""
    message = b"".join(_field(1, "" if word == "-" else word) for word in inputs.split())
    message += b"".join(_field(2, word) for word in outputs.split())
    message += _field(3, name or outputs.split()[0]) + _field(4, kind)
    message += b"".join(_field(5, _attribute(key, content)) for key, content in attributes.items())
    return message + (_field(7, domain) if domain else b"")


def value(name: str, shape: Shape, kind: str = "float32") -> bytes:
    """The type and shape of an input, an output or another value."""
    sizes = b"".join(_field(1, _field(2, size) if isinstance(size, str) else _field(1, size)) for size in shape)
    return _field(1, name) + _field(2, _field(1, _field(1, _TYPES[kind]) + _field(2, sizes)))


def model(
    nodes: Sequence[bytes],
    inputs: Mapping[str, Shape],
    outputs: Mapping[str, Shape],
    tensors: Sequence[bytes] = (),
    *,
    kinds: Mapping[str, str] | None = None,
    values: Sequence[bytes] = (),
    opset: int = 17,
) -> bytes:
    """A file; ``kinds`` has the element types of inputs that are no floats."""
    graph = b"".join(_field(1, each) for each in nodes) + _field(2, "graph")
    graph += b"".join(_field(5, each) for each in tensors)
    graph += b"".join(
        _field(11, value(name, shape, (kinds or {}).get(name, "float32"))) for name, shape in inputs.items()
    )
    graph += b"".join(_field(12, value(name, shape)) for name, shape in outputs.items())
    graph += b"".join(_field(13, each) for each in values)
    return _field(1, 8) + _field(7, graph) + _field(8, _field(1, "") + _field(2, opset))
