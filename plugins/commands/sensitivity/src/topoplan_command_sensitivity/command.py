"""``topoplan sensitivity``: how much a wrong profile costs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import attrs
import typer

from topoplan.errors import TopoplanError
from topoplan.options import option
from topoplan_engine.flags import AllowCode, AsJson, Flags
from topoplan_engine.options import RunOptions

if TYPE_CHECKING:
    from topoplan.model.plan import Plan
    from topoplan.plugin.host import Host
    from topoplan_command_sensitivity.analysis import PerturbationResult, PricedBy, SensitivityAnalysis
    from topoplan_engine.experiment import Experiment
    from topoplan_engine.perturbation import Perturbation
    from topoplan_engine.reporting.tables import RowTable

__all__ = ["SensitivityOptions", "sensitivity"]

#: Why all plans may cost the same, and what then tells them apart.
_ALIKE = {
    "simulator": (
        "warning: all plans cost the same, so this study says nothing about wrong costs: the simulator finds the "
        "network too fast to tell them apart (plan on a slower one: more hosts, --interface-bandwidth-gbps; or price "
        "by --priced-by planner, with searcher hidup)"
    ),
    "planner": (
        "warning: all plans cost the same, so this study says nothing about wrong costs (larger perturbations, or a "
        "slower network, may tell them apart)"
    ),
    "stated": (
        "warning: all plans cost the same, so this study says nothing about wrong costs: searcher stated proposes the "
        "one plan that users state, whatever costs are (begin with a plan that is searched, e.g. -s hybrid)"
    ),
}


@attrs.frozen(kw_only=True)
class SensitivityOptions:
    """By how much costs are wrong, and how often each is tried."""

    compute_noise: tuple[float, ...] = option(
        (0.2, 0.5),
        help="compute times of operators times factors this far from 1 at most; below 1",
        above=0,
        metavar="SHARE,...",
    )
    communication_scale: tuple[float, ...] = option(
        (0.5, 0.8, 1.25, 2.0), help="all bandwidths times this factor", above=0, metavar="FACTOR,..."
    )
    profile_noise: tuple[float, ...] = option(
        (),
        help="every number of the estimator's profile times a factor this far from 1 at most, as in HiDup; below 1",
        above=0,
        metavar="SHARE,...",
    )
    priced_by: Literal["simulator", "planner"] = option(
        "simulator", help="plans cost their simulated time, or the planner's own objective (searcher hidup)"
    )
    more: float | None = option(
        None,
        help="what so much more bandwidth, compute or memory would bring to the plan, and to one planned for it; in "
        "place of wrong costs; unset: no",
        unit="%",
        above=0,
        maximum=1000,
    )
    seeds: int = option(3, help="runs with each perturbation: of the noise, and of the search", minimum=1)

    def __attrs_post_init__(self) -> None:
        for name, noises in (("compute", self.compute_noise), ("profile", self.profile_noise)):
            if any(noise >= 1 for noise in noises):
                raise TopoplanError(f"--{name}-noise: {max(noises)} is too large (less than 1)")

    def perturbations(self) -> list[Perturbation]:
        """Return all, true costs first."""
        from topoplan_engine.perturbation import Perturbation

        return [
            Perturbation(),
            *(Perturbation(compute_noise=noise) for noise in self.compute_noise),
            *(Perturbation(profile_noise=noise) for noise in self.profile_noise),
            *(Perturbation(communication_scale=scale) for scale in self.communication_scale),
        ]


def sensitivity(
    file: Annotated[str, typer.Argument(help="Plan (.json), or experiment in TOML.")],
    perturbation: SensitivityOptions,
    run: Annotated[Mapping[str, Any], Flags(of=RunOptions, only=("budget",), unset="the file's")],
    allow_code: AllowCode = False,
    as_json: AsJson = False,
) -> None:
    """Plan under perturbed costs, and price what is found under the true ones."""
    from topoplan.plugin.host import Host
    from topoplan_command_sensitivity.analysis import sensitivity as analysis_of
    from topoplan_engine.reporting.notice import compilation_announced
    from topoplan_engine.reporting.progress import parts_shown

    host = Host.discover()
    plan, experiment = _read(Path(file), host, allow_code)
    experiment = attrs.evolve(experiment, run=attrs.evolve(experiment.run, **run))
    if perturbation.more is not None:
        _show_more(experiment, plan, perturbation.more, host, as_json=as_json)
        return
    perturbations, seeds = perturbation.perturbations(), perturbation.seeds
    with compilation_announced(), parts_shown("searching", len(perturbations) * seeds + 1, quiet=as_json) as report:
        analysis = analysis_of(
            experiment,
            perturbations,
            seeds=seeds,
            plan=plan,
            priced_by=perturbation.priced_by,
            host=host,
            on_progress=report,
        )
    searchers = "+".join(choice.name for choice in experiment.searchers)
    _show(analysis, f"{experiment.model.name}, {searchers}", perturbation.priced_by, as_json=as_json)
    if analysis.alike and not as_json:
        typer.echo(_ALIKE["stated" if searchers == "stated" else perturbation.priced_by], err=True)
    if analysis.interrupted:
        typer.echo(f"interrupted: {sum(len(row.seeds) for row in analysis.results)} searches are finished", err=True)
        raise typer.Exit(130)


def _show_more(experiment: Experiment, plan: Plan | None, percent: float, host: Host, *, as_json: bool) -> None:
    """Search and print what more of each resource would bring."""
    from topoplan_command_sensitivity.more import RESOURCES, more_json, more_of_each, more_table
    from topoplan_engine.reporting.notice import compilation_announced
    from topoplan_engine.reporting.printing import print_json
    from topoplan_engine.reporting.progress import parts_shown

    with compilation_announced(), parts_shown("searching", RESOURCES + 1, quiet=as_json) as report:
        rows = more_of_each(experiment, plan, percent / 100, host, report)
    if as_json:
        print_json({"more_percent": percent, "rows": more_json(rows)})
    elif rows:
        more_table(rows).print(f"{experiment.model.name}: an iteration with more of each")


def _read(file: Path, host: Host, allow_code: bool) -> tuple[Plan | None, Experiment]:
    """Read a plan, with the experiment that made it, or an experiment alone."""
    from topoplan_command_sensitivity.provenance import check_inputs, experiment_of
    from topoplan_engine.experiment import experiment_from_toml
    from topoplan_engine.exporting import read_plan

    if file.suffix == ".toml":
        return None, experiment_from_toml(file, allow_code=allow_code)
    plan = read_plan(host, file)
    experiment = experiment_of(plan, str(file), allow_code=allow_code, host=host)
    check_inputs(plan, experiment, str(file), host)
    return plan, experiment


def _show(analysis: SensitivityAnalysis, title: str, priced_by: PricedBy, *, as_json: bool) -> None:
    """Print what is finished."""
    if as_json:
        from topoplan_engine.reporting.printing import print_json

        rows = [
            {
                "compute_noise": row.perturbation.compute_noise,
                "profile_noise": row.perturbation.profile_noise,
                "communication_scale": row.perturbation.communication_scale,
                "seeds": list(row.seeds),
                "seconds": list(row.seconds),
                "fits": list(row.fits),
                "slowdowns": list(row.slowdowns),
                "mean_slowdown": row.mean,
                "worst_slowdown": row.worst,
            }
            for row in analysis.results
        ]
        print_json(
            {
                "priced_by": priced_by,
                "iteration_time_s": analysis.reference if priced_by == "simulator" else None,
                "objective": analysis.reference if priced_by == "planner" else None,
                "all_alike": analysis.alike,
                "fits": analysis.fits,
                "rows": rows,
                "interrupted": analysis.interrupted,
            }
        )
        return
    if not analysis.results:
        return
    marked = "" if analysis.fits else ", which DOES NOT FIT"
    reference = f"{analysis.reference * 1e3:.4f} ms"
    if priced_by == "planner":
        reference = f"the planner's objective is {analysis.reference:.6g}"
    _table(analysis).print(f"{title}: {reference} with true costs{marked}")


def _table(analysis: SensitivityAnalysis) -> RowTable[PerturbationResult]:
    from topoplan_engine.reporting.tables import Column, RowTable

    return RowTable(
        [
            Column("perturbation", lambda result: str(result.perturbation), names_rows=True),
            Column("seeds", lambda result: str(len(result.seeds))),
            Column("mean slowdown", lambda result: _slowdown(result.mean)),
            Column("worst slowdown", lambda result: _slowdown(result.worst)),
        ],
        analysis.results,
    )


def _slowdown(value: float) -> str:
    """Return a slowdown as text; infinite ones are those of plans that do not fit."""
    return f"{value:.4f}" if value < float("inf") else "DOES NOT FIT"
