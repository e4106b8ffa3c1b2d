"""Give every reader inputs that nobody writes, and count: taken, refused in one line, or a failure.

    nice -n 19 python benchmarks/fuzz.py --inputs 1000000 --write docs/reliability.md
    python benchmarks/fuzz.py --reader plan-values --only 17           # one input again, with its traceback
    python benchmarks/fuzz.py --reader strategy --seed 2               # others, of one reader

A failure is anything but a result or a `TopoplanError` of one line: an exception, a crash, more than ten seconds of
CPU or 2 GiB, a time that is no number, a file that was written and cannot be read. Each is made smaller as long as it
fails in the same way, and printed with the command that repeats it.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fuzzing.readers import readers
from fuzzing.watch import Failure, Reader, Tally, attempt, input_of, watched

from topoplan_engine.reporting.tables import markdown_table

_MARKS = "<!-- begin: fuzzing -->", "<!-- end: fuzzing -->"
#: Attempts to make a failing input smaller.
_ATTEMPTS = 400


def main(args: Sequence[str] | None = None) -> int:
    """Run; the exit status says whether there was a failure."""
    given = _arguments(args)
    known = readers()
    names = given.reader.split(",")
    chosen = [one for one in known if given.reader == "" or one.name in names]
    if given.only is not None:
        return _again(chosen[0], given.seed, given.only)
    shares = sum(one.share for one in known)
    tallies: dict[Reader, Tally] = {}
    for one in chosen:
        count = math.ceil(given.inputs * one.share / shares)
        attempt(one, input_of(one, given.seed, 0))  # compiles kernels and loads modules before a child is made
        tallies[one] = watched(one, given.seed, count)
        _show(one, tallies[one], given.seed)
        if given.write:  # after each, so that hours are not lost
            _write(Path(given.write), {one.name: row(one, tallies[one])}, [one.name for one in known], given)
    print(table([row(one, tally) for one, tally in tallies.items()], given.seed, given.inputs))
    return int(any(tally.failures for tally in tallies.values()))


def _write(page: Path, rows: dict[str, list[str]], order: Sequence[str], given: Any) -> None:
    """Put rows into the table of a page, in the place of those of the same readers."""
    before, _, rest = page.read_text(encoding="utf-8").partition(_MARKS[0])
    old, _, after = rest.partition(_MARKS[1])
    rows = {**rows_in(old), **rows}
    text = table([rows[name] for name in order if name in rows], given.seed, given.inputs)
    page.write_text(f"{before}{_MARKS[0]}\n\n{text}\n\n{_MARKS[1]}{after}", encoding="utf-8")


def row(reader: Reader, tally: Tally) -> list[str]:
    """Return the cells of a row of the table."""
    counts = [tally.inputs, tally.ok, tally.refused, len(tally.failures), math.ceil(tally.seconds)]
    return [reader.name, reader.what, *(f"{count:,}" for count in counts)]


def rows_in(text: str) -> dict[str, list[str]]:
    """Return the rows of a table that stands in a page, without the sums."""
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")
    ]
    return {one[0]: one for one in cells[2:] if not one[0].startswith("**")}


def table(rows: Sequence[Sequence[str]], seed: int, inputs: int) -> str:
    """Return the counts as a section of a Markdown page."""
    sums = [sum(int(one[column].replace(",", "")) for one in rows) for column in range(2, 7)]
    headers = ["reader", "what", "inputs", "taken", "refused", "failures", "CPU s"]
    cells = [*rows, ["**all**", "", *(f"{count:,}" for count in sums)]]
    command = f"`nice -n 19 python benchmarks/fuzz.py --inputs {inputs} --seed {seed}`"
    return "\n".join([command, "", markdown_table(headers, cells, numbers=headers[2:])])


def _arguments(args: Sequence[str] | None) -> Any:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--inputs", type=int, default=10_000, help="of all readers together, were all of them run")
    parser.add_argument("--seed", type=int, default=0, help="other inputs")
    parser.add_argument("--reader", default="", metavar="NAME,...", help="these alone")
    parser.add_argument("--only", type=int, help="this input of the reader alone")
    parser.add_argument("--write", metavar="PAGE.md", help="put the counts into a page")
    return parser.parse_args(args)


def _show(reader: Reader, tally: Tally, seed: int) -> None:
    """Print the failures of a reader: of each kind how many, and the first one made small."""
    print(
        f"{reader.name}: {tally.inputs} inputs, {tally.ok} taken, {tally.refused} refused, "
        f"{len(tally.failures)} failures, {tally.seconds:.1f} s",
        flush=True,
    )
    kinds = Counter(failure.kind for failure in tally.failures)
    for kind, count in kinds.most_common():
        first = next(failure for failure in tally.failures if failure.kind == kind)
        print(
            f"  {count} x {kind}: python benchmarks/fuzz.py --reader {reader.name} --seed {seed} --only {first.number}"
        )
        if first.details:
            print(f"    {first.details.strip().splitlines()[-1][:300]}")
            print(f"    {_brief(_smaller(reader, first, seed))}", flush=True)


def _again(reader: Reader, seed: int, number: int) -> int:
    """Read one input in this process, and show it and what becomes of it."""
    data = input_of(reader, seed, number)
    print(_brief(data, 100_000), flush=True)
    outcome, details = attempt(reader, data)
    print(f"{outcome}\n{details}")
    return int(outcome not in ("ok", "refused"))


def _smaller(reader: Reader, failure: Failure, seed: int) -> Any:
    """Leave out parts of an input as long as it fails in the same way; of bytes and texts, where that is quick."""
    data = input_of(reader, seed, failure.number)
    if not isinstance(data, bytes | str) or failure.kind == "slow":
        return data
    size, attempts = max(len(data) // 2, 1), 0
    while size and attempts < _ATTEMPTS:
        at = 0
        while at < len(data) and attempts < _ATTEMPTS:
            attempts += 1
            less = data[:at] + data[at + size :]  # type: ignore[operator]
            if attempt(reader, less)[0] == failure.kind:
                data = less
            else:
                at += size
        size //= 2
    return data


def _brief(data: Any, longest: int = 400) -> str:
    text = repr(data)
    return text if len(text) <= longest else f"{text[:longest]} ... ({len(text)} characters)"


if __name__ == "__main__":
    raise SystemExit(main())
