"""What the rows of each table mean, one module a source."""

from __future__ import annotations

from topoplan_llm_measurements.groups.korthikanti import KORTHIKANTI
from topoplan_llm_measurements.groups.megascale import MEGASCALE
from topoplan_llm_measurements.groups.nvidia import BRIDGE, LONG_SEQUENCES, MEGATRON_CORE, MLPERF, NEMO
from topoplan_llm_measurements.groups.papers import DEEPSEEK, LLAMA3
from topoplan_llm_measurements.groups.sc21 import SC21_TABLE_1, SC21_TABLE_2
from topoplan_llm_measurements.groups.simumax import SIMUMAX_MEMORY
from topoplan_llm_measurements.groups.torchtitan import TORCHTITAN
from topoplan_llm_measurements.groups.torchtitan_memory import TORCHTITAN_MEMORY
from topoplan_llm_measurements.groups.vtrain import VTRAIN
from topoplan_llm_measurements.groups.zero_bubble import ZERO_BUBBLE, ZERO_BUBBLE_MEMORY
from topoplan_llm_measurements.rows import Group

__all__ = ["GROUPS"]

#: All groups, in the order in which pages have them.
GROUPS: tuple[Group, ...] = (
    VTRAIN,
    KORTHIKANTI,
    SC21_TABLE_1,
    SC21_TABLE_2,
    MEGASCALE,
    MLPERF,
    BRIDGE,
    NEMO,
    LONG_SEQUENCES,
    MEGATRON_CORE,
    TORCHTITAN,
    ZERO_BUBBLE,
    LLAMA3,
    DEEPSEEK,
    SIMUMAX_MEMORY,
    TORCHTITAN_MEMORY,
    ZERO_BUBBLE_MEMORY,
)
