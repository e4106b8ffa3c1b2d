"""Tables of many columns on terminals of any width.

What names rows and is the same in all of them is said once, above; columns that are empty are left out.  What does not
fit beside the names of the rows goes into a further table below, under the same names, so that no word is broken.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich.console import Console
from rich.table import Table

__all__ = ["print_columns"]

#: Characters around a column, and at the right end of a table.
_AROUND, _END = 3, 1
#: Columns of words may be folded to this width; a column has this width at least.
_FOLDED, _LEAST = 30, 4
#: As wide as a table gets where standard output is no terminal.
_FILE = 400


def print_columns(
    title: str,
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    names: Collection[str],
    once: Collection[str] = (),
) -> None:
    """Print a table, or several ones below each other.

    Args:
        title: above it.
        headers: of the columns.
        rows: texts under them.
        names: headers of the columns that tell rows apart, first of all columns; they are in every part.
        once: headers of others that are said once, too, where all rows have the same.
    """
    columns = {header: [row[k] for row in rows] for k, header in enumerate(headers)}
    same = {header for header, cells in columns.items() if len(set(cells)) == 1}
    own = [header for header in headers if header in names]
    said = [header for header in headers if header in same and (header in names or header in once)]
    if set(own) <= same:  # a single row, say, which needs a name all the same
        said = [header for header in said if header != own[-1]]
    left_out = [*said, *(header for header in same if columns[header][0] == "-")]
    title = ", ".join([*([title] if title else []), *(f"{header} {columns[header][0]}" for header in said)])
    columns = {header: cells for header, cells in columns.items() if header not in left_out}
    console = Console(markup=False, emoji=False)
    if not console.is_terminal:
        console = Console(width=_FILE, markup=False, emoji=False)
    for number, part in enumerate(_parts(columns, names, console.width)):
        grid = Table(title=(title or None) if number == 0 else None, title_justify="left")
        whole = {header: max(len(header), *map(len, columns[header])) for header in part}
        fits = sum(width + _AROUND for width in whole.values()) + _END <= console.width
        for header in part:
            words = any(cell[:1].isalpha() for cell in columns[header])
            width = whole[header] if fits else _width(header, columns[header])
            grid.add_column(header, justify="left" if words else "right", overflow="fold", width=width)
        for k in range(len(rows)):
            grid.add_row(*(columns[header][k] for header in part))
        console.print(grid)


def _parts(columns: dict[str, list[str]], names: Collection[str], width: int) -> list[list[str]]:
    """Deal the columns out to tables of at most ``width`` characters, each with those that tell rows apart."""
    own = [header for header in columns if header in names]
    room = width - _END - sum(_width(header, columns[header]) + _AROUND for header in own)
    parts: list[list[str]] = [[*own]]
    left = room
    for header in columns:
        if header in own:
            continue
        needed = _width(header, columns[header]) + _AROUND
        if needed > left and len(parts[-1]) > len(own):
            parts.append([*own])
            left = room
        parts[-1].append(header)
        left -= needed
    return parts


def _width(header: str, cells: Sequence[str]) -> int:
    """Return the width of a column whose header breaks between words only, and cells do not unless they are long."""
    words = max(map(len, header.split()), default=0)
    return max(words, _LEAST, min(max(map(len, cells), default=0), _FOLDED))
