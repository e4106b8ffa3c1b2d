"""Models that measured tables name have the sizes of the presets that users take."""

from __future__ import annotations

import json
from importlib.resources import files

from topoplan_frontend_huggingface.presets import presets


def test_models_of_measured_tables_are_the_presets():
    """A library imports no plugin, so that its table of models is its own; both say the same."""
    models = json.loads(files("topoplan_llm_measurements").joinpath("data", "models.json").read_text("utf-8"))
    assert models
    assert models == {name: dict(presets()[name].keys) for name in models}
