"""Models that tests of stated plans share."""

from __future__ import annotations

import functools
import json

import pytest

from topoplan_engine.precision import in_precision
from topoplan_frontend_huggingface import HuggingFace
from topoplan_samples.stated import BATCH, GPT2, LLAMA, MIXTRAL


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    @functools.cache
    def build(name, batch=BATCH):
        config = {"llama": LLAMA, "gpt2": GPT2, "mixtral": MIXTRAL}[name]
        path = tmp_path_factory.mktemp(name) / "config.json"
        path.write_text(json.dumps(config))
        return in_precision(HuggingFace(config=str(path)).build(batch), "bf16")

    return build
