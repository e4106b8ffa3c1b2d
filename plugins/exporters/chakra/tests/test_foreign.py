"""Traces of other programs: what they mean, and what is wrong with those that mean nothing."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topoplan import Collective, Host, TaskKind, TopoplanError
from topoplan.errors import TopoplanWarning
from topoplan.testing import reference
from topoplan_engine.folders import archive_of, files_of, write_folder
from topoplan_engine.replay import simulate_file
from topoplan_engine.work import RateOptions
from topoplan_exporter_chakra import Chakra
from topoplan_exporter_chakra.schema import Node, NodeType, Trace, encode
from topoplan_exporter_chakra.wire import message, number, varint

HOST = Host.discover()


def comp(number, *deps, micros=5, cpu=False, name="matmul"):
    return Node(number, name, NodeType.COMP, (), deps, 0, micros, {"is_cpu_op": cpu})


def coll(number, *deps, kind=0, size=4096, group="", ctrl=()):
    attributes = {"comm_type": kind, "comm_size": size, "pg_name": group}
    return Node(number, "collective", NodeType.COLL, ctrl, deps, 0, 0, attributes)


def send(number, dst, *deps, tag=7, size=100):
    attributes = {"comm_dst": dst, "comm_tag": tag, "comm_size": size}
    return Node(number, "send", NodeType.SEND, (), deps, 0, 0, attributes)


def recv(number, src, *deps, tag=7, size=100):
    attributes = {"comm_src": src, "comm_tag": tag, "comm_size": size}
    return Node(number, "recv", NodeType.RECV, (), deps, 0, 0, attributes)


def work(number, ops, size, *deps):
    return Node(number, "matmul", NodeType.COMP, (), deps, 0, 0, {"num_ops": ops, "tensor_size": size})


def packed(*ranks, groups=None, **more):
    files = {f"run.{rank}.et": encode(Trace({}, tuple(nodes))) for rank, nodes in enumerate(ranks)}
    return archive_of(
        {**files, **({} if groups is None else {"comm_groups.json": json.dumps(groups).encode()}), **more}
    )


def read(*ranks, **arguments):
    return Chakra().read(packed(*ranks, **arguments), "run").taskgraph


def edges(graph):
    return reference.edges_of(graph)


def test_compute_and_a_message():
    graph = read([comp(3), send(4, 1, 3)], [recv(0, 0), comp(9, 0, micros=70)])
    assert graph.kind.tolist() == [TaskKind.FORWARD, TaskKind.TRANSFER, TaskKind.FORWARD]
    assert graph.seconds.tolist() == pytest.approx([5e-6, 0, 70e-6])
    assert (graph.src[1], graph.dst[1], graph.size[1]) == (0, 1, 100)
    assert edges(graph) == [(0, 1), (1, 2)]
    assert graph.op_names == ("matmul", "send")


def test_a_receive_that_waits_for_more_is_a_join_of_both():
    """The message itself does not wait, so two ranks that send first and receive then do not block each other."""
    graph = read([send(0, 1, tag=1), recv(1, 1, 0, tag=2), comp(2, 1)], [send(0, 0, tag=2), recv(1, 0, 0, tag=1)])
    joins = [task for task in range(graph.n_tasks) if graph.collective[task] == Collective.JOIN]
    assert len(joins) == 2
    assert graph.predecessor_counts()[joins].tolist() == [2, 2]


def test_operators_of_a_cpu_have_a_device_of_their_own():
    graph = read([comp(0, cpu=True), comp(1)], [comp(0)])
    assert graph.device.tolist() == [1, 0, 2]
    assert graph.n_devices == 4


def test_sizes_of_collectives():
    """Half of the tensor: an all-gather is counted by what a rank has, a reduce-scatter by the whole."""
    graph = read(*[[coll(0), coll(1, kind=2, size=100), coll(2, kind=7, size=800)]] * 4)
    kinds = [Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER]
    assert graph.collective.tolist() == kinds
    assert graph.size.tolist() == [4096, 200, 400]


def test_an_all_to_all_is_transfers_between_joins():
    graph = read(*[[comp(0), coll(1, 0, kind=6, size=300), comp(2, 1)]] * 3)
    transfers = graph.kind == TaskKind.TRANSFER
    assert graph.size[transfers].tolist() == [100] * 6
    assert sorted(zip(graph.src[transfers].tolist(), graph.dst[transfers].tolist(), strict=True)) == [
        (a, b) for a in range(3) for b in range(3) if a != b
    ]
    assert (graph.collective == Collective.JOIN).sum() == 2


def test_groups():
    groups = {"1": [0, 2], "2": [1]}
    first, third = [coll(0, group="1"), coll(1)], [coll(0, group="1"), coll(1, group="0")]
    graph = read(first, [coll(0, group="2"), coll(1)], third, groups=groups)
    assert [graph.members(task).tolist() for task in range(graph.n_tasks)] == [[0, 2], [0, 1, 2], [1]]
    assert graph.collective.tolist() == [Collective.ALL_REDUCE, Collective.ALL_REDUCE, Collective.JOIN]


def test_dependencies_of_both_kinds_hold():
    graph = read([comp(0), comp(1), coll(2, 0, ctrl=(1,))], [coll(0)])
    assert edges(graph) == [(0, 2), (1, 2)]


def test_replay_on_any_network(tmp_path):
    write_folder(tmp_path / "run", packed(*[[comp(0, micros=1000), coll(1, 0, size=12_500_000)]] * 4))
    plan = simulate_file(tmp_path / "run", topology="bigswitch", interface_bandwidth_gbps=100, latency_us=0, host=HOST)
    assert plan.timeline.makespan == pytest.approx(1e-3 + 1.5 * 1e-3, rel=0.01)
    with pytest.raises(TopoplanError, match=r"traces have no network; name one with --topology"):
        simulate_file(tmp_path / "run", host=HOST)


WRONG = {
    "unmatched send": (packed([send(0, 1)], [comp(0)]), "run/run.0.et: node 0 ('send'): SEND from rank 0 to"),
    "unmatched receive": (packed([comp(0)], [recv(0, 0)]), "run/run.1.et: node 0 ('recv'): RECV from rank 0 to rank 1"),
    "rank beyond": (packed([send(0, 5)], [comp(0)]), "has comm_dst 5 (expected an integer from 0 to 1)"),
    "no size": (
        packed([Node(0, "s", NodeType.SEND, (), (), 0, 0, {"comm_dst": 1, "comm_tag": 1})], [recv(0, 0, tag=1)]),
        "has no comm_size",
    ),
    "cyclic dependency": (packed([comp(0, 1), comp(1, 0)]), "run/run.0.et: node 0 ('matmul') waits for itself: cyclic"),
    "collectives in two orders": (
        packed(
            *[[coll(0, group="1"), coll(1, 0, group="2")], [coll(0, 1, group="1"), coll(1, group="2")]],
            groups={"1": [0, 1], "2": [0, 1]},
        ),
        "cyclic dependency (or collectives that ranks start in different orders)",
    ),
    "collective of one rank": (packed([coll(0)], [comp(0)]), "run/run.1.et: has 0 collectives of process group ''"),
    "two sizes": (packed([coll(0)], [coll(0, size=1)]), "is ALL_REDUCE of 1 bytes, but node 0 of rank 0 is "),
    "unknown group": (packed([coll(0, group="9")]), "process group '9': no file of process groups"),
    "no member": (packed([coll(0, group="1")], [coll(0, group="1")], groups={"1": [0]}), "rank 1 is not in its"),
    "wrong group": (packed([comp(0)], groups={"1": [0, 3]}), "group '1' names rank 3"),
    "group twice": (packed([comp(0)], groups={"1": [0, 0]}), "group '1' is [0, 0] (expected different ranks)"),
    "unsupported": (
        packed([coll(0, kind=4)], [coll(0, kind=4)]),
        "is a SCATTER without a duration, which is not simulated",
    ),
    "memory": (packed([Node(0, "m", NodeType.MEM_LOAD)]), "is a MEM_LOAD node, which is not simulated"),
    "negative work": (packed([work(0, -1, 0)]), "node 0 ('matmul') has num_ops -1 (expected a number from 0 to 1e+30)"),
    "no type": (
        packed([Node(0, "c", NodeType.COLL)], [Node(0, "c", NodeType.COLL)]),
        "node 0 ('c') has no comm_type (expected an integer from 0 to 9)",
    ),
    "no peer": (packed([Node(0, "s", NodeType.SEND)]), "node 0 ('s') has no comm_dst (expected an integer"),
    "groups of PyTorch": (
        packed([Node(0, "init", NodeType.METADATA, inputs="['[{\"pg_name\": 1}]']")]),
        "node 0 ('init'): its inputs are no process groups (JSON)",
    ),
    "ids": (packed([comp(4), comp(4)]), "two nodes have the id 4"),
    "several runs": (packed([comp(0)], **{"b.1.et": encode(Trace({}, ()))}), "holds traces of several runs, 'b' and"),
    "no number": (packed([comp(0)], **{"b.et": b""}), "run/b.et: is no trace of a rank by its name"),
    "empty": (archive_of({"run.0.et": b""}), "run/run.0.et: is empty"),
    "no node": (packed([]), "the traces have no nodes"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_named(what):
    data, told = WRONG[what]
    with pytest.raises(TopoplanError) as error:
        Chakra().read(data, "run")
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_rank_is_named():
    files = files_of(packed(*[[comp(0)]] * 4), "run")
    del files["run.2.et"]
    with pytest.raises(TopoplanError, match=r"^run: rank 2 is missing \(run.2.et; there are traces up to rank 3\)$"):
        Chakra().read(archive_of(files), "run")


def test_a_trace_that_is_cut_off_anywhere():
    files = files_of(packed([comp(0), send(1, 1, 0)], [recv(0, 0)]), "run")
    whole = files["run.0.et"]
    for end in range(len(whole)):
        with pytest.raises(TopoplanError, match=r"^run(/run\.\d\.et)?: "):
            Chakra().read(archive_of({**files, "run.0.et": whole[:end]}), "run")


def test_an_unknown_node_type():
    node = number(1, 0) + message(2, b"odd") + number(3, 12)
    head = encode(Trace({}, ()))
    with pytest.raises(
        TopoplanError, match=r"run.0.et: node 0 at byte \d+ \('odd'\): unknown node type 12 \(expected 0 "
    ):
        Chakra().read(archive_of({"run.0.et": head + varint(len(node)) + node}), "run")


@pytest.mark.parametrize(
    ("field", "content", "value"),
    [
        (7, varint(7 << 3) + varint(-5), -5),
        (9, varint(9 << 3) + varint(-5), -5),
        (13, varint(13 << 3) + varint(5), 5),
        (15, varint(15 << 3) + varint(9), -5),
        (19, varint(19 << 3 | 5) + struct.pack("<I", 5), 5),
        (25, varint(25 << 3 | 1) + struct.pack("<q", -5), -5),
        (3, varint(3 << 3 | 1) + struct.pack("<d", 0.5), 0.5),
        (5, varint(5 << 3 | 5) + struct.pack("<f", 0.5), 0.5),
        (28, message(28, message(1, b"\x01\x00")), [True, False]),
        (10, message(10, number(1, 3) + number(1, 4)), [3, 4]),
        (18, message(18, message(1, b"\x01\x02")), [-1, 1]),
        (6, message(6, message(1, struct.pack("<2f", 1, 2))), [1.0, 2.0]),
        (30, message(30, message(1, b"a") + message(1, b"b")), ["a", "b"]),
        (31, message(31, b"raw"), b"raw"),
    ],
)
def test_attributes_of_all_types_are_read(field, content, value):
    from topoplan_exporter_chakra.schema import decode

    node = number(1, 0) + number(3, 4) + message(10, message(1, b"x") + content)
    trace = decode(encode(Trace({}, ())) + varint(len(node)) + node, "x")
    assert trace.nodes[0].attributes == {"x": value}, field


GOOD = [
    packed([comp(3), send(4, 1, 3)], [recv(0, 0), comp(9, 0)]),
    packed(*[[comp(0), coll(1, 0, group="1")]] * 3, groups={"1": [0, 1, 2]}),
    Chakra().write(reference.plan()),
]


# ── What PyTorch's converter and generators write ───────────────────────────────────────────────────────


def simulated_ms(tmp_path, *ranks, groups=None, **options):
    write_folder(tmp_path / "run", packed(*ranks, groups=groups))
    plan = simulate_file(tmp_path / "run", topology="bigswitch", host=HOST, latency_us=0.0, **options)
    return plan.timeline.makespan * 1e3, plan


def test_operations_take_time_at_the_rates_of_a_device(tmp_path):
    """The roofline: 312e9 operations at 312 TFLOP/s of an A100 are 1 ms; 3.11e9 bytes at 1,555 GB/s are 2 ms."""
    nodes = [work(0, 312_000_000_000, 8), work(1, 1, 3_110_000_000, 0), comp(2, 1, micros=500)]
    told, plan = simulated_ms(tmp_path, nodes)
    assert told == pytest.approx(3.5, rel=1e-9)
    assert plan.provenance["rates"] == (
        "2 of 3 tasks say their work and no time: at 312 TFLOP/s and 1555 GB/s "
        "(peak of A100-40 in bf16, memory of A100-40)"
    )


@pytest.mark.parametrize(
    ("rates", "ms"),
    [
        ({"work_tflops": 156.0}, 2.0),
        ({"work_device": "h100"}, 312 / 989.4),
        ({"work_precision": "fp32"}, 16.0),
        ({"work_device": "v100"}, 312 / 125),
        ({"work_gb_per_s": 1e-6}, 8.0),
    ],
)
def test_rates_that_are_given(tmp_path, rates, ms):
    told, _ = simulated_ms(tmp_path, [work(0, 312_000_000_000, 8)], rates=RateOptions(**rates))
    assert told == pytest.approx(ms, rel=1e-9)


def test_a_precision_that_a_device_lacks(tmp_path):
    with pytest.raises(TopoplanError, match=r"--work-precision tf32: V100 has no peak of it \(have: fp32, fp16\)"):
        simulated_ms(tmp_path, [work(0, 1, 8)], rates=RateOptions(work_device="v100", work_precision="tf32"))


def test_a_duration_goes_before_operations(tmp_path):
    node = Node(0, "matmul", NodeType.COMP, (), (), 0, 700, {"num_ops": 10**15, "tensor_size": 8})
    told, plan = simulated_ms(tmp_path, [node])
    assert told == pytest.approx(0.7)
    assert "rates" not in plan.provenance


def test_parents_that_the_converter_dropped_are_not_waited_for():
    with pytest.warns(TopoplanWarning, match=r"run.0.et: node 5 \('matmul'\): 2 dependencies on nodes that the traces"):
        graph = read([comp(5, 3), comp(6, 5, 4)])
    assert edges(graph) == [(0, 1)]


WRAPPER = Node(1, "c10d::allreduce_", NodeType.COLL, (), (), 0, 20, {"is_cpu_op": True})


def test_the_call_of_a_collective_takes_its_duration_on_the_cpu(tmp_path):
    kernel = Node(2, "nccl", NodeType.COLL, (1,), (), 0, 50, {"comm_type": 0, "comm_size": 10**6, "is_cpu_op": False})
    told, plan = simulated_ms(tmp_path, [WRAPPER, kernel], [WRAPPER, kernel])
    # 20 us of the CPU, and 2 (n-1)/n of 1 MB at 12.5 GB/s.
    assert told == pytest.approx(0.020 + 0.080, rel=0.02)
    assert plan.cluster.n_devices == 4


def test_calls_of_messages_are_no_messages():
    call = Node(0, "c10d::send", NodeType.SEND, (), (), 0, 9, {"is_cpu_op": True})
    other = Node(0, "c10d::recv_", NodeType.RECV, (), (), 0, 9, {"is_cpu_op": True})
    graph = read([call, send(1, 1, 0)], [other, recv(1, 0, 0)])
    assert np.bincount(graph.kind, minlength=4)[[TaskKind.FORWARD, TaskKind.TRANSFER]].tolist() == [2, 1]


def test_a_broadcast_takes_its_duration_beside_kernels(tmp_path):
    """As in ASTRA-sim: 28 us, then 100; a kernel that does not wait runs meanwhile."""
    told = Node(1, "nccl", NodeType.COLL, (), (), 0, 28, {"comm_type": 5, "comm_size": 212480})
    ranks = [told, comp(2, 1, micros=100), comp(3, micros=10)]
    assert simulated_ms(tmp_path, ranks, ranks)[0] == pytest.approx(0.128)


def test_reduce_scatter_of_equal_blocks():
    graph = read([coll(0, kind=8)], [coll(0, kind=8)])
    assert graph.collective.tolist() == [Collective.REDUCE_SCATTER]


def test_process_groups_of_pytorch():
    """Without a file of groups; a message between the two members of one needs no peer, and no tag."""
    said = json.dumps([{"pg_name": "0", "ranks": []}, {"pg_name": "7", "ranks": [0, 2]}])
    init = Node(0, "## process_group:init ##", NodeType.METADATA, inputs=f"['{said}']")
    peer = {"comm_size": 64, "pg_name": "7"}
    graph = read(
        [init, coll(1, group="7"), coll(2, group="0"), Node(3, "s", NodeType.SEND, attributes=peer)],
        [init, coll(2, group="0")],
        [init, coll(1, group="7"), coll(2, group="0"), Node(3, "r", NodeType.RECV, attributes=peer)],
    )
    sizes = np.diff(graph.group_ptr)[graph.group[graph.collective == Collective.ALL_REDUCE]]
    assert sorted(sizes.tolist()) == [2, 3]
    transfer = graph.kind == TaskKind.TRANSFER
    assert (graph.src[transfer].tolist(), graph.dst[transfer].tolist()) == ([0], [2])


@pytest.mark.filterwarnings("ignore:.*dependencies on nodes that the traces lack:UserWarning")
@given(st.data())
@settings(max_examples=300, deadline=None)
def test_any_damage_is_one_line_or_a_right_task_graph(data):
    files = files_of(data.draw(st.sampled_from(GOOD)), "x")
    name = data.draw(st.sampled_from(sorted(files)))
    content = bytearray(files[name])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, max(len(content) - 1, 0)))
        content[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    try:
        read = Chakra().read(archive_of({**files, name: bytes(content)}), "x")
        assert read.taskgraph.check() is None
        told = "x"
    except TopoplanError as error:
        told = str(error)
    assert told.startswith("x")
    assert "\n" not in told
