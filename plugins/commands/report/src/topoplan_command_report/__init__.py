"""``topoplan report``: plans beside each other in one HTML file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topoplan import Command, hookimpl

if TYPE_CHECKING:
    from typer import Typer

__all__ = ["Report", "topoplan_commands"]


class Report(Command):
    """Plans beside each other in one HTML file."""

    name = "report"

    def app(self) -> Typer:
        """Make the typer application."""
        from topoplan_command_report.command import report
        from topoplan_engine.flags import one_command

        return one_command("report", report)


@hookimpl
def topoplan_commands() -> type[Command]:
    """Register the command."""
    return Report
