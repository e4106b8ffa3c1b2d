"""Plans as one HTML page that needs no network: the iteration, the fabric, its traffic, the strategy, the search.

`report` makes the page; the exporter ``html`` writes that of one plan, the command ``report`` that of several.
"""

from __future__ import annotations

from topoplan_html_report.document import NamedPlan, report

__all__ = ["NamedPlan", "report"]
