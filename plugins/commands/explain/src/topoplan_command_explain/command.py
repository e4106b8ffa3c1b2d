"""``topoplan explain``: what a number in a table means."""

from __future__ import annotations

import difflib
from typing import Annotated

import typer

from topoplan.errors import TopoplanError, shown

__all__ = ["explain", "near"]


def explain(
    term: Annotated[
        list[str] | None, typer.Argument(help="Label of a row or column, as tables write it; none lists all.")
    ] = None,
) -> None:
    """Explain a number of a table, in one to three sentences."""
    from topoplan_engine.reporting.explanations import explanation, explanations
    from topoplan_engine.reporting.tables import print_line

    if not term:
        for label in sorted(explanations(), key=str.lower):
            typer.echo(label)
        return
    label = " ".join(term)
    text = explanation(label)
    if text is None:
        raise TopoplanError(f"explain: no table has a number {shown(label)}{near(label)}")
    print_line(text)


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
