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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import attrs

from topoplan.errors import CodeRefusedError, TopoplanError, nearest, shown

__all__ = ["SEEDS", "OptionInfo", "check", "check_defaults", "describe", "option", "parse_component", "structure"]

T = TypeVar("T")

#: Largest numbers where an option says nothing else; what is larger is a slip, and overflows somewhere.
_LARGEST_INTEGER = 10**15
_LARGEST_NUMBER = 1e15
_TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
#: `option(maximum=SEEDS)`: random generators take any number of this size.
SEEDS = 2**63 - 1
_hints: Callable[[Any], dict[str, Any]] = functools.cache(typing.get_type_hints)


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
    short: str = "",
    metavar: str = "",
    flag: str = "",
    formerly: str = "",
    runs_code: bool = False,
    file_in_folder: str = "",
) -> Any:
    """Declare an option of a component, or of commands.

    Args:
        default: value when the user says nothing.
        help: one phrase, shown by ``topoplan plugins show``.
        unit: unit of the value, if it has one (``Gbps``, ``us``, ``bytes``).
        minimum, maximum: inclusive range of a number.
        above: exclusive lower bound of a number.
        short: letter of a command's option (``-t``).
        metavar: what stands for the value in a command's help, in place of its type.
        flag: name of a command's option, where that is another one than the field's (a word of Python, say).
        formerly: the field's name in older files, which are still read.
        runs_code: whether a value other than the default makes the program run code that is not its own: it names
            a module that is imported, or a program that answers with objects.  A file cannot set such an option
            unless its user allows that (``--allow-code``).
        file_in_folder: of an option that names a file: what is read where it names a folder (``config.json``).
    """
    bounds = {"minimum": minimum, "maximum": maximum, "above": above}
    words = {"help": help, "unit": unit, "short": short, "metavar": metavar, "flag": flag, "formerly": formerly}
    words["file_in_folder"] = file_in_folder
    return attrs.field(default=default, metadata={**words, **bounds, "runs_code": runs_code})


def structure(cls: type[T], table: Mapping[str, Any], where: str, *, allow_code: bool = False) -> T:
    """Make options from what a user wrote.

    Args:
        cls: a frozen attrs class whose fields were made with `option`.
        table: key -> text or TOML value.
        where: what the message names before the key, e.g. ``"topology fattree"``; ``"--"`` makes a flag of the key.
        allow_code: take options that run code, too: the user typed them, or said that the file may set them.

    Raises:
        CodeRefusedError: an option that runs code, where this is not allowed.
        TopoplanError: an unknown key, a value of the wrong type, or one out of range.
    """
    if not isinstance(table, Mapping):
        raise TopoplanError(f"{where}: expected a table of options, got {shown(table)}")
    hints = _hints(cls) if table else {}  # of strings, they are compiled one by one
    fields = {field.name: field for field in attrs.fields(cls)}  # type: ignore[arg-type]
    renamed = {field.metadata.get("formerly"): field.name for field in fields.values()}
    values: dict[str, Any] = {}
    for key, raw in table.items():
        name = key.replace("-", "_")
        name = renamed.get(name, name)
        if name not in fields:
            raise TopoplanError(f"{where}: no option {shown(key)}{nearest(key, (n.replace('_', '-') for n in fields))}")
        place = f"--{key}" if where == "--" else f"{where}: {key}"
        if name in values:
            raise TopoplanError(f"{place}: is given twice (with dashes and with underscores)")
        value = _coerce(raw, hints[name], place)
        _check_range(value, fields[name].metadata, place)
        if fields[name].metadata.get("runs_code") and not allow_code and value != fields[name].default:
            raise CodeRefusedError(
                f"{place}: {shown(value)} runs code that a file names (--allow-code runs it; only for files you trust)"
            )
        values[name] = value
    return cls(**values)


