"""Layer profiles as text files, for programs that read nothing else."""

from __future__ import annotations

from pathlib import Path

from topoplan_layer_profiles import profiles

__all__ = ["write"]


def write(profile: str, folder: Path) -> Path:
    """Write a profile in the format of PipeDream's profiler; the name of the file says the profiled batch."""
    path = folder / f"{profile}-pbs-{profiles.batch_size(profile)}.txt"
    layers = profiles.rows(profile)
    lines = [
        f"{row['layer']} -- {row['kind'] or 'layer'} -- forward_compute_time={row['forward_ms']}, "
        f"backward_compute_time={row['backward_ms']}, activation_size={row['activation_bytes']}, "
        f"parameter_size={row['parameter_bytes']}"
        for row in layers
    ]
    lines += [
        f"\t{layers[int(parent)]['layer']} -- {row['layer']}" for row in layers for parent in row["parents"].split()
    ]
    path.write_text("\n".join(lines) + "\n")
    return path
