"""What the numbers of tables mean: texts by the labels of rows and columns, for ``topoplan explain`` and reports.

The texts are those of `explanations.toml` alone.  A label that holds a name or a number is found by its pattern.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping
from importlib.resources import files

__all__ = ["explanation", "explanations"]


@functools.cache
def explanations() -> Mapping[str, str]:
    """Return the text of each label; ``*`` in a label stands for a name or a number."""
    text = files("topoplan_engine.reporting").joinpath("explanations.toml").read_text(encoding="utf-8")
    sections: dict[str, dict[str, str]] = tomllib.loads(text)
    return {label: meaning for section in sections.values() for label, meaning in section.items()}


def explanation(label: str) -> str | None:
    """Return the text of a label as a table writes it, in either case; None where there is none."""
    typed = label.strip().lower()
    texts = explanations()
    for pattern, text in texts.items():
        if pattern.lower() == typed:
            return text
    return next((text for pattern, text in texts.items() if "*" in pattern and _fits(pattern, typed)), None)


def _fits(pattern: str, label: str) -> bool:
    parts = map(re.escape, pattern.lower().split("*"))
    return re.fullmatch(".+".join(parts), label) is not None
