"""Searchers side by side as a section of a Markdown page."""

from __future__ import annotations

from urllib.parse import quote

from topoplan.errors import printable
from topoplan_engine.reporting.tables import markdown_text
from topoplan_studies.searchers.report import SearcherReport, notes, places_table, ranks_table

__all__ = ["searcher_section"]


def searcher_section(report: SearcherReport, command: str, picture: str) -> str:
    """Return the section: the command that repeats it, the figure, both tables, and what the numbers are.

    Args:
        report: what came of the study.
        command: that repeats it.
        picture: path of the plot, as seen from the page.
    """
    title, ranks = markdown_text(report.study.title), ranks_table(report)
    parts = [
        f"## {title}\n",
        f"    {printable(command)}\n",
        f"![{title}]({quote(picture)})\n",
        places_table(report).markdown() + "\n",
        *(["### Over all problems\n", ranks.markdown() + "\n"] if ranks.rows else []),
        *(f"- {note[:1].upper()}{note[1:]}.".replace("*", "\\*") for note in map(markdown_text, notes(report))),
        "",
    ]
    return "\n".join(parts)
