"""What the planner returns: stages, as frozen values that know nothing of how they were found."""

from __future__ import annotations

from typing import Literal

import attrs
import numpy as np

from topoplan_pipeline_planning.latency import early_backward_seconds
from topoplan_pipeline_planning.layers import Layers
from topoplan_pipeline_planning.machine import Devices, Machine

__all__ = ["Family", "HpgoPlan", "Stage", "early_backward_speedup"]

#: The part of the search that found a plan.
Family = Literal["one stage", "equal halves", "one device each", "two stages"]


@attrs.frozen
class Stage:
    """Layers ``[start, end)`` on some devices, of all pipelines together.

    ``replication`` is HPGO's: how many devices of one pipeline share the stage.
    """

    start: int
    end: int
    replication: int
    devices: Devices


@attrs.frozen(kw_only=True)
class HpgoPlan:
    """A pipeline.

    Attributes:
        speedup: over one device that runs the whole batch; 0 where there are more pipelines than micro-batches.
        stages: in order; each starts where the one before ends.
        pipelines: copies of the pipeline that share the batch.
        micro_batches: that each copy cuts its share of the batch into.
        family: which part of the search found it.
    """

    speedup: float
    stages: tuple[Stage, ...]
    pipelines: int
    micro_batches: int
    family: Family

    @property
    def split(self) -> str:
        """The plan in short: devices of each stage, and where the later ones start (``8|8 @22``)."""
        devices = "|".join(str(len(stage.devices)) for stage in self.stages)
        return devices + "".join(f" @{stage.start}" for stage in self.stages[1:])


def early_backward_speedup(plan: HpgoPlan, layers: Layers, machine: Machine) -> float:
    """Return the speedup of a plan under early-backward scheduling; as released, with a layer too much per stage."""
    if not plan.micro_batches:
        return 0.0
    micro_batches = plan.micro_batches
    steps: list[float] = []
    reductions: list[float] = []
    for number, stage in enumerate(plan.stages):
        if number:
            before = plan.stages[number - 1]
            moved = float(layers.crossing[before.end - 1]) / micro_batches
            steps.append(machine.transfer(before.devices, stage.devices, moved))
            reductions.append(0.0)
        seconds, gradients = layers.spanned(stage.start, stage.end)
        steps.append(float(seconds) / stage.replication / plan.pipelines / micro_batches / 2)
        reductions.append(machine.allreduce(stage.devices, float(gradients)))
    return float(layers.seconds[-1]) / early_backward_seconds(np.array(steps), np.array(reductions), micro_batches)
