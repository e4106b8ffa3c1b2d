"""``topoplan profile fit``: a roofline fitted to a table of operator times, and its error on operators held out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import attrs
import typer

from topoplan import TopoplanError
from topoplan.options import SEEDS, option
from topoplan_command_profile.calibration import Errors, Rates, errors, errors_by_kind, fit_rates, held_out, passes_of
from topoplan_engine.flags import AsJson
from topoplan_operator_times.table import Table, read

__all__ = ["RooflineFit", "fit_roofline", "fit_table"]


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
        fitted = fit_roofline(measured, fit.hold_out, fit.seed)
    except TopoplanError as error:
        raise TopoplanError(f"{table}: {error}") from None
    if as_json:
        result = {
            "bench": attrs.asdict(measured.bench),
            "in_sample": attrs.asdict(fitted.in_sample),
            "held_out": attrs.asdict(fitted.held_out),
            "by_kind": {kind: attrs.asdict(error) for kind, error in fitted.by_kind.items()},
            "fit": attrs.asdict(fitted.rates),
            "option": _option(fitted.rates),
        }
        typer.echo(json.dumps(result, indent=2))
        return
    typer.echo(f"{table}: {fitted.passes} passes of {fitted.operators} operators on {measured.bench}")
    typer.echo(f"relative error, fitted operators:  {_text(fitted.in_sample)}")
    typer.echo(f"relative error, held-out operators: {_text(fitted.held_out)}")
    for kind, of_kind in fitted.by_kind.items():
        typer.echo(f"  fit to all, {kind}: {_text(of_kind)}")
    typer.echo(f"to plan with the fit to all operators: {_option(fitted.rates)}")


@attrs.frozen(kw_only=True)
class RooflineFit:
    """A roofline fitted to measured times.

    Attributes:
        rates: of the fit to all passes.
        in_sample, held_out: errors of a fit without the operators held out, on its own passes and on those of the
            operators held out.
        by_kind: errors of the fit to all, by kind of operator.
        passes, operators: how many there are.
    """

    rates: Rates
    in_sample: Errors
    held_out: Errors
    by_kind: Mapping[str, Errors]
    passes: int
    operators: int


def fit_roofline(table: Table, hold_out: float = 0.25, seed: int = 0) -> RooflineFit:
    """Fit a roofline to a table of times (`topoplan_operator_times.table.read`).

    Args:
        table: that `profile_operators` filled.
        hold_out: share of the operators held out of the fit, on which its errors are reported.
        seed: of the draw of these operators.

    Raises:
        TopoplanError: the table has too few passes, or one operator alone.
    """
    passes = passes_of(table.rows.values())
    apart = held_out(passes, hold_out, seed)
    sample = passes.choose(~apart)
    rates, final = fit_rates(sample), fit_rates(passes)
    return RooflineFit(
        rates=final,
        in_sample=errors(rates, sample),
        held_out=errors(rates, passes.choose(apart)),
        by_kind=errors_by_kind(final, passes),
        passes=len(passes.operators),
        operators=len(set(passes.operators)),
    )


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
