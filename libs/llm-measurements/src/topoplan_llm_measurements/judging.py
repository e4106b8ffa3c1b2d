"""Tables judged: every row predicted, or refused with the reason, and scores of those that were."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from topoplan.errors import TopoplanError
from topoplan_llm_measurements.prediction import Predictor
from topoplan_llm_measurements.rows import MeasuredRow, Predicted
from topoplan_llm_measurements.scoring import Score, score
from topoplan_llm_measurements.stacks import Stack, stack_of
from topoplan_llm_measurements.tables import Refused, Table

__all__ = ["Judged", "JudgedRow", "judge"]


@attrs.frozen
class JudgedRow:
    """A row, what was predicted of its run, and the same as the quantity that was measured.

    Attributes:
        row: what was measured.
        prediction: of the run.
        predicted: the same as the row's quantity.
        constants_of: name of the stack whose constants the row's own takes; empty where it has some.
    """

    row: MeasuredRow
    prediction: Predicted
    predicted: float
    constants_of: str = ""

    @property
    def error_percent(self) -> float:
        """What the prediction is off by; below 0 where it is too low."""
        return 100 * (self.predicted / self.row.measured - 1)

    def as_json(self) -> dict[str, Any]:
        """Return the row for ``--json``."""
        return {
            "row": self.row.name,
            "line": self.row.line,
            "workload": self.row.workload,
            "stack": self.row.stack,
            "constants_of": self.constants_of or self.row.stack,
            "quantity": self.row.quantity.name,
            "measured": self.row.measured,
            "predicted": self.predicted,
            "error_percent": self.error_percent,
        }


@attrs.frozen(kw_only=True)
class Judged:
    """A table whose rows were predicted.

    Attributes:
        table: what was judged.
        rows: those that were predicted.
        refused: the others, in the order of lines.
    """

    table: Table
    rows: tuple[JudgedRow, ...]
    refused: tuple[Refused, ...]

    @property
    def score(self) -> Score:
        """How well the predictions agree."""
        return score(
            [each.row.measured for each in self.rows],
            [each.predicted for each in self.rows],
            [each.row.workload for each in self.rows],
            any(each.row.quantity.larger_is_better for each in self.rows),
        )

    def as_json(self) -> dict[str, Any]:
        """Return scores and rows for ``--json``."""
        return {
            "group": self.table.group.name,
            **attrs.asdict(self.score),
            "refused": [{"row": each.name, "line": each.line, "reason": each.reason} for each in self.refused],
            "each": [row.as_json() for row in self.rows],
        }


def judge(
    table: Table,
    by_name: Mapping[str, Stack],
    predictor: Predictor,
    on_progress: Callable[[str], None] = lambda name: None,
) -> Judged:
    """Predict the rows of a table.

    Args:
        table: what is judged.
        by_name: stacks.
        predictor: of runs.
        on_progress: called with the name of each row that is finished.
    """
    rows: list[JudgedRow] = []
    refused = list(table.refused)
    for row in table.rows:
        try:
            stack = stack_of(by_name, row.stack)
            prediction = predictor.predicted(row.run, stack)
        except TopoplanError as error:
            refused.append(Refused(name=row.name, line=row.line, reason=str(error)))
        else:
            predicted = row.quantity.of(row.run, prediction)
            rows.append(JudgedRow(row, prediction, predicted, stack.constants_of))
        on_progress(row.name)
    refused.sort(key=lambda each: each.line)
    return Judged(table=table, rows=tuple(rows), refused=tuple(refused))
