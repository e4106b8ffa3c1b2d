"""Tables with a row for each thing: on a terminal of any width, in Markdown, and in HTML for notebooks.

A `RowTable` has columns, which say how to write a row, and rows.  On a terminal, what names rows and is the same in all
of them is said once, above; columns that are empty are left out.  What does not fit beside the names of the rows goes
into a further table below, under the same names, so that no word is broken.
"""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, Literal, TypeVar

import attrs
from rich.console import Console
from rich.table import Table

from topoplan.errors import printable

__all__ = [
    "Column",
    "RowTable",
    "markdown_row",
    "markdown_table",
    "markdown_text",
    "print_line",
    "printable_lines",
]

#: Characters around a column, and at the right end of a table.
_AROUND, _END = 3, 1
#: Columns of words may be folded to this width; a column has this width at least.
_FOLDED, _LEAST = 30, 4
#: As wide as a table gets if standard output is no terminal and COLUMNS is not set.
_FILE = 400

_Row = TypeVar("_Row")
#: Letters that LaTeX reads otherwise -> how they are written.
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
}


@attrs.frozen
class Column(Generic[_Row]):
    """One column.

    Attributes:
        header: what it shows, with the unit where cells do not have it.
        text: returns the cell of a row; ``-`` for a cell without a value.
        names_rows: tells rows apart; such columns come first and are in every part of a table.
        align: left or right; unless given, left where a cell begins with a letter.
        said_once: is said above the table if all rows have the same, as columns that name rows always are.
    """

    header: str
    text: Callable[[_Row], str]
    names_rows: bool = False
    said_once: bool = False
    align: Literal["left", "right"] | None = None


@attrs.frozen
class RowTable(Generic[_Row]):
    """Columns, and rows to fill them with."""

    columns: Sequence[Column[_Row]]
    rows: Sequence[_Row]

    @property
    def headers(self) -> list[str]:
        """The headers of all columns."""
        return [column.header for column in self.columns]

    def cells(self, row: _Row) -> list[str]:
        """Return a row as text, under `headers`."""
        return [column.text(row) for column in self.columns]

    def markdown(self) -> str:
        """Return all columns as a Markdown table; markup in cells is text."""
        rows = [list(map(markdown_text, self.cells(row))) for row in self.rows]
        return markdown_table(list(map(markdown_text, self.headers)), rows)

    def latex(self) -> str:
        """Return all columns as a LaTeX ``tabular``, with the rules of the package booktabs."""
        align = "".join("l" if column.names_rows else "r" for column in self.columns)
        lines = [latex_row(self.cells(row)) for row in self.rows]
        head = [rf"\begin{{tabular}}{{{align}}}", r"\toprule", latex_row(self.headers), r"\midrule"]
        return "\n".join([*head, *lines, r"\bottomrule", r"\end{tabular}"])

    def html(self, title: str) -> str:
        """Return all columns as a table in HTML; text is escaped."""
        rows = [_html_row("th", self.headers), *(_html_row("td", self.cells(row)) for row in self.rows)]
        return f"<table><caption>{html.escape(title)}</caption>{''.join(rows)}</table>"

    def print(self, title: str = "") -> None:
        """Print one table, or several ones below each other where the terminal is narrow."""
        columns = [attrs.evolve(column, header=printable(column.header)) for column in self.columns]
        cells = {column.header: [printable_lines(column.text(row)) for row in self.rows] for column in columns}
        same = {header for header, texts in cells.items() if len(set(texts)) == 1}
        names = [column.header for column in columns if column.names_rows]
        once = [
            column.header for column in columns if column.header in same and (column.names_rows or column.said_once)
        ]
        if names and set(names) <= same:  # a single row, say, which needs a name all the same
            once = [header for header in once if header != names[-1]]
        title = ", ".join(
            [*([printable(title)] if title else []), *(f"{header} {cells[header][0]}" for header in once)]
        )
        left_out = {*once, *(header for header in same if cells[header][0] == "-")}
        visible = {header: texts for header, texts in cells.items() if header not in left_out}
        console = _console()
        align = {column.header: column.align for column in columns}
        for number, headers in enumerate(_parts(visible, names, console.width)):
            part = {header: visible[header] for header in headers}
            console.print(_grid(part, align, (title or None) if number == 0 else None, console.width))


