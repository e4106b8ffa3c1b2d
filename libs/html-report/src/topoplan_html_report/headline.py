"""What a report says first: what the iteration waits for, and what a little more of something would bring."""

from __future__ import annotations

from typing import Any

from topoplan.model.plan import Plan
from topoplan.model.staged import StagedStrategy
from topoplan.plugin.host import Host
from topoplan_engine.reporting.critical_path import PathShare, path_shares
from topoplan_engine.reporting.printing import spelled_time
from topoplan_engine.simulation.idle import bubble_fraction, exposed_communication
from topoplan_engine.what_if import Change, what_if

__all__ = ["headline"]

#: What the network is waited for is named down to this share of the iteration, and at most so many times.
_WORTH_NAMING, _NAMED = 0.02, 2
#: Share of an iteration below which a wait is the rounding of sums.
_ROUNDING = 1e-9


def headline(plan: Plan, host: Host) -> dict[str, Any]:
    """Return the sentence of a plan with a timeline, and the changes that were simulated."""
    assert plan.timeline is not None
    changes = what_if(plan, host)
    return {
        "sentence": f"{_waits_for(plan)} {_would_bring(changes, plan.timeline.makespan)}",
        "changes": [{"name": change.name, "seconds": change.seconds, "remark": change.remark} for change in changes],
    }


def _unused(plan: Plan) -> str:
    """Return how many devices compute nothing, and what share of the time those that compute do not, if it is worth it.

    The share is that of the row ``bubbles`` of the table, and is named for strategies with micro-batches; devices of a
    single stage wait for messages alone, which are no bubbles.
    """
    assert plan.timeline is not None
    busy = plan.timeline.device_busy
    idle = int((busy <= 0).sum())
    parts = []
    if idle and idle < len(busy):
        parts.append(f"{idle:,} of {len(busy):,} devices compute nothing")
    bubbles = bubble_fraction(plan.timeline)
    if plan.strategy is not None and not plan.strategy.whole_batch and bubbles >= _WORTH_NAMING:
        is_pipeline = isinstance(plan.strategy, StagedStrategy) and len(plan.strategy.stages) > 1
        how = "in bubbles" if is_pipeline else "without computing"
        parts.append(f"{'the others' if parts else 'devices'} spend {bubbles:.1%} of their time {how}")
    return " and ".join(parts)


def _waits_for(plan: Plan) -> str:
    assert plan.timeline is not None
    seconds = plan.timeline.makespan
    unused = _unused(plan)
    first = f"An iteration takes {_short(seconds)}{f'; {unused}' if unused else ''}."
    shares = path_shares(plan)
    if not shares:
        exposed = exposed_communication(plan.timeline)
        if exposed <= _ROUNDING * seconds:
            return f"{first} The busiest device computes all the time."
        busiest = _short(float(plan.timeline.device_busy.max(initial=0.0)))
        return f"{first} The busiest device computes for {busiest} of it and waits for {_short(exposed)}."
    network = [share for share in shares if share.communicates]
    waits = sum(share.seconds for share in network)
    computes = sum(share.seconds for share in shares) - waits
    if waits < _WORTH_NAMING * seconds:
        return f"{first} It waits for computation alone: the network adds {_short(waits)}."
    named = [f"the {_many(share)} ({_short(share.seconds)})" for share in network[:_NAMED] if _worth(share, seconds)]
    most = f", most of it for {' and '.join(named)}" if named else ""
    if computes < _WORTH_NAMING * seconds:
        return f"{first} It waits for the network alone{most}."
    return f"{first} For {_short(computes)} of it, it waits for computation, for {_short(waits)} for the network{most}."


def _many(share: PathShare) -> str:
    return share.name.replace("transfer of", "transfers of") if share.sort == "transfer" else share.name


def _worth(share: PathShare, seconds: float) -> bool:
    return share.seconds >= _WORTH_NAMING * seconds


def _would_bring(changes: list[Change], seconds: float) -> str:
    parts = [
        f"with {change.name} {_change(change.seconds, seconds)}" for change in changes if change.seconds is not None
    ]
    return f"Simulated again, it takes {_joined(parts)}." if parts else ""


def _joined(parts: list[str]) -> str:
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]


def _change(seconds: float, before: float) -> str:
    share = seconds / before - 1 if before else 0.0
    if abs(share) < 5e-4:
        return f"{_short(seconds)} (as long)"
    return f"{_short(seconds)} ({abs(share):.1%} {'less' if share < 0 else 'more'})"


def _short(seconds: float) -> str:
    """Return seconds with three digits or four: ``27.29 ms``."""
    if seconds >= 10:
        return spelled_time(seconds)
    milliseconds = seconds * 1e3
    for digits, smallest in ((0, 1000), (1, 100), (2, 1)):
        if milliseconds >= smallest:
            return f"{milliseconds:.{digits}f} ms"
    return f"{milliseconds * 1e3:.3g} µs"
