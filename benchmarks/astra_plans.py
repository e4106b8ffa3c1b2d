"""Plans beside ASTRA-sim: what the exporter promises, and what ASTRA-sim takes for the files that it writes.

    .venv/bin/python benchmarks/astra_plans.py BINARIES                    # the folder of ASTRA-sim's binaries
    .venv/bin/python benchmarks/astra_plans.py BINARIES --only torus --write plugins/exporters/chakra/README.md

ASTRA-sim is built from its repository with its analytical network (``./build/astra_analytical/build.sh``).  Each plan
is one command of ``topoplan optimize``, which writes ASTRA-sim's inputs and, where it takes another time than the plan
by more than 3 %, says how long and why.  Both backends run the inputs; the one that knows congestion reads networks of
one axis only, and stores messages on switches, so it runs rings and full meshes.  With a page, a row is written as soon
as it is measured.  The command ends with status 1 where a time is off and nothing says so, or says another one.

    words -> optimize -x astra-sim -> warning, inputs -> ASTRA-sim's cycles -> row
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from topoplan_engine.reporting.pages import replace_section
from topoplan_engine.reporting.tables import markdown_row

#: A cycle is a picosecond in what the exporter writes.
CYCLE = 1e-12
#: Times that differ by no more than this share are equal.
EQUAL = 0.03
#: Section of the page.
SECTION = "astra plans"
DATA_PARALLEL = "-s baseline:rule=ddp --budget 0"
_MODEL = "huggingface -o config=examples/models/{}.json -o sequence-length=2048 --device h100 --precision bf16"
LLAMA, MIXTRAL = _MODEL.format("llama-3-8b"), _MODEL.format("mixtral-8x7b")
#: Arguments of ``topoplan optimize``: models on one switch and on rings or full meshes.
PLANS = (
    f"alexnet --batch-size 1024 --servers 4 -t bigswitch {DATA_PARALLEL}",
    "alexnet --batch-size 512 --servers 4 -t bigswitch -s mcmc --budget 100",
    f"alexnet --batch-size 256 --servers 8 -t topoopt --degree 2 {DATA_PARALLEL}",
    f"alexnet --batch-size 256 --servers 8 -t fully-connected {DATA_PARALLEL}",
    f"alexnet --batch-size 512 --servers 2 --gpus-per-server 8 --degree 8 -t bigswitch {DATA_PARALLEL}",
    f"vgg16 --batch-size 128 --servers 16 -t bigswitch {DATA_PARALLEL} --interface-bandwidth-gbps 200",
    "vgg16 --batch-size 128 --servers 4 -t fully-connected -s pipeline",
    "vgg16 --batch-size 128 --servers 4 -t torus:sides=4 -s pipeline",
    f"vgg16 --batch-size 256 --servers 8 --gpus-per-server 2 --degree 2 -t bigswitch {DATA_PARALLEL}",
    "resnet50 --batch-size 256 --servers 4 -t bigswitch -s pipeline",
    f"resnet50 --batch-size 256 --servers 8 -t topoopt --degree 2 {DATA_PARALLEL}",
    f"resnet50 --batch-size 256 --servers 8 -t bigswitch {DATA_PARALLEL} --interface-bandwidth-gbps 25",
    f"resnet50 --batch-size 512 --servers 4 --gpus-per-server 4 --degree 4 -t bigswitch {DATA_PARALLEL}",
    "resnet50 --batch-size 512 --servers 16 -t torus:sides=4-4 -s spmd",
    f"inception-v3 --batch-size 128 --servers 8 -t bigswitch {DATA_PARALLEL}",
    "inception-v3 --batch-size 128 --servers 4 -t torus:sides=4 -s pipeline",
    f"candle-uno --batch-size 512 --servers 8 -t bigswitch {DATA_PARALLEL}",
    "candle-uno --batch-size 512 --servers 4 -t fully-connected -s spmd",
    f"ncf --batch-size 4096 --servers 4 -t bigswitch {DATA_PARALLEL}",
    "ncf --batch-size 4096 --servers 4 -t torus:sides=4 -s spmd",
    "dlrm -o preset=dlrm16 --servers 16 -t bigswitch -s mcmc --budget 0",
    "dlrm -o preset=dlrm16 --servers 16 -t torus:sides=4-4 -s spmd",
    "transformer --batch-size 64 --servers 4 -t bigswitch -s spmd",
    f"transformer --batch-size 64 --servers 8 -t bigswitch {DATA_PARALLEL}",
    "transformer --batch-size 64 --servers 4 -t fully-connected -s pipeline",
    "moe --batch-size 256 --servers 4 -t bigswitch -s spmd",
    "moe --batch-size 256 --servers 4 -t fully-connected -s spmd",
    "bert-switch -o world-size=2 -o layers=2 --servers 2 -t bigswitch -e hidup -s hidup",
    "vit-switch -o world-size=4 -o layers=2 --servers 4 -t bigswitch -s spmd",
    f"{LLAMA} --batch-size 16 --servers 8 -t torus:sides=8 --plan pp=8,recompute=full",
    f"{LLAMA} --batch-size 16 --servers 2 --gpus-per-server 8 -t bigswitch --degree 8 --plan tp=8,dp=2",
    f"{LLAMA} --batch-size 16 --servers 8 -t bigswitch --plan dp=8,zero=3",
    f"{LLAMA} --batch-size 16 --servers 2 --gpus-per-server 4 -t bigswitch --degree 4 --plan tp=4,pp=2",
    f"{MIXTRAL} --batch-size 16 --servers 2 --gpus-per-server 8 -t bigswitch --degree 8 --plan dp=16,ep=8,zero=3",
)
HEADERS = ["words", "plan, ms", "promised", "ASTRA-sim", "off plan", "off promise", "aware of congestion", "said"]
_PROMISE = re.compile(r"astra-sim: its congestion-unaware backend takes ([\d.e+-]+) ms for this plan, .*? here: (.*)")


class Result(NamedTuple):
    """Times of a plan in milliseconds.

    Attributes:
        plan: simulated here.
        promised: of ASTRA-sim, as the exporter says; the plan's where it says nothing.
        unaware, aware: ASTRA-sim's by backend; none where the backend does not run such networks.
        said: reasons of the exporter, or why there is no time.
    """

    plan: float
    promised: float
    unaware: float | None
    aware: float | None
    said: str


def result_of(words: str, binaries: Path) -> Result:
    """Return the times of a plan.

    Raises:
        SystemExit: a command ends with an error.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "astra"
        program = str(Path(sys.executable).with_name("topoplan"))
        command = [program, "optimize", *shlex.split(words), "--json", "-x", f"astra-sim={folder}"]
        planned = subprocess.run(command, capture_output=True, text=True, check=False)
        if planned.returncode:
            raise SystemExit(f"{words}\n{planned.stderr}")
        milliseconds = json.loads(planned.stdout)["iteration_time_s"] * 1e3
        notes = [line.partition("warning: ")[2] for line in planned.stderr.splitlines() if "astra-sim: " in line]
        if not (folder / "network.yml").exists():
            return Result(milliseconds, milliseconds, None, None, "; ".join(notes))
        network = (folder / "network.yml").read_text()
        promises = [found.groups() for note in notes if (found := _PROMISE.match(note))]
        promised, reasons = (float(promises[0][0]), promises[0][1]) if promises else (milliseconds, "")
        reads = "," not in network.splitlines()[0] and "Switch" not in network
        unaware = _run(folder, binaries / "AstraSim_Analytical_Congestion_Unaware", words)
        aware = _run(folder, binaries / "AstraSim_Analytical_Congestion_Aware", words) if reads else None
    return Result(milliseconds, promised, unaware, aware, reasons)


