"""Write the tables of our own exports from the files.

    .venv/bin/python tests/reference/make_own_exports.py FOLDER

``FOLDER`` holds ``own_exports.csv``, what FlexNetPacket made of task graphs that topoplan wrote, and these task graphs
in ``own_exports/``.  What `reference.own_exports` makes of the tables must be what the files hold; else it fails.
"""

from __future__ import annotations

import csv
import io
import lzma
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from reference import own_exports
from reference.own_exports import PLAIN, columns_of
from topoplan import Host

HERE = Path(__file__).parent
#: Column of the source -> column of the table.
TIMES = {
    "network": "network",
    "link_gbps": "link_gbps",
    "hosts": "hosts",
    "plan_ms": "plan_ms",
    "packet_ms": "packet_ms",
    "packet_members_honoured_ms": "members_honoured_ms",
    "packet_sends_staggered_ms": "staggered_ms",
}


def main(folder: Path) -> None:
    """Write both tables, then compare."""
    exporter = Host.discover().get("exporter", "flatbuffer")
    paths = sorted((folder / "own_exports").glob("*.fbuf"))
    plans = {path.stem: exporter.read(path.read_bytes(), path.name) for path in paths}
    columns = {f"{name}/{key}": column for name, one in plans.items() for key, column in columns_of(one).items()}
    packed = io.BytesIO()
    np.savez(packed, **columns)
    preset = 9 | lzma.PRESET_EXTREME
    (HERE / "own_exports.npz.xz").write_bytes(lzma.compress(packed.getvalue(), preset=preset))
    with (folder / "own_exports.csv").open(newline="") as source:
        times = [[Path(row["file"]).stem, *(row[column] for column in TIMES)] for row in csv.DictReader(source)]
    with (HERE / "own_exports.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([["export", *TIMES.values()], *times])
    for name, original in plans.items():
        copy = own_exports.plan(name)
        assert copy.fabric == original.fabric, name
        assert copy.cluster.n_devices == original.cluster.n_devices, name
        for column in (*PLAIN, "seconds", "group_ptr", "succ_ptr", "succ"):
            assert np.array_equal(getattr(copy.taskgraph, column), getattr(original.taskgraph, column)), (
                name,
                column,
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
