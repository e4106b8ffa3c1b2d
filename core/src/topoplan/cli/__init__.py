"""The command line: thin commands over the Python API.

``topoplan plugins`` is its own; every other command comes with a plugin (`topoplan.cli._command_group`).  Modules are
imported inside the commands, so that ``topoplan --help`` loads neither plugins nor numpy.

What a user caused, and that no plan fits, ends as one line on standard error and exit status 2.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path

import typer

from topoplan import __version__
from topoplan.cli import _plugins
from topoplan.cli._command_group import Words, debugging
from topoplan.errors import TopoplanError, printable

__all__ = ["application", "command_began", "main"]

#: When the command line began to run, in this process.
_began: list[float] = []


def command_began() -> float:
    """Return what `time.monotonic` said when the command began; what it says now where no command line runs."""
    return _began[-1] if _began else time.monotonic()


def application() -> typer.Typer:
    """Make the typer application with all commands."""
    app = typer.Typer(
        name="topoplan",
        cls=Words,
        help="Search parallelization strategies and network topologies together.",
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},  # commands of plugins inherit them
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_topoplan)
    _plugins.register(app)
    return app


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line (``sys.argv`` unless ``args`` are given) and exit."""
    _began[:] = [time.monotonic()]
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:  # closed by who started the program: nobody wants to read it
            setattr(sys, stream, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
    with contextlib.suppress(OSError):  # in a test, standard output may be no file
        if args is None and "--json" in sys.argv and sys.stdout.fileno() == 1:  # libraries that plugins call write to 1
            output, _ = os.dup(1), os.dup2(2, 1)
            sys.stdout = _Results(os.fdopen(output, "wb"), encoding=sys.stdout.encoding, errors=sys.stdout.errors)
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    try:
        application()(args=args)
    except TopoplanError as error:
        cause = "" if error.__cause__ is None else f"\n{_traceback_of(error.__cause__)}"
        _end(f"error: {error}{cause}", error.status)
    except MemoryError:
        _end("error: not enough memory (use a smaller cluster or model)", 2)
    finally:
        if isinstance(sys.stdout, _Results):  # what plugins print at the end of the program is no result
            sys.stdout = sys.stderr


class _Results(io.TextIOWrapper):  # standard output with --json; what a plugin's threads print is no result
    def write(self, text: str) -> int:
        if threading.current_thread() is threading.main_thread():
            return super().write(text)
        return sys.stderr.write(text)


def _end(message: str, status: int) -> None:
    """Say why the program ends, as far as standard error takes it, and end it."""
    try:
        typer.echo(message, err=True)
    except OSError:  # a full disk: what it would keep at the end of the program is lost, the status is not
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    sys.exit(status)


def _traceback_of(cause: BaseException) -> str:
    """Return the traceback of what a plugin raised where the user asked for it, else how to ask."""
    if not debugging():
        return "  (--debug shows the traceback)"
    return "".join(traceback.format_exception(cause)).rstrip()


def _show_warning(message: Warning | str, category: type[Warning], *place: object) -> None:
    """Show a warning in one line, without the place in the code that it comes from."""
    typer.echo(f"warning: {printable(str(message))}", err=True)
    if debugging() and (cause := getattr(message, "__cause__", None)) is not None:
        typer.echo(_traceback_of(cause), err=True)


def _show_version(version: bool) -> None:
    if version:
        typer.echo(f"topoplan {__version__}")
        raise typer.Exit


def _topoplan(
    version: bool = typer.Option(False, "--version", help="Show the version.", callback=_show_version, is_eager=True),
    debug: bool = typer.Option(False, "--debug", help="Show tracebacks of what plugins raised; may stand anywhere."),
) -> None:
    """Search parallelization strategies and network topologies together."""
