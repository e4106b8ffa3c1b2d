"""Columns of numbers as text of JSON: little-endian bytes in base64, which a browser reads without parsing."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

__all__ = ["packed"]

#: Type of a column -> name of the typed array of JavaScript that reads it.
_ARRAYS = {
    "float64": "Float64Array",
    "float32": "Float32Array",
    "int32": "Int32Array",
    "int16": "Int16Array",
    "uint8": "Uint8Array",
}


def packed(values: Any, dtype: str) -> dict[str, str]:
    """Return a column as its type and its bytes; ``dtype`` is a key of the table above."""
    array = np.ascontiguousarray(values, dtype=np.dtype(dtype).newbyteorder("<"))
    return {"type": _ARRAYS[dtype], "base64": base64.b64encode(array.tobytes()).decode("ascii")}
