"""``topoplan profile collectives``: what collectives take among the devices of this machine, or of several."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import typer

from topoplan import TopoplanError
from topoplan.options import option
from topoplan_command_profile.document import document
from topoplan_command_profile.launch import check_torch, measure_here, measure_joined, started_by_torchrun
from topoplan_command_profile.progress import bar_shown
from topoplan_command_profile.worker import COLLECTIVES
from topoplan_engine.files import check_writable, write_file
from topoplan_engine.flags import AsJson

__all__ = ["collectives", "profile_collectives"]


@attrs.frozen(kw_only=True)
class ProfileOptions:
    """What is measured, and where the result goes."""

    processes: int = option(
        2, help="processes to start here; where torchrun started this, its own are taken", minimum=2
    )
    sizes_mb: tuple[float, ...] = option(
        (0.1, 1.0, 8.0, 32.0),
        help="bytes of the whole tensor; two sizes at least",
        minimum=1e-6,
        maximum=10**6,
        metavar="MB,...",
    )
    repeats: int = option(10, help="times that each is measured; the median counts", minimum=1)
    backend: str = option(
        "", help="of torch.distributed, e.g. gloo; unset: nccl where each process has a GPU, else gloo"
    )
    output: str = option("collectives.json", help="file to write; -e hidup:file=FILE reads it", short="-o")

    def sizes(self) -> list[int]:
        """Return sizes in bytes, ascending.

        Raises:
            TopoplanError: there is one alone, which does not tell latency from bandwidth.
        """
        sizes = sorted({round(size * 1e6) for size in self.sizes_mb})
        if len(sizes) < 2:
            raise TopoplanError("--sizes-mb: two different sizes at least, to tell latency from bandwidth")
        return sizes


def collectives(profile: ProfileOptions, as_json: AsJson = False) -> None:
    """Measure all-gather, reduce-scatter, all-reduce and all-to-all among devices of this machine."""
    sizes, output = profile.sizes(), profile.output
    check_writable(Path(output))
    with bar_shown(len(sizes) * len(COLLECTIVES), quiet=as_json or started_by_torchrun()) as report:
        result = profile_collectives(
            sizes, processes=profile.processes, repeats=profile.repeats, backend=profile.backend, on_progress=report
        )
    if result is None:
        return
    write_file(Path(output), json.dumps(result, indent=2).encode() + b"\n")
    if as_json:
        typer.echo(json.dumps({**result, "output": output}, indent=2))
    else:
        _show(result)
        typer.echo(f"written to {output}; -e hidup:file={output} prices collectives with it")


def profile_collectives(
    sizes: Sequence[int],
    *,
    processes: int = 2,
    repeats: int = 10,
    backend: str = "",
    on_progress: Callable[[int, str], None] = lambda finished, name: None,
) -> dict[str, Any] | None:
    """Measure all-gather, reduce-scatter, all-reduce and all-to-all among processes, with PyTorch.

    Args:
        sizes: bytes of the whole tensor, ascending; two at least.
        processes: to start here; where torchrun started this one, its own are taken.
        repeats: times that each is measured; the median counts.
        backend: of torch.distributed; empty for nccl where each process has a GPU, and gloo elsewhere.
        on_progress: called with the number of finished measurements and what was measured.

    Returns:
        What ``-e hidup:file=FILE`` reads, as JSON values; None in all processes of torchrun but the first.

    Raises:
        TopoplanError: torch is missing, or a process failed.
    """
    check_torch("collectives")
    if not started_by_torchrun():
        return document(measure_here(processes, sizes, repeats, backend, on_progress))
    measured, first = measure_joined(sizes, repeats, backend, on_progress)
    return document(measured) if first else None


def _show(result: Mapping[str, Any]) -> None:
    """Print the fitted lines and the times."""
    from rich.console import Console
    from rich.table import Table

    grid = Table(
        title=f"{result['world_size']} processes, {result['backend']} on {result['device']}", title_justify="left"
    )
    grid.add_column("collective")
    for header in ("latency", "bandwidth", "smallest", "largest"):
        grid.add_column(header, justify="right")
    for name, line in result["collectives"].items():
        ends = (line["samples"][0], line["samples"][-1])
        grid.add_row(
            name,
            f"{line['latency_s'] * 1e6:.0f} us",
            f"{line['bandwidth_bytes_per_s'] / 1e9:.3f} GB/s",
            *(f"{end['bytes'] / 1e6:.4g} MB in {end['seconds'] * 1e3:.3f} ms" for end in ends),
        )
    console = Console()
    (console if console.is_terminal else Console(width=200)).print(grid)
