"""Lists on the command line: of values, of ``KEY=VALUE``, and of components with their options."""

from __future__ import annotations

from collections.abc import Sequence

from topoplan.errors import TopoplanError, shown

__all__ = ["listed", "listed_components", "output_and_path", "pairs"]


def listed_components(texts: Sequence[str], flag: str) -> list[str]:
    """Split components that an option takes several of: given again, or with commas between, or both.

    ``a:k=1,l=2,b`` is two of them: a piece without ``=``, or with ``:`` before it, begins one.

    Raises:
        TopoplanError: there is nothing between two commas, or an option where a name is expected.
    """
    words: list[str] = []
    for text in texts:
        first = len(words)
        for piece in (part.strip() for part in text.split(",")):
            if not piece:
                raise TopoplanError(f"{flag} {shown(text)}: nothing stands before or behind a comma (write NAME,NAME)")
            if ":" in piece.partition("=")[0] or "=" not in piece:
                words.append(piece)
            elif len(words) > first and ":" in words[-1]:
                words[-1] += f",{piece}"
            else:
                name = words[-1] if len(words) > first else "NAME"
                right = shown(f"{name}:{piece}")[1:-1]
                raise TopoplanError(f"{flag} {shown(text)}: options follow a colon ({right})")
    return words


def pairs(texts: Sequence[str], flag: str, form: str = "KEY=VALUE") -> dict[str, str]:
    """Split ``KEY=VALUE`` texts of the command line; ``form`` is how a message spells these.

    Raises:
        TopoplanError: one is no such text, or its key was there before; the message begins with ``flag``.
    """
    values: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key or not value:
            raise TopoplanError(f"{flag} {shown(text)}: expected {form}")
        if key in values:
            raise TopoplanError(f"{flag} {shown(text)}: {shown(key)} is given twice")
        values[key] = value
    return values


def output_and_path(text: str) -> tuple[str, str]:
    """Split ``EXPORTER=PATH``, or ``EXPORTER:KEY=VALUE,KEY=VALUE=PATH``, at the sign before the path.

    With options it is the first sign behind the value of the last one, so that a path may hold any character; a value
    holds neither ``=`` nor a comma.

    Raises:
        TopoplanError: there is no path, or no exporter.
    """
    name, equals, path = text.partition("=")
    _, colon, option = name.partition(":")
    while colon:  # what stands behind the sign begins with the value of an option
        if not option.strip() or "=" not in path:
            raise TopoplanError(
                f"-x {shown(text)}: expected EXPORTER:KEY=VALUE=PATH, such as perfetto:format=json=trace.json"
            )
        value, comma, option = path.partition("=")[0].partition(",")
        if comma:
            name, path = f"{name}={value},{option}", path.partition("=")[2]
        else:
            name, path, colon = f"{name}={value}", path.partition("=")[2], ""
    if not equals or not name or not path:
        raise TopoplanError(f"-x {shown(text)}: expected EXPORTER=PATH, such as flatbuffer=plan.fbuf")
    return name, path


def listed(text: str) -> list[str]:
    """Split a list of the command line, with brackets or without."""
    return [word.strip() for word in text.strip("[] ").split(",")]
