"""How much program strategies take: lines of what makes task graphs, memory and prices of them, by part and revision.

``python benchmarks/strategy_lines.py REVISION ...`` counts the files that Git has at each revision (``HEAD`` unless
given), in lines with comments and documents.  Parts are rooms, so that what is added to one counts by itself; what
serves placements alone (parts and pieces of operators, their symmetry) is left out.  Parts that there were before there
was one staged strategy have a sum of their own, so that like is compared with like.  Price models of planners that are
in neither sum, since each is the most of a planner of its own, stand below.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_ENGINE = r"engine/src/topoplan_engine"
#: Modules of lowering for parts of operators that are placed one by one.
_PLACED = (
    "__init__|build|edge_numbers|fragment_cache|fragments|gradient_groups|optimizer_steps|parts|piece_loads|pieces"
    "|placements"
)
#: Modules of lowering for what no plan could say when there were three kinds of strategies: rings, sums of ZeRO,
#: weights that stages share, kernels of trainers, dispatchers of experts, passes that overlap.
_LATER = "stage_(rings|sums|ties|buffers)|alone|expert_messages|paired_passes"
#: Part -> the paths of its files.
PARTS = {
    "values: strategies, stages, orders, meshes": (
        r"core/src/topoplan/model/(strategy|schedule|spmd|staged|mesh|pass_order)\.py"
    ),
    "lowering and memory": (
        rf"{_ENGINE}/lowering/(?!({_PLACED}|{_LATER})\.py)\w+\.py|{_ENGINE}/sharding/stage_\w+\.py"
    ),
    "orders of passes": rf"{_ENGINE}/(pass_orders|pipelines)\.py|plugins/schedules/(?!dualpipe|zero).*/src/.*\.py",
    "quotients": rf"{_ENGINE}/simulation/(deferred|quotients)\.py|plugins/simulators/fluid/src/.*/programs\.py",
    "gradients": rf"{_ENGINE}/simulation/gradients\.py",
    "prices of networks": (
        rf"{_ENGINE}/network/(tables|star|rings|ring_loads|link_classes)\.py"
        r"|plugins/searchers/(spmd|pipeline)/src/.*/machine\.py|libs/placement-moves/src/.*/cut_estimates\.py"
    ),
    "layouts in exporters": (
        rf"{_ENGINE}/layout\.py|plugins/exporters/launch/src/.*/(grid|meshes|stages|tensor)\.py"
        r"|plugins/exporters/dtensor/src/.*/(document|matching)\.py"
    ),
}
#: The same for what there was little or nothing of.
LATER = {
    "lowering: rings, ZeRO, shared weights, kernels, experts": rf"{_ENGINE}/lowering/({_LATER})\.py",
    "folding of iterations": (
        rf"{_ENGINE}/simulation/fold\w*\.py|{_ENGINE}/lowering/folding/\w+\.py|{_ENGINE}/search/folds\.py"
        r"|plugins/simulators/fluid/src/.*/fold\w*\.py"
    ),
    "algorithms of collectives": (
        rf"{_ENGINE}/simulation/(collectives(/\w+)?|algorithms?)\.py"
        r"|libs/collective-rounds/src/.*\.py|plugins/collectives/.*/src/.*\.py"
    ),
    "machines inside hosts": r"core/src/topoplan/model/machine\.py",
    "schedules of two directions and without bubbles": r"plugins/schedules/(dualpipe|zero-bubble)/src/.*\.py",
}
#: Price models of planners, in none of the sums.
PLANNERS = {
    "prices of `hybrid`": (
        r"plugins/searchers/stated/src/.*/(divided_costs|estimates|group_links|order_columns|plan_kernels|unit_costs)\.py"
    ),
    "prices of `spmd`": (
        r"libs/spmd-planning/src/.*/(bounds|conversions|machine|mesh_prices|objective|prices|tables)\.py"
    ),
    "prices of `pipeline`": r"plugins/searchers/pipeline/src/.*/(columns|latency|plans|shared|stage_simulation)\.py",
    "prices of HPGO": r"libs/pipeline-planning/src/.*/(latency|machine|plans)\.py",
}


def main(revisions: Sequence[str]) -> None:
    """Print a row for each part and a column for each revision, and the sums of both groups of parts."""
    counts = [counted(revision) for revision in revisions]
    width = max(map(len, [*PARTS, *LATER, *PLANNERS]))
    print("lines of".ljust(width), *(revision.rjust(9) for revision in revisions))
    for parts, label in ((PARTS, "what three kinds of strategies had"), (LATER, "what came since")):
        for part in parts:
            print(part.ljust(width), *(f"{count[part]:9,}" for count in counts))
        print(f"= {label}".ljust(width), *(f"{sum(count[part] for part in parts):9,}" for count in counts))
    print("sum".ljust(width), *(f"{sum(count[part] for part in PARTS | LATER):9,}" for count in counts))
    for part in PLANNERS:
        print(part.ljust(width), *(f"{count[part]:9,}" for count in counts))


def counted(revision: str) -> dict[str, int]:
    """Return the lines of each part at a revision."""
    paths = _git("ls-tree", "-r", "--name-only", revision).splitlines()
    return {
        part: lines(revision, [path for path in paths if re.fullmatch(pattern, path)])
        for part, pattern in (PARTS | LATER | PLANNERS).items()
    }


def lines(revision: str, paths: Iterable[str]) -> int:
    """Return the lines of some files at a revision."""
    return sum(_git("show", f"{revision}:{path}").count("\n") for path in paths)


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main(sys.argv[1:] or ["HEAD"])
