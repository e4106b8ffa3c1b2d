"""Exporter ``html``: a plan as one page that a browser shows without a network.

`topoplan_html_report` makes the page.  Simulators and topologies that the plan names are looked up among all installed
plugins, to simulate what a little more bandwidth, compute or one more interface would bring.
"""

from __future__ import annotations

from typing import ClassVar

from topoplan import Exporter, Plan, hookimpl

__all__ = ["Html", "topoplan_exporters"]


class Html(Exporter):
    """A report for people: timeline, fabric, traffic, strategy, memory, search in one HTML file."""

    name = "html"
    suffix = ".html"
    records: ClassVar[bool] = True

    def write(self, plan: Plan) -> bytes:
        """Write the report of a plan.

        Raises:
            TopoplanError: the plan has no timeline.
        """
        from topoplan import Host
        from topoplan_html_report import NamedPlan, report

        return report([NamedPlan("plan", plan)], Host.discover())


@hookimpl
def topoplan_exporters() -> type[Exporter]:
    """Register the exporter."""
    return Html
