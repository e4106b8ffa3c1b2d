"""What tables and JSON say of where the time of an iteration goes, on the device that computes longest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np

from topoplan.model.plan import Plan
from topoplan.model.staged import StagedStrategy
from topoplan_engine.reporting.printing import spelled_time
from topoplan_engine.simulation.deferred import of_first
from topoplan_engine.simulation.parts import Part, parts_of_time
from topoplan_engine.simulation.traffic import part_of_tasks

__all__ = ["PART_LABELS", "IterationParts", "iteration_parts", "parts_json", "parts_rows", "shares_text"]

PART_LABELS = {
    Part.COMPUTATION: "computes",
    Part.RECOMPUTATION: "computes again",
    Part.OPTIMIZER: "optimizer",
    Part.TENSOR: "exposed tensor traffic",
    Part.CONTEXT: "exposed context traffic",
    Part.EXPERT: "exposed expert traffic",
    Part.PIPELINE: "exposed pipeline traffic",
    Part.DATA: "exposed data traffic",
    Part.EXCHANGE: "exposed exchanges",
    Part.BUBBLE: "bubble",
}
#: Share of the iteration from which on a part is named in a sentence.
_WORTH_NAMING = 0.005


@attrs.frozen(kw_only=True)
class IterationParts:
    """Where the time of an iteration goes on one device; parts add up to the iteration.

    Attributes:
        device: that computes longest, the first of equal ones.
        stage: of the pipeline that it runs; None where there is one stage, or a device runs several.
        seconds: of each part that there is, in the order of `Part`.
    """

    device: int
    stage: int | None
    seconds: Mapping[Part, float]

    @property
    def total(self) -> float:
        """Seconds of the iteration."""
        return sum(self.seconds.values())

    @property
    def where(self) -> str:
        """The device in words: ``device 768, stage 3``."""
        return f"device {self.device}" + ("" if self.stage is None else f", stage {self.stage}")


#: The last plan, and its parts: tables and JSON ask for them one after the other.
_last: tuple[Plan | None, IterationParts | None] = None, None


def iteration_parts(plan: Plan) -> IterationParts | None:
    """Return where the time of a plan's iteration goes; None where it was not simulated, or takes none."""
    global _last
    if _last[0] is not plan:
        _last = plan, _parts(plan)
    return _last[1]


def _parts(plan: Plan) -> IterationParts | None:
    if plan.timeline is None or not len(plan.timeline.device_busy):
        return None
    tasks, timeline = of_first(plan.taskgraph, plan.timeline)
    device = int(np.argmax(timeline.device_busy))
    seconds = parts_of_time(tasks, timeline, device, part_of_tasks(tasks, plan.strategy))
    stages = _stages_of(plan, device)
    return IterationParts(
        device=device,
        stage=stages[0] if len(stages) == 1 and plan.strategy is not None and plan.strategy.n_stages > 1 else None,
        seconds={part: float(seconds[part]) for part in Part if seconds[part] > 0},
    )


def _stages_of(plan: Plan, device: int) -> list[int]:
    if not isinstance(plan.strategy, StagedStrategy):
        return []
    return [number for number, stage in enumerate(plan.strategy.stages) if (stage.mesh.devices == device).any()]


def shares_text(parts: IterationParts) -> str:
    """Return the largest parts with their shares of the iteration: ``computes 61 %, bubble 33 %``."""
    total = parts.total
    largest = sorted(parts.seconds, key=lambda part: -parts.seconds[part])
    worth = [part for part in largest if parts.seconds[part] >= _WORTH_NAMING * total]
    return ", ".join(f"{PART_LABELS[part]} {parts.seconds[part] / total:.1%}" for part in worth)


def parts_rows(plan: Plan) -> list[tuple[str, str]]:
    """Return the rows of a table: seconds and share of each part."""
    parts = iteration_parts(plan)
    if parts is None or not parts.total:
        return []
    rows = [
        (f"  {PART_LABELS[part]}", f"{spelled_time(seconds)}, {seconds / parts.total:.1%}")
        for part, seconds in parts.seconds.items()
    ]
    return [("where the time goes", parts.where), *rows]


def parts_json(plan: Plan) -> dict[str, Any]:
    """Return what the JSON object of a run says of parts."""
    parts = iteration_parts(plan)
    if parts is None:
        return {}
    seconds = {f"{part.name.lower()}_s": parts.seconds.get(part, 0.0) for part in Part}
    return {"parts": {"device": parts.device, "stage": parts.stage, **seconds}}
