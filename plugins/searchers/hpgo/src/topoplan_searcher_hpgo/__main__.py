"""``python -m topoplan_searcher_hpgo PROFILE``: HPGO's own program, from a layer profile to the printed plan.

It simulates nothing and looks for no plugins, so that it imports little and starts as fast as HPGO.
"""

from __future__ import annotations

import argparse
import gc
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from topoplan import TopoplanError
from topoplan.errors import shown
from topoplan_searcher_hpgo import plan

if TYPE_CHECKING:
    from topoplan import OperatorGraph
    from topoplan_pipeline_planning.plans import HpgoPlan

__all__ = ["main", "table"]

#: More samples of a batch, or devices, are a mistake.
_MOST_SAMPLES, _MOST_DEVICES = 1 << 30, 1 << 16


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 2 where something in ``words`` is wrong, or nothing can be printed."""
    gc.disable()  # it ends before there is garbage worth looking for
    options = _parser().parse_args(words)
    try:
        graph = _graph_of(options.profile, options.profile_batch, options.batch_size)
        result = plan(graph, devices=options.devices, micro_batch=options.micro_batch)
    except TopoplanError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return _print(table(result))


def table(result: HpgoPlan) -> str:
    """Return a plan as text: its speedup, and a row for each stage with the columns of HPGO's result."""
    rows = [("start", "end", "replication", "devices")]
    rows += [
        (str(stage.start), str(stage.end), str(stage.replication), str(list(stage.devices))) for stage in result.stages
    ]
    lines = [f"{start:>5}  {end:>5}  {replication:>11}  {devices}" for start, end, replication, devices in rows]
    copies = f"{result.pipelines} x {result.micro_batches} micro-batches"
    return "\n".join([f"speedup {result.speedup}, {result.split}, {copies}", *lines])


def _graph_of(profile: str, profiled: int | None, batch_size: int | None) -> OperatorGraph:
    """Return the graph of an included profile, or of a file: its path has a dot or a slash."""
    from topoplan_layer_profiles.graphs import graph_of_file, graph_of_profile

    if "." in profile or "/" in profile:
        return graph_of_file(Path(profile), profiled, batch_size)
    return graph_of_profile(profile, profiled, batch_size)


def _print(text: str) -> int:
    """Print a text; return the exit status: 1 where its reader is gone, as `topoplan` does."""
    try:
        print(text, flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else Python fails again when it ends
        if isinstance(error, BrokenPipeError):
            return 1
        print(f"error: standard output cannot be written ({error.strerror})", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m topoplan_searcher_hpgo",
        description="Plan a pipeline as HPGO does: print its speedup over one device, and its stages.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("profile", metavar="PROFILE", help="layer profile: a path with a dot or a slash, or an included one (bert-48)")
    add("--devices", metavar="ENDS", type=_ends, required=True, help="where hosts end: 8,16 means two hosts of eight")
    add("--batch-size", metavar="N", type=_count, help="samples of one iteration; unset: those that were profiled")
    add("--profile-batch", metavar="N", type=_count, help="samples that were profiled; unset: as the profile says")
    add("--micro-batch", metavar="N", type=_count, default=1, help="samples of the smallest micro-batch; unset: 1")
    return parser


def _count(word: str) -> int:
    """Return a number of samples."""
    if not re.fullmatch(r"0*[1-9][0-9]{0,9}", word) or int(word) > _MOST_SAMPLES:
        raise argparse.ArgumentTypeError(f"{shown(word)} is no number of samples (wanted: 1 to {_MOST_SAMPLES})")
    return int(word)


def _ends(word: str) -> list[int]:
    """Return where the devices of each host end."""
    if not re.fullmatch(r"\[? *[0-9]{1,9}( *, *[0-9]{1,9})* *\]?", word):
        raise argparse.ArgumentTypeError(f"{shown(word)} is no list of ends (wanted: such as 8,16, two hosts of eight)")
    ends = [int(end) for end in re.findall("[0-9]+", word)]
    if max(ends) > _MOST_DEVICES:
        raise argparse.ArgumentTypeError(f"{max(ends)} is too many devices (at most {_MOST_DEVICES})")
    return ends


if __name__ == "__main__":
    sys.exit(main())