def print_line(text: str) -> None:
    """Print a line, folded between words on a terminal."""
    _console().print(printable_lines(text))


def printable_lines(text: str) -> str:
    """Write what a terminal would obey in letters, in each line of a text."""
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))


def _console() -> Console:
    """Return standard output, as wide as the terminal or as COLUMNS says."""
    console = Console(markup=False, emoji=False)
    has_width = console.is_terminal or "COLUMNS" in os.environ
    return console if has_width else Console(width=_FILE, markup=False, emoji=False)


def _html_row(tag: str, cells: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"


def markdown_table(headers: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[str] = ()) -> str:
    """Return a Markdown table without a line break at its end; columns whose header is in ``numbers`` align right."""
    rule = "|".join("--:" if header in numbers else "---" for header in headers)
    return "\n".join([markdown_row(headers), f"|{rule}|", *map(markdown_row, rows)])


def markdown_text(text: str) -> str:
    r"""Return a text, a name say, that Markdown shows as it is: no HTML, no link, no code, and on one line.

    >>> print(markdown_text("<b>a\nb</b> [x](y) `c`"))
    &lt;b>a b&lt;/b> [x]\(y) \`c\`
    """
    plain = printable(text).replace("\\", "\\\\").replace("<", "&lt;")
    return plain.replace("](", "]\\(").replace("`", "\\`")


def latex_row(cells: Iterable[str]) -> str:
    r"""Return one line of a LaTeX table; all that LaTeX reads otherwise is text.

    >>> print(latex_row(["50 % of a_b", "x & y"]))
    50 \% of a\_b & x \& y \\
    """
    return " & ".join("".join(_LATEX.get(letter, letter) for letter in printable(cell)) for cell in cells) + r" \\"


def markdown_row(cells: Iterable[str]) -> str:
    """Return one line of a Markdown table."""
    escaped = (" ".join(cell.split("\n")).replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"


def _grid(
    columns: dict[str, list[str]],
    align: Mapping[str, Literal["left", "right"] | None],
    title: str | None,
    width: int,
) -> Table:
    """Return a table of at most ``width`` characters."""
    grid = Table(title=title, title_justify="left")
    whole = {header: max(len(header), *map(len, cells)) for header, cells in columns.items()}
    fits = sum(whole[header] + _AROUND for header in columns) + _END <= width
    for header, cells in columns.items():
        words = any(cell[:1].isalpha() for cell in cells)
        column_width = whole[header] if fits else _width(header, cells)
        justify = align[header] or ("left" if words else "right")
        grid.add_column(header, justify=justify, overflow="fold", width=column_width)
    for cells_of_row in zip(*columns.values(), strict=True):
        grid.add_row(*cells_of_row)
    return grid


def _parts(columns: dict[str, list[str]], names: Sequence[str], width: int) -> list[list[str]]:
    """Deal the headers out to tables of at most ``width`` characters, each with those that tell rows apart."""
    name_headers = [header for header in columns if header in names]
    room = width - _END - sum(_width(header, columns[header]) + _AROUND for header in name_headers)
    parts: list[list[str]] = [[*name_headers]]
    room_left = room
    for header, cells in columns.items():
        if header in name_headers:
            continue
        width_needed = _width(header, cells) + _AROUND
        if width_needed > room_left and len(parts[-1]) > len(name_headers):
            parts.append([*name_headers])
            room_left = room
        parts[-1].append(header)
        room_left -= width_needed
    return parts


def _width(header: str, cells: Sequence[str]) -> int:
    """Return the width of a column whose header breaks between words only, and cells do not unless they are long."""
    words = max(map(len, header.split()), default=0)
    return max(words, _LEAST, min(max(map(len, cells), default=0), _FOLDED))
