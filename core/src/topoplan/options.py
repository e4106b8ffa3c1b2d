"""A component's options are one frozen attrs class; everything about them comes from it.

TOML tables, ``name:key=value,...`` on the command line, ``--set``, help texts and documentation all read
the same class.  `option` declares a field with its help, unit and range; `structure` makes a value from
whatever the user wrote and names the exact key when something is wrong.

Spelling: keys may use dashes or underscores; a list of integers is written ``1024-1024-1``.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

import attrs

from topoplan.errors import TopoplanError, nearest

__all__ = ["OptionInfo", "check", "describe", "listed", "option", "pairs", "parse_component", "structure"]

T = TypeVar("T")


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
        where: what the message names before the key, e.g. ``"topology fattree"``.

    Raises:
        TopoplanError: an unknown key, a value of the wrong type, or one out of range.
    """
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in attrs.fields(cls)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, raw in given.items():
        name = key.replace("-", "_")
        if name not in fields:
            raise TopoplanError(f"{where}: no option {key!r}{nearest(key, (n.replace('_', '-') for n in fields))}")
        value = _coerce(raw, hints[name], f"{where}: {key}")
        _check_range(value, fields[name].metadata, f"{where}: {key}")
        values[name] = value
    return cls(**values)


def check(options: Any, where: str) -> None:
    """Raise `TopoplanError` if a number of ``options``, however they were made, is out of its range."""
    for field in attrs.fields(type(options)):
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
    options: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise TopoplanError(f"{where} {text!r}: {item!r} is not key=value (write name:key=value,key=value)")
        if key in options:
            raise TopoplanError(f"{where} {text!r}: {key!r} is given twice")
        options[key] = value
    return name.strip(), options


def _coerce(raw: Any, hint: Any, where: str) -> Any:
    """Convert ``raw`` (text from the command line, or a TOML value) to the type ``hint``."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if raw is None or raw == "":
            return None
        return _coerce(raw, next(a for a in arguments if a is not type(None)), where)
    if origin is Literal:
        if raw not in arguments:
            raise TopoplanError(f"{where}: {raw!r} is none of {', '.join(map(str, arguments))}")
        return raw
    if origin is tuple:
        items = raw.split("-") if isinstance(raw, str) else raw
        if not isinstance(items, list | tuple):
            items = [items]
        return tuple(_coerce(item, arguments[0], where) for item in items)
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
            if math.isnan(number):
                raise ValueError
            return number
        if hint is str:
            if not isinstance(raw, str | int | float):
                raise ValueError
            return str(raw)
    except (ValueError, KeyError, TypeError, OverflowError):
        raise TopoplanError(f"{where}: expected {_type_name(hint)}, got {raw!r}") from None
    raise TypeError(f"option type {hint!r} is not supported")


def _check_range(value: Any, metadata: Mapping[str, Any], where: str) -> None:
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, bool) or not isinstance(number, int | float):
            continue
        if metadata.get("minimum") is not None and number < metadata["minimum"]:
            raise TopoplanError(f"{where}: {number} is too small (at least {metadata['minimum']})")
        if metadata.get("maximum") is not None and number > metadata["maximum"]:
            raise TopoplanError(f"{where}: {number} is too large (at most {metadata['maximum']})")
        if metadata.get("above") is not None and number <= metadata["above"]:
            raise TopoplanError(f"{where}: {number} is too small (more than {metadata['above']})")


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
        return "|".join(map(str, arguments))
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
            raise TopoplanError(f"{flag} {text!r}: expected KEY=VALUE")
        if key in found:
            raise TopoplanError(f"{flag} {text!r}: {key!r} is given twice")
        found[key] = value
    return found


def listed(text: str) -> list[str]:
    """Split a list of the command line, with brackets or without."""
    return [word.strip() for word in text.strip("[] ").split(",")]
