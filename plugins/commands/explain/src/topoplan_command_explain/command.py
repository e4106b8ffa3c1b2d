"""``topoplan explain``: what a number in a table means."""

from __future__ import annotations

import difflib
import shutil
import textwrap
from typing import Annotated

import typer

from topoplan.errors import TopoplanError, shown

__all__ = ["explain", "near"]


def explain(
    term: Annotated[
        list[str] | None, typer.Argument(help="Label of a row or column, or a word of it; none lists all.")
    ] = None,
) -> None:
    """Explain a number of a table, in one to three sentences."""
    from topoplan_engine.reporting.explanations import explanation, explanations, labels_with
    from topoplan_engine.reporting.tables import print_line

    if not term:
        _print_all()
        return
    label = " ".join(term)
    text = explanation(label)
    if text is not None:
        print_line(text)
        return
    meant = labels_with(label)
    if len(meant) != 1:
        raise TopoplanError(f"explain: no table has a number {shown(label)}{near(label)}")
    print_line(f"{meant[0]}: {explanations()[meant[0]]}")


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


def near(label: str) -> str:
    """Return the labels that are spelled alike, or that hold a word of this one, for a message."""
    from topoplan_engine.reporting.explanations import explanations

    labels = {row_label.lower(): row_label for row_label in explanations()}
    close = [labels[name] for name in difflib.get_close_matches(label.lower(), labels, n=3, cutoff=0.6)]
    words = set(label.lower().split())
    close += [row_label for name, row_label in labels.items() if words & set(name.split()) and row_label not in close]
    if not close:
        return " (topoplan explain lists all)"
    return f" (did you mean {', '.join(map(repr, close[:4]))}? topoplan explain lists all)"
