"""Tables of measured rows: those of the package, and users' files, which are known by their columns."""

from __future__ import annotations

import csv
import io
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import attrs

from topoplan.errors import TopoplanError, nearest, shown
from topoplan_engine.files import read_file
from topoplan_llm_measurements.groups import GROUPS
from topoplan_llm_measurements.rows import Group, MeasuredRow

__all__ = ["Refused", "Table", "group_of", "own_table", "source_of", "tables_of_file"]


@attrs.frozen(kw_only=True)
class Refused:
    """A row that is not predicted.

    Attributes:
        name: of the row.
        line: of the file.
        reason: names the column, its value and what would be right.
    """

    name: str
    line: int
    reason: str


@attrs.frozen(kw_only=True)
class Table:
    """The rows of a table that mean a run, and why the others do not.

    Attributes:
        group: whose rows they are.
        file: that has them, as messages name it.
        rows: what can be predicted.
        refused: the other rows.
    """

    group: Group
    file: str
    rows: tuple[MeasuredRow, ...]
    refused: tuple[Refused, ...]


def group_of(name: str) -> Group:
    """Return the group of a name.

    Raises:
        TopoplanError: there is none.
    """
    for group in GROUPS:
        if group.name == name:
            return group
    names = [group.name for group in GROUPS]
    raise TopoplanError(f"group {shown(name)}: no such group{nearest(name, names)}")


def own_table(group: Group) -> Table:
    """Return the public rows of a group."""
    return _table(group, _text(f"{group.table}.csv"), f"{group.table}.csv")


def source_of(group: Group) -> dict[str, Any]:
    """Return where the rows of a group are from: ``source``, ``commit``, ``sha256`` of the package's table."""
    return dict(tomllib.loads(_text("sources.toml"))[group.table])


def tables_of_file(path: Path) -> list[Table]:
    """Return the rows of a user's table, for each group of such tables: columns say which these are.

    Raises:
        TopoplanError: it cannot be read, or has the columns of no group, or no row that can be judged.
    """
    content = read_file(path)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise TopoplanError(f"{path}: is no text in UTF-8") from None
    head = [name.strip() for name in _head(text, str(path))]
    names = {*head}
    for name in names:
        if name and head.count(name) > 1:
            raise TopoplanError(f"{path}: column {shown(name)} is there {head.count(name)} times (expected once)")
    fits = [group for group in GROUPS if names >= set(group.columns)]
    if not fits:
        raise TopoplanError(f"{path}: {_what_is_missing(names)}")
    table = max(fits, key=lambda group: len(group.columns)).table
    return [_table(group, text, str(path)) for group in fits if group.table == table]


def _what_is_missing(names: set[str]) -> str:
    nearest_group = max(GROUPS, key=lambda group: len(names & set(group.columns)) / len(group.columns))
    missing = [name for name in nearest_group.columns if name not in names]
    if 2 * len(missing) > len(nearest_group.columns):
        tables = ", ".join(dict.fromkeys(f"{group.table}.csv" for group in GROUPS))
        return f"has the columns of no table of measured rows (expected those of one of {tables})"
    return f"has not the columns of {nearest_group.table}.csv: {', '.join(missing)} missing"


def _head(text: str, who: str) -> list[str]:
    """Return the names of a table's columns."""
    try:
        return next(csv.reader(_lines(text), delimiter=_delimiter(text)), [])
    except csv.Error as error:
        raise TopoplanError(f"{who}, line 1: is no CSV ({error})") from None


def _lines(text: str) -> io.StringIO:
    """Return the lines of a text, whichever signs end them."""
    return io.StringIO(text, newline=None)


def _delimiter(text: str) -> str:
    """Return what stands between the columns: a comma, a semicolon or a tabulator, whichever the first line has."""
    return max(",;\t", key=_lines(text).readline().count)


def _table(group: Group, text: str, who: str) -> Table:
    reader = csv.DictReader(_lines(text), restval="", restkey="", delimiter=_delimiter(text))
    cells: list[dict[str, str]] = []
    lines: list[int] = []
    try:
        for row in reader:
            cells.append({(name or "").strip(): _stripped(value) for name, value in row.items()})
            lines.append(reader.line_num)
    except csv.Error as error:
        raise TopoplanError(
            f"{who}, line {reader.line_num + 1}: is no CSV ({error}; is a quotation mark open?)"
        ) from None
    if not cells:
        raise TopoplanError(f"{who}: has no rows")
    if reason := group.refusal(list(cells)):
        raise TopoplanError(f"{who}: {reason}")
    rows: list[MeasuredRow] = []
    refused: list[Refused] = []
    for line, row in zip(lines, cells, strict=True):
        name = row.get("row") or row.get("case") or f"line {line}"
        try:
            rows.append(attrs.evolve(group.row(row), name=name, line=line))
        except TopoplanError as error:
            refused.append(Refused(name=name, line=line, reason=str(error)))
    return Table(group=group, file=who, rows=tuple(rows), refused=tuple(refused))


def _stripped(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""


def _text(name: str) -> str:
    return files(__package__).joinpath("data", name).read_text("utf-8")
