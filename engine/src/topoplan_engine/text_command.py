"""A command that takes text as it was typed, one component of a kind, and whose help has sections.

Typer converts every value, text too, and even one that is not there, with pydantic, which takes as long to import as
all that ``--help`` needs.
"""

from __future__ import annotations

import inspect
import typing
from functools import partial
from typing import Any

from typer.core import TyperCommand

from topoplan.errors import TopoplanError

__all__ = ["TextCommand"]

_TEXTS = (str, str | None, list[str], list[str] | None)


#: Options that name a component -> what is right where they name several.
_OF_ONE = {
    "topology": "a run has one; topoplan compare -n NAME,NAME sets networks side by side",
    "estimator": "a run has one",
    "simulator": "a run has one",
}


class TextCommand(TyperCommand):
    """A command of which typer converts only values that are not text."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return all parameters, the one of ``--help`` among them."""
        parameters: list[Any] = super().get_params(ctx)
        hints = typing.get_type_hints(inspect.unwrap(self.callback)) if self.callback else {}
        for parameter in parameters:
            parameter.process_value = partial(_typed, parameter, hints.get(parameter.name) in _TEXTS)
        return parameters

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words, then refuse a second component where the command takes one."""
        words = list(args)
        remaining: list[str] = super().parse_args(ctx, args)
        _refuse_twice(self, ctx, words)
        return remaining

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """List arguments and options in the sections that they name."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            section = "Arguments" if parameter.param_type_name == "argument" else "Options"
            if record is not None:
                sections.setdefault(getattr(parameter, "rich_help_panel", None) or section, []).append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def _typed(parameter: Any, is_text: bool, context: Any, value: Any) -> Any:
    """Return text as it is, and nothing for nothing; typer does the rest, and says what is missing."""
    if value in (None, [], ()) and not parameter.required:
        return () if getattr(parameter, "multiple", False) or parameter.nargs == -1 else None
    if is_text and isinstance(value, str | list | tuple) and value not in ([], ()):
        return value if isinstance(value, str) else list(value)
    return type(parameter).process_value(parameter, context, value)


def _refuse_twice(command: Any, ctx: Any, args: list[str]) -> None:
    """Raise `TopoplanError` where ``args``, which the command could read, name two components for an option of one."""
    if ctx.resilient_parsing:
        return
    _, _, order = command.make_parser(ctx).parse_args(args=list(args))
    for option in order:
        if option.name not in _OF_ONE or option.multiple or order.count(option) == 1:
            continue
        right = _OF_ONE[option.name]
        raise TopoplanError(f"{max(option.opts, key=len)}: is given {order.count(option)} times ({right})")
