"""Write the results of other programs that the tests compare with into tables beside this file.

    .venv/bin/python tests/reference/make_results.py FOLDER

``FOLDER`` holds what these programs printed, as it was kept: ``dapple_reference_results.json`` (plans of HPGO),
``hidup_search_runs.json`` and ``hidup_graphs/`` (HiDup's search and what it searched), ``packet_reference.csv`` (task
graphs of FlexNet in the packet simulator).  The tables hold these figures in a form of our own; ``sources.toml`` says
which program gave them, and the SHA-256 of each of these files.  What the tests do not use is left out.
"""

from __future__ import annotations

import csv
import hashlib
import json
import sys
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
HPGO = "HPGO 0.9.2 (PyPI, CPython 3.7) and its sources at AlibabaPAI/DAPPLE fd75dcf, on the profiles published there"
HIDUP = "ylxdzsw/hidup 5cbb5c4, its compiled search under CPython 3.7 and torch 1.10"
PACKETS = "FlexNetPacket (htsim_tcp_flat, htsim_tcp_fattree), on task graphs of hipersys-team/TopoOpt 4a68a66"
OWN = "FlexNetPacket, on task graphs that topoplan wrote (make_own_exports.py)"
FLEXNET = "FlexNet, as published in hipersys-team/TopoOpt 4a68a66, simulation/scripts (make_task_graphs.py)"
MODELS = {"Rmoe": "bert-sgmoe", "Rswitch": "bert-switch", "Vmoe": "vit-sgmoe", "Vswitch": "vit-switch"}


def main(folder: Path) -> None:
    """Write every table and where it comes from."""
    results = folder / "dapple_reference_results.json"
    runs = folder / "hidup_search_runs.json"
    graphs = sorted((folder / "hidup_graphs").glob("*.json"))
    packets = folder / "packet_reference.csv"
    planned = json.loads(results.read_bytes())
    write("hpgo_plans", hpgo_plans(planned["wheel"]))
    write("hpgo_families", hpgo_families(planned["source_build"]))
    write("hidup_searches", hidup_searches(json.loads(runs.read_bytes())))
    write("hidup_graphs", hidup_graphs(graphs))
    write("packet_times", packet_times(packets))
    lines = ["# Which program gave the figures of a table, and the files they were taken from; by make_results.py."]
    for tables, program, files in (
        (("hpgo_plans", "hpgo_families"), HPGO, [results]),
        (("hidup_searches",), HIDUP, [runs]),
        (("hidup_graphs",), HIDUP, graphs),
        (("packet_times",), PACKETS, [packets]),
        (("own_exports",), OWN, [folder / "own_exports.csv"]),
        (("task_graphs", "task_graph_networks"), FLEXNET, []),  # a hash stands in every row of the first
    ):
        for table in tables:
            lines += ["", f"[{table}]", f"program = {json.dumps(program)}", "[" + table + ".sha256]"]
            lines += [f'"{file.name}" = "{hashlib.sha256(file.read_bytes()).hexdigest()}"' for file in files]
    # A short table that was made by hand, from what HPGO's importer returns.
    state = tomllib.loads((HERE / "sources.toml").read_text())["hpgo_gnmt16_cuts"]
    lines += ["", "[hpgo_gnmt16_cuts]", f"program = {json.dumps(state['program'])}", "[hpgo_gnmt16_cuts.sha256]"]
    lines += [f'"{name}" = "{digest}"' for name, digest in state["sha256"].items()]
    (HERE / "sources.toml").write_text("\n".join(lines) + "\n")


def hpgo_plans(runs: Iterable[dict[str, Any]]) -> Iterable[Sequence[Any]]:
    """Plans of the released planner: a stage is START-END:REPLICATION@FIRST-LAST, layers and devices."""
    yield "profile", "batch_size", "devices", "speedup", "stages"
    for run in runs:
        stages = [f"{a}-{b}:{copies}@{devices[0]}-{devices[-1]}" for a, b, copies, devices in run["stages"] or ()]
        assert all(d == list(range(d[0], d[-1] + 1)) for *_, d in run["stages"] or ())
        machine = " ".join(map(str, run["seps"]))
        yield profile(run["profile"]), run["gbs"], machine, run["speedup"], " ".join(stages)


