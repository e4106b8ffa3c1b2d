"""The guide for researchers has the table of best known plans as it is stored."""

from __future__ import annotations

import re
from pathlib import Path

from topoplan_studies.problems.best import best_known

PAGE = Path(__file__).resolve().parents[1] / "docs/guides/research.md"


def test_the_page_has_every_row_as_it_is_stored():
    rows = [
        f"| {best.problem} | {best.seconds * 1e3:.4f} | {best.bound * 1e3:.4f} | {best.gap:.1%} | "
        f"`{best.searchers}` | {best.evaluations} | {best.seed} |"
        for best in best_known().values()
    ]
    page = PAGE.read_text(encoding="utf-8")
    assert re.findall(r"^\| \S+ \| [\d.]+ \| [\d.]+ \| [\d.]+% .*$", page, re.MULTILINE) == rows
