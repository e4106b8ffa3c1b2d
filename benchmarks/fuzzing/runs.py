"""Inputs and readers of runs in folders: `run.json`, `result.json`, and journals.

Journals are changed in two ways: their bytes, which their checks must reveal, and their numbers with checks that are
right, with which a search must still go on or be refused.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import shutil
import zlib
from pathlib import Path
from random import Random
from typing import Any

import typer

from fuzzing.draws import HOST, ROOT, folder
from fuzzing.mutators import NUMBERS, bytes_of, json_of
from fuzzing.watch import Reader
from topoplan_engine import ClusterOptions, Experiment, RunOptions, optimize
from topoplan_engine.experiment import Choice
from topoplan_engine.reporting.runs import report_resumed, report_run
from topoplan_engine.search.journal import COLUMNS, Journal, parsed
from topoplan_engine.search.run_record import checksum_of
from topoplan_engine.search.runs import begun, resumed

__all__ = ["readers_of_runs"]

_JOURNAL = "prices-0-0.csv"
_EVENTS = ("price", "failed", "moved", "time limit", "patience", "", "x")
#: Numbers as a journal may have them, and others.
_NUMBERS = (*NUMBERS, "0.0", "0.1", "1.0", "1e-9", "1e99", "-inf", "....")


#: Where a resumed run writes: what `run.json` names lies elsewhere than its reader.
_OUTPUTS = ((Choice("strategy"), str(folder() / "written.strategy")),)


class OtherJournalError(Exception):
    """A journal was taken that says something else than the search."""


@functools.cache
def _finished() -> Path:
    """Return the folder of a run that is finished."""
    path = folder() / "finished"
    small = Experiment(
        model="alexnet",
        cluster=ClusterOptions(servers=4, interface_bandwidth_gbps=10.0),
        searchers="mcmc",
        run=RunOptions(batch_size=16, budget=12, time_limit=60),
        outputs=_OUTPUTS,
    )
    with contextlib.redirect_stdout(io.StringIO()):
        report_run(small, str(path), as_json=True, open_page=False)
    return path


@functools.cache
def _records() -> list[Any]:
    """Return what two runs say of themselves; one has an input."""
    path = folder() / "with-input"
    file = str(ROOT / "examples/models/transformer.toml")
    begun(path, HOST, Experiment(model=Choice("layers", {"file": file}), run=RunOptions(batch_size=8))).close()
    return [json.loads((made / "run.json").read_bytes()) for made in (_finished(), path)]


def draw_record(rng: Random) -> bytes:
    """Return a `run.json`: its values changed, or its bytes."""
    if rng.random() < 0.8:
        data = json_of(rng, _records())
        return _sealed(data) if rng.random() < 0.7 else data
    return bytes_of(rng, [json.dumps(record).encode() for record in _records()])


def _sealed(data: bytes) -> bytes:
    """Return a record with a checksum that is right, so that what it says is read."""
    try:
        record = json.loads(data)
        return json.dumps({**record, "checksum": checksum_of(record)}).encode() if isinstance(record, dict) else data
    except (ValueError, RecursionError):
        return data


def draw_result(rng: Random) -> bytes:
    """Return a `result.json`: its values changed, or its bytes."""
    data = (_finished() / "result.json").read_bytes()
    return json_of(rng, [json.loads(data)]) if rng.random() < 0.8 else bytes_of(rng, [data])


def draw_journal(rng: Random) -> bytes:
    """Return a journal with changed bytes."""
    return bytes_of(rng, [(_finished() / _JOURNAL).read_bytes()])


def draw_checked_journal(rng: Random) -> bytes:
    """Return a journal with changed fields and lines, and checks that are right."""
    rows = [line.split(",")[:-1] for line in (_finished() / _JOURNAL).read_text().splitlines()[1:]]
    for _ in range(rng.choice((1, 1, 2, 3))):
        row = rng.choice(rows)
        match rng.randrange(6):
            case 0 if len(rows) > 1:
                rows.remove(row)
            case 1:
                rows.insert(rng.randrange(len(rows)), list(row))
            case 2:
                row[0] = rng.choice(_EVENTS)
            case 3:
                row[5] = rng.choice(_NUMBERS)
            case _:
                row[rng.choice((1, 1, 2, 3, 4))] = rng.choice(_NUMBERS)
    lines, check = [COLUMNS], 0
    for row in rows[: rng.choice((len(rows), rng.randrange(len(rows) + 1)))]:
        line = ",".join(row)
        check = zlib.crc32(line.encode(), check)
        lines.append(f"{line},{check:08x}\n")
    return "".join(lines).encode()


def read_record(data: bytes) -> None:
    """Open a run."""
    path = folder() / "opened"
    path.mkdir(exist_ok=True)
    (path / "run.json").write_bytes(data)
    resumed(path, HOST, outputs=_OUTPUTS).close()


def read_result(data: bytes) -> None:
    """Print a finished run again, as a table and as JSON."""
    path = _copied("result.json", data)
    for as_json in (False, True):
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
            contextlib.suppress(typer.Exit),  # the status that the file says
        ):
            report_resumed(str(path), as_json=as_json, open_page=False, outputs=_OUTPUTS)


def read_journal(data: bytes) -> None:
    """Read a journal; what is taken is what the search wrote, up to some line."""
    path = folder() / _JOURNAL
    path.write_bytes(data)
    entries = parsed(data, path)
    whole = parsed((_finished() / _JOURNAL).read_bytes(), path)
    if entries != whole[: len(entries)]:
        raise OtherJournalError("lines that the search did not write")
    Journal(path).close()
    if parsed(path.read_bytes(), path) != entries:
        raise OtherJournalError("lines that were lost when the journal was opened")


def go_on(data: bytes) -> None:
    """Go on with a search from a journal."""
    path = _copied(_JOURNAL, data)
    with resumed(path, HOST, outputs=_OUTPUTS) as run:
        optimize(run.experiment, host=HOST, folder=run)


def _copied(name: str, data: bytes) -> Path:
    """Return a copy of the finished run with one file changed."""
    path = folder() / "copy"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(_finished(), path)
    (path / name).write_bytes(data)
    return path


def readers_of_runs() -> tuple[Reader, ...]:
    """Return the readers of the files of a run."""
    return (
        Reader("run", "`run.json` of runs", 6, draw_record, read_record),
        Reader("result", "`result.json` of runs", 1, draw_result, read_result),
        Reader("journal", "journals of runs, bytes changed", 30, draw_journal, read_journal),
        Reader("journal-values", "journals of runs, numbers changed, searched", 1, draw_checked_journal, go_on),
    )
