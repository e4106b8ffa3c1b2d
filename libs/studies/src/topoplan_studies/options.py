"""The files beside a study that its command reads and writes."""

from __future__ import annotations

from pathlib import Path

import attrs

from topoplan.options import option

__all__ = ["SEARCHERS", "StudyFiles"]

#: Those of a study that names none.
SEARCHERS = ("auto",)


@attrs.frozen(kw_only=True)
class StudyFiles:
    """What a study's networks cost, how long its operators took, and where the result goes."""

    prices: Path | None = option(None, help="prices of network parts, TOML; unset: those that come with topoplan")
    catalogue: bool = option(False, help="take only parts that the prices list, whole; nothing in between")
    measures: Path | None = option(None, help="folder with the measurement files that the study names")
    plot: Path | None = option(None, help="draw what the table shows; SVG, PDF or PNG", metavar="FILE.svg")
    write: Path | None = option(None, help="write a section of a Markdown page, and its plot beside", metavar="PAGE.md")
