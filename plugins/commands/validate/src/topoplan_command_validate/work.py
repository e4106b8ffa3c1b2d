"""The work of the command, with its progress on standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from topoplan_engine.reporting.notice import compilation_announced
from topoplan_engine.reporting.progress import parts_shown
from topoplan_llm_measurements.fitting import Slopes, fitted_stack, left_out_values, slopes_of
from topoplan_llm_measurements.judging import Judged, judge
from topoplan_llm_measurements.prediction import Predictor
from topoplan_llm_measurements.stacks import Stack
from topoplan_llm_measurements.tables import Table

__all__ = ["fitted", "judged_tables", "left_out"]


def judged_tables(
    tables: Sequence[Table], by_name: Mapping[str, Stack], predictor: Predictor, *, quiet: bool
) -> list[Judged]:
    """Predict the rows of tables."""
    with _counted("predicting", sum(len(table.rows) for table in tables), quiet=quiet) as count:
        return [judge(table, by_name, predictor, count) for table in tables]


def fitted(
    tables: Sequence[Table], by_name: Mapping[str, Stack], predictor: Predictor, *, quiet: bool
) -> dict[str, Stack]:
    """Return the stacks of the times of tables, with constants that fit their rows."""
    slopes = _slopes(tables, by_name, predictor, "fitting", quiet=quiet)
    return {each.stack.name: fitted_stack(each) for each in slopes}


def left_out(
    tables: Sequence[Table], by_name: Mapping[str, Stack], predictor: Predictor, *, quiet: bool
) -> dict[int, float]:
    """Return predictions by constants that were fitted without the rows of the model, by the identity of the row.

    The predictor keeps what it predicted by the constants themselves.
    """
    values: dict[int, float] = {}
    for slopes in _slopes(tables, by_name, predictor, "leaving out", quiet=quiet):
        pairs = zip(slopes.rows, left_out_values(slopes).tolist(), strict=True)
        values |= {id(row): value for row, value in pairs}
    return values


def _slopes(
    tables: Sequence[Table], by_name: Mapping[str, Stack], predictor: Predictor, what: str, *, quiet: bool
) -> list[Slopes]:
    times = [row for table in tables if not table.group.of_memory for row in table.rows]
    rows = [row for row in times if row.stack in by_name and by_name[row.stack].fitted]
    stacks = [by_name[name] for name in dict.fromkeys(row.stack for row in rows)]
    with _counted(what, len(rows), quiet=quiet) as count:
        return [
            slopes_of([row for row in rows if row.stack == stack.name], stack, predictor, count) for stack in stacks
        ]


@contextmanager
def _counted(what: str, total: int, *, quiet: bool) -> Iterator[Callable[[str], None]]:
    finished = 0
    with compilation_announced(), parts_shown(what, total, quiet=quiet) as report:

        def count(name: str) -> None:
            nonlocal finished
            finished += 1
            report(finished, name)

        yield count
