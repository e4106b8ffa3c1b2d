"""Write the tables of FlexNet's published task graphs from the files.

    .venv/bin/python tests/reference/make_task_graphs.py FOLDER

``FOLDER`` holds ``*.fbuf`` of hipersys-team/TopoOpt 4a68a66 (``simulation/scripts``).  Strategy, links, paths and
rings of each are read, and every column of its task graph is turned into a digest.  What `reference.task_graphs` makes
of the rows must be what the files hold; else nothing is written.
"""

from __future__ import annotations

import csv
import hashlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from reference.task_graphs import COLUMNS, digests, model_of, plan, spell_strategy
from topoplan import Host, Plan

HERE = Path(__file__).parent


def main(folder: Path) -> None:
    """Write both tables, then check that they give the files back."""
    exporter = Host.discover().get("exporter", "flatbuffer")
    graphs, networks, read = [], [], {}
    for path in sorted(folder.glob("*.fbuf")):
        speed, family, servers = re.fullmatch(r"(?:topoopt_d4_)?(\d+)([a-z]+)_(\d+)", path.stem).groups()
        data = path.read_bytes()
        read[path.stem] = found = exporter.read(data, path.name)
        graph = model_of(family + servers)[0]
        strategy = spell_strategy(exporter.read_strategy(data, path.name, graph), graph)
        column = digests(found.taskgraph, found.taskgraph.op_names)
        sha256 = hashlib.sha256(data).hexdigest()
        graphs.append((path.stem, family + servers, speed, strategy, *(column[name] for name in COLUMNS), sha256))
        if not found.fabric.n_switches:
            networks.append((path.stem, *network(found)))
    write("task_graphs", [("task_graph", "preset", "link_gbps", "strategy", *COLUMNS, "sha256"), *graphs])
    write("task_graph_networks", [("task_graph", "links", "paths", "rings"), *networks])
    for name, given in read.items():
        compare(name, given)


def network(given: Plan) -> tuple[str, str, str]:
    """Spell links, one path for each pair, and rings."""
    fabric, routes = given.fabric, given.fabric.routes
    ends = np.repeat(np.stack([fabric.link_src, fabric.link_dst], axis=1), fabric.link_count, axis=0)
    paths = []
    for path in range(len(routes.path_ptr) - 1):
        links = routes.links[routes.path_ptr[path] : routes.path_ptr[path + 1]]
        paths.append(">".join(map(str, [*fabric.link_src[links].tolist(), int(fabric.link_dst[links[-1]])])))
    assert (routes.weight == 1).all()
    rings = (f"{size}:" + "|".join(",".join(map(str, ring)) for ring in of) for size, of in fabric.rings.items())
    return " ".join(f"{a}>{b}" for a, b in ends.tolist()), " ".join(paths), " ".join(rings)


def compare(name: str, given: Plan) -> None:
    """Compare what the tables give with what the file holds."""
    copy = plan(name)
    for column in COLUMNS:
        mine, theirs = (getattr(one.taskgraph, column) for one in (copy, given))
        if column == "seconds":
            assert np.allclose(mine, theirs, rtol=2e-7, atol=0), name
        else:
            assert np.array_equal(mine, theirs), (name, column)
    assert copy.fabric == given.fabric, name
    assert digests(copy.taskgraph, copy.taskgraph.op_names) == digests(given.taskgraph, given.taskgraph.op_names), name


def write(table: str, found: Sequence[Sequence[Any]]) -> None:
    with (HERE / f"{table}.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
