"""MSCCL programs are read, run symbolically, and priced as the algorithm that they are."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from topoplan import Cluster, CollectiveGroup, Host, TopologyContext, TopoplanError
from topoplan.model.taskgraph import Collective
from topoplan.testing import check_rounds
from topoplan_collective_msccl import Msccl
from topoplan_samples.tasks import collective, task_graph

EXAMPLE = Path(Msccl.example["file"])
FOUR = CollectiveGroup((1,) * 4)


def read(path, kind=Collective.ALL_REDUCE, group=FOUR):
    return Msccl(file=str(path)).rounds(kind, group)


def gpu(number, *blocks):
    return f'<gpu id="{number}" i_chunks="1" o_chunks="2" s_chunks="1">{"".join(blocks)}</gpu>'


def block(number, send, receive, *steps):
    return f'<tb id="{number}" send="{send}" recv="{receive}" chan="0">{"".join(steps)}</tb>'


def step(number, kind, source, target, depends=(-1, -1)):
    (sbuf, soff), (dbuf, doff) = source, target
    return (
        f'<step s="{number}" type="{kind}" srcbuf="{sbuf}" srcoff="{soff}" dstbuf="{dbuf}" dstoff="{doff}" cnt="1" '
        f'depid="{depends[0]}" deps="{depends[1]}" hasdep="0"/>'
    )


def program(kind, chunks, *gpus):
    head = f'<algo name="x" nchannels="1" nchunksperloop="{chunks}" ngpus="{len(gpus)}" coll="{kind}" inplace="0">'
    return f"{head}{''.join(gpus)}</algo>"


def all_gather():
    """Each of two GPUs copies what it has to its output, and sends it, in two thread blocks; the receive waits."""
    return [
        gpu(
            g,
            block(0, 1 - g, -1, step(0, "cpy", ("i", 0), ("o", g)), step(1, "s", ("o", g), ("o", g))),
            block(1, -1, 1 - g, step(0, "r", ("o", 1 - g), ("o", 1 - g), (0, 1))),
        )
        for g in range(2)
    ]


def test_a_ring_is_a_ring():
    rounds = read(EXAMPLE)
    check_rounds(rounds, Collective.ALL_REDUCE, FOUR)
    assert (len(rounds.source), int(rounds.step.max())) == (24, 5)
    cluster = Cluster.uniform(n_hosts=4, interfaces=1, interface_bandwidth=50e9)
    context = TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0))
    host = Host.discover()
    fabric, tasks = host.make("topology", "bigswitch").build(context), task_graph([collective(range(4), 10**9)])
    times = [
        host.make("simulator", "fluid", {"algorithms": f"all-reduce={name}"}).build().makespan(tasks, fabric, cluster)
        for name in ("ring", f"msccl:file={EXAMPLE}")
    ]
    assert times[0] == pytest.approx(times[1])


def test_programs_with_several_thread_blocks_and_copies_are_followed(tmp_path):
    path = tmp_path / "gather.xml"
    path.write_text(program("allgather", 2, *all_gather()))
    rounds = read(path, Collective.ALL_GATHER, CollectiveGroup((2,)))
    check_rounds(rounds, Collective.ALL_GATHER, CollectiveGroup((2,)))
    assert rounds.target.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("rrcs", "rcs", 1), "to what is not the rest of its sum|at the end, output"),
        (('chan="0"', 'chan="1"', 1), "waits for ever"),
        (('type="s"', 'type="x"', 1), "step of type 'x' .must be one of cpy, nop, r, rcs, "),
        (('srcoff="0"', 'srcoff="9"', 1), r"reads i\[9\], where nothing is"),
        (('coll="allreduce"', 'coll="alltoall"', 1), "is 'alltoall', not all-reduce"),
        (('ngpus="4"', 'ngpus="8"', 1), "is for 8 GPUs, the group has 4 members"),
        (('ngpus="4"', 'ngpus="x"', 1), "ngpus='x' .must be a number"),
        (("<algo", "<!DOCTYPE a><algo", 1), "has declarations"),
        (("</algo>", "", 1), "cannot be read"),
        (("algo", "graph", -1), "begins with <graph>"),
    ],
)
def test_what_is_no_all_reduce_of_four_is_refused(tmp_path, change, why):
    path = tmp_path / "bad.xml"
    path.write_text(EXAMPLE.read_text(encoding="utf-8").replace(*change), encoding="utf-8")
    with pytest.raises(TopoplanError, match=why):
        read(path)


def test_a_program_must_be_named():
    with pytest.raises(TopoplanError, match=r"needs a program \(msccl:file=NAME.xml\)"):
        Msccl().rounds(Collective.ALL_REDUCE, FOUR)
    with pytest.raises(
        TopoplanError, match=r"^collective msccl: file: missing.xml: cannot be read \(No such file or directory\)$"
    ):
        read("missing.xml")


def test_a_pipe_is_refused(tmp_path):
    """It would be waited for until somebody writes to it."""
    os.mkfifo(tmp_path / "pipe.xml")
    for path in (tmp_path / "pipe.xml", tmp_path):
        with pytest.raises(TopoplanError, match=r"cannot be read \(must be a file\)$"):
            read(path)
