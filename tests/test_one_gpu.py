"""``experiments/one_gpu.py``: its page has what the present code predicts, beside what was measured on a GPU."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from topoplan import Host
from topoplan_operator_times.table import read

ROOT = Path(__file__).parents[1]


def script():
    spec = importlib.util.spec_from_file_location("one_gpu", ROOT / "experiments" / "one_gpu.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["one_gpu"] = module
    spec.loader.exec_module(module)
    return module


ONE_GPU = script()
CASES = {case.name: case for case in ONE_GPU.CASES}


def test_every_model_was_measured_in_every_mode():
    rows = {(row.model, row.of, row.mode) for row in ONE_GPU.iterations()}
    for case in ONE_GPU.CASES:
        assert {(case.name, "operators", mode) for mode in ONE_GPU.TIMED} <= rows
        assert {(case.name, "transformers", mode) for mode in ONE_GPU.MODES if case.task} <= rows
        assert not case.task or case.config.is_file()


@pytest.mark.slow
def test_tables_have_the_operators_of_every_model():
    for mode, table in ONE_GPU.tables(Host.discover()).items():
        assert table.bench.precision == ONE_GPU.MODES[mode][0]
        assert len(table.rows) > 200
        assert all(row.forward is not None and row.backward is not None for row in table.rows.values())


@pytest.mark.slow
def test_the_page_has_what_the_present_code_predicts():
    """Two small models; ``one_gpu.py --check`` compares the whole page."""
    page = ONE_GPU.PAGE.read_text(encoding="utf-8")
    names = ("alexnet", "gpt2 (one kernel a GELU)")
    predicted = ONE_GPU.predictions([CASES[name] for name in names], Host.discover())
    rows = [row for row in ONE_GPU.iterations() if row.model in names]
    lines = f"{ONE_GPU.times_grid(rows, predicted)}\n{ONE_GPU.memory_grid(rows, predicted)}".splitlines()
    assert len(lines) == 2 * (2 + 3 + 7)
    for line in lines:
        assert line in page
    assert "experiments/one_gpu.py --check" in (ROOT / ".ci" / "nightly").read_text()


def test_a_measurement_on_another_gpu_takes_the_place_of_this_one(monkeypatch, tmp_path):
    moe = CASES["moe"]
    monkeypatch.setattr(ONE_GPU, "CASES", (moe,))
    measured = tmp_path / "measured"
    measured.mkdir()
    for mode, table in ONE_GPU.tables(Host.discover()).items():
        ONE_GPU.write(measured / f"operators-{mode}.json", table)
    row = {"model": "moe", "of": "operators", "mode": "fp32", "captured": False, "median_s": 0.5, "peak_bytes": 7}
    lines = [json.dumps(each) for each in (row, row | {"captured": True, "median_s": 0.25})]
    (measured / "iterations.jsonl").write_text("\n".join(lines))
    (measured / "bench.json").write_text(json.dumps({"device": "NVIDIA H200", "torch": "3", "date": "today"}))
    monkeypatch.setattr(ONE_GPU, "DATA", tmp_path)
    ONE_GPU.take(measured)
    assert ONE_GPU.iterations() == [ONE_GPU.Row("moe", "operators", "fp32", 0.5, 0.25, 7)]
    again = ONE_GPU.tables(Host.discover())["bf16"]
    before = read(measured / "operators-bf16.json").rows
    assert again.bench.device == "NVIDIA H200"
    assert again.rows.keys() == before.keys()
    for shape, times in again.rows.items():
        assert times.forward.median == pytest.approx(before[shape].forward.median, rel=1e-3)
