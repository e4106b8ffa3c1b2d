"""TOML files and values, read so that what nobody writes ends in an error in time."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from topoplan.errors import TopoplanError
from topoplan_engine.files import read_text

__all__ = ["MOST_PARTS", "read_toml", "toml_value"]

#: Bytes of the largest TOML file, and parts of its longest key (``a.b.c``).
_LARGEST_TOML, MOST_PARTS = 4 << 20, 64
#: Characters of the longest value that ``--set`` reads as TOML.
_LONGEST_VALUE = 10_000
_PART = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')"""
_LONG_KEY = rf"(?<![\w-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{MOST_PARTS}}}"


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file.

    Raises:
        TopoplanError: it cannot be read or is not TOML.
    """
    text = read_text(path, "TOML", _LARGEST_TOML)
    if re.search(_LONG_KEY, text):  # takes time that grows with the square of its length
        raise TopoplanError(f"{path}: is not TOML that can be read (a key of more than {MOST_PARTS} parts)")
    return _toml(text, str(path))


def _toml(text: str, where: str) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(text)
    except RecursionError:
        raise TopoplanError(f"{where}: is not TOML that can be read (nested too deeply)") from None
    except ValueError as error:
        if not isinstance(error, tomllib.TOMLDecodeError):  # of Python's integers
            raise TopoplanError(f"{where}: is not TOML that can be read (a number of too many digits)") from None
        raise TopoplanError(f"{where}: is not TOML ({error})") from None


def toml_value(text: str) -> Any:
    """Read a value as TOML would; what is none is a text."""
    import tomllib

    line = f"value = {text}"
    if "\n" in text or len(text) > _LONGEST_VALUE or re.search(_LONG_KEY, line):
        return text
    try:
        return tomllib.loads(line)["value"]
    except (ValueError, RecursionError):
        return text
