"""The words after ``topoplan``: core's own, and those that plugins add.

A plugin's word is read from its entry point, so that ``topoplan --help`` loads no plugin; the plugin is loaded
when its word is typed.  A word that nobody knows is then looked for among all plugins, too.
"""

from __future__ import annotations

import errno
import sys
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

from topoplan.cli.numbers import refuse_bad_numbers
from topoplan.errors import TopoplanError
from topoplan.plugin.entry_points import COMMAND_PREFIX, command_words

if TYPE_CHECKING:
    from topoplan.plugin.components import Command

__all__ = ["OneValue", "Words", "debugging", "refuse_twice"]

_DEBUG = "--debug"
_asked_for: list[str] = []
#: Options that name a component -> what is right where they name several.
_OF_ONE = {
    "topology": "a run has one; topoplan compare -n NAME,NAME sets networks side by side",
    "estimator": "a run has one",
    "simulator": "a run has one",
    "searcher": "this command takes one",
}


def debugging() -> bool:
    """Say whether the user asked for tracebacks."""
    return _DEBUG in _asked_for


class Words(TyperGroup):
    """Commands of core first, in their order, then those of plugins."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Take ``--debug`` out, wherever it stands before ``--``."""
        end = args.index("--") if "--" in args else len(args)
        _asked_for[:] = [word for word in args[:end] if word == _DEBUG]
        rest = [word for word in args[:end] if word != _DEBUG] + args[end:]
        return super().parse_args(ctx, rest)  # type: ignore[arg-type]

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        """Run a command; Ctrl-C where it has nothing to keep ends it with exit status 130, as a shell expects."""
        try:
            result = super().invoke(ctx)  # type: ignore[arg-type]
            sys.stdout.flush()
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            sys.exit(130)
        except BrokenPipeError:
            raise
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EIO):
                raise
            raise TopoplanError(f"standard output cannot be written ({error.strerror})") from None
        return result

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        """List all words, for the help."""
        own = super().list_commands(ctx)
        return [*own, *(word for word in self._plugin_words if word not in own)]

    def get_command(self, ctx: typer.Context, cmd_name: str) -> Any:  # type: ignore[override]
        """Return the command of a word; one of a plugin loads it only when it runs."""
        return super().get_command(ctx, cmd_name) or _Deferred(name=cmd_name, help=self._plugin_words.get(cmd_name))

    @cached_property
    def _plugin_words(self) -> dict[str, str]:
        return command_words()


class OneValue(TyperCommand):
    """A command that refuses bad numbers, and a second component where it takes one; of two numbers the last counts."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words, then look for components that were there twice."""
        given = list(args)
        rest: list[str] = refuse_bad_numbers(partial(super().parse_args, ctx, args), given)
        refuse_twice(self, ctx, given)
        return rest


def refuse_twice(command: Any, ctx: Any, args: list[str]) -> None:
    """Raise `TopoplanError` where ``args``, which the command could read, name two components for an option of one."""
    if ctx.resilient_parsing:
        return
    _, _, order = command.make_parser(ctx).parse_args(args=list(args))
    for option in order:
        if option.name not in _OF_ONE or option.multiple or order.count(option) == 1:
            continue
        right = _OF_ONE[option.name]
        raise TopoplanError(f"{max(option.opts, key=len)}: is given {order.count(option)} times ({right})")


class _Deferred(TyperCommand):
    """Stands for a plugin's command until it runs."""

    def __init__(self, *, name: str, help: str | None) -> None:
        super().__init__(name, help=help, rich_markup_mode=None)

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Load the plugin and let its own command read the words that follow."""
        own, given = typer.main.get_command(_command(str(self.name)).app()), list(args)
        context = refuse_bad_numbers(partial(own.make_context, info_name, args, parent=parent, **extra), given)
        refuse_twice(own, context, given)
        return context


def _command(word: str) -> Command:
    """Return a plugin's command; only if none of those that keep the naming rule brings it, all plugins are loaded.

    Raises:
        TopoplanError: there is none, or several plugins have one of that name.
    """
    from topoplan.plugin.components import Command
    from topoplan.plugin.host import Host

    host = Host.discover(prefix=COMMAND_PREFIX)
    if all(row.name != word for row in host.listing()):
        host = Host.discover()
    return host.get(Command, word)()
