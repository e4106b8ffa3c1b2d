"""What plans do that their users may not expect is said: tensor parallelism over hosts, copied heads."""

from __future__ import annotations

import json

import pytest

from topoplan_engine import ClusterOptions, Experiment, RunOptions, optimize
from topoplan_engine.experiment import Choice
from topoplan_engine.reporting.cautions import caution_rows
from topoplan_frontend_huggingface import HuggingFace


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ({"tp": 8}, {"caution: heads of keys and values": r"each of 4 is on 2 devices"}),
        ({"tp": 4, "dp": 4}, {}),
        (
            {"tp": 16},
            {
                "caution: tensor parallelism": "tp=16 lies over 2 hosts",
                "caution: heads of keys and values": "each of 4 is on 4 devices",
            },
        ),
    ],
)
def test_what_a_plan_does_to_heads_and_hosts_is_said(tmp_path, stated, said) -> None:
    path = tmp_path / "config.json"
    keys = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 16}
    path.write_text(json.dumps({**keys, "model_type": "llama", "num_key_value_heads": 4, "vocab_size": 4096}))
    experiment = Experiment(
        model=HuggingFace(config=str(path), sequence_length=64),
        cluster=ClusterOptions(servers=2, machine="dgx-h100"),
        searchers=[Choice("stated", stated)],
        run=RunOptions(batch_size=16, budget=1, precision="bf16"),
    )
    rows = dict(caution_rows(optimize(experiment).plan))
    assert set(rows) == set(said)
    assert all(rows[label].startswith(text) for label, text in said.items())
