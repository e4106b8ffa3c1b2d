"""Read-only columns and mappings: the converters by which every value class takes its arrays.

An array that enters a value is copied to the stated dtype, made contiguous and frozen, so that a value
can be shared between candidates, caches and plugins without anybody changing it under another's feet.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any

import attrs
import numpy as np
from numpy.typing import ArrayLike, NDArray

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
I8 = NDArray[np.int8]
U64 = NDArray[np.uint64]

#: Equality of array fields in attrs classes: same shape and same elements.
ARRAY_EQ: Any = attrs.cmp_using(eq=np.array_equal)


def _frozen(value: ArrayLike, dtype: Any) -> NDArray[Any]:
    array = np.asarray(value)
    if array is value and array.dtype == dtype and array.flags.c_contiguous and not array.flags.writeable:
        return array
    copy = np.array(array, dtype=dtype, order="C")
    copy.setflags(write=False)
    return copy


def f64(value: ArrayLike) -> F64:
    """Return ``value`` as a read-only float64 array."""
    return _frozen(value, np.float64)


def i64(value: ArrayLike) -> I64:
    """Return ``value`` as a read-only int64 array."""
    return _frozen(value, np.int64)


def i32(value: ArrayLike) -> I32:
    """Return ``value`` as a read-only int32 array."""
    return _frozen(value, np.int32)


def i8(value: ArrayLike) -> I8:
    """Return ``value`` as a read-only int8 array."""
    return _frozen(value, np.int8)


def texts(names: Iterable[str]) -> tuple[str, ...]:
    """Return names as a tuple."""
    return tuple(names)


def ints(values: Iterable[Any]) -> tuple[int, ...]:
    """Return ``values`` as Python's own ints; what is an int with more to it (`Slices`) stays as it is."""
    return tuple(value if isinstance(value, int) else int(value) for value in values)


class FrozenMapping(Mapping[str, Any]):
    """A mapping that nobody can change, and that can be hashed and pickled."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, Any]) -> None:
        self._items = dict(items)

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return repr(self._items)


class OneLine:
    """A value that shows its names and numbers, and how many rows its columns have, in a line at most."""

    __slots__ = ()

    def __repr__(self) -> str:
        fields = [(field.name, getattr(self, field.name)) for field in attrs.fields(type(self))]  # type: ignore[arg-type]
        parts = [f"{name}={value!r}" for name, value in fields if isinstance(value, str | int | float)]
        parts += [f"{name}: {len(v)}" for name, v in fields if isinstance(v, Sized) and not isinstance(v, str)]
        text = ", ".join(parts)
        return f"{type(self).__name__}({text if len(text) < 90 else text[:87] + '...'})"


def digest(values: Iterable[Any]) -> bytes:
    """Return 16 bytes that tell values apart: arrays by type, shape and elements, attrs values by their fields."""
    total = hashlib.blake2b(digest_size=16)
    for value in values:
        if isinstance(value, np.ndarray):
            part = f"{value.dtype}{value.shape}".encode() + value.tobytes()
        elif attrs.has(type(value)):
            part = digest(getattr(value, field.name) for field in attrs.fields(type(value)) if field.eq)
        else:
            part = repr(sorted(value.items()) if isinstance(value, Mapping) else value).encode()
        total.update(len(part).to_bytes(8, "little") + part)
    return total.digest()
