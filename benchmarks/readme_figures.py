"""Tables of figures in the documents of plugins, made anew.

    .venv/bin/python benchmarks/readme_figures.py large-programs        # plugins/searchers/spmd/README.md
    .venv/bin/python benchmarks/readme_figures.py wrong-profiles        # plugins/commands/sensitivity/README.md

Each prints its table; ``--rows`` takes the first ones alone.  The commands are those of the documents.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from topoplan_engine.reporting.tables import markdown_table

ROOT = Path(__file__).resolve().parents[1]
#: Models of the large programs with their servers and batch.
PROGRAMS = (("llama-3-8b", 8, 64), ("llama-3-70b", 32, 128), ("mixtral-8x7b", 8, 64))
#: What the document calls perturbations beside those of the profile.
SCALES = (
    ("communication x 2, x 1.5 (bandwidth x 0.5, x 0.67)", (0.5, 0.6666666667)),
    ("communication x 1.2 (bandwidth x 0.83)", (0.8333333333,)),
    ("communication x 0.8, x 0.5 (bandwidth x 1.25, x 2)", (1.25, 2.0)),
)


def topoplan(words: list[str]) -> str:
    """Run the program, and return what it prints."""
    command = [sys.executable, "-m", "topoplan", *words]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def commands(document: str) -> list[list[str]]:
    """Return the words of the commands in blocks of a document, without the program."""
    text = (ROOT / document).read_text(encoding="utf-8")
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    return [shlex.split(line)[1:] for line in "".join(blocks).splitlines() if line.startswith("topoplan ")]


def large_programs(rows: int | None) -> Iterator[Mapping[str, object]]:
    """Search SPMD programs of large models; yield rows of the document."""
    words = next(each for each in commands("plugins/searchers/spmd/README.md") if each[1] == "huggingface")
    for model, servers, batch in PROGRAMS[:rows]:
        changed = [word.replace("llama-3-70b", model) for word in words]
        changed[changed.index("--servers") + 1] = str(servers)
        changed[changed.index("--batch-size") + 1] = str(batch)
        report = json.loads(topoplan([*changed, "--json"]))
        found = report["planners"]["spmd"]
        yield {
            "model": model,
            "devices": 8 * servers,
            "batch": batch,
            "plan": f"{found['chosen']} on {' x '.join(map(str, found['mesh']))}",
            "iteration, s": f"{report['iteration_time_s']:.3f}",
            "MFU": f"{report['mfu']:.1%}",
            "memory of a device, GB": f"{report['memory_bytes'] / 1e9:.1f} of 80",
        }


def wrong_profiles(_rows: int | None) -> Iterator[Mapping[str, object]]:
    """Plan from wrong profiles; yield rows of the document."""
    listed = commands("plugins/commands/sensitivity/README.md")
    planned, perturbed = (
        next(each for each in listed if each[0] == word and "hidup.json" in " ".join(each))
        for word in ("optimize", "sensitivity")
    )
    with tempfile.TemporaryDirectory() as folder:
        plan = f"{folder}/hidup.json"
        topoplan([word.replace("hidup.json", plan) for word in planned])
        rows = json.loads(topoplan([word.replace("hidup.json", plan) for word in (*perturbed, "--json")]))["rows"]
    for row in rows:
        if noise := row["profile_noise"]:
            yield _slowdown(f"profile x {1 - noise:g}..{1 + noise:g}", [row])
    for name, scales in SCALES:
        yield _slowdown(name, [row for row in rows if row["communication_scale"] in scales])


def _slowdown(name: str, rows: list[Mapping[str, float]]) -> Mapping[str, object]:
    worst, mean = max(row["worst_slowdown"] for row in rows), max(row["mean_slowdown"] for row in rows)
    return {"perturbation": name, "mean": f"{mean:.4f}", "worst": f"{worst:.4f}"}


TABLES: Mapping[str, Callable[[int | None], Iterator[Mapping[str, object]]]] = {
    "large-programs": large_programs,
    "wrong-profiles": wrong_profiles,
}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--rows", type=int)
    given = parser.parse_args()
    rows = list(TABLES[given.table](given.rows))
    print(markdown_table([*rows[0]], [[str(cell) for cell in row.values()] for row in rows]))


if __name__ == "__main__":
    main()
