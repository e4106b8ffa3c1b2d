"""Bytes of runs that were measured, beside those that are predicted."""

from __future__ import annotations

import attrs
import pytest

from topoplan import TopoplanError
from topoplan_llm_measurements.groups.simumax import SIMUMAX_MEMORY
from topoplan_llm_measurements.judging import judge
from topoplan_llm_measurements.prediction import Predictor
from topoplan_llm_measurements.stacks import stacks
from topoplan_llm_measurements.tables import own_table

CASE = {
    "case": "llama3_8b_cef",
    "model": "llama3_8b",
    "layers": "2",
    "gpus": "8",
    "tp": "2",
    "pp": "1",
    "cp": "1",
    "dp_by_product": "4",
    "micro_batches": "4",
    "seq_len": "4096",
    "measured_alloc_gib": "20",
}


def worst_of(rows):
    """Errors in percent, the lowest first."""
    table = own_table(SIMUMAX_MEMORY)
    judged = judge(attrs.evolve(table, rows=rows(table.rows)), stacks(), Predictor())
    assert not judged.refused
    return sorted(row.error_percent for row in judged.rows)


def test_megatron_on_one_host():
    """One run of a mixture of experts with latent attention, and one with tensor parallelism."""
    chosen = "deepseekv3_l4_tp1_ep4_pp2_dp4_mbc4_cef", "llama3_405b_l4_tp8_pp1_dp1_mbc4_cef"
    lowest, highest = worst_of(lambda rows: tuple(row for row in rows if row.name in chosen))
    assert -1 < lowest <= highest < 0.5


@pytest.mark.slow
def test_megatron_on_one_host_in_all_runs():
    """Runs that differ in their micro-batches alone have the same bytes."""
    errors = worst_of(lambda rows: tuple(row for row in rows if "_mbc4_" in row.name))
    assert -3 < errors[0] <= errors[-1] < 0.5
    assert sum(map(abs, errors)) / len(errors) < 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "llama3_7b"}, r"model: 'llama3_7b' is not known.*llama3_70b"),
        ({"case": "llama3_8b_mbc4"}, "case: 'llama3_8b_mbc4': the loss is not fused"),
        ({"gpus": "4"}, "tp 2 x pp 1 x cp 1 x dp_by_product 4 = 8, not 4 gpus"),
        ({"measured_alloc_gib": ""}, "measured_alloc_gib: is empty"),
    ],
)
def test_a_row_that_says_no_run_is_refused(change, message):
    with pytest.raises(TopoplanError, match=message):
        SIMUMAX_MEMORY.row({**CASE, **change})


def test_names_of_cases_say_what_runs_again():
    for words, again in {"": "none", "full_recompute_": "full", "selective_recompute_": "selective"}.items():
        assert SIMUMAX_MEMORY.row({**CASE, "case": f"llama3_8b_{words}cef"}).run.plan["recompute"] == again
