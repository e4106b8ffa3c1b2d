"""A component's options are one frozen attrs class; everything about them comes from it.

TOML tables, ``name:key=value,...`` on the command line, ``--set``, help texts and documentation all read
the same class.  `option` declares a field with its help, unit and range; `structure` makes a value from
whatever the user wrote and names the exact key when something is wrong.

Spelling: keys may use dashes or underscores; a list of integers is written ``1024-1024-1``.
"""

from __future__ import annotations

import functools
import math
import numbers
import os
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

import attrs

from topoplan.errors import TopoplanError, nearest, shown

__all__ = [
    "SEEDS",
    "OptionInfo",
    "check",
    "describe",
    "listed",
    "listed_components",
    "option",
    "pairs",
    "parse_component",
    "structure",
]

T = TypeVar("T")

#: Largest numbers where an option says nothing else; what is larger is a slip, and overflows somewhere.
_LARGEST_INTEGER = 10**15
_LARGEST_NUMBER = 1e15
#: `option(maximum=SEEDS)`: random generators take any number of this size.
SEEDS = 2**63 - 1


@attrs.frozen
class OptionInfo:
    """One option as `topoplan plugins show` prints it."""

    key: str
    type: str
    default: str
    unit: str
    help: str
    range: str


def option(
    default: Any,
    *,
    help: str,
    unit: str = "",
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
) -> Any:
    """Declare an option of a component.

    Args:
        default: value when the user says nothing.
        help: one phrase, shown by ``topoplan plugins show``.
        unit: unit of the value, if it has one (``Gbps``, ``us``, ``bytes``).
        minimum, maximum: inclusive range of a number.
        above: exclusive lower bound of a number.
    """
    bounds = {"minimum": minimum, "maximum": maximum, "above": above}
    return attrs.field(default=default, metadata={"help": help, "unit": unit, **bounds})