def check(options: Any, where: str) -> None:
    """Raise `TopoplanError` if a value of ``options``, however made, is of a wrong type or out of its range."""
    hints = _hints(type(options))
    for field in attrs.fields(type(options)):
        value, hint, place = getattr(options, field.name), hints[field.name], f"{where}: {field.name.replace('_', '-')}"
        if not _fits(value, hint):
            raise TopoplanError(f"{place}: expected {_type_name(hint)}, got {shown(value)}")
        _check_range(value, field.metadata, place)


def check_defaults(cls: type[Any], where: str) -> None:
    """Raise `TopoplanError` if an option's default is out of its range."""
    for field in attrs.fields(cls):
        _check_range(field.default, field.metadata, f"{where}: default of {field.name.replace('_', '-')}")


def describe(cls: type[Any]) -> list[OptionInfo]:
    """List the options of a class with their types, defaults, units and help."""
    hints = _hints(cls)
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
    name, _, option_text = text.partition(":")
    if "," in name and "=" in name:
        right = name.replace(",", ":", 1) + (f",{option_text}" if option_text else "")
        raise TopoplanError(f"{where} {shown(text)}: options follow a colon (write {shown(right)})")
    options: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in option_text.split(","))):
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise TopoplanError(
                f"{where} {shown(text)}: {shown(item)} is not key=value (write name:key=value,key=value)"
            )
        if key in options:
            raise TopoplanError(f"{where} {shown(text)}: {shown(key)} is given twice")
        options[key] = value
    return name.strip(), options


def _fits(value: Any, hint: Any) -> bool:
    """Say whether a value is of the type that a field states; a bool is no number."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, argument) for argument in arguments)
    if origin is Literal:
        return value in arguments
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(item, arguments[0]) for item in value)
    classes: Any = {int: numbers.Integral, float: numbers.Real, str: (str, os.PathLike)}.get(hint, hint)
    return isinstance(value, classes) and (hint is bool or not isinstance(value, bool))


def _coerce(raw: Any, hint: Any, where: str) -> Any:
    """Convert ``raw`` (text from the command line, or a TOML value) to the type ``hint``."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if raw is None or raw == "":
            return None
        return _coerce(raw, next(a for a in arguments if a is not type(None)), where)
    if origin is Literal:
        if raw not in arguments:
            words = ", ".join(str(word) for word in arguments if word) + " (or leave it out)" * ("" in arguments)
            raise TopoplanError(f"{where}: {shown(raw)} is none of {words}")
        return raw
    if origin is tuple:
        items = raw.split("-") if isinstance(raw, str) else raw
        items = items if isinstance(items, list | tuple) else [items]
        where += f" ({_type_name(hint)})" * (isinstance(raw, str) and not attrs.has(arguments[0]))
        return tuple(_coerce(item, arguments[0], where) for item in items)
    if attrs.has(hint):
        return structure(hint, raw, where)
    if hint not in (bool, int, float, str, Path):
        raise TypeError(f"option type {hint!r} is not supported")
    try:
        return _scalar(raw, hint)
    except (ValueError, KeyError, TypeError, OverflowError):
        raise TopoplanError(f"{where}: expected {_type_name(hint)}, got {shown(raw)}") from None


def _scalar(raw: Any, hint: type[Any]) -> Any:
    """Convert ``raw`` to a type without parts; where it is none, some error is raised."""
    if hint is bool:
        return raw if isinstance(raw, bool) else _TRUTH[str(raw).lower()]
    fraction = hint is int and isinstance(raw, float) and not raw.is_integer()
    if isinstance(raw, bool) or fraction or (hint is str and not isinstance(raw, str | int | float)):
        raise ValueError
    value = hint(raw)
    if hint is float and not math.isfinite(value):
        raise ValueError
    return value


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
    return {int: "integer", float: "number", str: "text", Path: "path", bool: "true|false"}.get(hint, str(hint))


def _spell(value: Any) -> str:
    if isinstance(value, tuple):
        return "-".join(map(str, value))
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
