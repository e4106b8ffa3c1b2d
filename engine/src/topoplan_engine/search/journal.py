"""The journal of a search: the price of every candidate, in the order in which they were asked for.

A search is deterministic, but for the seconds that it takes.  So nothing of a searcher is written down: a search that
goes on is begun anew, and what is in the journal already is answered from it instead of being simulated
(`topoplan_engine.search.driver`).  Then it goes on as if it had never stopped.

A journal is a CSV file with the columns of `COLUMNS` and a line for each event:

- ``price``: seconds per iteration of a candidate, ``inf`` if it cannot be or reached its cutoff; the cutoff; whether it
  fits into memory; and a checksum of its strategy and fabric;
- ``too large``: there was no time to price this candidate, which cost ``inf`` therefore;
- ``failed``: a candidate could not be priced because its strategy is wrong, and its searcher was left out;
- ``moved``: the search moved to this state, one of those priced since the last time, or of another chain;
- ``time limit`` and ``patience``: a clock ended the search, a round of it or a call of a searcher here: ``cost`` is the
  number of places since the line before where a clock might have (`topoplan_engine.search.clocked`);
- ``done``: a search with a time limit, or a round of it, ended before its time.

``seconds`` are those of the search so far.  ``check`` is the CRC-32 of the line up to the last comma, begun with that
of the line before, so that a line that was changed, lost or moved is noticed.  A line that was torn when a process
died is the last one, and is dropped.

Data flow: `Journal` reads its file; `recall`, `move` and `ending` answer from it until it is used up, and from then on
`price`, `move`, `end` and `finish` append to it.
"""

from __future__ import annotations

import os
import re
import time
import zlib
from pathlib import Path
from typing import NamedTuple

from topoplan.errors import TopoplanError
from topoplan.search.protocol import State
from topoplan_engine.files import read_file, shown_path, why_not
from topoplan_engine.search.limits import Ending
from topoplan_engine.search.locks import locked
from topoplan_engine.states import state_key

__all__ = ["COLUMNS", "Entry", "Journal", "NoJournal", "checksum", "parsed"]

COLUMNS = "event,cost,cutoff,fits,state,seconds,check\n"
_NUMBER = rb"(-?inf|-?[0-9.]{1,30}(?:e[+-]?[0-9]{1,3})?)"
_LINE = (
    rb"(price|too large|failed|moved|time limit|patience|done),%b,%b,([01]),([0-9a-f]{8}),([0-9.]{1,20}),([0-9a-f]{8})"
    % (_NUMBER, _NUMBER)
)
#: Seconds after which lines are handed to the system, and after which they are on the disk.
_WRITE_EVERY, _SYNC_EVERY = 0.2, 4.0


class Entry(NamedTuple):
    """A line of a journal, without its checksum."""

    event: str
    cost: float
    cutoff: float
    fits: bool
    state: str
    seconds: float


class NoJournal:
    """What a search has that is not written down.

    Attributes:
        keeps: whether it keeps anything.
    """

    keeps = False

    def recall(self) -> Entry | None:
        """Return the next price that is known; None: it has to be found."""
        return None

    def check(self, state: str, cutoff: float) -> None:
        """Compare a candidate with the one whose price was recalled."""

    def price(
        self, cost: float, cutoff: float, fits: bool, state: str, seconds: float, *, too_large: bool = False
    ) -> None:
        """Take note of a price, or that there was no time for one."""

    def fail(self, seconds: float) -> None:
        """Take note of a candidate that could not be priced."""

    def move(self, cost: float, state: str, seconds: float) -> None:
        """Take note of a state that the search moved to."""

    def ending(self) -> Ending | None:
        """Return what a clock ended at this place, if that is known; every call is another place."""
        return None

    def end(self, ending: Ending, seconds: float) -> None:
        """Take note that a clock ended something at the place that `ending` was last asked of."""

    def finish(self, seconds: float) -> None:
        """Take note that a search or a round ended before its time."""

    @property
    def replaying(self) -> bool:
        """Whether more is known."""
        return False

    def elapsed(self, seconds: float) -> float:
        """Return the seconds of a search that has run so many in this process."""
        return seconds

    def stop(self) -> None:
        """Take no more notes: what follows is no part of the search."""

    def close(self) -> None:
        """Write what is not written yet."""


