"""What may stand behind a flag: one reader for each sort of value.

FlexNet reads numbers with ``atoi`` and ``atof``, which make 4 of ``4k`` and 0 of ``four`` and say nothing; here
such a value is an error that names the flag.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from topoplan import TopoplanError

__all__ = ["Reader", "choice", "number", "numbers", "text", "whole"]

#: (flag as the user wrote it, the word behind it) -> value.
Reader = Callable[[str, str], Any]

_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")


def whole(minimum: int) -> Reader:
    """Read a whole number of at least ``minimum``."""

    def read(flag: str, word: str) -> int:
        if not _WHOLE.fullmatch(word) or int(word) < minimum:
            raise TopoplanError(f"{flag}: {word!r} must be a whole number of at least {minimum}")
        return int(word)

    return read


def number(flag: str, word: str) -> float:
    """Read a finite number above 0."""
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise TopoplanError(f"{flag}: {word!r} must be a number above 0")
    return value


def numbers(flag: str, word: str) -> tuple[int, ...]:
    """Read whole numbers of at least 1 with dashes between them."""
    parts = word.split("-")
    if not all(_WHOLE.fullmatch(part) and int(part) >= 1 for part in parts):
        raise TopoplanError(
            f"{flag}: {word!r} must be whole numbers of at least 1 with dashes between them, as 64-32-1"
        )
    return tuple(map(int, parts))


def text(flag: str, word: str) -> str:
    """Take a word, such as a file name, as it is."""
    if not word:
        raise TopoplanError(f"{flag}: needs a value that is not empty")
    return word


def choice(*words: str) -> Reader:
    """Read one of some words."""

    def read(flag: str, word: str) -> str:
        if word not in words:
            raise TopoplanError(f"{flag}: {word!r} is none of {', '.join(words)}")
        return word

    return read
