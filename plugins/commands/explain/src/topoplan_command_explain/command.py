"""``topoplan explain``: what a number in a table means."""

from __future__ import annotations

import shutil
import textwrap
from typing import Annotated

import typer

__all__ = ["explain"]


def explain(
    term: Annotated[
        list[str] | None, typer.Argument(help="Label of a row or column, or a word of it; none lists all.")
    ] = None,
) -> None:
    """Explain a number of a table, in one to three sentences."""
    from topoplan_command_explain.meaning_of import meaning
    from topoplan_engine.reporting.tables import print_line

    if not term:
        _print_all()
        return
    print_line(meaning(" ".join(term)))


def _print_all() -> None:
    """Print a line for each label: the label, and as much of its text as fits."""
    from topoplan_engine.reporting.explanations import explanations

    labels = sorted(explanations(), key=_without_brackets)
    widest = max(map(len, labels))
    room = max(shutil.get_terminal_size().columns - widest - 2, 20)
    for label in labels:
        text = textwrap.shorten(explanations()[label], room, placeholder=" …")
        typer.echo(f"{label:{widest}}  {text}")


def _without_brackets(label: str) -> str:
    return label.lower().lstrip("(<")
