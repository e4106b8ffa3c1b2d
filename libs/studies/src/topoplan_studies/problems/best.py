"""The best known plan of every benchmark problem: a table of times, bounds and recipes, and the plans themselves.

``best.csv`` has a row for each problem; ``plans/NAME.json.gz`` is the strategy and the fabric of its plan, as the
exporter ``json`` writes them, without a task graph, which follows from these and is made again where a plan is read.
`check` simulates a stored plan again, `improve` searches and stores what is better.  Neither believes a fabric: it is
the topology's own, or one that its hardware can be wired as (`topoplan_engine.interfaces.check_rewired`).
"""

from __future__ import annotations

import csv
import gzip
import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from topoplan import __version__
from topoplan.errors import TopoplanError, shown
from topoplan.model.plan import Plan
from topoplan.options import SEEDS
from topoplan.plugin.components import Exporter, Searcher, Topology
from topoplan.plugin.host import Host
from topoplan.search.protocol import State
from topoplan_engine.files import read_text, read_unpacked, write_file
from topoplan_engine.interfaces import check_rewired
from topoplan_engine.rebuilding import without_tasks
from topoplan_engine.search.draws import mean_trial
from topoplan_engine.search.optimize import optimize, provenance
from topoplan_engine.search.setup import SearchSetup, set_up_search
from topoplan_engine.search.starting import first_state
from topoplan_engine.sharding.programs import check_strategy
from topoplan_studies.listing import searcher_choices
from topoplan_studies.problems.bounds import lower_bound
from topoplan_studies.problems.paths import least_message_seconds
from topoplan_studies.problems.reading import BenchmarkProblem

__all__ = ["FOLDER", "BestKnown", "Check", "best_known", "best_of_all", "check", "improve", "seconds_in_table"]

#: Where the table and the plans of the standard set are.
FOLDER = Path(__file__).with_name("best")
_TABLE = "best.csv"
#: Bytes of the largest plan, unpacked, and by which share a time may be below its bound.
_LARGEST_PLAN, _ROUNDING = 256 << 20, 1e-9


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


def best_of_all(folder: Path | None) -> dict[str, BestKnown]:
    """Return the best known plans of the standard set, and those of a folder of one's own where these are better.

    Raises:
        TopoplanError: there is no table in the folder, or it cannot be read.
    """
    rows = best_known(FOLDER)
    if folder is None:
        return rows
    if not (folder / _TABLE).is_file():
        raise TopoplanError(f"{folder / _TABLE}: is not there (topoplan problems --improve writes it)")
    for name, row in best_known(folder).items():
        if name not in rows or row.seconds < rows[name].seconds:
            rows[name] = row
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
    data = read_unpacked(path, _LARGEST_PLAN)
    plan = host.make(Exporter, "json").read(data, str(path))
    if plan.strategy is None:
        raise TopoplanError(f"{path}: has no strategy")
    check_strategy(plan.strategy, setup.problem.graph, setup.problem.cluster.n_devices)
    seconds = _repriced(setup, State(plan.strategy, plan.fabric), stored.seed, str(path))
    return Check(stored=stored, seconds=seconds, bound=_bound(setup))


def improve(
    problem: BenchmarkProblem, searchers: str, *, budget: int, seed: int, host: Host, folder: Path = FOLDER
) -> tuple[BestKnown | None, bool]:
    """Search, and store the plan if it fits into memory and is better than the best known one, here or in the set.

    Args:
        problem: what to search in.
        searchers: as ``topoplan compare --searchers`` takes them: ``mcmc+relink`` take turns.
        budget, seed: of the search.
        host: where components come from.
        folder: that has the table and the plans.

    Returns:
        The new best, or None if there is none; and whether the user ended the search.
    """
    rewirable = host.get(Topology, problem.setting.topology.name).follows_demand
    choices = [
        choice
        for choice in searcher_choices(searchers, "searchers")
        if rewirable or host.get(Searcher, choice.name).axis != "network"
    ]
    experiment = problem.experiment(choices, budget=budget, seed=seed)
    outcome = optimize(experiment, host=host)
    interrupted = outcome.result.interrupted
    rows = best_known(folder)
    known_rows = [table[problem.name] for table in (rows, best_known(FOLDER)) if problem.name in table]
    before = min(known_rows, key=lambda row: row.seconds, default=None)
    if not (outcome.fits or outcome.memory_ignored) or (before is not None and outcome.seconds >= before.seconds):
        return None, interrupted
    setup = _setup(problem, host)
    assert outcome.plan.strategy is not None
    state = State(outcome.plan.strategy, outcome.plan.fabric)
    seconds = _repriced(setup, state, seed, f"the plan that {searchers} found")
    if before is not None and seconds >= before.seconds:
        return None, interrupted
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
    write_file(_plan_path(folder, problem), _packed(outcome.plan, provenance(host, experiment), host))
    _write_table(folder, {**rows, problem.name: best})
    return best, interrupted


