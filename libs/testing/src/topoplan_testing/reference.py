"""A small problem that the checks use: four hosts in a ring, a chain of dense operators, one iteration.

No component has a part in it: the graph, the costs and the task graph that simulators get are made by
hand, and so is the lowering of the plans that exporters get.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence

import attrs
import numpy as np

from topoplan.arrays import F64, I32
from topoplan.model.cluster import Cluster
from topoplan.model.costs import CostFunction, PartCosts
from topoplan.model.fabric import Fabric
from topoplan.model.graph import Axis, Dimension, Operator, OperatorGraph, Profile, Role, Tensor, Term
from topoplan.model.machine import Device, HostModel
from topoplan.model.pass_order import PassOrder
from topoplan.model.placement import Placement
from topoplan.model.plan import Plan
from topoplan.model.problem import Demand
from topoplan.model.reconfigurable import ReconfigurableFabric
from topoplan.model.staged import StagedStrategy
from topoplan.model.strategy import PlacedStrategy, Strategy
from topoplan.model.taskgraph import TaskGraph, TaskKind
from topoplan.model.timeline import Bounds, Timeline


def cluster(n_hosts: int = 4) -> Cluster:
    """Return hosts of one device and four interfaces each."""
    device = Device(
        name="reference",
        peak_flops={"fp32": 1e13, "bf16": 1e14},
        memory_bandwidth=1e12,
        memory=40e9,
        kernel_overhead=5e-6,
    )
    bare_cluster = Cluster.uniform(
        n_hosts=n_hosts, device_preset=device.name, interfaces=4, interface_bandwidth=1e9, latency=1e-6
    )
    return attrs.evolve(bare_cluster, machines={device.name: HostModel(device=device)})


def ring(n_hosts: int = 4) -> Fabric:
    """Return a ring with links both ways between neighbours."""
    ahead = [(host, (host + 1) % n_hosts) for host in range(n_hosts)]
    links = sorted({link for a, b in ahead for link in ((a, b), (b, a))})
    return Fabric.from_links(name="ring", n_hosts=n_hosts, links=links, bandwidth=1e9, latency=1e-6)


def two_switches(n_hosts: int = 4) -> Fabric:
    """Return hosts that are all joined to both of two switches: two equal paths for every pair."""
    up = [(host, switch) for host in range(n_hosts) for switch in (n_hosts, n_hosts + 1)]
    links = [*up, *((switch, host) for host, switch in up)]
    return Fabric.from_links(
        name="switches", n_hosts=n_hosts, n_switches=2, links=links, bandwidth=1e9, latency=1e-6, max_paths=2
    )


def hops(fabric: Fabric, host: int) -> dict[int, int]:
    """Return the nodes that can be reached from ``host``, itself included -> over how many links."""
    neighbours: dict[int, list[int]] = defaultdict(list)
    for source, target in zip(fabric.link_src.tolist(), fabric.link_dst.tolist(), strict=True):
        neighbours[source].append(target)
    distances, queue = {host: 0}, deque([host])
    while queue:
        node = queue.popleft()
        for target in neighbours[node]:
            if target not in distances:
                distances[target] = distances[node] + 1
                queue.append(target)
    return distances


def rebuilt(delay: float) -> ReconfigurableFabric:
    """Return a ring of four hosts that has links across for all-reduces only; ``delay`` in seconds."""
    plain = ring()
    across = [(a, b) for a in range(4) for b in range(4) if a != b]
    full = Fabric.from_links(name="ring", n_hosts=4, links=across, bandwidth=1e9, latency=1e-6)
    return ReconfigurableFabric(forward=plain, backward=plain, reduce=full, delay=delay)


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
    matrix = 1e6 * np.roll(np.eye(n_hosts), 2, axis=1)
    np.fill_diagonal(matrix, 0.0)
    return Demand(group_ptr=[0, n_hosts], group_members=np.arange(n_hosts), group_bytes=[4e6], matrix=matrix)


def taskgraph() -> TaskGraph:
    """Return one iteration of two stages of two devices each: 1 MB goes to the next one and back, for each device.

    Each operator has an all-reduce of 4 MB in its stage.  No device has two tasks that could run at a time.
    """
    return _lowered(graph(), PlacedStrategy(_two_stages()), transfer=1_000_000, reduction=4_000_000)


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
    strategy = PlacedStrategy(tuple(Placement((4, 1, 1), range(4)) for _ in names))
    return _planned(model, strategy)


def pipelined() -> Plan:
    """Return a complete plan: two stages of two hosts each, four micro-batches."""
    model = graph()
    # 1F1B of two ranks, of which the first recomputes: passes (0 forward, 1 again, 2 backward) and micro-batches.
    first = [(0, 0), (0, 1), (1, 0), (2, 0), (0, 2), (1, 1), (2, 1), (0, 3), (1, 2), (2, 2), (1, 3), (2, 3)]
    second = [(kind, batch) for batch in range(4) for kind in (0, 2)]
    kind, micro_batch = zip(*first, *second, strict=True)
    chunk = [0] * len(first) + [1] * len(second)
    order = PassOrder(name="1f1b", rank_ptr=[0, 12, 20], kind=kind, chunk=chunk, micro_batch=micro_batch)
    return _planned(model, StagedStrategy.placed(_two_stages(), [0, 1, 1], order))


def _two_stages() -> tuple[Placement, ...]:
    """Place the first of three operators on hosts 0 and 1, the others on hosts 2 and 3."""
    return tuple(Placement((2, 1, 1), devices) for devices in ((0, 1), (2, 3), (2, 3)))


def _planned(model: OperatorGraph, strategy: Strategy) -> Plan:
    hosts, fabric, tasks = cluster(), ring(), _lowered(model, strategy)
    times, origin = timeline(tasks, fabric.n_links), {"topoplan": "reference", "seed": 1}
    return Plan(
        cluster=hosts, fabric=fabric, taskgraph=tasks, graph=model, strategy=strategy, timeline=times, provenance=origin
    )


def _lowered(model: OperatorGraph, strategy: Strategy, transfer: int = 8192, reduction: int = 262_144) -> TaskGraph:
    """Return the tasks of a chain of operators of equally many parts each; part k of one feeds part k of the next.

    They are numbered as lowering does: in each micro-batch passes by operator, then transfers; all-reduces at the end.
    """
    count = strategy.micro_batches
    devices = [placement.devices.tolist() for placement in strategy.placements]
    rows: list[tuple[int, ...]] = []  # kind, device, source, destination, group, operator, micro-batch
    edges: list[tuple[int, int]] = []

    def add(*row: int) -> int:
        rows.append(row)
        return len(rows) - 1

    def join(before: int, after: int, op: int, batch: int) -> None:
        source, target = rows[before][1], rows[after][1]
        if source != target:
            edges.append((before, len(rows)))
            before = add(TaskKind.TRANSFER, -1, source, target, -1, op, batch)
        edges.append((before, after))

    for batch in range(count):
        passes = [
            [
                [add(kind, device, -1, -1, -1, op, batch) for kind in (TaskKind.FORWARD, TaskKind.BACKWARD)]
                for device in members
            ]
            for op, members in enumerate(devices)
        ]
        edges += [(forward, backward) for parts in passes for forward, backward in parts]
        for op in range(1, len(passes)):
            for first, second in zip(passes[op - 1], passes[op], strict=True):
                join(first[0], second[0], op, batch)
                join(second[1], first[1], op, batch)
    for op in range(len(devices)):
        summed = [task for task, row in enumerate(rows) if row[0] == TaskKind.BACKWARD and row[5] == op]
        last = add(TaskKind.COLLECTIVE, -1, -1, -1, op, op, -1)
        edges += [(task, last) for task in summed]
    edges.sort()
    kind, device, src, dst, group, owner, micro_batch = np.array(rows).T
    return TaskGraph(
        kind=kind,
        device=device,
        seconds=np.where(device >= 0, 1e-3 / count / len(devices[0]), 0.0),
        size=np.where(kind == TaskKind.TRANSFER, transfer, np.where(kind == TaskKind.COLLECTIVE, reduction, 0)),
        src=src,
        dst=dst,
        group=group,
        group_ptr=np.cumsum([0, *map(len, devices)]),
        group_members=np.concatenate(devices),
        succ_ptr=np.searchsorted([task for task, _ in edges], np.arange(len(rows) + 1)),
        succ=[after for _, after in edges],
        op=owner,
        op_names=tuple(op.name for op in model.operators),
        n_devices=4,
        micro_batch=None if count == 1 else micro_batch,
    )
