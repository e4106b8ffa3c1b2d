"""Write the tables of operator times and of layer profiles that two plugins bring along, from the original files.

    .venv/bin/python tests/reference/make_profiles.py FOLDER

``FOLDER`` holds ``measures/`` (JSON files that FlexNet measured) and ``layer_profiles/`` (text files of DAPPLE's
planner) as their authors published them.  The tables hold their figures in a form of our own: one row for each cut of
an operator, one row for each layer.  Beside each table stands where every file comes from, and its SHA-256; a file
of another hash is refused unless ``--accept`` is given.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ROOT / "plugins/estimators/measured/src/topoplan_estimator_measured/profiles"
LAYERS = ROOT / "libs/layer-profiles/src/topoplan_layer_profiles/profiles"

FLEXNET = {"repository": "hipersys-team/FlexFlow", "commit": "b1526834", "folder": "measures"}
SWEEP = {
    "repository": "hipersys-team/TopoOpt",
    "commit": "4a68a66",
    "folder": "simulation/scripts/fig12_13_14_15/dlrm_128_128table_batchsweep",
}
DAPPLE = {"repository": "AlibabaPAI/DAPPLE", "commit": "fd75dcf", "folder": "profiling_results"}
#: Layer profiles that HPGO's repository has and DAPPLE's has not; here they lie under names with the profiled batch.
HPGO = {"resnet50": {"repository": "LER0ever/HPGO", "commit": "e6fb689", "path": "profiles/resnet50/graph.txt"}}
#: Samples of the only layer profile whose name does not say them: its first activations are 64 x 64 x 224 x 224 floats.
UNNAMED_BATCH = {"vgg16": 64}


def main() -> None:
    """Write both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--accept", action="store_true", help="take files of other hashes than those that are noted")
    arguments = parser.parse_args()
    measured(arguments.folder / "measures", arguments.accept)
    layers(arguments.folder / "layer_profiles", arguments.accept)


def measured(folder: Path, accept: bool) -> None:
    """Write operator times: a row for each operator and cut, in milliseconds and bytes as they were printed."""
    rows, sources = [], {}
    for path in sorted(folder.rglob("*.json"), key=lambda path: (path.parent != folder, *in_order(path.stem))):
        swept = re.fullmatch(r"measure_(\d+)_128", path.stem)
        name = f"dlrm128-batch-{swept[1]}" if swept else path.stem.replace("_", "")
        document = json.loads(path.read_bytes(), parse_float=str)
        about = {"batch-size": document["batch_size"], "devices": document["ngpus"]}
        sources[name] = about | source(path, SWEEP if swept else FLEXNET)
        for row in document["measurements"]:
            degrees = "x".join(reversed(row["pc_str"].split("-")[1:]))
            rows.append((name, row["name"], degrees, row["fw_time"], row["bw_time"], row["mem_req"]))
    write(
        MEASURED, ("profile", "operator", "degrees", "forward_ms", "backward_ms", "memory_bytes"), rows, sources, accept
    )


def layers(folder: Path, accept: bool) -> None:
    """Write layer profiles: a row for each layer, milliseconds and bytes of the profiled batch, and its parents."""
    rows, sources = [], {}
    for path in sorted(folder.glob("*.txt"), key=lambda path: in_order(path.stem)):
        text = path.read_text(encoding="utf-8").splitlines()
        name = path.stem.partition("-pbs-")[0] + path.stem.partition("-pbs-")[2].lstrip("0123456789")
        batch = re.search(r"pbs-(\d+)", path.stem)
        about = {"batch-size": int(batch[1]) if batch else UNNAMED_BATCH[path.stem]}
        sources[name] = about | source(path, DAPPLE) | HPGO.get(name, {})
        lines = [[part.strip() for part in line.split(" -- ")] for line in text if line.strip()]
        edges = [line for line in lines if len(line) == 2]
        nodes = [line for line in lines if len(line) > 2]
        number = {node[0]: index for index, node in enumerate(nodes)}
        parents: dict[str, dict[int, None]] = {node: {} for node in number}
        for parent, child in edges:
            parents[child][number[parent]] = None
        for node in nodes:
            kind = re.match(r"_*[A-Za-z0-9]\w*", node[1])
            figures = [pair.partition("=")[2].strip() for pair in node[2].split(", ")]
            figures[2] = total(figures[2])
            before = " ".join(map(str, parents[node[0]]))
            rows.append((name, node[0], kind[0] if kind else "", *map(shortest, figures), before))
    columns = (
        "profile",
        "layer",
        "kind",
        "forward_ms",
        "backward_ms",
        "activation_bytes",
        "parameter_bytes",
        "parents",
    )
    write(LAYERS, columns, rows, sources, accept)


def in_order(name: str) -> tuple[Any, ...]:
    """Sort numbers in names as numbers."""
    return tuple(int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name))


def total(text: str) -> str:
    """Add the sizes of several outputs, as a reader of the file would."""
    return repr(sum(map(float, text.strip("[]").split(";")))) if text.startswith("[") else text


def shortest(text: str) -> str:
    """Spell a number without zeros that say nothing."""
    value = float(text)
    return str(int(value)) if value.is_integer() else repr(value)


def source(path: Path, origin: dict[str, str]) -> dict[str, str]:
    """Say where a file was published, and which content it had."""
    return {
        "repository": origin["repository"],
        "commit": origin["commit"],
        "path": f"{origin['folder']}/{path.name}",
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }


def write(folder: Path, columns: tuple[str, ...], rows: list[Any], sources: dict[str, Any], accept: bool) -> None:
    """Write a table and its sources into the package of a plugin."""
    noted = folder / "sources.toml"
    record = tomllib.loads(noted.read_text()) if noted.exists() else {}
    conflicts = [name for name in record if name in sources and record[name]["sha256"] != sources[name]["sha256"]]
    missing = sorted(record.keys() - sources.keys())
    if (conflicts or missing) and not accept:
        raise SystemExit(f"not the noted files (--accept takes them): {', '.join(conflicts + missing)}")
    with (folder / "profiles.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([columns, *rows])
    lines = ["# Where the figures of profiles.csv come from; written by tests/reference/make_profiles.py."]
    for name, about in sources.items():
        lines += ["", f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in about.items())]
    noted.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
