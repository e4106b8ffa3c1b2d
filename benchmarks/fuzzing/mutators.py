"""Changes to bytes, texts and JSON values, drawn from a random generator: one input is one seed."""

from __future__ import annotations

import copy
import json
import re
import struct
from collections.abc import Sequence
from random import Random
from typing import Any

__all__ = ["NUMBERS", "bytes_of", "json_of", "structure_of", "text_of", "word"]

NUMBERS = (
    *("0", "-1", "1", "2", "0.5", "-0.0", "1e-300", "1e300", "1e308", "-1e308", "1e400", "inf", "-inf", "nan", "1e20"),
    *("127", "128", "255", "256", "65535", "65536", "2147483647", "2147483648", "4294967295", "4294967296"),
    *("9007199254740993", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "18446744073709551615"),
    *("1" * 30, "9" * 400, "1" * 5000, "1_000", "0x10", "1e", "+5", "٣", "²", "1/2", "1,5"),
)
#: Names that steer what shows them: terminals, HTML, Markdown, figures, spreadsheets.
HOSTILE = (
    *(
        "\x1b[2J",
        "\x1b]0;a\x07",
        "\u202ea",
        "a\nb",
        "a\r",
        "<script>a</script>",
        "<!-- end f -->",
        "-->",
        "[a](b)",
        "`a",
    ),
    *(
        "$\\frac$",
        "$a$",
        "$",
        "_a",
        "=1+1",
        "+a",
        "-a",
        "@a",
        "a|b",
        "a\\|b",
        "\\",
        "&lt;",
        "\x9b31m",
        "\x85",
        "\ud800",
    ),
)
_TEXTS = ("", " ", "\0", "\n", "\t", "[/x]", "[bold]", ":warning:", "\u202e", "é" * 10, "x" * 5000, "../..", "%s", "{}")
_SIGNS = (*"=:,.[]{}()\"'#-/\\;|&<>\n\t ", "--", "==", "::", ",,", "[[", "]]", "\0", "\x1b[2J", "é")
_WORDS = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
_REALS = (0.0, -1.0, 1e-30, 1e30, float("inf"), float("nan"), 0.5)


def bytes_of(rng: Random, bases: Sequence[bytes]) -> bytes:
    """Return one of the files, changed in one to four places."""
    data = bytearray(rng.choice(bases))
    for _ in range(rng.choice((0, 1, 1, 1, 1, 2, 3, 4))):
        at = rng.randrange(len(data) + 1) if data else 0
        end = min(len(data), at + rng.choice((1, 2, 4, 8, 16, 100)))
        match rng.randrange(8):
            case 0:
                del data[at:end]
            case 1:
                del data[at:]
            case 2:
                data[at:at] = data[at:end] * rng.choice((1, 2, 50))
            case 3:
                other = rng.choice(bases)
                start = rng.randrange(len(other))
                data[at:end] = other[start : start + rng.choice((1, 4, 16, 200))]
            case 4 if data:
                data[min(at, len(data) - 1)] ^= 1 << rng.randrange(8)
            case 5:
                data[at:end] = bytes(rng.randrange(256) for _ in range(end - at))
            case 6:
                here = at & ~3
                data[here : here + 4] = struct.pack("<f", rng.choice(_REALS))
            case _:
                size = rng.choice((1, 2, 4, 8))
                here = at & ~(size - 1)
                value = rng.choice(_WORDS) | (rng.choice(_WORDS) << 32 if size == 8 else 0)
                data[here : here + size] = (value & ((1 << 8 * size) - 1)).to_bytes(size, "little")
    return bytes(data)


def text_of(rng: Random, bases: Sequence[str], words: Sequence[str] = ()) -> str:
    """Return one of the texts, changed in one to four places: letters, numbers, words or lines."""
    text = rng.choice(bases)
    for _ in range(rng.choice((0, 1, 1, 1, 1, 2, 3, 4))):
        at = rng.randrange(len(text) + 1)
        end = min(len(text), at + rng.choice((1, 2, 4, 20)))
        match rng.randrange(10):
            case 0:
                text = text[:at] + text[end:]
            case 1:
                text = text[:at] + rng.choice(_SIGNS) + text[at:]
            case 2:
                text = text[:at] + rng.choice(_TEXTS) + text[end:]
            case 3 | 4 | 5:
                text = _number(rng, text)
            case 6 | 7:
                text = _line(rng, text)
            case 8 if words:
                found = list(re.finditer(r"[A-Za-z][\w-]*", text))
                if found:
                    one = rng.choice(found)
                    text = text[: one.start()] + rng.choice(words) + text[one.end() :]
            case _:
                text = text[:at] + text[at:end] * rng.choice((2, 3, 100)) + text[end:]
    return text[:60_000]


def _number(rng: Random, text: str) -> str:
    """Put an odd number in the place of one that is there."""
    found = list(re.finditer(r"\d+(\.\d+)?(e-?\d+)?", text))
    if not found:
        return text + rng.choice(NUMBERS)
    one = rng.choice(found)
    return text[: one.start()] + rng.choice(NUMBERS) + text[one.end() :]


