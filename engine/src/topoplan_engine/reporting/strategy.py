"""How tables and JSON say a strategy: groups of operators with their data, tensor and expert degrees, and stages."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from topoplan.model.graph import OperatorGraph
from topoplan.model.plan import Plan
from topoplan.model.staged import StagedStrategy
from topoplan.model.strategy import Strategy
from topoplan.model.taskgraph import MOST_BYTES
from topoplan_engine.layout import Cuts, Group, groups_of, names_of
from topoplan_engine.reporting.tables import Column, RowTable, print_line

__all__ = ["print_strategy", "ranges", "strategy_columns", "strategy_json", "strategy_legend"]

#: Groups that a table shows; of more the smallest ones are counted in one line.
_SHOWN = 12
#: Kinds of operators that a line names.
_KINDS = 4


def strategy_json(plan: Plan) -> dict[str, Any]:
    """Return what the JSON object of a run says about the strategy."""
    if plan.strategy is None or plan.graph is None:
        return {}
    strategy, names = plan.strategy, [op.name for op in plan.graph.operators]
    program = strategy.program
    return {
        "strategy": {
            **_meshes_json(strategy),
            "mesh": None if program is None else list(program.mesh),
            "sharded_state": None if program is None else program.sharded_state,
            "gathers_again": None if program is None else program.gathers_again,
            "gradient_bucket_bytes": None if program is None else program.gradient_bucket_bytes,
            "groups": [
                {
                    "operators": [names[op] for op in group.operators],
                    "stage": None if group.stage < 0 else group.stage,
                    **attrs.asdict(group.cuts),
                    "tensor": dict(group.cuts.tensor),
                    "weights": list(group.weights),
                    "gathered": group.gathered,
                    "devices": [list(devices) for devices in group.devices],
                }
                for group in groups_of(strategy, plan.graph)
            ],
        }
    }


def print_strategy(plan: Plan) -> None:
    """Print a table of the groups; columns that say the same of all are left out or said in the title."""
    if plan.strategy is None or plan.graph is None:
        return
    groups, columns, title = strategy_columns(plan)
    pipelined = any(group.stage >= 0 for group in groups)
    largest = groups if pipelined else sorted(groups, key=lambda group: -len(group.operators))[:_SHOWN]
    RowTable(columns, sorted(largest, key=lambda group: (group.stage, group.operators))).print(title)
    if len(largest) < len(groups):
        remaining = len(plan.graph.operators) - sum(len(group.operators) for group in largest)
        print_line(f"... and {len(groups) - len(largest)} more ways to cut, of {remaining} operators (--json has all)")
    for line in strategy_legend(plan):
        print_line(line)


def strategy_columns(plan: Plan) -> tuple[list[Group], list[Column[Group]], str]:
    """Return the groups of a plan with a strategy, the columns that tell them apart, and a title for the rest."""
    assert plan.strategy is not None
    assert plan.graph is not None
    strategy, graph, count = plan.strategy, plan.graph, plan.cluster.n_devices
    groups = groups_of(strategy, graph)
    pipelined = any(group.stage >= 0 for group in groups)
    columns = [
        *([Column[Group]("stage", lambda group: _stage(group, strategy), names_rows=True)] if pipelined else []),
        Column("operators", lambda group: _operators(group, graph), names_rows=True, align="left"),
        Column("data", lambda group: _data(group.cuts)),
        Column("tensor", lambda group: _tensor(group.cuts), align="right"),
        Column("expert", lambda group: str(group.cuts.expert)),
        Column("attribute", lambda group: str(group.cuts.attribute)),
        Column("copies", lambda group: str(group.cuts.copies)),
        Column("weights", _weights, align="left"),
        Column("devices", lambda group: _devices(group, count), align="left"),
    ]
    values = {column.header: sorted({column.text(group) for group in groups} - {"-"}) for column in columns}
    in_title = [name for name in ("weights", "devices") if len(values[name]) == 1]
    left_out = [*in_title, *(name for name in ("tensor", "expert", "attribute", "copies") if values[name] == ["1"])]
    columns = [column for column in columns if column.header not in left_out and values[column.header]]
    title = ["strategy", *_mesh(strategy), *(f"{name} {values[name][0]}" for name in in_title)]
    return groups, columns, ", ".join(title)


def _meshes_json(strategy: Strategy) -> dict[str, Any]:
    """Return what the JSON object says of the stages of a staged strategy."""
    if not isinstance(strategy, StagedStrategy) or strategy.is_placed or strategy.program is not None:
        return {}
    return {
        "stages": [
            {
                "axes": dict(zip(stage.mesh.axes, stage.mesh.sizes, strict=True)),
                "devices": stage.mesh.devices.tolist(),
                "zero": stage.zero.level,
                "recomputed_operators": int((stage.regions >= 0).sum()),
            }
            for stage in strategy.stages
        ]
    }


def _mesh(strategy: Strategy) -> list[str]:
    program = strategy.program
    if program is None and isinstance(strategy, StagedStrategy) and not strategy.is_placed:
        meshes = {_mesh_text(stage.mesh.axes, stage.mesh.sizes): None for stage in strategy.stages}
        count = len(strategy.stages)
        lines = [f"{count} stage{'s' * (count > 1)} on meshes of {' or '.join(meshes)}"]
        levels = sorted({stage.zero.level for stage in strategy.stages} - {0})
        return lines + [f"optimizer state shared (ZeRO {level})" for level in levels]
    if program is None:
        return []
    lines = [f"one program on a mesh of {' x '.join(map(str, program.mesh))}"]
    if program.sharded_state:
        lines.append("gradients and optimizer state sharded (ZeRO)")
    if program.gathers_again:
        lines.append("sliced weights gathered in both passes (ZeRO 3)")
    if program.gradient_bucket_bytes >= MOST_BYTES:
        lines.append("gradients summed after the backward pass")
    elif program.gradient_bucket_bytes:
        lines.append(f"gradients summed in buckets of {program.gradient_bucket_bytes / 2**20:g} MiB")
    return lines


def _mesh_text(names: Sequence[str], sizes: Sequence[int]) -> str:
    """Return ``dp=2 x tp=4``."""
    return " x ".join(f"{name}={size}" for name, size in zip(names, sizes, strict=True))


def _operators(group: Group, graph: OperatorGraph) -> str:
    """Name an operator, the first and last of a stage, or how many there are of each kind."""
    names = [graph.operators[op].name for op in group.operators]
    if len(names) == 1:
        return names[0]
    if group.stage >= 0:
        return f"{names[0]} .. {names[-1]} ({len(names)})"
    counts = list(names_of(group.operators, graph).items())
    kinds = ", ".join(f"{count} {kind}" for kind, count in counts[:_KINDS])
    remainder = sum(count for _, count in counts[_KINDS:])
    return kinds + (f", {remainder} other{'s' * (remainder > 1)}" if remainder else "")


def _stage(group: Group, strategy: Strategy) -> str:
    recompute = strategy.recomputes
    return f"{group.stage} *" if recompute and recompute[group.stage] else str(group.stage)


def _data(cuts: Cuts) -> str:
    """Write into how many slices samples are cut, and how many each has where they are unequal."""
    runs = [(len(list(equal)), size) for size, equal in itertools.groupby(cuts.slices)]
    sizes = " + ".join(f"{count} x {size}" if count > 1 else str(size) for count, size in runs)
    return f"{cuts.data}: {sizes}" if sizes else str(cuts.data)


def _tensor(cuts: Cuts) -> str:
    return " x ".join(f"{degree} {where}" for where, degree in cuts.tensor) or "1"


def _weights(group: Group) -> str:
    if not group.weights:
        return "-"
    return ", ".join(group.weights) + (", gathered for use" if group.gathered else "")


def _devices(group: Group, count: int) -> str:
    if len(group.devices) == 1:
        devices = group.devices[0]
        return f"0-{count - 1} (all)" if len(devices) == count > 1 else ranges(devices)
    sizes = sorted({len(devices) for devices in group.devices})
    return f"{' or '.join(map(str, sizes))} each ({len(group.devices)} sets)"


def ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers as ``0-3, 8``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def strategy_legend(plan: Plan) -> list[str]:
    """Explain the words that the table uses of a plan with a strategy."""
    assert plan.strategy is not None
    assert plan.graph is not None
    groups, lines = groups_of(plan.strategy, plan.graph), []
    where = {name for group in groups for name, _ in group.cuts.tensor}
    words = {
        "out": "out: channels that an operator makes",
        "in": "in: channels that it sums over (partial sums)",
        "heads": "heads: of attention",
    }
    if where:
        lines.append("tensor: weights are cut; " + ", ".join(words[name] for name in words if name in where))
    if any(group.cuts.attribute > 1 for group in groups):
        lines.append("attribute: positions or channels inside a sample are cut, where no weight is")
    if any(group.cuts.copies > 1 for group in groups):
        lines.append("copies: devices that run the same part")
    if any(group.weights for group in groups):
        lines.append("weights: what a device holds of them along each axis of the mesh")
    if plan.strategy is not None and any(plan.strategy.recomputes):
        lines.append("* runs its forward pass again before the backward one")
    reports = plan.provenance.get("reports")
    for report in reports.values() if isinstance(reports, Mapping) else ():
        if isinstance(report, Mapping) and "split" in report:
            lines.append("split: devices of each stage; @ the layer with which each later one begins")
    return lines
