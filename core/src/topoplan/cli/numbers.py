"""Numbers on the command line: what is none is refused in one line, as it is in a TOML file.

Typer reads numbers by the annotations of a command's function, and what it says of a bad one depends on its release.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any, TypeVar

import typer

from topoplan.errors import TopoplanError, shown

__all__ = ["refuse_bad_numbers"]

_Result = TypeVar("_Result")
_EXPECTED = {int: "integer", float: "number"}


def refuse_bad_numbers(read: Callable[[], _Result], args: list[str]) -> _Result:
    """Return what ``read`` returns, which reads the words ``args`` of a command.

    Raises:
        TopoplanError: an option of a number has another value.
    """
    try:
        return read()
    except typer.BadParameter as error:
        if error.ctx is None or error.param is None:
            raise
        function = inspect.unwrap(error.ctx.command.callback or refuse_bad_numbers)
        expected = typing.get_type_hints(function).get(str(error.param.name))
        if expected not in _EXPECTED:
            raise
        values, _, _ = error.ctx.command.make_parser(error.ctx).parse_args(args=list(args))
        value = values[error.param.name]
        flag = max(error.param.opts, key=len)
        least = _least(function, str(error.param.name))
        if least is not None and _below(least, expected, value):
            raise TopoplanError(f"{flag}: {value} is too small (at least {least})") from None
        raise TopoplanError(f"{flag}: expected {_EXPECTED[expected]}, got {shown(value)}") from None


def _below(least: float, number: Callable[[str], float], text: str) -> bool:
    try:
        return number(text) < least
    except ValueError:
        return False


def _least(function: Callable[..., Any], name: str) -> float | None:
    """Return the least value that an option may have; None if it has none."""
    parameter = inspect.signature(function).parameters[name]
    annotation = typing.get_type_hints(function, include_extras=True)[name]
    infos = (parameter.default, *getattr(annotation, "__metadata__", ()))
    return next((info.min for info in infos if isinstance(info, typer.models.OptionInfo)), None)
