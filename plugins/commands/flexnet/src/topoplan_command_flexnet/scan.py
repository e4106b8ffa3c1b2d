"""From words to flags with values.

FlexNet goes through its words once and skips those that it does not know, without a word of its own.  Here they are
kept, for a warning.  Flags that FlexNet would skip because of a slip that its own documentation makes are taken as
they are meant: another number of dashes, dashes that a text processor made longer, and the names in `MISSPELT`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from topoplan import TopoplanError
from topoplan.errors import nearest
from topoplan_command_flexnet.flags import LEGION, MISSPELT, Flag

__all__ = ["Found", "Skipped", "scan"]

#: Hyphen-minus, then what stands for it in typeset text.
_DASHES = "-\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d"
_PLAIN = str.maketrans(dict.fromkeys(_DASHES, "-"))


@attrs.frozen(kw_only=True)
class Found:
    """A flag that was found.

    Attributes:
        typed: the flag as it was typed.
        name: as FlexNet spells it.
        flag: what it is.
        word: the value as it was typed; empty for a switch.
        value: the value as it was read; True for a switch.
    """

    typed: str
    name: str
    flag: Flag
    word: str = ""
    value: Any = True


@attrs.frozen(kw_only=True)
class Skipped:
    """Words that mean nothing: one, or one that looks like a flag and the one behind it; and what was perhaps meant."""

    words: tuple[str, ...]
    hint: str = ""


def scan(
    words: Sequence[str], flags: Iterable[Flag], below: str = "for the runtime system below FlexNet"
) -> list[Found | Skipped]:
    """Find flags, in the order of the words; ``below`` is why flags of the runtime system do nothing.

    Raises:
        TopoplanError: a value is missing or wrong; the message names the flag.
    """
    flag_of = {name: flag for flag in flags for name in flag.names}
    findings: list[Found | Skipped] = []
    position = 0
    while position < len(words):
        typed, next_word = words[position], words[position + 1] if position + 1 < len(words) else None
        name = _spelt(typed, flag_of)
        if name in flag_of:
            flag = flag_of[name]
            if flag.read is None:
                findings.append(Found(typed=typed, name=name, flag=flag))
                position += 1
                continue
            if next_word is None or _spelt(next_word, flag_of) in flag_of:
                follows = "" if next_word is None else f", but {next_word} follows"
                raise TopoplanError(f"{typed}: needs a value{follows}")
            findings.append(Found(typed=typed, name=name, flag=flag, word=next_word, value=flag.read(typed, next_word)))
            position += 2
            continue
        span = (typed,) if next_word is None or not _is_dashed(typed) or _is_dashed(next_word) else (typed, next_word)
        if name.startswith(LEGION):
            findings.append(Found(typed=typed, name=name, flag=Flag(names=(name,), why=below), word="".join(span[1:])))
        else:
            hint = nearest(name, flag_of) if _is_dashed(typed) else ""
            findings.append(Skipped(words=span, hint=hint.partition("did you mean ")[2].strip("'?")))
        position += len(span)
    return findings


def _is_dashed(word: str) -> bool:
    """Say whether a word looks like a flag; a negative number does not."""
    return word[:1] in tuple(_DASHES) and not word[1:].replace(".", "", 1).isdecimal()


def _spelt(word: str, names: Iterable[str]) -> str:
    """Return the flag that a word means, as FlexNet spells it, or the word."""
    if word in names or not _is_dashed(word):
        return word
    plain = word.translate(_PLAIN)
    stem = plain.lstrip("-")
    for name in (f"--{stem}", f"-{stem}"):
        name = MISSPELT.get(name, name)
        if name in names:
            return name
    return f"-{stem}" if f"-{stem}".startswith(LEGION) else plain