def _run(folder: Path, binary: Path, words: str) -> float:
    """Return the milliseconds of the last rank."""
    run = subprocess.run(["sh", folder / "run.sh", binary], capture_output=True, text=True, check=False)
    cycles = [int(text) for text in re.findall(r"finished, (\d+) cycles", run.stdout)]
    if run.returncode or not cycles:
        raise SystemExit(f"{words}\n{binary.name}: status {run.returncode}\n{(run.stdout + run.stderr)[-600:]}")
    return max(cycles) * CYCLE * 1e3


def cells_of(words: str, result: Result) -> list[str]:
    """Return a row of the table."""
    times = [_ms(result.plan), _ms(result.promised), _ms(result.unaware)]
    off = [_off(result.unaware, each) for each in (result.plan, result.promised)]
    return [f"`{words}`", *times, *off, _ms(result.aware), result.said]


def holds(result: Result) -> bool:
    """Return whether ASTRA-sim takes what the exporter promises, and another time than the plan has a reason."""
    if result.unaware is None:
        return bool(result.said)
    kept = abs(result.unaware / result.promised - 1) <= EQUAL
    return kept and (abs(result.unaware / result.plan - 1) <= EQUAL or bool(result.said))


def _ms(milliseconds: float | None) -> str:
    return "" if milliseconds is None else f"{milliseconds:.4g}"


def _off(measured: float | None, expected: float) -> str:
    return "" if measured is None else f"{measured / expected - 1:+.1%}"


def write_row(page: Path, cells: list[str]) -> None:
    """Put a row into the table of a page, in the place of that of the same words."""
    text = page.read_text(encoding="utf-8")
    found = re.search(rf"<!-- begin {SECTION} -->\n(.*?)<!-- end {SECTION} -->", text, re.DOTALL)
    lines = {line.split(" | ")[0]: line for line in (found.group(1).splitlines()[2:] if found else [])}
    lines[f"| {cells[0]}"] = markdown_row(cells)
    rows = [lines[key] for words in PLANS if (key := f"| `{words}`") in lines]
    rule = markdown_row(["---", *["--:"] * 6, "---"])
    body = "\n".join([markdown_row(HEADERS), rule, *rows]) + "\n"
    page.write_text(replace_section(text, SECTION, body, str(page)), encoding="utf-8")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binaries", type=Path, help="folder with AstraSim_Analytical_Congestion_Aware and _Unaware")
    parser.add_argument("--only", default="", metavar="WORD", help="plans whose words have this one")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table into this Markdown file")
    given = parser.parse_args()
    failures = 0
    for words in PLANS:
        if given.only not in words:
            continue
        result = result_of(words, given.binaries)
        failures += not holds(result)
        print(markdown_row(cells_of(words, result)), "" if holds(result) else "NOT SAID", flush=True)
        if given.write is not None:
            write_row(given.write, cells_of(words, result))
    if failures:
        raise SystemExit(f"{failures} plans take another time than the exporter says")


if __name__ == "__main__":
    main()
