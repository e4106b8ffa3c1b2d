"""Plans to files and back, through whatever exporters are installed.

A file's suffix names the format when it is read; `-x EXPORTER=PATH` names it when it is written.  A strategy
may be named in the second way, too, for files of other programs, whose names end as they please.  Formats of several
files are archives, or folders (`topoplan_engine.folders`).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

import attrs

from topoplan.errors import TopoplanError, TopoplanWarning
from topoplan.model.cluster import Cluster
from topoplan.model.graph import OperatorGraph
from topoplan.model.plan import Plan
from topoplan.model.staged import StagedStrategy
from topoplan.model.strategy import PlacedStrategy, Strategy
from topoplan.plugin.components import Exporter, Topology
from topoplan.plugin.host import Host
from topoplan_engine.blame import naming_plugins
from topoplan_engine.experiment import Choice
from topoplan_engine.files import (
    PACKED,
    check_different,
    check_readable,
    check_writable,
    read_unpacked,
    write_file,
)
from topoplan_engine.folders import (
    ARCHIVE,
    check_writable_folder,
    is_folder,
    read_folder,
    write_folder,
)
from topoplan_engine.incomplete import IncompleteStrategyError, names_of
from topoplan_engine.sharding.programs import check_strategy

__all__ = [
    "Written",
    "check_outputs",
    "export",
    "keep_refused",
    "read_plan",
    "read_strategy",
    "records",
    "runs_as",
    "strategy_path",
    "write_outputs",
]

Outputs = tuple[tuple[Choice, str], ...]
#: The exporter that can say every plan.
_WHOLE = "json"


def runs_as(host: Host, path: Path) -> Choice | None:
    """Return the simulator that runs a file as the program does that its format is for; None if none is known."""
    text = _reader(host, path, "read").runs_as
    return Choice.parse(text, "simulator") if text else None


def read_plan(host: Host, path: Path) -> Plan:
    """Read a task graph, or a whole plan, in the format that the file's suffix names; ``.gz`` may follow it.

    A plan that was stored without its tasks (`topoplan_engine.rebuilding`) has them again.

    Raises:
        TopoplanError: no installed format has this suffix, or the file is not right.
    """
    from topoplan_engine.rebuilding import with_tasks

    exporter = _reader(host, path, "read")
    with naming_plugins(host):
        plan = exporter.read(read_folder(path) if path.is_dir() else read_unpacked(path), str(path))
    if plan.strategy is not None and plan.graph is not None:
        try:
            check_strategy(plan.strategy, plan.graph, plan.cluster.n_devices)
        except TopoplanError as error:
            raise TopoplanError(f"{path}: {error}") from None
    return with_tasks(plan, host, str(path))


def strategy_path(host: Host, text: str) -> Path:
    """Return the file that ``FILE`` or ``EXPORTER=FILE`` names."""
    return _strategy_source(host, text)[1]


def read_strategy(host: Host, text: str, graph: OperatorGraph, fallback: PlacedStrategy | None = None) -> Strategy:
    """Read a strategy for ``graph``, alone or out of a whole plan, from ``FILE`` or ``EXPORTER=FILE``.

    Args:
        host: has the exporters.
        text: names the file.
        graph: the model.
        fallback: holds for operators that the file does not name, which a warning counts; None: that is an error.

    Raises:
        TopoplanError: the file is not right, or not of this model.
    """
    try:
        return _read_whole_strategy(host, text, graph)
    except IncompleteStrategyError as error:
        if fallback is None:
            raise
        note = (
            f"{error.name}: names {len(error.placements)} of {len(graph.operators)} operators of {graph.name!r}; the "
            f"other {len(error.missing)} run data parallel ({names_of(error.missing)})"
        )
        warnings.warn(TopoplanWarning(note), stacklevel=2)
        return error.completed(fallback)


def _read_whole_strategy(host: Host, text: str, graph: OperatorGraph) -> Strategy:
    named, path = _strategy_source(host, text)
    exporter = named or _reader(host, path, "read_strategy", "read")
    if exporter.overrides("read_strategy"):
        with naming_plugins(host):
            return exporter.read_strategy(read_unpacked(path), str(path), graph)
    plan = read_plan(host, path)
    if plan.strategy is None or plan.graph is None:
        raise TopoplanError(f"{path}: holds a task graph but no strategy")
    placement_of = {
        op.name: placement for op, placement in zip(plan.graph.operators, plan.strategy.placements, strict=True)
    }
    named_placements = {i: placement_of[op.name] for i, op in enumerate(graph.operators) if op.name in placement_of}
    if len(named_placements) < len(graph.operators):
        if not isinstance(plan.strategy, PlacedStrategy) or not named_placements:
            missing = next(op.name for op in graph.operators if op.name not in placement_of)
            raise TopoplanError(f"{path}: has no placement for operator {missing!r} of model {graph.name!r}")
        raise IncompleteStrategyError(str(path), graph, named_placements)
    placements = tuple(placement_of[op.name] for op in graph.operators)
    match plan.strategy:
        case StagedStrategy(is_placed=True, order=order):
            if len(placement_of) > len(graph.operators):
                raise TopoplanError(f"{path}: its schedule has operators that model {graph.name!r} has not")
            stage = dict(zip(placement_of, plan.strategy.stage_of.tolist(), strict=True))
            return StagedStrategy.placed(placements, [stage[op.name] for op in graph.operators], order)
        case StagedStrategy():
            if list(placement_of) != [op.name for op in graph.operators]:
                what = "stages have" if plan.strategy.program is None else "program is one of"
                raise TopoplanError(f"{path}: its {what} other operators than model {graph.name!r}")
            return attrs.evolve(plan.strategy, placements=placements)
    return PlacedStrategy(placements)


def check_outputs(
    host: Host,
    outputs: Outputs,
    cluster: Cluster | None = None,
    topology: Topology | None = None,
) -> None:
    """Raise `TopoplanError` for what is sure not to be written, before long work.

    That is an unknown exporter, two outputs in one file, a place that cannot be written, or a format that can say no
    plan on this cluster and topology.  What the model and the
    searchers decide is asked once these are built (`topoplan_engine.search.foreseen`).
    """
    check_different((f"-x {choice.name}", Path(path)) for choice, path in outputs)
    for choice, path in outputs:
        exporter = choice.make(host, Exporter)
        (check_writable_folder if is_folder(exporter.suffix, Path(path)) else check_writable)(Path(path))
        if cluster is not None and (why := exporter.refuses(cluster, topology)):
            raise TopoplanError(f"{choice.name}: {why}")


def records(host: Host, outputs: Outputs) -> bool:
    """Say whether an output shows what is recorded of an iteration and of its search."""
    return any(host.get(Exporter, choice.name).records for choice, _ in outputs)


@attrs.frozen
class Written:
    """What became of outputs: exporter -> path, and exporter -> why it wrote nothing."""

    paths: Mapping[str, str]
    refused: Mapping[str, str]


def write_outputs(host: Host, plan: Plan, outputs: Outputs, lacks: str = "") -> Written:
    """Write a plan with each exporter; one that cannot keeps no other from it.

    Args:
        host: has the exporters.
        plan: what to write.
        outputs: exporters and files.
        lacks: what the plan lacks of memory, in a few words; then trainers get no files, for they could not run them.
    """
    paths: dict[str, str] = {}
    refused: dict[str, str] = {}
    for choice, path in outputs:
        try:
            exporter = choice.make(host, Exporter)
            if lacks and exporter.trainer:
                raise TopoplanError(f"{choice.name}: {path} is not written: the plan does not fit ({lacks})")
            _write(exporter, plan, Path(path))
            paths[_label(choice, paths)] = path
        except TopoplanError as error:
            refused[_label(choice, refused)] = str(error)
    return Written(paths, refused)


def keep_refused(host: Host, plan: Plan, outputs: Outputs, written: Written) -> str:
    """Write a plan that an output refused as JSON beside that file, so that no search is lost.

    Very many tasks are left out; they follow from the strategy.

    Returns:
        The path; empty where nothing was refused, another file has the whole plan, or none can be written there.
    """
    from topoplan_engine.rebuilding import kept_of

    if not written.refused or any(choice.name == _WHOLE and path in written.paths.values() for choice, path in outputs):
        return ""
    beside = next(path for _, path in outputs if path not in written.paths.values())
    names = (f"{beside}.json", *(f"{beside}.{number}.json" for number in range(2, 1000)))
    try:
        path = next(name for name in names if not Path(name).exists())  # a file of somebody else stays
        _write(host.make(Exporter, _WHOLE, {}), kept_of(plan), Path(path))
    except (TopoplanError, StopIteration):
        return ""
    return path


def _label(choice: Choice, used: Mapping[str, str]) -> str:
    """Name an output by its exporter; the second one of an exporter by its options, too."""
    options = ",".join(f"{key}={value}" for key, value in choice.options.items())
    return f"{choice.name}:{options}" if choice.name in used and options else choice.name


def export(plan: Plan, exporter: Exporter | str, path: Path | str, *, host: Host | None = None) -> None:
    """Write a plan in the format of an exporter: ``export(plan, "perfetto", "plan.pftrace")``.

    Args:
        plan: what to write.
        exporter: by name, with options after a colon, or itself.
        path: of the file.
        host: where exporters come from; all installed plugins unless given.

    Raises:
        TopoplanError: there is no such exporter, it cannot say the plan, or the file cannot be written.
    """
    if isinstance(exporter, str):
        choice = Choice.parse(exporter, "exporter", allow_code=True)
        exporter = choice.make(host or Host.discover(), Exporter)
    _write(exporter, plan, Path(path))


def _write(exporter: Exporter, plan: Plan, path: Path) -> None:
    data = exporter.write(plan)
    if path.name.endswith(PACKED) and not exporter.suffix.endswith(PACKED):
        import gzip

        data = gzip.compress(data, mtime=0)
    (write_folder if is_folder(exporter.suffix, path) else write_file)(path, data)


def _strategy_source(host: Host, text: str) -> tuple[Exporter | None, Path]:
    """Split ``EXPORTER=FILE``; a word before the sign that is no exporter belongs to the file's name."""
    name, equals, path = text.partition("=")
    for exporter in host.components(Exporter):
        if equals and exporter.name == name and exporter.overrides("read_strategy"):
            return exporter(), Path(path)
    return None, Path(text)


def _reader(host: Host, path: Path, *ways: str) -> Exporter:
    readable = [e for e in host.components(Exporter) if any(map(e.overrides, ways))]
    for exporter in readable:
        if path.name.removesuffix(PACKED).endswith(exporter.suffix) and not path.is_dir():
            return exporter()
        if is_folder(exporter.suffix, path) and any(path.glob(f"*{exporter.suffix.removesuffix(ARCHIVE)}")):
            return exporter()
    check_readable(path)
    for exporter in readable:
        if is_folder(exporter.suffix, path) and path.name.endswith(exporter.suffix.removesuffix(ARCHIVE)):
            raise TopoplanError(f"{path}: is one of several files (give their folder, {path.parent})")
    suffixes = ", ".join(sorted(e.suffix for e in readable)) or "none"
    raise TopoplanError(f"{path}: no installed format reads this suffix (have: {suffixes})")
