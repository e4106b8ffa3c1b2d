"""Exporter ``dot``: the task graph for Graphviz, a record of name, type, start and end for every task.

The form is that of FlexFlow's task graph drawings.  Start and end stand in milliseconds, where the plan
has a timeline.
"""

from __future__ import annotations

from topoplan import Exporter, Plan, hookimpl

__all__ = ["Dot", "topoplan_exporters"]


class Dot(Exporter):
    """Task graph for Graphviz."""

    name = "dot"
    suffix = ".dot"

    def write(self, plan: Plan) -> bytes:
        """Write the task graph of a plan."""
        from topoplan_exporter_dot.records import write

        return write(plan)


@hookimpl
def topoplan_exporters() -> type[Exporter]:
    """Register the exporter."""
    return Dot
