"""What devices wait for in a simulated iteration."""

from __future__ import annotations

from topoplan.model.timeline import Timeline

__all__ = ["bubble_fraction", "exposed_communication"]


def exposed_communication(timeline: Timeline) -> float:
    """Return the seconds of the iteration that the busiest device does not compute."""
    return timeline.makespan - float(timeline.device_busy.max(initial=0.0))


def bubble_fraction(timeline: Timeline) -> float:
    """Return the share of the iteration that the devices which compute at all spend without computing, on average."""
    busy, used = timeline.device_busy, int((timeline.device_busy > 0).sum())
    return max(0.0, 1.0 - float(busy.sum()) / (used * timeline.makespan)) if used else 0.0
