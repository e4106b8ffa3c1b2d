"""Searchers side by side: the same problems, seeds and budgets, and what may be said of the differences.

Data flow: a study whose ``searchers`` are compared is unrolled and run as any other (`topoplan_studies.runspecs`,
`topoplan_studies.runner`); `places` puts the runs together, `statistics` has the methods, `report` makes tables and
JSON, `plot` draws best times against evaluations and seconds.
"""

from __future__ import annotations

__all__: list[str] = []
