"""``topoplan sensitivity``: how much a wrong profile costs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import attrs
import typer

from topoplan.errors import TopoplanError
from topoplan.options import option
from topoplan_engine.flags import AsJson, Flags
from topoplan_engine.options import RunOptions

if TYPE_CHECKING:
    from topoplan.model.plan import Plan
    from topoplan.plugin.host import Host
    from topoplan_command_sensitivity.sensitivity import PerturbationResult, SensitivityAnalysis
    from topoplan_engine.experiment import Experiment
    from topoplan_engine.perturbation import Perturbation
    from topoplan_engine.reporting.tables import RowTable

__all__ = ["SensitivityOptions", "sensitivity"]


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
    seeds: int = option(3, help="runs with each perturbation: of the noise, and of the search", minimum=1)

    def __attrs_post_init__(self) -> None:
        if any(noise >= 1 for noise in self.compute_noise):
            raise TopoplanError(f"--compute-noise: {max(self.compute_noise)} is too large (less than 1)")

    def perturbations(self) -> list[Perturbation]:
        """Return all, true costs first."""
        from topoplan_engine.perturbation import Perturbation

        return [
            Perturbation(),
            *(Perturbation(compute_noise=noise) for noise in self.compute_noise),
            *(Perturbation(communication_scale=scale) for scale in self.communication_scale),
        ]


def sensitivity(
    file: Annotated[str, typer.Argument(help="Plan (.json), or experiment in TOML.")],
    perturbation: SensitivityOptions,
    run: Annotated[Mapping[str, Any], Flags(of=RunOptions, only=("budget",), unset="the file's")],
    as_json: AsJson = False,
) -> None:
    """Plan under perturbed costs, and price what is found under the true ones."""
    from topoplan.plugin.host import Host
    from topoplan_command_sensitivity.sensitivity import sensitivity as analysis_of
    from topoplan_engine.reporting.notice import compilation_announced
    from topoplan_engine.reporting.progress import parts_shown

    host = Host.discover()
    plan, experiment = _read(Path(file), host)
    experiment = attrs.evolve(experiment, run=attrs.evolve(experiment.run, **run))
    perturbations, seeds = perturbation.perturbations(), perturbation.seeds
    with compilation_announced(), parts_shown("searching", len(perturbations) * seeds + 1, quiet=as_json) as report:
        analysis = analysis_of(experiment, perturbations, seeds=seeds, plan=plan, host=host, on_progress=report)
    _show(
        analysis,
        f"{experiment.model.name}, {'+'.join(choice.name for choice in experiment.searchers)}",
        as_json=as_json,
    )
    if analysis.interrupted:
        typer.echo(f"interrupted: {sum(len(row.seeds) for row in analysis.results)} searches are finished", err=True)
        raise typer.Exit(130)


def _read(file: Path, host: Host) -> tuple[Plan | None, Experiment]:
    """Read a plan, with the experiment that made it, or an experiment alone."""
    from topoplan_command_sensitivity.provenance import experiment_of
    from topoplan_engine.experiment import experiment_from_toml
    from topoplan_engine.exporting import read_plan

    if file.suffix == ".toml":
        return None, experiment_from_toml(file)
    plan = read_plan(host, file)
    return plan, experiment_of(plan, str(file))


def _show(analysis: SensitivityAnalysis, title: str, *, as_json: bool) -> None:
    """Print what is finished."""
    if as_json:
        from topoplan_engine.reporting.printing import print_json

        rows = [
            {
                "compute_noise": row.perturbation.compute_noise,
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
                "iteration_time_s": analysis.reference,
                "fits": analysis.fits,
                "rows": rows,
                "interrupted": analysis.interrupted,
            }
        )
        return
    if not analysis.results:
        return
    marked = "" if analysis.fits else ", which DOES NOT FIT"
    _table(analysis).print(f"{title}: {analysis.reference * 1e3:.4f} ms with true costs{marked}")


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
