"""Plans from files, simulated and recorded: what commands show that did not search themselves."""

from __future__ import annotations

from pathlib import Path

from topoplan.model.plan import Plan
from topoplan.plugin.host import Host
from topoplan_engine.exporting import read_plan
from topoplan_engine.replay import simulate_file

__all__ = ["simulated_plan"]


def simulated_plan(path: Path, host: Host) -> Plan:
    """Read a plan; one without a timeline is simulated, by the simulator that it names.

    Raises:
        TopoplanError: the file is not right, or its tasks cannot run.
    """
    plan = read_plan(host, path)
    return plan if plan.timeline is not None else simulate_file(path, host=host)
