"""Says which pages of figures are older than the code that makes them.

A page of figures ends with a comment that names the state of its sources when it was made: a hash of the script that
makes it, of what the script reads, and of the code that computes.  ``python tools/pages.py`` compares each with the
commit that is checked out, lists the pages that are stale with the command that makes them anew, and ends with
status 1 if there are any; ``.ci/nightly`` runs it last.  Whoever has made a page runs ``python tools/pages.py --stamp
PAGE`` and commits both.  With ``--at REVISION`` the hash is that of another commit.

The hashes of files are git's, so that comparing takes no time.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Code that every simulated time rests on.
TIMES = (
    "engine/src/topoplan_engine/lowering",
    "engine/src/topoplan_engine/network",
    "engine/src/topoplan_engine/partition.py",
    "engine/src/topoplan_engine/sharding",
    "engine/src/topoplan_engine/simulation",
    "plugins/simulators/fluid/src",
)
#: What searched plans rest on beside.
PLANS = (*TIMES, "engine/src/topoplan_engine/search", "plugins/searchers", "plugins/estimators", "plugins/topologies")
#: Page -> the command that makes it, and the paths that it rests on: scripts, what they read, and code.
PAGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "docs/physics.md": ("benchmarks/physics.py --write docs/physics.md", ("benchmarks/physics.py", *TIMES)),
    "docs/machines.md": (
        "benchmarks/machines.py --write docs/machines.md",
        ("benchmarks/machines.py", "plugins/machines", "plugins/topologies/rails/src", *TIMES),
    ),
    "docs/strategies.md": (
        "benchmarks/strategies.py --write docs/strategies.md",
        (
            "benchmarks/strategies.py",
            "benchmarks/plan_rows.py",
            "plugins/schedules",
            "plugins/searchers/stated/src",
            "libs/operators/src",
            *TIMES,
        ),
    ),
    "docs/agreement.md": (
        "benchmarks/agreement.py --write docs/agreement.md",
        ("benchmarks/agreement.py", "benchmarks/exports.py", "plugins/exporters/flatbuffer/src", *TIMES),
    ),
    "docs/results.md": (
        "experiments/results.py",
        ("experiments/results.py", "experiments", "libs/studies/src", *PLANS),
    ),
    "docs/hidup.md": (
        "experiments/results.py --page hidup",
        ("experiments/results.py", "plugins/frontends/hidup/src", "libs/spmd-planning/src", *PLANS),
    ),
    "docs/pipelines.md": (
        "benchmarks/pipelines.py docs/pipelines.md",
        ("benchmarks/pipelines.py", "libs/pipeline-planning/src", *PLANS),
    ),
    "docs/spmd.md": ("benchmarks/spmd_plans.py", ("benchmarks/spmd_plans.py", "libs/spmd-planning/src", *PLANS)),
    "docs/cooptimization.md": ("benchmarks/cooptimization.py", ("benchmarks/cooptimization.py", *PLANS)),
    "docs/one_gpu.md": ("experiments/one_gpu.py", ("experiments/one_gpu.py", "plugins/estimators", *TIMES)),
    "docs/kernels.md": (
        "experiments/kernels.py",
        (
            *("experiments/kernels.py", "experiments/kernels", "experiments/one_gpu.py", "experiments/one_gpu"),
            *("libs/kernel-constants/src", "libs/operator-times/src", "plugins/estimators/kernels"),
            *TIMES,
        ),
    ),
    "docs/validation.md": (
        "core/src/topoplan/__main__.py validate llm --write docs/validation.md --leave-out "
        "--by-device plugins/estimators/kernels/src/topoplan_estimator_kernels/measured.csv",
        (
            *("libs/llm-measurements/src", "libs/kernel-constants/src", "plugins/commands/validate/src"),
            *("plugins/estimators/kernels/src", "plugins/frontends/huggingface/src", "plugins/machines/nvidia/src"),
            *("plugins/searchers/stated/src", *TIMES),
        ),
    ),
    "docs/growth.md": ("benchmarks/growth.py", ("benchmarks/growth.py", *PLANS)),
}
_STAMP = re.compile(r"\n<!-- Made from sources with the hash ([0-9a-f]{16})\. -->\n?$")


def sources_hash(paths: tuple[str, ...], revision: str = "HEAD") -> str:
    """Return a hash of the files below some paths, as a commit has them."""
    command = ["git", "-C", str(ROOT), "ls-tree", "-r", revision, "--", *paths]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    sources = [line for line in listing.splitlines() if "/tests/" not in line and not line.endswith((".md", ".svg"))]
    return hashlib.sha256("\n".join(sources).encode()).hexdigest()[:16]


def stamp_of(page: Path) -> str:
    """Return the hash that a page says; empty if it says none."""
    found = _STAMP.search(page.read_text(encoding="utf-8"))
    return found[1] if found else ""


def stamp(page: Path, digest: str) -> None:
    """Let a page say a hash, in place of the one that it says."""
    text = _STAMP.sub("", page.read_text(encoding="utf-8")).rstrip("\n")
    page.write_text(f"{text}\n\n<!-- Made from sources with the hash {digest}. -->\n", encoding="utf-8")


def main() -> int:
    """List the stale pages, or stamp some; return the status."""
    parser = argparse.ArgumentParser(description="List the pages of figures that are older than their code.")
    parser.add_argument("--stamp", nargs="+", default=[], metavar="PAGE", choices=PAGES, help="pages just made")
    parser.add_argument("--at", default="HEAD", metavar="REVISION", help="with --stamp: the commit that made them")
    words = parser.parse_args()
    for name in words.stamp:
        stamp(ROOT / name, sources_hash(PAGES[name][1], words.at))
    if words.stamp:
        return 0
    stale = [name for name, (_, paths) in PAGES.items() if stamp_of(ROOT / name) != sources_hash(paths)]
    for name in stale:
        print(f"{name}: is older than its code: python {PAGES[name][0]}, then python tools/pages.py --stamp {name}")
    print(f"{len(stale)} of {len(PAGES)} pages are stale")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
