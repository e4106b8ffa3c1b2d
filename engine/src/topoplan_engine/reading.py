"""Plans from files, simulated and recorded: what commands show that did not search themselves."""

from __future__ import annotations

from pathlib import Path

import attrs

from topoplan.errors import TopoplanError
from topoplan.model.plan import Plan
from topoplan.plugin.host import Host
from topoplan_engine.exporting import read_plan
from topoplan_engine.rebuilding import is_folded
from topoplan_engine.replay import simulate_file

__all__ = ["simulated_plan"]


def simulated_plan(path: Path, host: Host) -> Plan:
    """Read a plan with its timeline and what is recorded of it; what the file lacks is simulated.

    A recording belongs to the timeline of the file: one of another time, by another version, say, is left out.  A plan
    of which one task stands for each class has none.

    Raises:
        TopoplanError: the file is not right, or its tasks cannot run.
    """
    plan = read_plan(host, path)
    if plan.timeline is not None and (plan.recording is not None or is_folded(plan)):
        return plan
    if plan.timeline is None:
        return simulate_file(path, host=host, record=True)
    try:
        replayed = simulate_file(path, host=host, record=True)
    except TopoplanError:  # its simulator is not installed, say
        return plan
    same = replayed.timeline is not None and (replayed.timeline.finish == plan.timeline.finish).all()
    return attrs.evolve(plan, recording=replayed.recording) if same else plan
