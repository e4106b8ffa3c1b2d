"""What the rows of each table mean, one module a source."""

from __future__ import annotations

from topoplan_llm_measurements.groups.simumax import SIMUMAX_MEMORY
from topoplan_llm_measurements.groups.vtrain import VTRAIN
from topoplan_llm_measurements.rows import Group

__all__ = ["GROUPS"]

#: All groups, in the order in which pages have them.
GROUPS: tuple[Group, ...] = (VTRAIN, SIMUMAX_MEMORY)
