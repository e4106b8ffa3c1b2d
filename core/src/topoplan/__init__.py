"""Topoplan: search parallelization strategies and network topologies together.

The public names stand in ``__init__.pyi``, for type checkers and for this module (as SPEC 1 of Scientific Python has
it); heavy modules load on first use, so that ``import topoplan`` stays cheap.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

_STUB = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
_LINES = re.findall(r"^from (\S+) import (.+)", _STUB, re.MULTILINE)
#: Public name -> the module that it is in.
_PUBLIC = {name: module for module, names in _LINES for name in re.findall(r"(\w+) as", names)}

__all__ = ["__version__", *sorted(_PUBLIC)]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'topoplan' has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(_PUBLIC[name]), name)
    except ModuleNotFoundError as error:
        raise AttributeError(f"topoplan.{name} is in a package that is not installed ({error})") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
