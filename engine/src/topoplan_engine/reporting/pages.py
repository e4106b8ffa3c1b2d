"""Sections of Markdown pages between markers: what is measured can be written again, and the rest stays.

A section has a name and, beside the page, a picture: ``page.md`` has ``page-NAME.svg``.  `check_section` says before
long work what could not be written after it; `write_section` writes both files.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from topoplan.errors import TopoplanError
from topoplan_engine.files import check_writable, read_text, shown_path, write_file
from topoplan_engine.reporting.figures import check_figure, write_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["check_section", "picture_of", "replace_section", "write_section"]

#: Files of other kinds, whose names a page must not have.
_OTHERS = (".csv", ".parquet", ".tex", ".json", ".toml", ".svg", ".png", ".pdf")


def replace_section(page: str, name: str, body: str, where: str) -> str:
    """Return a page with the section ``name`` replaced, or appended if it has none.

    Raises:
        TopoplanError: one of the section's two markers is missing.
    """
    opening, closing = f"<!-- begin {name} -->\n", f"<!-- end {name} -->\n"
    if opening not in page and closing not in page:
        return f"{page.rstrip()}\n\n{opening}{body}{closing}".lstrip()
    head, has_opening, after = page.partition(opening)
    _, has_closing, tail = after.partition(closing)
    if not has_opening or not has_closing:
        raise TopoplanError(f"{where}: needs {opening.strip()} before {closing.strip()} (or neither)")
    return f"{head}{opening}{body}{closing}{tail}"


def picture_of(page: Path, name: str) -> Path:
    """Return the path of the picture that belongs to a section of a page."""
    return page.with_name(f"{page.stem}-{name}.svg")


def check_section(page: Path, name: str, package: str) -> None:
    """Check that a section and its picture can be written.

    Args:
        page: of the Markdown page, which need not exist.
        name: of the section.
        package: the distribution whose extra ``plot`` has matplotlib.

    Raises:
        TopoplanError: a place that cannot be written, a page with half a section, or no matplotlib.
    """
    check_writable(page)  # before its name is taken apart: a folder has none
    if page.suffix.lower() in _OTHERS:
        raise TopoplanError(
            f"--write {shown_path(page)}: the page is Markdown, not {page.suffix} (name it {page.stem}.md; --table "
            "writes rows)"
        )
    check_figure(picture_of(page, name), package, "--write")
    replace_section(_text(page), name, "", str(page))


def write_section(page: Path, name: str, body: str, figure: Figure) -> None:
    """Write a section into a page, which is begun if it does not exist, and its picture beside.

    Raises:
        TopoplanError: as `check_section`.
    """
    text = replace_section(_text(page), name, body, str(page))
    write_figure(figure, picture_of(page, name))
    write_file(page, text.encode())


def _text(page: Path) -> str:
    return read_text(page, "a Markdown page") if page.exists() else ""
