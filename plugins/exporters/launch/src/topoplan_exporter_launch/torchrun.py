"""Exporter ``torchrun``: a script that starts the ranks of a plan.

A plan whose devices form a grid (`grid`) has its ranks in the order of Megatron-LM, torchtitan and DeepSpeed.  Any
other plan has one rank for each device, in the order of devices.
"""

from __future__ import annotations

import numpy as np

from topoplan import Plan, TopoplanError
from topoplan.arrays import I32
from topoplan_exporter_launch.grid import grid_of
from topoplan_exporter_launch.ranks import script
from topoplan_exporter_launch.targets import Target

__all__ = ["ranks_of", "write"]

TARGET = Target("torchrun", "torchrun", "any plan")


def ranks_of(plan: Plan) -> I32:
    """Return the device of every rank."""
    try:
        return grid_of(plan, TARGET).devices.ravel()
    except TopoplanError:  # no grid: trainers refuse the plan, and other programs take devices in their order
        return np.arange(plan.cluster.n_devices, dtype=np.int32)


def write(plan: Plan) -> bytes:
    """Write the script; equal plans give equal bytes.

    Raises:
        TopoplanError: the plan holds no strategy, or a device of it stands for several GPUs.
    """
    graph, _ = TARGET.searched(plan)
    devices = ranks_of(plan)
    hosts = len(np.unique(plan.cluster.device_host[devices]))
    return script(
        plan.cluster,
        devices,
        [f"Starts {len(devices)} ranks on {hosts} host{'s' if hosts > 1 else ''}, for model {graph.name!a}."],
    )
