"""A roofline fitted to times: constants that made them are found again, and errors are those of unseen operators."""

from __future__ import annotations

import json

import attrs
import numpy as np
import pytest

from topoplan import Host, TopoplanError
from topoplan.cli import main
from topoplan_command_profile.calibration import Rates, errors, errors_by_kind, fit_rates, held_out, passes_of
from topoplan_command_profile.device_command import hidup_flops
from topoplan_operator_times.parts import PartShape
from topoplan_operator_times.table import Bench, PartTimes, Table, Times, Work, write
from topoplan_operators import GraphBuilder

TRUE = Rates(flops=2e12, bandwidth=3e11, overhead=5e-6)


def rows(rates=TRUE, noise=0.0, count=24):
    """Parts of some operators whose times a roofline gives, but for a factor."""
    rng = np.random.default_rng(1)
    table = {}
    for k in range(count):
        flops, traffic = 10 ** rng.uniform(6, 12), 10 ** rng.uniform(4, 9)
        shape = PartShape(
            kind="linear" if k % 2 else "add", sizes=(k,), inputs=(), weights=(), outputs=(), gradients=()
        )

        def times(multiple, flops=flops, traffic=traffic):
            seconds = max(flops * multiple / rates.flops, traffic * multiple / rates.bandwidth)
            median = (seconds + rates.overhead * multiple) * float(np.exp(noise * rng.normal()))
            return Times(median, median, median)

        work = Work(flops=flops, traffic=traffic, backward=(2, 2, 2))
        table[shape] = PartTimes(
            operator=f"m/op{k // 2}", shape=shape, work=work, repeats=1, forward=times(1), backward=times(2)
        )
    return table


def test_the_constants_that_made_the_times_are_found_again():
    fitted = fit_rates(passes_of(rows().values()))
    for constant, true in zip(attrs.astuple(fitted), attrs.astuple(TRUE), strict=True):
        assert constant == pytest.approx(true, rel=0.02)


def test_noise_is_the_error_that_is_reported():
    passes = passes_of(rows(noise=0.1, count=60).values())
    error = errors(fit_rates(passes), passes)
    assert 0.03 < error.median < 0.12
    assert error.median < error.decile < 0.3
    assert set(errors_by_kind(TRUE, passes)) == {"linear", "add"}


def test_whole_operators_are_held_out_and_a_seed_draws_them():
    passes = passes_of(rows().values())
    apart = held_out(passes, 0.25, 0)
    names = np.array(passes.operators)
    assert not set(names[apart]) & set(names[~apart])
    assert len(set(names[apart])) == 3
    assert (apart == held_out(passes, 0.25, 0)).all()
    assert any((apart != held_out(passes, 0.25, seed)).any() for seed in (1, 2, 3))


def test_parts_without_times_do_not_count():
    table = rows(count=8)
    shape = next(iter(table))
    table[shape] = attrs.evolve(table[shape], forward=None, backward=None)
    assert len(passes_of(table.values()).seconds) == 14
    with pytest.raises(TopoplanError, match="has 2 timed passes"):
        passes_of(list(table.values())[1:2])


def test_the_command_prints_options_and_errors(tmp_path, capsys):
    path = tmp_path / "t.json"
    write(path, Table(Bench("some processor", "2.9", 2, "fp32"), rows()))

    def run(*words):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["profile", "fit", str(path), *words])
        return ended.value.code or 0, *capsys.readouterr()

    status, out, err = run()
    assert (status, err) == (0, "")
    assert "-e roofline:compute-tflops=2" in out
    assert "held-out operators: median 0." in out
    result = json.loads(run("--json")[1])
    assert result["held_out"]["count"] == 12
    assert result["held_out"]["median"] < 0.02
    write(path, Table(Bench("some processor", "2.9", 2, "fp32"), {}))
    status, out, err = run()
    assert (status, out) == (2, "")
    assert err == f"error: {path}: has 0 timed passes (a roofline needs 6 at least)\n"


def test_flops_of_hidup_are_those_of_its_estimator():
    builder = GraphBuilder("m", 4)
    builder.relu(builder.linear(builder.input((8,)), 16))
    assert hidup_flops(Host.discover(), builder.build()) == 3 * 4 * 8 * 16 + 4 * 16
