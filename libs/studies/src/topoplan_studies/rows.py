"""What came of a study as a table in a file.

A row for each run is for programs: CSV, or Parquet if pyarrow is installed.  The table that is printed is for papers:
Markdown or LaTeX.
"""

from __future__ import annotations

import csv
import importlib
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from topoplan.errors import TopoplanError
from topoplan_engine.files import check_writable, shown_path, write_file
from topoplan_studies.results import NetworkResult
from topoplan_studies.searchers.report import SearcherReport, places_table
from topoplan_studies.tables import StudyReport, study_table

__all__ = ["check_rows", "rows", "write_rows"]

#: Values of a run that are no columns: what is no single number, and has columns of its own.
_NO_COLUMNS = {"parts", "devices", "bounds", "aside", "time_breakdown", "history"}


#: Suffixes of rows, and of tables.
_ROWS, _TABLES = (".csv", ".parquet"), (".md", ".tex")


def rows(report: StudyReport | SearcherReport) -> Iterator[dict[str, Any]]:
    """Give a row for each run: what it is of, its seed, and what came of it, in the units that the names say.

    Columns have the same names and order in all rows; where a run has no value, it is None.
    """
    if isinstance(report, SearcherReport):
        yield from _searcher_rows(report)
        return
    for result in report.results:
        for run in result.runs:
            yield _row(result, run)


def _searcher_rows(report: SearcherReport) -> Iterator[dict[str, Any]]:
    """Give a row for each problem, searcher and seed."""
    for place in report.comparison.places:
        for runs in place.searchers:
            for run in runs.runs:
                values = {key: value for key, value in run.items() if not isinstance(value, list | tuple | Mapping)}
                known_times = {"best_known_s": place.best_known, "lower_bound_s": place.bound}
                yield {"problem": place.name, "searcher": runs.label, **values, **known_times}


def _row(result: NetworkResult, run: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "model": result.model,
        **{f"setting_{key.replace('-', '_')}": value for key, value in result.settings.items()},
        "network": result.network,
        "planner": result.planner or None,
        **{key: value for key, value in run.items() if key not in _NO_COLUMNS},
        **{f"{key}_bound_s": value for key, value in run["bounds"].items()},
        **run.get("time_breakdown", {}),
        "network_cost": result.cost,
        "hosts_cost": result.hosts_cost,
    }


def check_rows(path: Path) -> None:
    """Raise `TopoplanError` where `write_rows` could not write; for a check before long work."""
    suffix = path.suffix.lower()
    if suffix not in (*_ROWS, *_TABLES):
        raise TopoplanError(
            f"--table {shown_path(path)}: is none of {', '.join((*_ROWS, *_TABLES))} (which of them is to be written?)"
        )
    if suffix == ".parquet":
        try:
            importlib.import_module("pyarrow")
        except ImportError:
            raise TopoplanError(
                f"--table {shown_path(path)}: Parquet needs pyarrow: pip install 'topoplan-studies[parquet]' "
                "(CSV needs nothing)"
            ) from None
    check_writable(path)


def write_rows(report: StudyReport | SearcherReport, path: Path) -> None:
    """Write all rows, or the table of results, whole or not at all.

    Raises:
        TopoplanError: the file cannot be written.
    """
    suffix = path.suffix.lower()
    if suffix in _TABLES:
        results = places_table(report) if isinstance(report, SearcherReport) else study_table(report)
        text = results.markdown() if suffix == ".md" else results.latex()
        write_file(path, f"{text}\n".encode())
        return
    table = list(rows(report))
    names = list(dict.fromkeys(name for row in table for name in row))
    write_file(path, _csv(names, table) if suffix == ".csv" else _parquet(names, table))


def _csv(names: list[str], table: list[dict[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _cell(value) for key, value in row.items()} for row in table)
    return text.getvalue().encode()


def _cell(value: Any) -> Any:
    """Return a value for CSV: text that a spreadsheet would take for a formula begins with an apostrophe.

    Carriage returns are written as two letters: Python 3.11 does not quote them where lines end otherwise.
    """
    if not isinstance(value, str):
        return value
    text = value.replace("\r", r"\r")
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t")) else text


def _parquet(names: list[str], table: list[dict[str, Any]]) -> bytes:
    import pyarrow as pa
    from pyarrow.parquet import write_table

    stream = io.BytesIO()
    columns = {name: [row.get(name) for row in table] for name in names}
    write_table(pa.table(columns), stream)
    return stream.getvalue()