def hpgo_families(runs: Iterable[dict[str, Any]]) -> Iterable[Sequence[Any]]:
    """Speedups of each family of plans, and of the baselines, from a build of the sources."""
    yield (
        "profile",
        "batch_size",
        "micro_batch",
        "machine",
        "optimizer",
        "sample_bytes",
        "speedup",
        "one_stage",
        "two_stages",
        "one_device_each",
        "two_stages_any",
        "recursive",
        "dp",
        "dp_p3",
        "ga_inner",
        "ga_p3",
    )
    for run in runs:
        yield (
            profile(run["name"]),
            run["gbs"],
            run["mbs"],
            {"H": "two hosts", "F": "flat"}[run["dev"]],
            run["opt"],
            run["papb"],
            run["speedup"],
            run["best_pseudo_dp"],
            *(candidate[0] for candidate in run["cands"]),
            *(run[key] for key in ("recursive", "dp", "dp_p3", "ga_inner", "ga_p3")),
        )


def profile(file: str) -> str:
    """Return the name under which the plugin torchgraph has a layer profile."""
    model, _, rest = file.partition("-pbs-")
    return model + rest.lstrip("0123456789")


def hidup_searches(document: dict[str, Any]) -> Iterable[Sequence[Any]]:
    """Objectives of HiDup's search; those under noise are left out."""
    rates = ("device_flops", "all_gather", "all_reduce", "reduce_scatter", "all_to_all")
    kinds = ("replicate", "all_gather", "all_to_all", "dynamic_slice")
    yield (
        "set",
        "model",
        "devices",
        "layers",
        "experts",
        *(f"{rate}_per_s" for rate in rates),
        "objective",
        "compute_s",
        "forward_s",
        "backward_s",
        "stages",
        *(f"{kind}_count" for kind in kinds),
    )
    sets = {"matrix_default_profile": "default", "layers_x_gpus_default_profile": "layers"}
    for key in ("matrix_default_profile", "layers_x_gpus_default_profile", "sweep2", "sweep3"):
        for run in document[key]:
            if "noise" not in run["kv"]:
                outcome = run["ev"]
                yield (
                    sets.get(key, key),
                    MODELS[run["model"]],
                    run["world"],
                    run["nlayers"],
                    run["n_expert"],
                    *(run["prof"][rate] for rate in rates),
                    *(outcome[name] for name in ("est", "fc", "fm", "bm")),
                    run["stages"],
                    *(run["colls"].get(kind, 0) for kind in kinds),
                )


def hidup_graphs(paths: Iterable[Path]) -> Iterable[Sequence[Any]]:
    """A digest of every operator that HiDup searches, in order: see `operator_digest`."""
    yield "model", "devices", "operators"
    for path in paths:
        document = json.loads(path.read_bytes())
        yield document["model"], document["devices"], " ".join(graph_digests(document["operators"]))


def graph_digests(nodes: Sequence[dict[str, Any]]) -> list[str]:
    listed = [node for node in nodes if "alias_of_output" not in node]
    place = {node["id"]: number for number, node in enumerate(listed)}

    def source(number: int) -> tuple[int, int]:
        node = nodes[number]
        return (place[node["inputs"][0]], node["alias_of_output"]) if "alias_of_output" in node else (place[number], 0)

    digests = []
    for node in listed:
        shapes = None
        if node["operator"] != "output":
            shapes = node["shape"] if node.get("tuple") else [node["shape"]]
        rules = [
            ([(*source(k), form) for k, form in inputs], [outputs] if isinstance(outputs, str) else outputs)
            for inputs, outputs in node.get("signatures", ())
        ]
        digests.append(operator_digest(shapes, [source(k) for k in node["inputs"]], node["flops"], rules))
    return digests


def operator_digest(
    shapes: Sequence[Sequence[int]] | None,
    inputs: Iterable[tuple[int, int]],
    flops: int,
    signatures: Iterable[tuple[Sequence[tuple[int, int, str]], Sequence[str]]],
) -> str:
    """Return eight digits that stand for an operator.

    Args:
        shapes: of its outputs; None for the operator that ends the program.
        inputs: each as (place of the operator that makes it, which of its outputs), in any order.
        flops: of one iteration, forward.
        signatures: forms of the inputs, each with the input, and forms of the outputs; in any order.
    """
    content = (
        None if shapes is None else [list(map(int, shape)) for shape in shapes],
        sorted({tuple(map(int, place)) for place in inputs}),
        int(flops),
        sorted(
            (sorted({(int(a), int(b), str(form)) for a, b, form in given}), list(map(str, outputs)))
            for given, outputs in signatures
        ),
    )
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:8]


def packet_times(path: Path) -> Iterable[Sequence[Any]]:
    """Iteration times of FlexNet's task graphs in the packet simulator."""
    yield "task_graph", "network", "link_gbps", "iteration_ms", "flows", "arguments"
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            yield (
                Path(row["file"]).stem,
                row["network"],
                row["link_gbps"],
                row["iteration_ms"],
                row["flows"],
                row["args"],
            )


def write(table: str, rows: Iterable[Sequence[Any]]) -> None:
    with (HERE / f"{table}.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
