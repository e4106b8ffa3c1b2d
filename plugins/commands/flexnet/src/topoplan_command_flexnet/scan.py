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


def scan(words: Sequence[str], flags: Iterable[Flag]) -> list[Found | Skipped]:
    """Find flags, in the order of the words.

    Raises:
        TopoplanError: a value is missing or wrong; the message names the flag.
    """
    known = {name: flag for flag in flags for name in flag.names}
    found: list[Found | Skipped] = []
    at = 0
    while at < len(words):
        typed, behind = words[at], words[at + 1] if at + 1 < len(words) else None
        name = _spelt(typed, known)
        if name in known:
            flag = known[name]
            if flag.read is None:
                found.append(Found(typed=typed, name=name, flag=flag))
                at += 1
                continue
            if behind is None or _spelt(behind, known) in known:
                follows = "" if behind is None else f", but {behind} follows"
                raise TopoplanError(f"{typed}: needs a value{follows}")
            found.append(Found(typed=typed, name=name, flag=flag, word=behind, value=flag.read(typed, behind)))
            at += 2
            continue
        taken = (typed,) if behind is None or not _is_dashed(typed) or _is_dashed(behind) else (typed, behind)
        if name.startswith(LEGION):
            why = "for the runtime system below FlexNet"
            found.append(Found(typed=typed, name=name, flag=Flag(names=(name,), why=why), word="".join(taken[1:])))
        else:
            hint = nearest(name, known) if _is_dashed(typed) else ""
            found.append(Skipped(words=taken, hint=hint.partition("did you mean ")[2].strip("'?")))
        at += len(taken)
    return found


def _is_dashed(word: str) -> bool:
    """Say whether a word looks like a flag; a negative number does not."""
    return word[:1] in tuple(_DASHES) and not word[1:].replace(".", "", 1).isdecimal()


def _spelt(word: str, known: Iterable[str]) -> str:
    """Return the flag that a word means, as FlexNet spells it, or the word."""
    if word in known or not _is_dashed(word):
        return word
    plain = word.translate(_PLAIN)
    stem = plain.lstrip("-")
    for name in (f"--{stem}", f"-{stem}"):
        name = MISSPELT.get(name, name)
        if name in known:
            return name
    return f"-{stem}" if f"-{stem}".startswith(LEGION) else plain
