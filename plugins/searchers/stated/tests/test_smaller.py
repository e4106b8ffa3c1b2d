"""Where a stated plan does not fit: which device of which stage lacks how much, and the nearest plan that fits."""

from __future__ import annotations

import json

import pytest

from topoplan import optimize
from topoplan_frontend_huggingface import HuggingFace
from topoplan_samples.stated import LLAMA

OPTIONS = {"servers": 2, "gpus_per_server": 4, "device": "h100", "precision": "bf16", "batch_size": 32}


@pytest.fixture(scope="module")
def priced(tmp_path_factory):
    path = tmp_path_factory.mktemp("llama") / "config.json"
    path.write_text(json.dumps(LLAMA))

    def price(plan, memory_gb=80.0):
        model = HuggingFace(config=str(path))
        return optimize(model, searchers=f"stated:{plan}", memory_gb=memory_gb, **OPTIONS)

    return price


@pytest.mark.by_day(1)
@pytest.mark.parametrize(
    ("plan", "stage"), [("pp=2,micro-batch=8", "stage 1 of 2, device"), ("micro-batch=4", "device")]
)
@pytest.mark.parametrize("share", [0.9, 0.7, 0.5])
def test_the_nearest_plan_that_fits_is_named_and_fits(priced, plan, stage, share):
    needed = priced(plan).memory.max()
    tight = share * needed / 0.92 / 1e9  # 8 % are left free
    outcome = priced(plan, tight)
    assert not outcome.fits
    assert outcome.lacks.startswith(stage)
    assert "too much (weights" in outcome.lacks
    assert "recomputation (-s pipeline" not in outcome.lacks, "users who state a plan state what runs again in it"
    (words,) = [part for part in outcome.lacks.split("; ") if part.startswith("the nearest plan that fits: --plan ")]
    nearest = words.removeprefix("the nearest plan that fits: --plan ")
    found = priced(nearest, tight)
    assert found.fits
    assert found.memory.max() <= share * needed * (1 + 1e-9)


def test_a_stated_plan_says_how_its_layers_run_again(priced):
    """Its activations are what does not fit; with ``recompute=full``, as the message says, it does."""
    needed, again = (priced(f"pp=2,micro-batch=1{more}").memory.max() for more in ("", ",recompute=full"))
    tight = (needed + again) / 2 / 0.92 / 1e9
    outcome = priced("pp=2,micro-batch=1", tight)
    assert not outcome.fits
    assert "recomputation (recompute=full in --plan)" in outcome.lacks
    assert priced("pp=2,micro-batch=1,recompute=full", tight).fits
