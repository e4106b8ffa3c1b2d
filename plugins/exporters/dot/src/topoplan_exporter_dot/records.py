"""Task graph -> the text of a Graphviz digraph with record nodes."""

from __future__ import annotations

from topoplan import Plan, TaskGraph, TaskKind
from topoplan_engine.simulation.gradients import as_simulated

__all__ = ["write"]

#: Characters that mean something inside the label of a record.
_ESCAPES = str.maketrans({character: f"\\{character}" for character in '\\"{}|<> '} | {"\n": " "})


def write(plan: Plan) -> bytes:
    """Write one node per task and one edge per dependency, in the order of the task graph.

    Tasks that options of the simulator insert (barriers, transfers to and from parameter servers) are written, without
    times of their own.
    """
    graph, timeline = as_simulated(plan)[0], plan.timeline
    lines = ["digraph taskgraph {", "  node [shape=record];"]
    for task in range(graph.n_tasks):
        times = ""
        if timeline is not None and task < len(timeline.start):
            times = f" | {{ {float(timeline.start[task]) * 1e3:.6g} | {float(timeline.finish[task]) * 1e3:.6g} }}"
        kind = "ALLREDUCE" if graph.kind[task] == TaskKind.COLLECTIVE else TaskKind(graph.kind[task]).name
        lines.append(f'  t{task} [label="{{ {_name(graph, task).translate(_ESCAPES)} | {kind}{times} }}"];')
    for task, (start, end) in enumerate(zip(graph.succ_ptr[:-1].tolist(), graph.succ_ptr[1:].tolist(), strict=True)):
        lines += [f"  t{task} -> t{successor};" for successor in graph.succ[start:end].tolist()]
    lines.append("}")
    return ("\n".join(lines) + "\n").encode()


def _name(graph: TaskGraph, task: int) -> str:
    """Say what a task belongs to and where it runs."""
    op = graph.op[task]
    name = graph.op_names[op] if 0 <= op < len(graph.op_names) else f"task {task}"
    if graph.micro_batch is not None and graph.micro_batch[task] >= 0:
        name += f" #{graph.micro_batch[task]}"
    if graph.kind[task] == TaskKind.TRANSFER:
        return f"{name} ({graph.size[task]} B from {graph.src[task]} to {graph.dst[task]})"
    if graph.kind[task] == TaskKind.COLLECTIVE:
        return f"{name} ({graph.size[task]} B among {' '.join(map(str, graph.members(task).tolist()))})"
    return f"{name} (device {graph.device[task]})"
