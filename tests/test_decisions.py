"""Every decision has its number, status, date and a place in the index, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "docs/decisions"
RECORDS = sorted(path for path in FOLDER.glob("*.md") if path.name != "README.md")
HEAD = re.compile(
    r"# (?P<title>[^\d\n].*[^.\n])\n\n"
    r"Status: (accepted|replaced by \[\d{4}\]\(.*\.md\))\n"
    r"Date: \d{4}-\d\d-\d\d\n\n"
    r"\*\*Decision\.\*\* "
)


def test_every_number_is_given_once():
    assert all(re.match(r"\d{4}-", path.name) for path in RECORDS)
    assert len({path.name[:5] for path in RECORDS}) == len(RECORDS)


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_record_begins_with_title_status_date_and_decision(path):
    assert HEAD.match(path.read_text(encoding="utf-8"))


def test_the_index_lists_every_record_by_its_title():
    titles = [(path.name, HEAD.match(path.read_text(encoding="utf-8"))["title"]) for path in RECORDS]
    lines = [line for line in (FOLDER / "README.md").read_text(encoding="utf-8").splitlines() if line.startswith("- ")]
    assert lines == [f"- {name[:4]}: [{title}]({name})" for name, title in titles]


@pytest.mark.parametrize("path", [*RECORDS, FOLDER / "README.md"], ids=lambda path: path.stem)
def test_links_lead_to_files(path):
    targets = re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", path.read_text(encoding="utf-8"))
    assert [target for target in targets if not (FOLDER / target).exists()] == []
