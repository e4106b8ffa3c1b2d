"""``topoplan validate llm``: iterations of language models, predicted and measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from topoplan.errors import TopoplanError
from topoplan_engine.flags import AsJson, with_flags
from topoplan_engine.text_command import TextCommand

if TYPE_CHECKING:
    from topoplan_llm_measurements.judging import Judged
    from topoplan_llm_measurements.stacks import Stack
    from topoplan_llm_measurements.tables import Table

__all__ = ["application", "llm"]


def application() -> typer.Typer:
    """Make the typer application."""
    app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.callback()(_validate)
    app.command("llm", cls=TextCommand)(with_flags(llm))
    return app


def _validate() -> None:
    """Predict what others measured, and compare."""


def llm(
    groups: Annotated[
        list[str] | None, typer.Argument(metavar="GROUP", help="Groups of public rows, such as vtrain; none: all.")
    ] = None,
    rows: Annotated[
        Path | None,
        typer.Option(metavar="FILE.csv", help="Judge these rows instead; columns say which group's they are."),
    ] = None,
    constants: Annotated[
        Path | None, typer.Option(metavar="FILE.toml", help="Constants of stacks; unset: those of the package.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Predict iterations of language models that were measured: errors, bias, and the order of plans.

    Constants belong to a hardware with its software, never to a row or a model.
    """
    from topoplan_command_validate.results import print_judged
    from topoplan_engine.reporting.printing import print_json

    if rows is not None and groups:
        raise TopoplanError("--rows: beside groups (leave out one of them)")
    judged = _judged(_tables(groups, rows), _stacks(constants), quiet=as_json)
    if as_json:
        parts = [each.as_json() for each in judged]
        print_json(parts[0] if rows is not None else {"groups": parts})
        return
    for each in judged:
        print_judged(each)


def _tables(names: list[str] | None, rows: Path | None) -> list[Table]:
    from topoplan_llm_measurements.groups import GROUPS
    from topoplan_llm_measurements.tables import group_of, own_table, table_of_file

    if rows is not None:
        return [table_of_file(rows)]
    return [own_table(group) for group in (map(group_of, dict.fromkeys(names)) if names else GROUPS)]


def _stacks(file: Path | None) -> dict[str, Stack]:
    from topoplan_engine.files import read_file
    from topoplan_llm_measurements.stacks import stacks, stacks_of_text

    if file is None:
        return stacks()
    try:
        return stacks_of_text(read_file(file).decode("utf-8"), str(file))
    except UnicodeDecodeError:
        raise TopoplanError(f"{file}: is no text in UTF-8") from None


def _judged(tables: list[Table], by_name: dict[str, Stack], *, quiet: bool) -> list[Judged]:
    from topoplan_engine.reporting.notice import compilation_announced
    from topoplan_engine.reporting.progress import parts_shown
    from topoplan_llm_measurements.judging import judge
    from topoplan_llm_measurements.prediction import Predictor

    total, finished = sum(len(table.rows) for table in tables), 0
    with compilation_announced(), parts_shown("predicting", total, quiet=quiet) as report:
        predictor = Predictor()

        def count(name: str) -> None:
            nonlocal finished
            finished += 1
            report(finished, name)

        return [judge(table, by_name, predictor, count) for table in tables]
