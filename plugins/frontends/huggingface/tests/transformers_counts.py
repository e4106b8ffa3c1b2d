"""Writes ``configurations.json``: what transformers counts, for the tests, which do not need it.

    python transformers_counts.py        (torch and transformers installed)

Parameters are those of models on the meta device.  FLOPs are those of `FlopCounterMode` for a batch of 3 samples on the
CPU, with attention and experts in their plain form ("eager"), since the counter does not know the fused ones.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode

FILE = Path(__file__).with_name("configurations.json")


def main() -> None:
    """Count again all that the file has."""
    document = json.loads(FILE.read_text())
    document["source"] = f"transformers {transformers.__version__}, torch {torch.__version__}"
    for row in document["parameters"]:
        cls = getattr(transformers, row["class"])
        with torch.device("meta"):
            row["parameters"] = sum(p.numel() for p in cls(configuration(row, cls)).parameters())
    for row in document["flops"]:
        cls = getattr(transformers, row["class"])
        model = cls._from_config(configuration(row, cls), attn_implementation="eager").eval()
        model.set_experts_implementation("eager")
        row["parameters"] = sum(p.numel() for p in model.parameters())
        vision = row["class"].startswith("ViT")
        data = {"pixel_values": torch.randn(3, 3, 32, 32)} if vision else {"input_ids": torch.ones(3, 32, dtype=int)}
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(**data)
        row["flops"] = counter.get_total_flops()
    FILE.write_text(written(document))


def configuration(row: dict[str, Any], cls: Any) -> Any:
    """Return the configuration of a row: that of its class, or of the ``model_type`` whose layers are of this class."""
    config_class = transformers.CONFIG_MAPPING[row["model_type"]] if "model_type" in row else cls.config_class
    return config_class(**row["keys"])


def written(document: dict[str, object]) -> str:
    """Return a document with a line for each row."""
    lines = [f'{{\n"source": {json.dumps(document["source"])}']
    for name in ("parameters", "flops"):
        lines.append(f',\n"{name}": [\n' + ",\n".join(map(json.dumps, document[name])) + "\n]")
    return "".join(lines) + "\n}\n"


if __name__ == "__main__":
    main()
