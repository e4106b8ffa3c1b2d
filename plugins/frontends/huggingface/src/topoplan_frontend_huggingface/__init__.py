"""Models that a Hugging Face ``config.json`` describes, as a topoplan frontend; transformers is not needed.

`reading` reads the file, `presets` has the keys of published models, `families` has what each ``model_type`` makes of
its keys, and `decoders`, `gpt2`, `bert` and `vit` build the graphs, of blocks that `blocks`, `attention` and `experts`
have.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import attrs

from topoplan import Frontend, hookimpl, option

if TYPE_CHECKING:
    from topoplan import OperatorGraph

__all__ = ["HuggingFace", "topoplan_frontends"]


@attrs.frozen(kw_only=True)
class HuggingFace(Frontend):
    """Models that a config.json of Hugging Face describes."""

    name = "huggingface"
    kernel_estimator: ClassVar[str] = "kernels"
    example = {"config": str(Path(__file__).with_name("example.json")), "sequence-length": 16}

    config: str = option("", help="config.json, or the folder that has it", file_in_folder="config.json")
    preset: str = option(
        "", help="published model in place of a file, such as llama3-70b, mixtral-8x7b or deepseek-v3", formerly="model"
    )
    sequence_length: int | None = option(
        None, minimum=1, maximum=2**24, help="positions of a sample; default 4096, or as many as the model has"
    )
    layers: int | None = option(None, minimum=1, maximum=2000, help="the first layers only; default: all")
    prediction_layers: int | None = option(
        None,
        minimum=0,
        maximum=100,
        help="layers that predict further words, as DeepSeek-V3 trains one (multi-token prediction); default: none",
    )

    lora_rank: int | None = option(
        None,
        minimum=1,
        maximum=65536,
        help="train adapters of this rank (LoRA) and freeze all else; default: all is trained",
    )
    lora_modules: str = option(
        "",
        help="matrices with an adapter: names or ends of paths, with * and ?; default: q_proj,v_proj",
        metavar="NAME,...",
    )
    frozen: str = option(
        "",
        help="modules whose weights are not trained: names or parts of paths, such as embed_tokens,layers.0",
        metavar="NAME,...",
    )

    attention: Literal["fused", "flash2", "written"] | None = option(
        None,
        help="its kernel: fused (cuDNN's, or FlashAttention 3), flash2 (FlashAttention 2), or written (scores are in "
        "memory, and kept); default: that of --kernels, or else fused",
    )
    skew: float | None = option(
        None,
        minimum=1,
        maximum=1e6,
        help="tokens of the busiest expert parallel device over the mean, in plans that say none (--plan skew=1.2); "
        "default: 1",
    )

    def build(self, batch_size: int | None) -> OperatorGraph:
        """Build the graph; see `model.build`."""
        from topoplan_frontend_huggingface.model import build as build_model

        return build_model(self, batch_size)


@hookimpl
def topoplan_frontends() -> type[Frontend]:
    """Register the frontend."""
    return HuggingFace
