"""Bytes of runs that were measured, beside those that are predicted."""

from __future__ import annotations

import attrs
import pytest

from topoplan import TopoplanError
from topoplan_llm_measurements.groups.simumax import SIMUMAX_MEMORY
from topoplan_llm_measurements.groups.torchtitan_memory import TORCHTITAN_MEMORY
from topoplan_llm_measurements.groups.zero_bubble import ZERO_BUBBLE_MEMORY
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


def worst_of(rows, group=SIMUMAX_MEMORY):
    """Errors in percent, the lowest first."""
    table = own_table(group)
    judged = judge(attrs.evolve(table, rows=rows(table.rows)), stacks(), Predictor())
    assert judged.refused == table.refused, "rows without bytes alone"
    return sorted(row.error_percent for row in judged.rows)


@pytest.mark.slow
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


@pytest.mark.slow
def test_zero_bubble_in_1f1b():
    """The first of the rows of 1F1B: GPT 1.5B in eight stages, whose second one is the fullest."""
    (error,) = worst_of(lambda rows: rows[24:25], ZERO_BUBBLE_MEMORY)
    assert -3 < error < 0


@pytest.mark.slow
def test_llama_by_torchtitan():
    """8B on eight H100: layers that are not compiled and that are, every second product kept; all run again."""
    lowest, *_, highest = worst_of(lambda rows: (*rows[:2], rows[6]), TORCHTITAN_MEMORY)
    assert -3 < lowest <= highest < 3
    (error,) = worst_of(lambda rows: rows[-1:], TORCHTITAN_MEMORY)
    assert -6 < error < 0, "a compiled loss, on H200: too low by more than elsewhere"


@pytest.mark.parametrize(
    ("source", "kernels"),
    [
        ("benchmarks/llama3_h100_202412_torchtitan.md", "torchtitan-2024"),
        ("benchmarks/asyncTP_llama3_h100_2025-06_torchtitan.md", "torchtitan"),
        ("benchmarks/llama3-8b_h200_202506_trainy-whitefiber.md", "torchtitan"),
        ("pytorch/torchtitan@041336434916 docs/performance.md", "torchtitan-2024"),
        ("", "torchtitan-2024"),
    ],
)
def test_the_date_of_a_benchmark_says_whether_the_loss_was_compiled(source, kernels):
    cells = {
        "model": "llama3.1-8B",
        "hardware": "H100 96GB",
        "gpus": "8",
        "fsdp": "8",
        "recompute": "full",
        "local_batch": "1",
        "global_batch": "8",
        "seq_len": "8192",
        "memory_gib": "30",
        "source": source,
    }
    assert TORCHTITAN_MEMORY.row(cells).run.kernels == kernels
    assert TORCHTITAN_MEMORY.row({**cells, "compiled": "eager"}).run.kernels == "torchtitan-eager"
