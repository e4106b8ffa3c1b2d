"""What HTML reports hold, read back: the JSON of a page, and its packed columns."""

from __future__ import annotations

import base64
import json
import re

import numpy as np

TYPES = {"Float64Array": "<f8", "Float32Array": "<f4", "Int32Array": "<i4", "Int16Array": "<i2", "Uint8Array": "u1"}


def data_of(page):
    """Return the data of a page, a text."""
    return json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL).group(1))


def column(packed):
    """Return a packed column as an array."""
    return np.frombuffer(base64.b64decode(packed["base64"]), dtype=TYPES[packed["type"]])
