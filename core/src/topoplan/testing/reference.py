"""A small problem that the checks use: four hosts in a ring, a chain of dense operators, one iteration.

No component has a part in it: the graph, the costs and the task graph that simulators get are made by
hand, and so is the lowering of the plans that exporters get.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from topoplan.arrays import F64, I32
from topoplan.model.cluster import Cluster
from topoplan.model.fabric import Fabric, Phases
from topoplan.model.graph import Axis, Dimension, Operator, OperatorGraph, Profile, Role, Tensor, Term
from topoplan.model.machine import Device, HostModel
from topoplan.model.placement import data_parallel
from topoplan.model.plan import Plan
from topoplan.model.problem import Demand
from topoplan.model.strategy import PlacedStrategy, Strategy, pipeline_strategy
from topoplan.model.taskgraph import TaskGraph, TaskKind
from topoplan.model.timeline import Bounds, Timeline
from topoplan.plugin.components import CostFunction, PartCosts

__all__ = [
    "Costs",
    "cluster",
    "demand",
    "dense",
    "edges_of",
    "faster",
    "graph",
    "pipelined",
    "plan",
    "rebuilt",
    "ring",
    "taskgraph",
    "timeline",
]


def cluster(n_hosts: int = 4) -> Cluster:
    """Return hosts of one device and four interfaces each."""
    device = Device(
        name="reference",
        peak_flops={"fp32": 1e13, "bf16": 1e14},
        memory_bandwidth=1e12,
        memory=40e9,
        kernel_overhead=5e-6,
    )
    made = Cluster.uniform(
        n_hosts=n_hosts, device_preset=device.name, interfaces=4, interface_bandwidth=1e9, latency=1e-6
    )
    return attrs.evolve(made, machines={device.name: HostModel(device=device)})


def ring(n_hosts: int = 4) -> Fabric:
    """Return a ring with links both ways between neighbours."""
    ahead = [(host, (host + 1) % n_hosts) for host in range(n_hosts)]
    links = sorted({link for a, b in ahead for link in ((a, b), (b, a))})
    return Fabric.from_links(name="ring", n_hosts=n_hosts, links=links, bandwidth=1e9, latency=1e-6)


def faster(fabric: Fabric, bandwidth: float) -> Fabric:
    """Return a fabric all of whose links have so many bytes/s."""
    return attrs.evolve(fabric, link_bandwidth=np.full(fabric.n_links, bandwidth))


def rebuilt(delay: float) -> Fabric:
    """Return a ring of four hosts that has links across for all-reduces only; ``delay`` in seconds."""
    plain = ring()
    across = [(a, b) for a in range(4) for b in range(4) if a != b]
    full = Fabric.from_links(name="ring", n_hosts=4, links=across, bandwidth=1e9, latency=1e-6)
    return Fabric.from_phases(Phases(forward=plain, backward=plain, reduce=full, delay=delay))


def dense(name: str, batch: int, inputs: int, outputs: int) -> Operator:
    """Return a dense layer ``(sample, input) -> (sample, output)``, with made-up measurements."""
    return Operator(
        name=name,
        kind="linear",
        dims=(
            Dimension("sample", batch, Role.SAMPLE),
            Dimension("output", outputs, Role.PARAMETER),
            Dimension("input", inputs, Role.REDUCTION),
        ),
        inputs=(Tensor("input", (Axis(batch, 0), Axis(inputs, 2))),),
        weights=(Tensor("weight", (Axis(outputs, 1), Axis(inputs, 2))),),
        outputs=(Tensor("output", (Axis(batch, 0), Axis(outputs, 1))),),
        work=(Term(2.0, (0, 1, 2)),),
        tags={"flexnet": f"Dense_{inputs}_{outputs}"},
        profile=Profile(forward=1e-3, backward=2e-3, activation_bytes=4.0 * batch * outputs),
    )


def graph(names: Sequence[str] = ("dense1", "dense2", "dense3")) -> OperatorGraph:
    """Return a chain of equal dense operators."""
    operators = tuple(dense(name, 64, 256, 256) for name in names)
    edges = [(i, 0, i + 1, 0) for i in range(len(names) - 1)]
    return OperatorGraph(name="reference", operators=operators, edges=edges, batch_size=64)


def demand(n_hosts: int = 4) -> Demand:
    """Return one all-reduce over all hosts, and traffic from every host to the next but one."""
    matrix = np.zeros((n_hosts, n_hosts))
    for host in range(n_hosts):
        matrix[host, (host + 2) % n_hosts] = 1e6
    np.fill_diagonal(matrix, 0.0)
    return Demand(group_ptr=[0, n_hosts], group_members=np.arange(n_hosts), group_bytes=[4e6], matrix=matrix)


def taskgraph(n_devices: int = 4) -> TaskGraph:
    """Return one iteration of two operators: forward, send to the next device, backward, update, all-reduce.

    Tasks 0 .. n-1 are forward of the first operator, n .. 2n-1 send its result to the next device,
    2n .. 3n-1 are forward, 3n .. 4n-1 backward and 4n .. 5n-1 update of the second; the last task sums
    its gradients.
    """
    n = n_devices
    rows = np.arange(n)
    order = [TaskKind.FORWARD, TaskKind.TRANSFER, TaskKind.FORWARD, TaskKind.BACKWARD, TaskKind.UPDATE]
    kind = np.append(np.repeat(order, n), TaskKind.COLLECTIVE)
    transfer, reduce = kind == TaskKind.TRANSFER, kind == TaskKind.COLLECTIVE
    after = (rows + 1) % n
    # Each of the five blocks leads to the next one, the transfers to the forward of the next device.
    succ = np.concatenate([rows + n, after + 2 * n, rows + 3 * n, rows + 4 * n, np.full(n, 5 * n)])
    src, dst = np.full(len(kind), -1), np.full(len(kind), -1)
    src[transfer], dst[transfer] = rows, after
    return TaskGraph(
        kind=kind,
        device=np.where(transfer | reduce, -1, np.append(np.tile(rows, 5), -1)),
        seconds=np.append(np.repeat([1e-3, 0.0, 2e-3, 4e-3, 1e-4], n), 0.0),
        size=np.where(transfer, 1_000_000, np.where(reduce, 4_000_000, 0)),
        src=src,
        dst=dst,
        group=np.where(reduce, 0, -1),
        group_ptr=[0, n],
        group_members=rows,
        succ_ptr=np.append(np.arange(5 * n + 1), 5 * n),
        succ=succ,
        op=np.repeat([0, 1], [2 * n, 3 * n + 1]),
        op_names=("dense1", "dense2"),
        n_devices=n,
    )


def edges_of(tasks: TaskGraph) -> list[tuple[int, int]]:
    """List the dependencies of a task graph."""
    return [(task, int(after)) for task in range(tasks.n_tasks) for after in tasks.successors(task)]


class Costs(CostFunction):
    """A cost function: an operator takes a millisecond each way, shared evenly by its parts."""

    def supports(self, op: int, degrees: tuple[int, ...]) -> bool:
        """Say that every cut can be priced."""
        return True

    def price(self, op: int, degrees: tuple[int, ...], devices: I32) -> PartCosts:
        """Price the parts of an operator."""
        share = np.full(len(devices), 1e-3 / len(devices))
        return PartCosts(forward=share, backward=share, memory=share * 1e9)


def timeline(tasks: TaskGraph, n_links: int) -> Timeline:
    """Return the timeline of a network without limits: every task starts when its last dependency is done."""
    start: F64 = np.zeros(tasks.n_tasks)
    for _ in range(tasks.n_tasks):  # no chain of dependencies is longer
        for task, after in edges_of(tasks):
            start[after] = max(start[after], start[task] + tasks.seconds[task])
    finish = start + tasks.seconds
    busy = np.bincount(tasks.device[tasks.device >= 0], tasks.seconds[tasks.device >= 0], minlength=tasks.n_devices)
    longest = float(finish.max())
    return Timeline(
        start=start,
        finish=finish,
        makespan=longest,
        device_busy=busy,
        link_bytes=np.zeros(n_links),
        link_busy=np.zeros(n_links),
        bounds=Bounds(device=float(busy.max()), link=0.0, chain=longest),
        events=tasks.n_tasks,
    )


def plan(names: Sequence[str] = ("dense1", "dense2")) -> Plan:
    """Return a complete plan: data parallel on four hosts in a ring."""
    model = graph(names)
    strategy = PlacedStrategy(tuple(data_parallel(model, op, range(4)) for op in range(len(names))))
    return _planned(model, strategy)


def pipelined() -> Plan:
    """Return a complete plan: two stages of two hosts each, four micro-batches."""
    model = graph()
    return _planned(model, pipeline_strategy(model, [(0, 0, (0, 1)), (1, 2, (2, 3))], 4, recompute=(True, False)))


def _planned(model: OperatorGraph, strategy: Strategy) -> Plan:
    machine, fabric = cluster(), ring()
    tasks = _lowered(model, strategy)
    return Plan(
        cluster=machine,
        fabric=fabric,
        taskgraph=tasks,
        graph=model,
        strategy=strategy,
        timeline=timeline(tasks, fabric.n_links),
        provenance={"topoplan": "reference", "seed": 1},
    )


def _lowered(model: OperatorGraph, strategy: Strategy) -> TaskGraph:
    """Return the tasks of a chain of operators of equally many parts each; part k of one feeds part k of the next."""
    count = strategy.schedule.micro_batches
    devices = [placement.devices.tolist() for placement in strategy.placements]
    rows: list[tuple[int, ...]] = []  # kind, device, source, destination, group, operator, micro-batch
    edges: list[tuple[int, int]] = []

    def add(row: tuple[int, ...], *before: int) -> int:
        rows.append(row)
        edges.extend((task, len(rows) - 1) for task in before)
        return len(rows) - 1

    def step(kind: TaskKind, op: int, part: int, batch: int, task: int, origin: int) -> int:
        here, there = devices[op][part], devices[origin][part]
        if here != there:
            task = add((TaskKind.TRANSFER, -1, there, here, -1, max(op, origin), batch), task)
        return add((kind, here, -1, -1, -1, op, batch), *([] if task < 0 else [task]))

    last: dict[int, list[int]] = {op: [] for op in range(len(devices))}
    order = [*range(len(devices))]
    for batch in range(count):
        for part in range(len(devices[0])):
            task, forward = -1, []
            for op in order:
                task = step(TaskKind.FORWARD, op, part, batch, task, max(op - 1, 0))
                forward.append(task)
            for op in reversed(order):
                before, origin = task, min(op + 1, order[-1])
                task = step(TaskKind.BACKWARD, op, part, batch, before, origin)
                if before != forward[op]:
                    edges.append((forward[op], task))
                last[op].append(task)
    for op in order:
        add((TaskKind.COLLECTIVE, -1, -1, -1, op, op, -1), *last[op])
    # As lowering numbers them: micro-batch by micro-batch, in each the parts, forward before backward, then transfers.
    table = np.array(rows)
    order = sorted(
        range(len(rows)),
        key=lambda row: (rows[row][4], rows[row][6], rows[row][1] < 0, rows[row][5], rows[row][1], row),
    )
    kind, device, src, dst, group, owner, micro_batch = table[order].T
    place = {row: position for position, row in enumerate(order)}
    edges = sorted((place[task], place[after]) for task, after in edges)
    size = np.where(kind == TaskKind.TRANSFER, 8192, np.where(kind == TaskKind.COLLECTIVE, 262_144, 0))
    return TaskGraph(
        kind=kind,
        device=device,
        seconds=np.where(device >= 0, 1e-3 / count / len(devices[0]), 0.0),
        size=size,
        src=src,
        dst=dst,
        group=group,
        group_ptr=np.cumsum([0, *(len(members) for members in devices)]),
        group_members=np.concatenate(devices),
        succ_ptr=np.searchsorted([task for task, _ in edges], np.arange(len(rows) + 1)),
        succ=[after for _, after in edges],
        op=owner,
        op_names=tuple(op.name for op in model.operators),
        n_devices=4,
        micro_batch=None if count == 1 else micro_batch,
    )
