"""The results of the planner: pipelines and their stages, as frozen values."""

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

    ``replication`` is HPGO's word for the number of devices of one pipeline that share the stage.
    """

    start: int
    end: int
    replication: int
    devices: Devices


@attrs.frozen(kw_only=True)
class HpgoPlan:
    """A pipeline.

    Attributes:
        speedup: over one device that runs the whole batch; 0 if there are more pipelines than micro-batches.
        stages: in order; each starts at the end of the previous one.
        pipelines: number of copies of the pipeline, which share the batch.
        micro_batches: number of micro-batches of each copy.
        family: the part of the search that found the plan.
    """

    speedup: float
    stages: tuple[Stage, ...]
    pipelines: int
    micro_batches: int
    family: Family

    @property
    def split(self) -> str:
        """Short text: the devices of each stage, and the starts of later stages (``8|8 @22``)."""
        devices = "|".join(str(len(stage.devices)) for stage in self.stages)
        return devices + "".join(f" @{stage.start}" for stage in self.stages[1:])


def early_backward_speedup(plan: HpgoPlan, layers: Layers, machine: Machine) -> float:
    """Return the speedup of a plan under early-backward scheduling; as in the release, stages have a layer too many."""
    if not plan.micro_batches:
        return 0.0
    micro_batches = plan.micro_batches
    steps: list[float] = []
    reductions: list[float] = []
    for number, stage in enumerate(plan.stages):
        if number:
            previous = plan.stages[number - 1]
            sent_bytes = float(layers.crossing[previous.end - 1]) / micro_batches
            steps.append(machine.transfer(previous.devices, stage.devices, sent_bytes))
            reductions.append(0.0)
        seconds, gradients = layers.spanned(stage.start, stage.end)
        steps.append(float(seconds) / stage.replication / plan.pipelines / micro_batches / 2)
        reductions.append(machine.allreduce(stage.devices, float(gradients)))
    return float(layers.seconds[-1]) / early_backward_seconds(np.array(steps), np.array(reductions), micro_batches)
