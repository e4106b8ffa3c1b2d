"""The words after ``topoplan``: core's own, and those that plugins add.

A plugin's word is read from its entry point, so that ``topoplan --help`` loads no plugin; the plugin is loaded
when its word is typed.  A word that nobody knows is then looked for among all plugins, too.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

from topoplan.errors import PluginError, TopoplanError, calling, exception_line, expect
from topoplan.plugin.entry_points import COMMAND_PREFIX, command_words

if TYPE_CHECKING:
    from topoplan.plugin.components import Command

_DEBUG = "--debug"
_asked_for: list[str] = []
_USAGE: Any = typer.BadParameter.__mro__[1]
#: What ends a command as it should: our own errors, and what click raises (usage errors and what they are, exits).
_ENDS: Any = (TopoplanError, MemoryError, *typer.BadParameter.__mro__[:-3], typer.Exit, typer.Abort)


def debugging() -> bool:
    """Say whether the user asked for tracebacks."""
    return _DEBUG in _asked_for


class Words(TyperGroup):
    """Commands of core first, in their order, then those of plugins."""

    def get_params(self, ctx: typer.Context) -> list[Any]:  # type: ignore[override]
        """Return all options; typer would import pydantic to convert what is not typed."""
        options: list[Any] = super().get_params(ctx)  # type: ignore[arg-type]
        for option in options:
            option.process_value = partial(_process, option)
        return options

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Take ``--debug`` out, wherever it stands before ``--``."""
        end = args.index("--") if "--" in args else len(args)
        _asked_for[:] = [word for word in args[:end] if word == _DEBUG]
        words = [word for word in args[:end] if word != _DEBUG] + args[end:]
        return super().parse_args(ctx, words)  # type: ignore[arg-type]

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        """Run a command; Ctrl-C where it has nothing to keep ends it with exit status 130, as a shell expects."""
        try:
            with _writing():
                return super().invoke(ctx)  # type: ignore[arg-type]
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            sys.exit(130)

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Read the words; ``--help`` and ``--version`` print there."""
        with _writing():
            return super().make_context(info_name, args, parent, **extra)

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        """List all words, for the help."""
        core_words = super().list_commands(ctx)
        return [*core_words, *(word for word in self._plugin_words if word not in core_words)]

    def get_command(self, ctx: typer.Context, cmd_name: str) -> Any:  # type: ignore[override]
        """Return the command of a word; one of a plugin loads it only when it runs."""
        words = vars(self).get("_plugin_words", {})  # looked for where words are listed, and not to run one
        return super().get_command(ctx, cmd_name) or _Deferred(name=cmd_name, help=words.get(cmd_name))

    @cached_property
    def _plugin_words(self) -> dict[str, str]:
        return command_words()


@contextmanager
def _writing() -> Iterator[None]:
    """Write standard output out at the end; a full disk, and words that a command does not take, are one line."""
    try:
        yield
        sys.stdout.flush()
    except _USAGE as error:
        text, path = error.format_message(), getattr(error.ctx, "command_path", "topoplan")
        if "\n" in text:  # a command without words shows its help
            raise
        word = text.partition(": --")[2].partition(" ")[0]  # of an option that the command does not have
        params = error.ctx.command.params if word and error.ctx else ()
        texts = {each.opts[-1]: str(getattr(each, "help", "")).replace(".", "") for each in params}
        meant = "".join(f"{word}: {name}; " for name, each in texts.items() if word in each.split()[:3])
        raise TopoplanError(f"{text} ({meant}{path} -h lists all)") from None
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EIO):  # a broken pipe is none
            raise
        raise TopoplanError(f"standard output cannot be written ({error.strerror})") from None


def _process(option: Any, context: typer.Context, value: Any) -> Any:
    return None if value is None else type(option).process_value(option, context, value)


class _Deferred(TyperCommand):
    """Stands for a plugin's command until it runs."""

    def __init__(self, *, name: str, help: str | None) -> None:
        super().__init__(name, help=help, rich_markup_mode=None)

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Load the plugin and let its own command read the words that follow."""
        plugin = _command(str(self.name))
        who = str(getattr(plugin, "who", f"command {self.name!r}"))
        with calling(f"{who}: app"):
            app = plugin.app()
            expect(app, typer.Typer, f"{who}: app")
            command = typer.main.get_command(app)
        command.invoke = partial(_invoke, who, command.invoke)  # type: ignore[method-assign]
        return command.make_context(info_name, args, parent=parent, **extra)


def _invoke(who: str, invoke: Callable[[typer.Context], Any], context: typer.Context) -> Any:
    """Run a plugin's command; what it raises that is none of click's becomes one line that names it."""
    try:
        return invoke(context)
    except _ENDS:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.EPIPE, errno.ENOSPC, errno.EIO):  # of standard output
            raise
        raise PluginError(f"{who} raised {exception_line(error)}") from error


def _command(word: str) -> Command:
    """Return a plugin's command; only if none of those that keep the naming rule brings it, all plugins are loaded.

    Raises:
        TopoplanError: there is none, or several plugins have one of that name.
    """
    from topoplan.plugin.components import Command
    from topoplan.plugin.host import Host

    host = Host.discover(prefix=COMMAND_PREFIX + word)
    if all(row.name != word for row in host.listing()):
        host = Host.discover()
    return host.get(Command, word)()
