"""``topoplan new KIND NAME``: writes a package for a plugin, and says what to do with it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["application", "new"]


def application() -> typer.Typer:
    """Make the typer application."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command("new")(new)
    return app


def _kinds(incomplete: str) -> list[str]:
    from topoplan_command_new.packages import KINDS

    return [kind for kind in KINDS if kind.startswith(incomplete)]


def new(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="What it adds: frontend, machine, topology, estimator, schedule, collective, simulator, searcher, "
            "exporter or command.",
            autocompletion=_kinds,
        ),
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="How users choose it, e.g. de-bruijn.")],
    folder: Annotated[
        Path | None,
        typer.Option(help="Folder to write; it must not exist.  [default: topoplan-KIND-NAME]", show_default=False),
    ] = None,
) -> None:
    """Write a package for a plugin: a small component that works, its tests, and all that pip needs."""
    from topoplan_command_new.packages import new_package, usage

    target = folder or Path(f"topoplan-{kind}-{name}")
    files = new_package(kind, name, target)
    typer.echo(f"{target}: {len(files)} files; {kind} {name!r} is in {files[0].relative_to(target)}")
    typer.echo(f"\n  cd {target}\n  pip install -e '.[test]'\n  pytest\n  {usage(kind, name)}")
