"""The file: for every collective its latency, its bandwidth, and the times that they were fitted to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from topoplan_command_profile.fit import fit

__all__ = ["FORMAT", "VERSION", "document"]

FORMAT = "topoplan-collectives"
VERSION = 1


def document(measured: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document of what a worker measured: ``samples`` are (bytes, seconds) of each collective."""
    collectives = {}
    for name, samples in measured["samples"].items():
        line = fit(*zip(*samples, strict=True))
        collectives[name] = {
            "latency_s": line.latency,
            "bandwidth_bytes_per_s": line.bandwidth,
            "samples": [{"bytes": size, "seconds": seconds} for size, seconds in samples],
        }
    return {
        "format": FORMAT,
        "version": VERSION,
        "backend": measured["backend"],
        "device": measured["device"],
        "world_size": measured["world_size"],
        "torch": measured["torch"],
        "collectives": collectives,
    }
