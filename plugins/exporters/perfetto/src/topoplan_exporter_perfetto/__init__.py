"""Exporter ``perfetto``: the timeline of a plan as a trace that Perfetto and chrome://tracing show.

`slices` makes slices on tracks of the task graph and its timeline; `chrome` writes them as Chrome trace events.
"""

from __future__ import annotations

from typing import Literal

import attrs

from topoplan import Exporter, Plan, hookimpl, option

__all__ = ["Perfetto", "topoplan_exporters"]


@attrs.frozen(kw_only=True)
class Perfetto(Exporter):
    """Timeline of the plan as a trace, for Perfetto and chrome://tracing."""

    name = "perfetto"
    suffix = ".trace"

    format: Literal["json"] = option("json", help="json: Chrome's trace event format")

    def write(self, plan: Plan) -> bytes:
        """Write the timeline of a plan.

        Raises:
            TopoplanError: the plan has no timeline.
        """
        from topoplan_exporter_perfetto.chrome import write

        return write(plan)


@hookimpl
def topoplan_exporters() -> type[Exporter]:
    """Register the exporter."""
    return Perfetto