class Journal(NoJournal):
    """The journal of one chain, in a file that is made if there is none.

    Raises:
        TopoplanError: another process writes to it, it cannot be read or written, or it is damaged.
    """

    keeps = True

    def __init__(self, path: Path) -> None:
        self._path, self._stopped = path, False
        self._file = _opened(path)
        try:
            locked(self._file, path, wait=10.0)
            data = read_file(path)
            self._entries = parsed(data, path)
        except BaseException:
            os.close(self._file)
            raise
        self._next, self._offset = 0, 0.0 if not self._entries else None
        #: Places since the last line where a clock might have ended something.
        self._places = 0
        self._end, self._check = _extent(data, len(self._entries))
        self._pending: list[str] = [] if self._end else [COLUMNS]
        self._whole = False
        self._written = self._synced = time.monotonic()

    def recall(self) -> Entry | None:
        """Return the next price of the file; None once it is used up, and where the candidate had none."""
        if not self.replaying:
            return None
        entry = self._entries[self._next]
        if entry.event == "failed":
            return None
        if entry.event not in ("price", "too large"):
            raise self._differs()
        self._pass()
        return entry

    def check(self, state: str, cutoff: float) -> None:
        """Raise `TopoplanError` if the candidate is another one than the one whose price was recalled."""
        entry = self._entries[self._next - 1]
        if (entry.state, entry.cutoff) != (state, cutoff):
            self._next -= 1
            raise self._differs()

    def price(
        self, cost: float, cutoff: float, fits: bool, state: str, seconds: float, *, too_large: bool = False
    ) -> None:
        """Append a price, or that there was no time for one."""
        if self.replaying:  # it failed before
            raise self._differs()
        event = "too large" if too_large else "price"
        self._append(f"{event},{cost!r},{cutoff!r},{fits:d},{state},{seconds:.6f}")

    def fail(self, seconds: float) -> None:
        """Append that a candidate could not be priced, or compare it with what is in the file."""
        if not self.replaying:
            self._append(f"failed,0.0,inf,1,00000000,{seconds:.6f}")
        elif self._entries[self._next].event != "failed":
            raise self._differs()
        else:
            self._pass()

    def move(self, cost: float, state: str, seconds: float) -> None:
        """Append a state that the search moved to, or compare it with the one in the file."""
        if not self.replaying:
            self._append(f"moved,{cost!r},inf,1,{state},{seconds:.6f}")
        elif not self._stopped:
            entry = self._entries[self._next]
            if (entry.event, entry.cost, entry.state) != ("moved", cost, state):
                raise self._differs()
            self._pass()

    def ending(self) -> Ending | None:
        """Return what a clock ended at this place of the file."""
        self._places += 1
        if not self.replaying:
            return None
        entry = self._entries[self._next]
        if entry.event not in ("time limit", "patience") or entry.cost != self._places:
            return None
        self._pass()
        return "patience" if entry.event == "patience" else "time limit"

    def end(self, ending: Ending, seconds: float) -> None:
        """Append that a clock ended something."""
        self._append(f"{ending},{self._places}.0,inf,1,00000000,{seconds:.6f}")

    def finish(self, seconds: float) -> None:
        """Append that a search or a round ended before its time, or compare it with what is in the file."""
        if not self.replaying:
            self._append(f"done,0.0,inf,1,00000000,{seconds:.6f}")
        elif self._entries[self._next].event != "done":
            raise self._differs()
        else:
            self._pass()

    @property
    def replaying(self) -> bool:
        """Whether the file has more."""
        return self._next < len(self._entries)

    def elapsed(self, seconds: float) -> float:
        """Return the seconds of the search with those in other processes before."""
        if self.replaying:
            return self._entries[max(self._next - 1, 0)].seconds
        if self._offset is None:  # the clock goes on from where it was
            self._offset = self._entries[-1].seconds - seconds
        return seconds + self._offset

    def stop(self) -> None:
        """Append nothing any more."""
        self._stopped = True

    def close(self) -> None:
        """Write everything to the disk, and let other processes write."""
        try:
            self._write(time.monotonic(), sync=True)
        finally:
            os.close(self._file)

    def _pass(self) -> None:
        """Go on to the next line."""
        self._next, self._places = self._next + 1, 0

    def _differs(self) -> TopoplanError:
        return TopoplanError(
            f"{shown_path(self._path)}: line {self._next + 1}: the search asks for something else than it did (a "
            "component that changed, or one that is not deterministic); begin a new run"
        )

    def _append(self, line: str) -> None:
        self._places = 0
        if self._stopped:
            return
        self._check = zlib.crc32(line.encode(), self._check)
        self._pending.append(f"{line},{self._check:08x}\n")
        now = time.monotonic()
        if now - self._written >= _WRITE_EVERY:
            self._write(now, sync=now - self._synced >= _SYNC_EVERY)

    def _write(self, now: float, *, sync: bool) -> None:
        data, self._pending = "".join(self._pending).encode(), []
        try:
            if not self._whole:  # what follows the last whole line is a torn one
                os.ftruncate(self._file, self._end)
                os.lseek(self._file, self._end, os.SEEK_SET)
                self._whole = True
            while data:
                data = data[os.write(self._file, data) :]
            if sync:
                os.fsync(self._file)
                self._synced = now
        except OSError as error:
            self._stopped = True
            folder = shown_path(self._path.parent)
            raise TopoplanError(
                f"{shown_path(self._path)}: cannot be written ({why_not(error)}); what was priced before is kept: "
                f"topoplan resume {folder} goes on"
            ) from None
        self._written = now


