"""Exporter ``perfetto``: a simulated iteration as a trace that Perfetto shows.

`slices` makes slices on tracks of the task graph and its timeline, `tracks` what else was recorded; `trackevent` writes
both in Perfetto's own format (`wire` knows protocol buffers), `chrome` the slices as Chrome's trace events.
"""

from __future__ import annotations

from typing import Literal

import attrs

from topoplan import Exporter, Plan, hookimpl, option

__all__ = ["Perfetto", "topoplan_exporters"]


@attrs.frozen(kw_only=True)
class Perfetto(Exporter):
    """A simulated iteration as a trace, for Perfetto: tasks, busy links, memory, critical path."""

    name = "perfetto"
    suffix = ".trace"
    records = True

    format: Literal["protobuf", "json"] = option(
        "protobuf", help="protobuf: Perfetto's own; json: Chrome's trace events, tasks alone, for chrome://tracing"
    )

    def write(self, plan: Plan) -> bytes:
        """Write the timeline of a plan.

        Raises:
            TopoplanError: the plan has no timeline.
        """
        from topoplan_exporter_perfetto import chrome, trackevent

        return chrome.write(plan) if self.format == "json" else trackevent.write(plan)


@hookimpl
def topoplan_exporters() -> type[Exporter]:
    """Register the exporter."""
    return Perfetto
