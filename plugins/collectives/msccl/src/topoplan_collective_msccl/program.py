"""MSCCL programs: read, run symbolically, and put into rounds of messages.

A program has thread blocks for each GPU, with steps in order: ``s`` sends, ``r`` receives, ``cpy`` copies, ``re`` adds,
``rcs`` receives, stores and sends on, ``rrc`` receives and adds, ``rrcs`` adds, stores and sends, ``rrs`` adds and
sends.  A step may wait for a step of another thread block (``depid``, ``deps``).  The n-th send of a thread block
arrives at the n-th receive of its peer on the same channel.  Buffers: ``i`` input, ``o`` output, ``s`` scratch.

Data flow: XML -> steps -> run in an order that their waits allow, with sets of (chunk, GPUs whose data it is the sum
of) in the buffers -> each message has a round, one after those that it waits for -> `CollectiveRounds`.

Source of the format: microsoft/msccl, ``src/graph/xml.cc`` and ``docs``; MSCCLang: Cowan et al., ASPLOS 2023.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from topoplan import CollectiveRounds, TopoplanError
from topoplan.errors import shown
from topoplan.model.taskgraph import Collective

__all__ = ["read_program"]

_COLLECTIVES = {
    "allreduce": Collective.ALL_REDUCE,
    "allgather": Collective.ALL_GATHER,
    "reduce_scatter": Collective.REDUCE_SCATTER,
    "reducescatter": Collective.REDUCE_SCATTER,
    "alltoall": Collective.ALL_TO_ALL,
}
_RECEIVES, _SENDS = {"r", "rcs", "rrc", "rrcs", "rrs"}, {"s", "rcs", "rrcs", "rrs"}
_ADDS, _LOCAL, _NOTHING = {"rrc", "rrcs", "rrs", "re"}, {"cpy", "re"}, {"nop"}
_KINDS = _RECEIVES | _SENDS | _LOCAL | _NOTHING
#: Bytes of the largest program, and the most chunks of all buffers.
_MOST_BYTES, _MOST_CHUNKS = 1 << 26, 1 << 20
#: A place in a buffer: GPU, buffer, offset.  What is there: chunk -> bits of the GPUs whose data it is the sum of.
_Place = tuple[int, str, int]


class _Step(NamedTuple):
    gpu: int
    block: int
    number: int
    kind: str
    source: tuple[str, int]
    target: tuple[str, int]
    width: int
    waits: tuple[int, int]
    peers: tuple[int, int, int]


class _Message(NamedTuple):
    round: int
    source: int
    target: int
    chunks: tuple[int, ...]
    sums: tuple[int, ...]


def read_program(path: Path, collective: Collective, members: int) -> CollectiveRounds:
    """Return the messages of a program.

    Raises:
        TopoplanError: it cannot be read, is of another collective or number of GPUs, or does not do what it promises.
    """
    where = f"collective msccl: file: {path}"
    algorithm = _root(path, where)
    kind = _COLLECTIVES.get(algorithm.get("coll", "").lower())
    gpus, chunks = _number(algorithm, "ngpus", where), _number(algorithm, "nchunksperloop", where)
    if kind is not collective:
        raise TopoplanError(f"{where}: is {shown(algorithm.get('coll'))}, not {collective.label}")
    if gpus != members:
        raise TopoplanError(f"{where}: is for {gpus} GPUs, the group has {members} members")
    if chunks < 1 or chunks * gpus > _MOST_CHUNKS or (chunks % gpus and kind is not Collective.ALL_REDUCE):
        raise TopoplanError(f"{where}: nchunksperloop is {chunks} (must be a multiple of {gpus} GPUs)")
    steps = [step for number, gpu in enumerate(algorithm) for step in _steps(gpu, number, where)]
    run = _Run(kind, gpus, chunks, algorithm.get("inplace", "0") == "1", where)
    run.all(steps)
    run.check()
    return _rounds(run.messages, kind, gpus, chunks)


def _root(path: Path, where: str) -> ET.Element:
    try:
        if path.exists() and not path.is_file():  # a pipe may never end
            raise TopoplanError(f"{where}: cannot be read (must be a file)")
        if path.stat().st_size > _MOST_BYTES:
            raise TopoplanError(f"{where}: has more than {_MOST_BYTES} bytes")
        text = path.read_text(encoding="utf-8")
        if "<!" in text:
            raise TopoplanError(f"{where}: has declarations (<!...), which no program needs")
        root = ET.fromstring(text)
    except OSError as error:
        raise TopoplanError(f"{where}: cannot be read ({error.strerror})") from None
    except (UnicodeDecodeError, ET.ParseError) as error:
        raise TopoplanError(f"{where}: cannot be read ({error})") from None
    if root.tag != "algo":
        raise TopoplanError(f"{where}: begins with <{root.tag}> (must be <algo>)")
    return root


def _number(element: ET.Element, name: str, where: str) -> int:
    text = element.get(name, "")
    try:
        return int(text)
    except ValueError:
        raise TopoplanError(f"{where}: <{element.tag}> has {name}={shown(text)} (must be a number)") from None


def _steps(gpu: ET.Element, place: int, where: str) -> list[_Step]:
    """Return the steps of a GPU."""
    steps = []
    number = _number(gpu, "id", where)
    if number != place:
        raise TopoplanError(f"{where}: GPU {number} stands at place {place} (must be listed from 0 on)")
    for block in gpu:
        peers = tuple(_number(block, name, where) for name in ("send", "recv", "chan"))
        for position, step in enumerate(block):
            kind = step.get("type", "")
            if kind not in _KINDS:
                kinds = ", ".join(sorted(_KINDS))
                raise TopoplanError(f"{where}: GPU {number} has a step of type {shown(kind)} (must be one of {kinds})")
            if _number(step, "s", where) != position:
                raise TopoplanError(f"{where}: steps of GPU {number} are not numbered from 0 on")
            ends = [(step.get(f"{end}buf", ""), _number(step, f"{end}off", where)) for end in ("src", "dst")]
            waits = (_number(step, "depid", where), _number(step, "deps", where))
            count = _number(step, "cnt", where)
            block_id = _number(block, "id", where)
            steps.append(_Step(number, block_id, position, kind, ends[0], ends[1], count, waits, peers))  # type: ignore[arg-type]
    return steps


class _Run:
    """Runs a program, chunk by chunk."""

    def __init__(self, kind: Collective, gpus: int, chunks: int, inplace: bool, where: str) -> None:
        self._kind, self._gpus, self._chunks, self._inplace, self._where = kind, gpus, chunks, inplace, where
        self._each = chunks if kind is Collective.ALL_REDUCE else chunks // gpus  # chunks of one GPU
        self.messages: list[_Message] = []
        self._has: dict[_Place, tuple[int, int]] = {}
        self._ready: dict[_Place, int] = defaultdict(int)  # first round in which what is there may be sent
        for gpu in range(gpus):
            for place, chunk in self._at_first(gpu):
                self._has[self._place(gpu, "i", place)] = chunk, 1 << gpu

    def _at_first(self, gpu: int) -> list[tuple[int, int]]:
        """Return the offsets in the input of a GPU, and the chunks there."""
        if self._kind is Collective.ALL_GATHER:
            return [(i, gpu * self._each + i) for i in range(self._each)]
        if self._kind is Collective.ALL_TO_ALL:
            return [(i, gpu * self._chunks + i) for i in range(self._chunks)]
        return [(i, i) for i in range(self._chunks)]

    def _place(self, gpu: int, buffer: str, offset: int) -> _Place:
        """Return a place; of programs that run in place, the input is a part of the output, or the output of it."""
        if self._inplace and buffer == "i" and self._kind is Collective.ALL_GATHER:
            return gpu, "o", offset + gpu * self._each
        if self._inplace and buffer == "o" and self._kind is Collective.REDUCE_SCATTER:
            return gpu, "i", offset + gpu * self._each
        return gpu, "i" if self._inplace and buffer == "o" and self._kind is Collective.ALL_REDUCE else buffer, offset

    def all(self, steps: list[_Step]) -> None:
        """Run all steps, each when what it waits for has run."""
        blocks: dict[tuple[int, int], list[_Step]] = defaultdict(list)
        for step in steps:
            blocks[step.gpu, step.block].append(step)
        position = dict.fromkeys(blocks, 0)
        wires: dict[tuple[int, int, int], list[list[tuple[int, int, int]]]] = defaultdict(list)
        progress = True
        while progress:
            progress = False
            for key, of_block in blocks.items():
                while position[key] < len(of_block):
                    step = of_block[position[key]]
                    block, last = step.waits
                    if block >= 0 and position.get((step.gpu, block), -1) <= last:
                        break
                    wire = (step.peers[1], step.gpu, step.peers[2])
                    if step.kind in _RECEIVES and not wires[wire]:
                        break
                    data = wires[wire].pop(0) if step.kind in _RECEIVES else self._read(step)
                    out = self._do(step, data)
                    if step.kind in _SENDS:
                        wires[step.gpu, step.peers[0], step.peers[2]].append(self._send(step, out))
                    position[key] += 1
                    progress = True
        if stuck := [key for key, of_block in blocks.items() if position[key] < len(of_block)]:
            gpu, block = stuck[0]
            raise TopoplanError(
                f"{self._where}: step {position[stuck[0]]} of thread block {block} of GPU {gpu} waits for ever"
            )

    def _read(self, step: _Step) -> list[tuple[int, int, int]]:
        """Return chunk, sum and round of what a step takes from its source buffer."""
        chunks = []
        for i in range(step.width if step.kind not in _NOTHING else 0):
            place = self._place(step.gpu, step.source[0], step.source[1] + i)
            if place not in self._has:
                raise TopoplanError(
                    f"{self._where}: step {step.number} of thread block {step.block} of GPU {step.gpu} reads "
                    f"{step.source[0]}[{place[2]}], where nothing is"
                )
            chunks.append((*self._has[place], self._ready[place]))
        return chunks

    def _do(self, step: _Step, data: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        """Store what a step stores; return what it would send."""
        if step.kind in _NOTHING or step.kind == "s":
            return data
        stored = []
        for i, (chunk, of, ready) in enumerate(data):
            target = self._place(step.gpu, step.target[0], step.target[1] + i)
            source = self._place(step.gpu, step.source[0], step.source[1] + i)
            if step.kind in _ADDS:
                place = target if step.kind == "re" else source
                mine = self._has.get(place)
                if mine is None or mine[0] != chunk or mine[1] & of:
                    raise TopoplanError(
                        f"{self._where}: step {step.number} of thread block {step.block} of GPU {step.gpu} adds chunk "
                        f"{chunk} to what is not the rest of its sum"
                    )
                of, ready = mine[1] | of, max(ready, self._ready[place])
            stored.append((chunk, of, ready))
            if step.kind != "rrs":
                self._has[target], self._ready[target] = (chunk, of), ready
        return stored

    def _send(self, step: _Step, data: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        """Note a message; return what arrives."""
        number = max((ready for _, _, ready in data), default=0)
        chunks, sums = tuple(chunk for chunk, _, _ in data), tuple(of for _, of, _ in data)
        if data:
            self.messages.append(_Message(number, step.gpu, step.peers[0], chunks, sums))
        return [(chunk, of, number + 1) for chunk, of, _ in data]

    def check(self) -> None:
        """Raise where a GPU does not end with what the collective promises."""
        everyone = (1 << self._gpus) - 1
        for gpu in range(self._gpus):
            for offset, chunk, of in self._promised(gpu, everyone):
                actual = self._has.get(self._place(gpu, "o", offset))
                if actual != (chunk, of):
                    what = "nothing" if actual is None else f"chunk {actual[0]} of {actual[1].bit_count()} GPUs"
                    raise TopoplanError(
                        f"{self._where}: at the end, output {offset} of GPU {gpu} has {what} "
                        f"(must be chunk {chunk} of {of.bit_count()})"
                    )

    def _promised(self, gpu: int, everyone: int) -> list[tuple[int, int, int]]:
        """Return offset, chunk and sum of the output of a GPU."""
        if self._kind is Collective.ALL_GATHER:
            return [(c, c, 1 << c // self._each) for c in range(self._chunks)]
        if self._kind is Collective.REDUCE_SCATTER:
            return [(i, gpu * self._each + i, everyone) for i in range(self._each)]
        if self._kind is Collective.ALL_TO_ALL:
            size = self._each
            return [
                (peer * size + i, peer * self._chunks + gpu * size + i, 1 << peer)
                for peer in range(self._gpus)
                for i in range(size)
            ]
        return [(c, c, everyone) for c in range(self._chunks)]


def _rounds(messages: list[_Message], kind: Collective, gpus: int, chunks: int) -> CollectiveRounds:
    """Put messages into rounds, one row for each chunk."""
    rows = [
        (message.round, message.source, message.target, chunk)
        for message in sorted(messages, key=lambda each: each.round)
        for chunk in message.chunks
    ]
    step, source, target, chunk = zip(*rows, strict=True) if rows else ((), (), (), ())
    adds = [
        int(kind in (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER) and of != (1 << gpus) - 1)
        for message in sorted(messages, key=lambda each: each.round)
        for of in message.sums
    ]
    owner = None
    if kind in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER):
        owner = [c * gpus // chunks for c in range(chunks)]
    return CollectiveRounds(chunks=chunks, source=source, target=target, chunk=chunk, add=adds, step=step, owner=owner)
