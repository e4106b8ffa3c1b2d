"""``topoplan sensitivity``: how much a wrong profile costs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from topoplan.errors import TopoplanError

if TYPE_CHECKING:
    from topoplan_command_sensitivity.sensitivity import Study
    from topoplan_engine.perturbation import Perturbation

__all__ = ["application"]


def application() -> typer.Typer:
    """Make the typer application."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command("sensitivity")(sensitivity)
    return app


def sensitivity(
    file: Path = typer.Argument(help="Plan (.json), or experiment in TOML."),
    compute_noise: str = typer.Option(
        "0.2,0.5", metavar="SHARE,...", help="Compute times of operators times factors this far from 1 at most."
    ),
    communication_scale: str = typer.Option(
        "0.5,0.8,1.25,2", metavar="FACTOR,...", help="All bandwidths times this factor."
    ),
    seeds: int = typer.Option(3, help="Runs with each perturbation: of the noise, and of the search."),
    budget: int = typer.Option(None, help="Candidates to price in each run; the file's unless given."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object and nothing else."),
) -> None:
    """Plan under perturbed costs, and price what is found under the true ones."""
    import attrs

    from topoplan.plugin.host import Host
    from topoplan_command_sensitivity.repeating import experiment_of
    from topoplan_command_sensitivity.sensitivity import sensitivity as study_of
    from topoplan_engine.experiment import experiment_from_toml
    from topoplan_engine.exporting import read_plan
    from topoplan_engine.perturbation import Perturbation
    from topoplan_engine.reporting.notice import compilation_announced
    from topoplan_engine.reporting.progress import parts_shown

    noises = _numbers(compute_noise, "--compute-noise", 0.0, 1.0, "between 0 and 1")
    scales = _numbers(communication_scale, "--communication-scale", 0.0, float("inf"), "more than 0")
    if seeds < 1:
        raise TopoplanError(f"--seeds {seeds}: at least 1")
    if budget is not None and budget < 0:
        raise TopoplanError(f"--budget {budget}: at least 0")
    host = Host.discover()
    plan = None
    if file.suffix == ".toml":
        experiment = experiment_from_toml(file)
    else:
        plan = read_plan(host, file)
        experiment = experiment_of(plan, str(file))
    if budget is not None:
        experiment = attrs.evolve(experiment, run=attrs.evolve(experiment.run, budget=budget))
    perturbations: list[Perturbation] = [
        Perturbation(),
        *(Perturbation(compute_noise=noise) for noise in noises),
        *(Perturbation(communication_scale=scale) for scale in scales),
    ]
    with compilation_announced(), parts_shown("searching", len(perturbations) * seeds + 1, quiet=as_json) as report:
        study = study_of(experiment, perturbations, seeds=seeds, plan=plan, host=host, on_progress=report)
    _show(study, f"{experiment.model.name}, {'+'.join(one.name for one in experiment.searchers)}", as_json=as_json)
    if study.interrupted:
        typer.echo(f"interrupted: {sum(len(row.seeds) for row in study.rows)} searches are finished", err=True)
        raise typer.Exit(130)


def _numbers(text: str, flag: str, above: float, below: float, right: str) -> list[float]:
    """Read numbers between two others, which they must not reach; an empty text is none of them."""
    found = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        try:
            number = float(word)
        except ValueError:
            number = above
        if not above < number < below:
            raise TopoplanError(f"{flag} {text!r}: {word!r} must be a number {right}")
        found.append(number)
    return found


def _show(study: Study, title: str, *, as_json: bool) -> None:
    """Print what is finished."""
    if as_json:
        from topoplan_engine.reporting.report import print_json

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
            for row in study.rows
        ]
        print_json(
            {"iteration_time_s": study.reference, "fits": study.fits, "rows": rows, "interrupted": study.interrupted}
        )
        return
    if not study.rows:
        return
    from rich.console import Console
    from rich.table import Table

    marked = "" if study.fits else ", which DOES NOT FIT"
    grid = Table(title=f"{title}: {study.reference * 1e3:.4f} ms with true costs{marked}", title_justify="left")
    for header in ("perturbation", "seeds", "mean slowdown", "worst slowdown"):
        grid.add_column(header, justify="left" if header == "perturbation" else "right")
    for row in study.rows:
        grid.add_row(str(row.perturbation), str(len(row.seeds)), _slowdown(row.mean), _slowdown(row.worst))
    Console(markup=False, emoji=False).print(grid)


def _slowdown(value: float) -> str:
    """Return a slowdown as text; infinite ones are those of plans that do not fit."""
    return f"{value:.4f}" if value < float("inf") else "DOES NOT FIT"
