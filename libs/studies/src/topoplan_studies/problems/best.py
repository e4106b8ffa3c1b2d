"""The best known plan of every benchmark problem: a table of times, bounds and recipes, and the plans themselves.

``best.csv`` has a row for each problem; ``plans/NAME.json.gz`` is the strategy and the fabric of its plan, as the
exporter ``json`` writes them, without a task graph, which follows from these.  `check` simulates a stored plan again,
`improve` searches and stores what is better.  Neither believes a fabric: it is the topology's own, or one that its
hardware can be wired as (`topoplan.model.interfaces.check_rewired`).
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from topoplan import __version__
from topoplan.errors import TopoplanError, shown
from topoplan.model.interfaces import check_rewired
from topoplan.model.plan import Plan
from topoplan.model.taskgraph import TaskGraph, TaskKind
from topoplan.options import SEEDS
from topoplan.plugin.components import Exporter, Searcher, Topology
from topoplan.plugin.host import Host
from topoplan.search.protocol import State
from topoplan_engine.files import read_file, read_text, write_file
from topoplan_engine.search.draws import mean_trial
from topoplan_engine.search.optimize import Outcome, optimize
from topoplan_engine.search.setup import SearchSetup, set_up_search
from topoplan_engine.search.starting import first_state
from topoplan_studies.listing import searcher_choices
from topoplan_studies.problems.bounds import lower_bound
from topoplan_studies.problems.paths import least_message_seconds
from topoplan_studies.problems.reading import BenchmarkProblem

__all__ = ["FOLDER", "BestKnown", "Check", "best_known", "check", "improve"]

#: Where the table and the plans of the standard set are.
FOLDER = Path(__file__).with_name("best")
_TABLE = "best.csv"
#: Bytes of the largest plan, unpacked, and by which share a time may be below its bound.
_LARGEST_PLAN, _ROUNDING = 256 << 20, 1e-9
#: In place of a task graph: one task that takes no time.
_NOTHING = TaskGraph(
    kind=[TaskKind.FORWARD],
    device=[0],
    seconds=[0.0],
    size=[0],
    src=[-1],
    dst=[-1],
    group=[-1],
    group_ptr=[0],
    group_members=[],
    succ_ptr=[0, 0],
    succ=[],
    op=[-1],
    n_devices=1,
)


@attrs.frozen(kw_only=True)
class BestKnown:
    """The best known plan of a problem, and how to find it again.

    Attributes:
        problem: its name.
        seconds: of an iteration, the mean over draws of equal paths.
        bound: seconds below which no strategy on any wiring gets (`bounds.lower_bound`).
        searchers, seed, evaluations: of the search that found it, as ``topoplan compare --searchers`` writes them.
        version: of Topoplan that found it; another one may search otherwise.
    """

    problem: str
    seconds: float
    bound: float
    searchers: str
    seed: int
    evaluations: int
    version: str

    @property
    def gap(self) -> float:
        """By which share the time is above the bound."""
        return self.seconds / self.bound - 1


@attrs.frozen(kw_only=True)
class Check:
    """What a stored plan takes now, and what the bound is now; both equal the table's to the last bit if it holds."""

    stored: BestKnown
    seconds: float
    bound: float

    @property
    def holds(self) -> bool:
        """Whether both figures are those of the table."""
        return self.seconds == self.stored.seconds and self.bound == self.stored.bound


def best_known(folder: Path = FOLDER) -> dict[str, BestKnown]:
    """Return the best known plans by the names of their problems; none if the folder has no table.

    Raises:
        TopoplanError: the table cannot be read; the message names the line.
    """
    path = folder / _TABLE
    if not path.is_file():
        return {}
    rows: dict[str, BestKnown] = {}
    lines = csv.DictReader(io.StringIO(read_text(path, "a table with commas"), newline=""), strict=True)
    try:
        for row in lines:
            best = _row(row, f"{path}: line {lines.line_num}")
            if best.problem in rows:
                raise TopoplanError(f"{path}: line {lines.line_num}: problem: {shown(best.problem)} stands there twice")
            rows[best.problem] = best
    except csv.Error as error:
        raise TopoplanError(
            f"{path}: line {lines.reader.line_num}: is no line of a table with commas ({error})"
        ) from None
    return rows


def _row(row: Mapping[Any, Any], where: str) -> BestKnown:
    """Read a line of the table; times are positive, and none is below its bound."""
    values: dict[str, Any] = {}
    for field in attrs.fields(BestKnown):
        text = row.get(field.name)
        if not isinstance(text, str) or not text or None in row:
            columns = ", ".join(each.name for each in attrs.fields(BestKnown))
            raise TopoplanError(f"{where}: {field.name}: nothing is there, or more than headers say (needs {columns})")
        try:
            values[field.name] = {"float": float, "int": int}.get(str(field.type), str)(text)
        except ValueError:
            raise TopoplanError(f"{where}: {field.name}: {shown(text)} is no number in digits") from None
    for key in ("seconds", "bound"):
        if not 0 < values[key] < math.inf:
            raise TopoplanError(f"{where}: {key}: {shown(values[key])} (expected more than 0, and finite)")
    for key in ("seed", "evaluations"):
        if not 0 <= values[key] <= SEEDS:
            raise TopoplanError(f"{where}: {key}: {shown(values[key])} (expected 0 to {SEEDS})")
    if values["seconds"] < values["bound"] * (1 - _ROUNDING):
        raise TopoplanError(
            f"{where}: seconds: {values['seconds']!r} is below the bound {values['bound']!r}, which no plan is"
        )
    return BestKnown(**values)


