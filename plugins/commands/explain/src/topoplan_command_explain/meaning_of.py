"""`meaning`: the text of a label of a table, also where only a word of the label is given, or of a key of a plan."""

from __future__ import annotations

import difflib

from topoplan import Host
from topoplan.errors import TopoplanError, shown
from topoplan.options import describe
from topoplan_engine.reporting.explanations import explanation, explanations, labels_with

__all__ = ["meaning", "near"]


def meaning(label: str) -> str:
    """Return what a number of a table means, in one to three sentences.

    Args:
        label: of a row or a column, or words that one label alone has, whose text then begins with the label; or a key
            of the row "plan", alone or with its value: ``tp``, ``zero=1``.

    Raises:
        TopoplanError: no table has such a number; the message names labels that are near.

    >>> meaning("tp=8")
    'tp in --plan: tensor parallel degree: matrices by columns and rows, vocabulary, heads; unset: 1.'
    """
    text = explanation(label)
    if text is not None:
        return text
    meant = labels_with(label)
    if len(meant) != 1:
        key = label.partition("=")[0].strip()
        if key in (keys := _keys_of_plans()):
            return f"{key} in --plan: {keys[key]}."
        raise TopoplanError(f"explain: no table has a number {shown(label)}{near(label)}")
    return f"{meant[0]}: {explanations()[meant[0]]}"


def _keys_of_plans() -> dict[str, str]:
    """Return what the keys of a plan mean that is stated, as its component says it; none where it is not installed."""
    try:
        return {option.key: option.help for option in describe(Host.discover().get("searcher", "stated"))}
    except TopoplanError:
        return {}


def near(label: str) -> str:
    """Return the labels that are spelled alike, or that hold a word of this one, for a message."""
    labels = {row_label.lower(): row_label for row_label in explanations()}
    close = [labels[name] for name in difflib.get_close_matches(label.lower(), labels, n=3, cutoff=0.6)]
    words = set(label.lower().split())
    close += [row_label for name, row_label in labels.items() if words & set(name.split()) and row_label not in close]
    if not close:
        return " (topoplan explain lists all)"
    return f" (did you mean {', '.join(map(repr, close[:4]))}? topoplan explain lists all)"