def parsed(data: bytes, path: Path) -> list[Entry]:
    """Return the entries of a journal; a last line that was torn is left out.

    Raises:
        TopoplanError: it is no journal, or a line in it is damaged.
    """
    header = COLUMNS.encode()
    if not data.startswith(header):
        if header.startswith(data):
            return []
        raise TopoplanError(f"{shown_path(path)}: is no journal (its first line should be {COLUMNS.strip()!r})")
    *lines, _ = data[len(header) :].split(b"\n")
    entries, check = [], 0
    for number, line in enumerate(lines):
        match = re.fullmatch(_LINE, line)
        if match is not None:
            check = zlib.crc32(line[:-9], check)
        entry = None if match is None or int(match[7], 16) != check else _entry(match)
        if entry is None:
            if number == len(lines) - 1 and data.endswith(b"\n"):
                break
            raise TopoplanError(f"{shown_path(path)}: line {number + 2}: is damaged (restore the file, or begin anew)")
        entries.append(entry)
    return entries


def _entry(match: re.Match[bytes]) -> Entry | None:
    event, cost, cutoff, fits, state, seconds, _ = (group.decode() for group in match.groups())
    try:
        return Entry(event, float(cost), float(cutoff), fits == "1", state, float(seconds))
    except ValueError:
        return None


def _extent(data: bytes, count: int) -> tuple[int, int]:
    """Return the bytes that a journal's header and so many lines have, 0 without a header, and the last check."""
    if not data.startswith(COLUMNS.encode()):
        return 0, 0
    end = -1
    for _ in range(count + 1):
        end = data.index(b"\n", end + 1)
    return end + 1, int(data[end - 8 : end], 16) if count else 0


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
    except OSError as error:
        raise TopoplanError(f"{shown_path(path)}: cannot be written ({why_not(error)})") from None


def checksum(state: State) -> str:
    """Return what tells a state from others in a journal."""
    return f"{zlib.crc32(state_key(state)):08x}"
