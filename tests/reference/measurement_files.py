"""Operator times as files of FlexNet, for programs that read nothing else."""

from __future__ import annotations

import json
from pathlib import Path

from topoplan_estimator_measured import profiles

__all__ = ["write"]


def write(profile: str, folder: Path) -> Path:
    """Write the times of a profile as FlexNet writes them, into ``PROFILE.json``."""
    table = profiles.profile(profile)
    measurements = [
        {
            "name": row["operator"],
            "pc_str": "-".join([str(row["degrees"].count("x") + 1), *reversed(row["degrees"].split("x"))]),
            "fw_time": float(row["forward_ms"]),
            "bw_time": float(row["backward_ms"]),
            "mem_req": int(row["memory_bytes"]),
        }
        for row in profiles.rows(profile)
    ]
    path = folder / f"{profile}.json"
    content = {"batch_size": table.batch_size, "ngpus": table.ngpus, "measurements": measurements}
    path.write_text(json.dumps(content))
    return path