def _line(rng: Random, text: str) -> str:
    """Take a line out, twice in, elsewhere in, or put brackets around it."""
    lines = text.split("\n")
    at, to = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(4):
        case 0:
            del lines[at]
        case 1:
            lines.insert(to, lines[at])
        case 2:
            lines[at], lines[to] = lines[to], lines[at]
        case _:
            lines[at] = f"[{lines[at]}]"
    return "\n".join(lines)


def word(rng: Random) -> str:
    """Return an odd value of an option."""
    return rng.choice(rng.choice((NUMBERS, NUMBERS, _TEXTS, _SIGNS, ("true", "no", "1-2-3", "4-", "-", "a.b", "None"))))


def json_of(rng: Random, bases: Sequence[Any]) -> bytes:
    """Return one of the documents with one to three of its values changed."""
    document = copy.deepcopy(rng.choice(bases))
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        document = _changed(rng, document, 0.01)
    text = json.dumps(document)
    for mark, literal in _LITERALS.items():
        text = text.replace(f'"{mark}"', literal)
    return text.encode("utf-8", "surrogatepass")


def structure_of(rng: Random, bases: Sequence[Any], *, aliases: bool = False) -> Any:
    """Return one of the documents with one to four changes to its structure, as values.

    Beside the changes of `json_of`: a part in the place of another one, a part in a list or a table, one many times,
    and texts that steer what shows them.  With ``aliases`` one object may stand in more places than could be written
    out, which a writer of YAML makes aliases of.
    """
    document = copy.deepcopy(rng.choice(bases))
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3, 4))):
        match rng.randrange(4):
            case 0:
                document = _changed(rng, document, 0.05)
            case 1:
                ways = _ways(document)
                document = _put(document, rng.choice(ways), _at(document, rng.choice(ways)))
            case 2:
                way = rng.choice(_ways(document))
                document = _put(document, way, _wrapped(rng, _at(document, way), aliases))
            case _:
                texts = [way for way in _ways(document) if isinstance(_at(document, way), str)]
                if texts:
                    document = _put(document, rng.choice(texts), rng.choice(HOSTILE))
    return document


_Way = tuple[Any, ...]


def _ways(value: Any, way: _Way = ()) -> list[_Way]:
    """Return the ways to all parts of a value, the value itself first; of large ones to some thousand."""
    ways, waiting = [], [(value, way)]
    while waiting and len(ways) < 5000:
        part, here = waiting.pop()
        ways.append(here)
        items = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
        waiting += [(item, (*here, key)) for key, item in items]
    return ways


def _at(value: Any, way: _Way) -> Any:
    for key in way:
        value = value[key]
    return value


def _put(value: Any, way: _Way, new: Any) -> Any:
    """Return a value with another part at the end of a way; what is elsewhere stays the same object."""
    if not way:
        return new
    key, *rest = way
    part = _put(value[key], tuple(rest), new)
    if isinstance(value, dict):
        return {**value, key: part}
    return [*value[:key], part, *value[key + 1 :]]


def _wrapped(rng: Random, value: Any, aliases: bool) -> Any:
    """Return a value within others, or many times."""
    match rng.randrange(7):
        case 0:
            return [value]
        case 1:
            return {"x": value}
        case 2:
            return [[value]]
        case 3:
            return {rng.choice(("name", "use", "file", "path", "")): value}
        case 4:
            return [value] * rng.choice((2, 10, 1000))
        case 5 if isinstance(value, list):
            return value * rng.choice((2, 10, 300))
        case 6 if aliases:
            for _ in range(rng.choice((3, 12, 40))):
                value = [value] * rng.choice((2, 10))
    return value


#: Values that `json` would not write.
_LITERALS = {
    "@huge": "1" + "0" * 400,
    "@digits": "9" * 5000,
    "@nan": "NaN",
    "@inf": "Infinity",
    "@float": "1e400",
    "@deep": "[" * 3000 + "]" * 3000,
}


_VALUES = (
    *(0, 1, -1, 2, 3, 255, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**30, 0.5, -0.5, 1e-300),
    *(1e300, 1e308, "inf", "-inf", "nan", "", "x", "x" * 3000, "[/x]", "\0", "\ud800", True, None, [], {}, [[]], [0]),
    *({"x": 0}, *_LITERALS),
)


def _changed(rng: Random, value: Any, here: float) -> Any:
    """Go down a random way, and change what is there; ``here`` is how often it is changed without going on."""
    if isinstance(value, dict | list) and value and rng.random() >= here:
        key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        new = _changed(rng, value[key], min(0.12, here * 2))
        if isinstance(value, dict):
            return {**value, key: new}
        return [*value[:key], new, *value[key + 1 :]]
    match rng.randrange(6):
        case 0 if isinstance(value, dict) and value:
            gone = rng.choice(list(value))
            return {key: item for key, item in value.items() if key != gone}
        case 0 | 1 if isinstance(value, list) and value:
            at = rng.randrange(len(value))
            return rng.choice((value[:at] + value[at + 1 :], [*value, value[at]], value[:at], value[::-1]))
        case 2 if isinstance(value, int | float) and not isinstance(value, bool):
            return rng.choice((-value, value + 1, value - 1, value * 2, value / 2, value * 1e18, value * 10**30))
        case 3 if isinstance(value, dict):
            return {**value, rng.choice(("x", "", "0", "[/x]")): rng.choice((0, None, [], {}))}
    return rng.choice(_VALUES)
