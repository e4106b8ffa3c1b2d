"""What the numbers of tables mean: texts by the labels of rows and columns, for ``topoplan explain`` and reports.

The texts are those of `explanations.toml` alone.  A label that holds a name or a number is found by its pattern.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping
from importlib.resources import files

__all__ = ["explanation", "explanations", "labels_with"]

#: What stands for a name or a number in a label.
_FILLED = re.compile("<[^>]*>")


@functools.cache
def explanations() -> Mapping[str, str]:
    """Return the text of each label; ``<name>`` in a label stands for a name or a number."""
    text = files("topoplan_engine.reporting").joinpath("explanations.toml").read_text(encoding="utf-8")
    sections: dict[str, dict[str, str]] = tomllib.loads(text)
    return {label: meaning for section in sections.values() for label, meaning in section.items()}


def explanation(label: str) -> str | None:
    """Return the text of a label as a table writes it; case, brackets and spaces around do not matter.

    Returns:
        None where no label is this one.
    """
    typed = _plain(label)
    texts = explanations()
    for row_label, text in texts.items():
        if _plain(row_label) == typed:
            return text
    return next(
        (text for row_label, text in texts.items() if _FILLED.search(row_label) and _fits(row_label, typed)), None
    )


def labels_with(words: str) -> list[str]:
    """Return the labels that have all of these words."""
    typed = set(_plain(words).split())
    return [label for label in explanations() if typed and typed <= set(_plain(label).split())]


def _fits(row_label: str, typed: str) -> bool:
    parts = (re.escape(_brackets_removed(part)) for part in _FILLED.split(row_label.lower()))
    return re.fullmatch(".+".join(parts), typed) is not None


def _plain(label: str) -> str:
    return " ".join(_brackets_removed(label.lower()).split())


def _brackets_removed(text: str) -> str:
    return re.sub(r"[][(){}\"]", "", text)
