"""``topoplan report``: plans beside each other in one HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["report"]


def report(
    files: Annotated[list[str], typer.Argument(help="Plans (.json) or task graphs (.fbuf).")],
    output: Annotated[str, typer.Option("-o", "--output", metavar="FILE", help="The page.")] = "report.html",
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Write a report of plans: one of them, or several beside each other."""
    from topoplan.plugin.host import Host
    from topoplan_engine.browser import open_in_browser
    from topoplan_engine.files import check_writable, write_file
    from topoplan_engine.reading import simulated_plan
    from topoplan_engine.reporting.notice import compilation_announced
    from topoplan_html_report import NamedPlan
    from topoplan_html_report import report as report_of

    check_writable(Path(output))
    host = Host.discover()
    with compilation_announced():
        plans = [simulated_plan(Path(file), host) for file in files]
        page = report_of([NamedPlan(*each) for each in zip(_names(files), plans, strict=True)], host)
    write_file(Path(output), page)
    typer.echo(f"report written to {output}")
    if open_page:
        open_in_browser(Path(output))


def _names(files: Sequence[str]) -> list[str]:
    """Return the stems of files, or their whole names where stems are the same."""
    stems = [Path(file).stem for file in files]
    return stems if len(set(stems)) == len(stems) else list(files)
