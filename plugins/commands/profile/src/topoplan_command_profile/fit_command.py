"""``topoplan profile fit``: a roofline fitted to a table of operator times, and its error on operators held out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import attrs
import typer

from topoplan import TopoplanError
from topoplan.options import SEEDS, option
from topoplan_command_profile.calibration import Errors, Rates, errors, errors_by_kind, fit_rates, held_out, passes_of
from topoplan_engine.flags import AsJson
from topoplan_operator_times.table import read

__all__ = ["fit_table"]


@attrs.frozen(kw_only=True)
class FitOptions:
    """Which operators are held out."""

    hold_out: float = option(
        0.25, help="share of the operators that the fit does not see", above=0, maximum=0.9, metavar="SHARE"
    )
    seed: int = option(0, help="of the draw of these operators", minimum=0, maximum=SEEDS)


def fit_table(
    table: Annotated[str, typer.Argument(help="Table of times that `topoplan profile operators` wrote.")],
    fit: FitOptions,
    as_json: AsJson = False,
) -> None:
    """Fit a roofline to measured operators; print its options, and its error on operators that it did not see.

    The error is that of a fit to the other operators. The options printed are those of a fit to all of them.
    """
    measured = read(Path(table))
    try:
        passes = passes_of(measured.rows.values())
        apart = held_out(passes, fit.hold_out, fit.seed)
        fitted = passes.choose(~apart)
        rates, final = fit_rates(fitted), fit_rates(passes)
    except TopoplanError as error:
        raise TopoplanError(f"{table}: {error}") from None
    inside, outside = errors(rates, fitted), errors(rates, passes.choose(apart))
    if as_json:
        result = {
            "bench": attrs.asdict(measured.bench),
            "in_sample": attrs.asdict(inside),
            "held_out": attrs.asdict(outside),
            "by_kind": {kind: attrs.asdict(error) for kind, error in errors_by_kind(final, passes).items()},
            "fit": attrs.asdict(final),
            "option": _option(final),
        }
        typer.echo(json.dumps(result, indent=2))
        return
    typer.echo(f"{table}: {len(passes.operators)} passes of {len(set(passes.operators))} operators on {measured.bench}")
    typer.echo(f"relative error, fitted operators:  {_text(inside)}")
    typer.echo(f"relative error, held-out operators: {_text(outside)}")
    for kind, of_kind in errors_by_kind(final, passes).items():
        typer.echo(f"  fit to all, {kind}: {_text(of_kind)}")
    typer.echo(f"to plan with the fit to all operators: {_option(final)}")


def _option(rates: Rates) -> str:
    """Return the fit as an option of commands."""
    values = {
        "compute-tflops": rates.flops / 1e12,
        "memory-gb-per-s": rates.bandwidth / 1e9,
        "kernel-overhead-us": rates.overhead * 1e6,
    }
    return "-e roofline:" + ",".join(f"{key}={value:.4g}" for key, value in values.items())


def _text(error: Errors) -> str:
    return f"median {error.median:.1%}, ninth decile {error.decile:.1%} ({error.count} passes)"