def check(problem: BenchmarkProblem, host: Host, folder: Path = FOLDER) -> Check:
    """Simulate the stored plan of a problem again, and bound the problem again.

    Raises:
        TopoplanError: there is no such plan, or it cannot be read, or does not fit the problem: its model, its hosts,
            their memory or what can join them.
    """
    stored = best_known(folder).get(problem.name)
    if stored is None:
        raise TopoplanError(f"{folder / _TABLE}: has no row for {problem.name!r}")
    setup = _setup(problem, host)
    path = _plan_path(folder, problem)
    data = _unpacked(path)
    plan = host.make(Exporter, "json").read(data, str(path))
    if plan.strategy is None:
        raise TopoplanError(f"{path}: has no strategy")
    plan.strategy.check(setup.problem.graph, setup.problem.cluster.n_devices)
    seconds = _repriced(setup, State(plan.strategy, plan.fabric), stored.seed, str(path))
    return Check(stored=stored, seconds=seconds, bound=_bound(setup))


def _unpacked(path: Path) -> bytes:
    """Return what a packed file holds, as far as it is not larger than plans are."""
    data = read_file(path)
    try:
        with gzip.open(io.BytesIO(data)) as stream:
            unpacked = stream.read(_LARGEST_PLAN + 1)
        if not unpacked:
            raise EOFError
    except (OSError, EOFError, zlib.error):
        raise TopoplanError(f"{path}: is no plan that gzip packed") from None
    if len(unpacked) > _LARGEST_PLAN:
        raise TopoplanError(f"{path}: more than {_LARGEST_PLAN} bytes are packed in {len(data)} (plans have fewer)")
    return unpacked


def improve(
    problem: BenchmarkProblem, searchers: str, *, budget: int, seed: int, host: Host, folder: Path = FOLDER
) -> BestKnown | None:
    """Search, and store the plan if it fits into memory and is better than the best known one.

    Args:
        problem: what to search in.
        searchers: as ``topoplan compare --searchers`` takes them: ``mcmc+relink`` take turns.
        budget, seed: of the search.
        host: where components come from.
        folder: that has the table and the plans.

    Returns:
        The new best, or None if there is none.
    """
    rewirable = host.get(Topology, problem.setting.topology.name).follows_demand
    choices = [
        choice
        for choice in searcher_choices(searchers, "searchers")
        if rewirable or host.get(Searcher, choice.name).axis != "network"
    ]
    outcome = optimize(problem.experiment(choices, budget=budget, seed=seed), host=host)
    rows = best_known(folder)
    before = rows.get(problem.name)
    if not (outcome.fits or outcome.memory_ignored) or (before is not None and outcome.seconds >= before.seconds):
        return None
    setup = _setup(problem, host)
    assert outcome.plan.strategy is not None
    state = State(outcome.plan.strategy, outcome.plan.fabric)
    seconds = _repriced(setup, state, seed, f"the plan that {searchers} found")
    if before is not None and seconds >= before.seconds:
        return None
    best = BestKnown(
        problem=problem.name,
        seconds=seconds,
        bound=_bound(setup) if before is None else before.bound,
        searchers=searchers,
        seed=seed,
        evaluations=budget,
        version=__version__,
    )
    try:
        (folder / "plans").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TopoplanError(f"{folder}: cannot be made ({error.strerror})") from None
    write_file(_plan_path(folder, problem), _packed(outcome, host))
    _write_table(folder, {**rows, problem.name: best})
    return best


def _setup(problem: BenchmarkProblem, host: Host) -> SearchSetup:
    return set_up_search(host, problem.experiment(["random"], budget=0, seed=0))


def _bound(setup: SearchSetup) -> float:
    return lower_bound(setup.problem, least_message_seconds(setup.problem, setup.simulate)).seconds


def _repriced(setup: SearchSetup, state: State, seed: int, what: str) -> float:
    """Return the mean seconds of a state over the draws that are reported; ``seed`` drew what the topology draws.

    Raises:
        TopoplanError: devices cannot hold it, or its fabric is none that the problem's network can be; ``what`` is the
            beginning of the message.
    """
    problem = setup.problem
    if not setup.evaluator.fits(state.strategy):
        raise TopoplanError(f"{what}: its strategy does not fit into the memory of the devices")
    own = first_state(setup.evaluator, state.strategy, np.random.default_rng(seed).spawn(1)[0]).fabric
    if problem.reconfigurable:
        try:
            check_rewired(state.fabric, own, problem.cluster)
        except TopoplanError as error:
            raise TopoplanError(f"{what}: its network cannot be built: {error}") from None
    elif state.fabric.key != own.key:
        raise TopoplanError(f"{what}: its network is not the one that topology {problem.topology!r} builds")
    return float(mean_trial(setup.evaluator, state).cost - setup.evaluator.penalty(state.strategy))


def _plan_path(folder: Path, problem: BenchmarkProblem) -> Path:
    return folder / "plans" / f"{problem.name}.json.gz"


def _packed(outcome: Outcome, host: Host) -> bytes:
    """Return model, strategy, fabric and cluster of a plan; equal ones give equal bytes."""
    plan = Plan(
        cluster=outcome.plan.cluster,
        fabric=outcome.plan.fabric,
        taskgraph=attrs.evolve(_NOTHING, n_devices=outcome.plan.cluster.n_devices),
        graph=outcome.plan.graph,
        strategy=outcome.plan.strategy,
    )
    return gzip.compress(host.make(Exporter, "json").write(plan), mtime=0)


def _write_table(folder: Path, rows: dict[str, BestKnown]) -> None:
    """Write the table, in the order of the names."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [field.name for field in attrs.fields(BestKnown)]
    writer.writerow(names)
    for name in sorted(rows):
        writer.writerow([repr(value) if isinstance(value, float) else value for value in attrs.astuple(rows[name])])
    write_file(folder / _TABLE, text.getvalue().encode())