def structure(cls: type[T], given: Mapping[str, Any], where: str) -> T:
    """Make options from what a user wrote.

    Args:
        cls: a frozen attrs class whose fields were made with `option`.
        given: key -> text or TOML value.
        where: what the message names before the key, e.g. ``"topology fattree"``; ``"--"`` makes a flag of the key.

    Raises:
        TopoplanError: an unknown key, a value of the wrong type, or one out of range.
    """
    if not isinstance(given, Mapping):
        raise TopoplanError(f"{where}: expected a table of options, got {shown(given)}")
    hints = _hints(typing.cast("Any", cls))
    fields = {field.name: field for field in attrs.fields(cls)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, raw in given.items():
        name = key.replace("-", "_")
        if name not in fields:
            raise TopoplanError(f"{where}: no option {shown(key)}{nearest(key, (n.replace('_', '-') for n in fields))}")
        at = f"--{key}" if where == "--" else f"{where}: {key}"
        if name in values:
            raise TopoplanError(f"{at}: is given twice (with dashes and with underscores)")
        value = _coerce(raw, hints[name], at)
        _check_range(value, fields[name].metadata, at)
        values[name] = value
    return cls(**values)


def check(options: Any, where: str) -> None:
    """Raise `TopoplanError` if a value of ``options``, however made, is of a wrong type or out of its range."""
    hints = _hints(typing.cast("Any", type(options)))
    for field in attrs.fields(type(options)):
        value, hint = getattr(options, field.name), hints[field.name]
        if not _fits(value, hint):
            raise TopoplanError(
                f"{where}: {field.name.replace('_', '-')}: expected {_type_name(hint)}, got {shown(value)}"
            )
        _check_range(getattr(options, field.name), field.metadata, f"{where}: {field.name.replace('_', '-')}")


def describe(cls: type[Any]) -> list[OptionInfo]:
    """List the options of a class with their types, defaults, units and help."""
    hints = typing.get_type_hints(cls)
    return [
        OptionInfo(
            key=field.name.replace("_", "-"),
            type=_type_name(hints[field.name]),
            default=_spell(field.default),
            unit=str(field.metadata.get("unit", "")),
            help=str(field.metadata.get("help", "")),
            range=_range_name(field.metadata),
        )
        for field in attrs.fields(cls)
    ]


def parse_component(text: str, where: str) -> tuple[str, dict[str, str]]:
    """Split ``name`` or ``name:key=value,key=value`` into its name and options."""
    name, _, rest = text.partition(":")
    if "," in name and "=" in name:
        right = name.replace(",", ":", 1) + (f",{rest}" if rest else "")
        raise TopoplanError(f"{where} {shown(text)}: options follow a colon (write {shown(right)})")
    options: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise TopoplanError(
                f"{where} {shown(text)}: {shown(item)} is not key=value (write name:key=value,key=value)"
            )
        if key in options:
            raise TopoplanError(f"{where} {shown(text)}: {shown(key)} is given twice")
        options[key] = value
    return name.strip(), options


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _fits(value: Any, hint: Any) -> bool:
    """Say whether a value is of the type that a field states; a bool is no number."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, argument) for argument in arguments)
    if origin is Literal:
        return value in arguments
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(item, arguments[0]) for item in value)
    wanted: Any = {int: numbers.Integral, float: numbers.Real, str: (str, os.PathLike)}.get(hint, hint)
    return isinstance(value, wanted) and (hint is bool or not isinstance(value, bool))


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


def _coerce(raw: Any, hint: Any, where: str) -> Any:
    """Convert ``raw`` (text from the command line, or a TOML value) to the type ``hint``."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if raw is None or raw == "":
            return None
        return _coerce(raw, next(a for a in arguments if a is not type(None)), where)
    if origin is Literal:
        if raw not in arguments:
            raise TopoplanError(f"{where}: {shown(raw)} is none of {_words(arguments)}")
        return raw
    if origin is tuple:
        items = raw.split("-") if isinstance(raw, str) else raw
        if not isinstance(items, list | tuple):
            items = [items]
        return tuple(_coerce(item, arguments[0], where) for item in items)
    if attrs.has(hint):
        return structure(hint, raw, where)
    try:
        if hint is bool:
            return (
                raw
                if isinstance(raw, bool)
                else {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[str(raw).lower()]
            )
        if isinstance(raw, bool):
            raise ValueError
        if hint is int:
            if isinstance(raw, float) and not raw.is_integer():
                raise ValueError
            return int(raw)
        if hint is float:
            number = float(raw)
            if not math.isfinite(number):
                raise ValueError
            return number
        if hint is str:
            if not isinstance(raw, str | int | float):
                raise ValueError
            return str(raw)
    except (ValueError, KeyError, TypeError, OverflowError):
        raise TopoplanError(f"{where}: expected {_type_name(hint)}, got {shown(raw)}") from None
    raise TypeError(f"option type {hint!r} is not supported")


def _check_range(value: Any, metadata: Mapping[str, Any], where: str) -> None:
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, bool) or not isinstance(number, int | float):
            continue
        largest = _LARGEST_INTEGER if isinstance(number, int) else _LARGEST_NUMBER
        if metadata.get("minimum") is not None and number < metadata["minimum"]:
            raise TopoplanError(f"{where}: {shown(number)} is too small (at least {metadata['minimum']})")
        maximum = largest if metadata.get("maximum") is None else metadata["maximum"]
        if not -largest <= number <= maximum:
            side, limit = ("large", f"at most {maximum:.15g}") if number > 0 else ("small", f"at least {-largest:.15g}")
            raise TopoplanError(f"{where}: {shown(number)} is too {side} ({limit})")
        if metadata.get("above") is not None and number <= metadata["above"]:
            raise TopoplanError(f"{where}: {shown(number)} is too small (more than {metadata['above']})")


def _words(known: Sequence[Any]) -> str:
    """List what may stand there; nothing at all as quotes."""
    return ", ".join(str(word) or '"" (nothing)' for word in known)


def _range_name(metadata: Mapping[str, Any]) -> str:
    """Spell the range of a number, empty where it has none."""
    minimum, maximum, above = (metadata.get(key) for key in ("minimum", "maximum", "above"))
    if minimum is not None and maximum is not None:
        return f"{minimum} to {maximum}"
    limits = (("at least", minimum), ("more than", above), ("at most", maximum))
    return ", ".join(f"{words} {limit}" for words, limit in limits if limit is not None)


def _type_name(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join("nothing" if a is type(None) else _type_name(a) for a in arguments)
    if origin is Literal:
        return "|".join(str(word) or '""' for word in arguments)
    if origin is tuple:
        return f"{_type_name(arguments[0])}-{_type_name(arguments[0])}-..."
    return {int: "integer", float: "number", str: "text", bool: "true|false"}.get(hint, str(hint))


def _spell(value: Any) -> str:
    if isinstance(value, tuple):
        return "-".join(map(str, value))
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def pairs(texts: Sequence[str], flag: str) -> dict[str, str]:
    """Split ``KEY=VALUE`` texts of the command line.

    Raises:
        TopoplanError: one is no such text, or its key was there before; the message begins with ``flag``.
    """
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key or not value:
            raise TopoplanError(f"{flag} {shown(text)}: expected KEY=VALUE")
        if key in found:
            raise TopoplanError(f"{flag} {shown(text)}: {shown(key)} is given twice")
        found[key] = value
    return found


def listed(text: str) -> list[str]:
    """Split a list of the command line, with brackets or without."""
    return [word.strip() for word in text.strip("[] ").split(",")]