def seconds_in_table(problem: BenchmarkProblem, plan: Plan, host: Host) -> float:
    """Return the seconds that the table would have for a plan of a problem: the mean over draws of equal paths.

    A search may price a plan with one task for all that are equal, whose messages share equal paths instead.

    Raises:
        TopoplanError: the plan has no strategy, or is none of the problem: its memory, or its network.
    """
    if plan.strategy is None:
        raise TopoplanError(f"{problem.name}: the plan has no strategy")
    state = State(plan.strategy, plan.fabric)
    return _repriced(_setup(problem, host), state, problem.setting.run.seed, f"{problem.name}: the plan")


def _setup(problem: BenchmarkProblem, host: Host) -> SearchSetup:
    return set_up_search(host, problem.experiment(["random"], budget=0, seed=0))


def _bound(setup: SearchSetup) -> float:
    # Simulators that do not say what their messages are may send small ones in fewer bytes.
    on_the_wire = getattr(setup.simulator, "transport", "") == "wire"
    message_seconds = least_message_seconds(setup.problem, setup.simulate)
    return lower_bound(setup.problem, message_seconds, on_the_wire=on_the_wire).seconds


def _repriced(setup: SearchSetup, state: State, seed: int, what: str) -> float:
    """Return the mean seconds of a state over the draws that are reported; ``seed`` drew what the topology draws.

    Raises:
        TopoplanError: devices cannot hold it, or its fabric is none that the problem's network can be; ``what`` is the
            beginning of the message.
    """
    problem = setup.problem
    if not setup.evaluator.fits(state.strategy):
        raise TopoplanError(f"{what}: its strategy does not fit into the memory of the devices")
    own_fabric = first_state(setup.evaluator, state.strategy, np.random.default_rng(seed).spawn(1)[0]).fabric
    if problem.reconfigurable:
        try:
            check_rewired(state.fabric, own_fabric, problem.cluster)
        except TopoplanError as error:
            raise TopoplanError(f"{what}: its network cannot be built: {error}") from None
    elif state.fabric.key != own_fabric.key:
        raise TopoplanError(f"{what}: its network is not the one that topology {problem.topology!r} builds")
    return float(mean_trial(setup.evaluator, state).cost - setup.evaluator.penalty(state.strategy))


def _plan_path(folder: Path, problem: BenchmarkProblem) -> Path:
    return folder / "plans" / f"{problem.name}.json.gz"


def _packed(plan: Plan, record: Mapping[str, Any], host: Host) -> bytes:
    """Return model, strategy, fabric, cluster and provenance of a plan; equal ones give equal bytes."""
    bare = attrs.evolve(without_tasks(plan), provenance=_without_folders(record))
    return gzip.compress(host.make(Exporter, "json").write(bare), mtime=0)


def _without_folders(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a provenance whose files have names alone; they come with the package, wherever it is."""
    files = record.get("inputs", {})

    def bare(value: Any) -> Any:
        return Path(value).name if isinstance(value, str) and value in files else value

    components = [
        {**part, "options": {key: bare(value) for key, value in part["options"].items()}}
        for part in record["components"]
    ]
    return {**record, "components": components, "inputs": {bare(name): digest for name, digest in files.items()}}


def _write_table(folder: Path, rows: dict[str, BestKnown]) -> None:
    """Write the table, in the order of the names."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [field.name for field in attrs.fields(BestKnown)]
    writer.writerow(names)
    for name in sorted(rows):
        writer.writerow([repr(value) if isinstance(value, float) else value for value in attrs.astuple(rows[name])])
    write_file(folder / _TABLE, text.getvalue().encode())
