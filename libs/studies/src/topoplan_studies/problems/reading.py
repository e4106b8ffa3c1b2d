"""Files of benchmark problems: TOML in, experiments without searchers out.

A file holds tables ``[[problem]]`` with a name, a kind, a source and the sections of an experiment, and machines that
several problems share, as ``[machine.NAME]``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import attrs

from topoplan.errors import TopoplanError, nearest, shown
from topoplan.options import option, structure
from topoplan_engine.experiment import Choice, Experiment, experiment_from_document
from topoplan_engine.tomlfiles import read_toml

__all__ = ["STANDARD", "BenchmarkProblem", "named_problems", "read_problems", "standard_problems"]

#: Name of the set that comes with this package.
STANDARD = "standard"
_FILE = Path(__file__).with_name("standard.toml")
#: In options of models: the folder of files beside the set.
_FOLDER = "{files}"
_COMPONENTS = ("model", "topology", "estimator", "simulator")
_RUN = ("batch-size", "precision")


@attrs.frozen(kw_only=True)
class _Header:
    """The keys of a problem that are no section of an experiment."""

    name: str = option("", help="one word")
    kind: Literal["placement", "spmd", "pipeline"] = option(
        "placement", help="the kind of plan that systems make of it"
    )
    source: str = option("", help="where it comes from")
    machine: str = option("", help="a table [machine.NAME]")
    large: bool = option(False, help="2,000 evaluations take more than half a minute on one core")


@attrs.frozen(kw_only=True)
class BenchmarkProblem:
    """A model on a machine and a network, to search a plan for.

    Attributes:
        name: of the problem, one word.
        kind: the kind of plan that systems make of the model: placements of its operators, an SPMD program,
            or a pipeline.  Every searcher may be tried on every problem all the same.
        source: publication or library that the configuration is from.
        large: 2,000 evaluations of `mcmc` take more than half a minute on one core.
        setting: the experiment without what is compared: it has default searchers, budget and seed.
    """

    name: str
    kind: Literal["placement", "spmd", "pipeline"]
    source: str
    large: bool
    setting: Experiment

    def experiment(self, searchers: Sequence[str | Choice], *, budget: int, seed: int) -> Experiment:
        """Return the experiment of these searchers, which take turns, on this problem.

        The seed draws what the searchers draw, and the first wiring of a topology that draws one.  Times that are
        compared are means over draws of equal paths that no search has seen (`topoplan_engine.search.draws`).
        """
        return attrs.evolve(
            self.setting,
            searchers=tuple(searchers),
            run=attrs.evolve(self.setting.run, budget=budget, seed=seed),
        )


@cache
def standard_problems() -> tuple[BenchmarkProblem, ...]:
    """Return the problems of the set that comes with this package, in its order."""
    return read_problems(_FILE)


def read_problems(path: Path) -> tuple[BenchmarkProblem, ...]:
    """Read a file of problems.

    Raises:
        TopoplanError: it cannot be read, or something in it is wrong; the message names the key.
    """
    document = read_toml(path)
    for key in document:
        if key not in ("problem", "machine"):
            raise TopoplanError(f"{path}: no section {shown(key)}{nearest(key, ('problem', 'machine'))}")
    tables, machines = document.get("problem", []), document.get("machine", {})
    if not isinstance(tables, list) or not tables:
        raise TopoplanError(f"{path}: needs at least one [[problem]]")
    if not isinstance(machines, dict):
        raise TopoplanError(f"{path}: machine: must be tables [machine.NAME]")
    problems = tuple(_problem(table, machines, path, f"{path}: problem[{i}]") for i, table in enumerate(tables))
    names = [problem.name for problem in problems]
    for name in names:
        if names.count(name) > 1:
            raise TopoplanError(f"{path}: problem: {shown(name)} is there twice (give each a name of its own)")
    return problems


def named_problems(
    names: Sequence[str], problems: Sequence[BenchmarkProblem] | None = None
) -> tuple[BenchmarkProblem, ...]:
    """Return problems by their names; ``standard`` means all of the standard set, a kind all of that kind.

    Args:
        names: of problems, kinds, or ``standard``; what is named twice is there once.
        problems: to choose from; the standard set unless given.

    Raises:
        TopoplanError: there is no such problem.
    """
    every_problem = standard_problems() if problems is None else problems
    chosen: dict[str, BenchmarkProblem] = {}
    for name in names:
        chosen_now = [problem for problem in every_problem if name in (STANDARD, problem.name, problem.kind)]
        if not chosen_now:
            choices = [STANDARD, *dict.fromkeys(p.kind for p in every_problem), *(p.name for p in every_problem)]
            raise TopoplanError(f"no benchmark problem {shown(name)}{nearest(name, choices)}")
        chosen |= {problem.name: problem for problem in chosen_now}
    return tuple(chosen.values())


def _problem(table: Any, machines: Mapping[str, Any], path: Path, where: str) -> BenchmarkProblem:
    if not isinstance(table, dict):
        raise TopoplanError(f"{where}: must be a table [[problem]]")
    keys = [field.name for field in attrs.fields(_Header)]
    header = structure(_Header, {key: value for key, value in table.items() if key in keys}, where)
    for key in table:
        if key not in (*keys, *_COMPONENTS, *_RUN):
            raise TopoplanError(f"{where}: no key {shown(key)}{nearest(key, (*keys, *_COMPONENTS, *_RUN))}")
    if not header.name:
        raise TopoplanError(f"{where}: needs a name")
    if header.machine not in machines:
        raise TopoplanError(f"{where}: machine: no [machine.{header.machine}]{nearest(header.machine, machines)}")
    document: dict[str, Any] = {key: table[key] for key in _COMPONENTS if key in table}
    if isinstance(document.get("model"), dict):
        document["model"] = {key: _with_folder(value, path) for key, value in document["model"].items()}
    document["cluster"] = machines[header.machine]
    document["run"] = {key: table[key] for key in _RUN if key in table}
    return BenchmarkProblem(
        name=header.name,
        kind=header.kind,
        source=header.source,
        large=header.large,
        setting=experiment_from_document(document, where),
    )


def _with_folder(value: Any, path: Path) -> Any:
    return value.replace(_FOLDER, str(path.with_name("files"))) if isinstance(value, str) else value
