"""``topoplan validate llm``: iterations of language models, predicted and measured."""

from __future__ import annotations

from collections.abc import Mapping
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
    memory: Annotated[bool, typer.Option("--memory", help="Judge bytes alone, no times.")] = False,
    constants: Annotated[
        Path | None, typer.Option(metavar="FILE.toml", help="Constants of stacks; unset: those of the package.")
    ] = None,
    fit: Annotated[
        Path | None,
        typer.Option(metavar="FILE.toml", help="Fit the constants of the stacks of these rows, write them, use them."),
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option(metavar="PAGE.md", help="Write a page: errors by group, constants, and all rows."),
    ] = None,
    leave_out: Annotated[
        bool,
        typer.Option(
            "--leave-out",
            help="Written also: predictions by constants fitted without the model; takes several times as long.",
        ),
    ] = False,
    by_device: Annotated[
        Path | None,
        typer.Option(metavar="FILE.csv", help="Write a table of errors by device and stack, as plans quote them."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Predict iterations of language models that were measured: errors, bias, and the order of plans.

    Constants belong to a hardware with its software, never to a row or a model.
    """
    from topoplan_command_validate.work import fitted, judged_tables, left_out
    from topoplan_engine.files import check_writable, write_file
    from topoplan_llm_measurements.prediction import Predictor
    from topoplan_llm_measurements.stacks import text_of

    _check(groups, rows, leave_out=leave_out, writes=bool(write or by_device))
    for path in filter(None, (fit, write, by_device)):
        check_writable(path)
    tables, by_name, predictor = _tables(groups, rows, memory=memory), _stacks(constants), Predictor()
    if fit is not None:
        by_name |= fitted(tables, by_name, predictor, quiet=as_json)
        write_file(fit, text_of(by_name).encode())
    values = left_out(tables, by_name, predictor, quiet=as_json) if leave_out else {}
    judged = judged_tables(tables, by_name, predictor, quiet=as_json)
    _write(judged, values, by_name, page=write, table=by_device)
    _print(judged, as_json=as_json, of_file=rows is not None)


def _print(judged: list[Judged], *, as_json: bool, of_file: bool) -> None:
    """Print rows and scores; refuse tables without a row that was predicted."""
    from topoplan_command_validate.results import print_judged
    from topoplan_engine.reporting.printing import print_json

    if as_json:
        print_json(_json(judged, of_file=of_file))
    else:
        for each in judged:
            print_judged(each)
    _refuse_if_none(judged)


def _refuse_if_none(judged: list[Judged]) -> None:
    """Raise `TopoplanError` with the first reason where no row was predicted."""
    if any(each.rows for each in judged):
        return
    table = judged[0]
    first, count = table.refused[0], len(table.refused) - 1
    more = f", nor any of {count} others" if count else ""
    raise TopoplanError(f"{table.table.file}, line {first.line}: not predicted{more}: {first.reason}")


def _write(
    judged: list[Judged],
    left_out: Mapping[int, float],
    by_name: Mapping[str, Stack],
    *,
    page: Path | None,
    table: Path | None,
) -> None:
    """Write the page, and the table of errors by device, of one run."""
    from topoplan_command_validate.page import write_page
    from topoplan_engine.files import write_file
    from topoplan_llm_measurements.by_device import device_errors, table_of

    if page is not None:
        write_page(page, judged, left_out, by_name)
    if table is not None:
        write_file(table, table_of(device_errors(judged, by_name, left_out)).encode())


def _check(groups: list[str] | None, rows: Path | None, *, leave_out: bool, writes: bool) -> None:
    """Refuse options that contradict each other."""
    if rows is not None and groups:
        raise TopoplanError("--rows: beside groups (leave out one of them)")
    if leave_out and not writes:
        raise TopoplanError("--leave-out: without --write or --by-device (its figures are there)")


def _json(judged: list[Judged], *, of_file: bool) -> dict[str, object]:
    first, *further_tables = (each.as_json() for each in judged)
    if not of_file:
        return {"groups": [first, *further_tables]}
    return {**first, "also": further_tables} if further_tables else first


def _tables(names: list[str] | None, rows: Path | None, *, memory: bool) -> list[Table]:
    from topoplan_llm_measurements.groups import GROUPS
    from topoplan_llm_measurements.tables import group_of, own_table, tables_of_file

    if rows is not None:
        tables = tables_of_file(rows)
    else:
        tables = [own_table(group) for group in (map(group_of, dict.fromkeys(names)) if names else GROUPS)]
    if memory and not (tables := [table for table in tables if table.group.of_memory]):
        raise TopoplanError("--memory: bytes were measured of none of these rows")
    return tables


def _stacks(file: Path | None) -> dict[str, Stack]:
    from topoplan_engine.files import read_file
    from topoplan_llm_measurements.stacks import stacks, stacks_of_text

    if file is None:
        return stacks()
    try:
        return stacks_of_text(read_file(file).decode("utf-8"), str(file))
    except UnicodeDecodeError:
        raise TopoplanError(f"{file}: is no text in UTF-8") from None
