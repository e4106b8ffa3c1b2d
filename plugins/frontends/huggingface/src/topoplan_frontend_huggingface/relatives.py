"""Families whose layers are those of another one, with other defaults or names of keys, and the table of all decoders.

A family belongs here where its parameters have the names and shapes of its relative's in transformers 5.23.0, or where
its own code says so: ``kimi_k2`` runs ``DeepseekV3ForCausalLM`` (moonshotai/Kimi-K2-Base, ``auto_map``).  What some of
them multiply by a constant (Granite's and Gemma's embeddings and scores) has no operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import attrs

from topoplan_frontend_huggingface.arranged import ARRANGED
from topoplan_frontend_huggingface.families import (
    DecoderKeys,
    DeepseekV2,
    DeepseekV3,
    Llama,
    Mistral,
    Mixtral,
    Qwen2,
    Qwen2Moe,
    Qwen3,
    Qwen3Moe,
    windows,
)
from topoplan_frontend_huggingface.gated_families import GATED
from topoplan_frontend_huggingface.plain_families import PLAIN
from topoplan_frontend_huggingface.reading import key
from topoplan_frontend_huggingface.sizes import Grouped

__all__ = ["DECODERS"]


@attrs.frozen(kw_only=True)
class Gemma(Llama):
    """``gemma``: heads of 256 channels, and a table of words that the head reads."""

    vocab_size: int = key(256000)
    hidden_size: int = key(3072)
    intermediate_size: int = key(24576)
    num_hidden_layers: int = key(28, maximum=2000)
    num_attention_heads: int = key(16)
    num_key_value_heads: int | None = key(16)
    head_dim: int | None = key(256)
    hidden_act: str = key("gelu_pytorch_tanh")
    max_position_embeddings: int = key(8192)
    tie_word_embeddings: bool = key(True)


@attrs.frozen(kw_only=True)
class SmolLM3(Llama):
    """``smollm3``: some layers have no rotary positions, which has no weights; they may attend to a window."""

    vocab_size: int = key(128256)
    hidden_size: int = key(2048)
    num_hidden_layers: int = key(36, maximum=2000)
    num_attention_heads: int = key(16)
    num_key_value_heads: int | None = key(4)
    max_position_embeddings: int = key(32768)
    tie_word_embeddings: bool = key(True)
    use_sliding_window: bool = key(False)
    sliding_window: int | None = key(None, minimum=0)
    no_rope_layers: tuple[int, ...] | None = key(None, minimum=0)
    no_rope_layer_interval: int = key(4)
    layer_types: tuple[str, ...] | None = key(None)

    def windows(self, where: str) -> tuple[int | None, ...]:
        """Return for each layer the positions that one attends to at most; None for all."""
        window = self.sliding_window if self.use_sliding_window else None
        layers = range(self.num_hidden_layers)
        rotates = self.no_rope_layers or [int((number + 1) % self.no_rope_layer_interval != 0) for number in layers]
        slides = [number < len(rotates) and not rotates[number] for number in layers]
        return windows(where, window, self.layer_types, slides)


@attrs.frozen(kw_only=True)
class Cwm(Llama):
    """``cwm``: three layers of four attend to a window."""

    vocab_size: int = key(128256)
    hidden_size: int = key(6144)
    intermediate_size: int = key(21504)
    num_hidden_layers: int = key(64, maximum=2000)
    num_attention_heads: int = key(48)
    num_key_value_heads: int | None = key(8)
    head_dim: int | None = key(128)
    max_position_embeddings: int = key(131072)
    sliding_window: int | None = key(8192, minimum=0)
    layer_types: tuple[str, ...] | None = key(None)

    def windows(self, where: str) -> tuple[int | None, ...]:
        """Return for each layer the positions that one attends to at most; None for all."""
        slides = [number % 4 != 0 for number in range(self.num_hidden_layers)]
        return windows(where, self.sliding_window, self.layer_types, slides)


@attrs.frozen(kw_only=True)
class Ernie(Llama):
    """``ernie4_5``: one key says all biases."""

    vocab_size: int = key(103424)
    hidden_size: int = key(1024)
    intermediate_size: int = key(3072)
    num_hidden_layers: int = key(18, maximum=2000)
    num_attention_heads: int = key(16)
    num_key_value_heads: int | None = key(2)
    head_dim: int | None = key(128)
    max_position_embeddings: int = key(131072)
    tie_word_embeddings: bool = key(True)
    attention_bias: bool = key(False, names=("use_bias",))
    mlp_bias: bool = key(False, names=("use_bias",))


@attrs.frozen(kw_only=True)
class InternLM3(Llama):
    """``internlm3``."""

    vocab_size: int = key(128512)
    intermediate_size: int = key(10240)
    num_hidden_layers: int = key(48, maximum=2000)
    num_key_value_heads: int | None = key(2)
    head_dim: int | None = key(128)
    max_position_embeddings: int = key(32768)
    attention_bias: bool = key(False, names=("bias",))
    mlp_bias: bool = key(False, names=("bias",))
    qkv_bias: bool = key(False)


@attrs.frozen(kw_only=True)
class SeedOss(Llama):
    """``seed_oss``: answers of attention have a bias of their own key."""

    vocab_size: int = key(155136)
    intermediate_size: int = key(27648)
    num_hidden_layers: int = key(64, maximum=2000)
    num_attention_heads: int = key(80)
    num_key_value_heads: int | None = key(8)
    head_dim: int | None = key(128)
    max_position_embeddings: int = key(524288)
    attention_bias: bool = key(True)
    attention_out_bias: bool = key(False)

    def attention(self, where: str) -> Grouped:
        """Return the attention of every layer."""
        return attrs.evolve(super().attention(where), output_bias=self.attention_out_bias)


@attrs.frozen(kw_only=True)
class Ministral(Mistral):
    """``ministral``: each layer says whether it attends to a window."""

    layer_types: tuple[str, ...] | None = key(None)

    def windows(self, where: str) -> tuple[int | None, ...]:
        """Return for each layer the positions that one attends to at most; None for all."""
        return windows(where, self.sliding_window, self.layer_types, (True,) * self.num_hidden_layers)


@attrs.frozen(kw_only=True)
class Ministral3(Mistral):
    """``ministral3``."""

    vocab_size: int = key(131072)
    num_hidden_layers: int = key(34, maximum=2000)
    head_dim: int | None = key(128)
    max_position_embeddings: int = key(262144)
    sliding_window: int | None = key(None, minimum=0)


@attrs.frozen(kw_only=True)
class KimiK2(DeepseekV3):
    """``kimi_k2``: the defaults of its own ``configuration_deepseek.py``."""

    vocab_size: int = key(129280)


#: ``model_type`` -> its class of keys.
DECODERS: Mapping[str, type[DecoderKeys]] = MappingProxyType(
    {
        "llama": Llama,
        "mistral": Mistral,
        "mixtral": Mixtral,
        "qwen2": Qwen2,
        "qwen2_moe": Qwen2Moe,
        "qwen3": Qwen3,
        "qwen3_moe": Qwen3Moe,
        "deepseek_v2": DeepseekV2,
        "deepseek_v3": DeepseekV3,
        "kimi_k2": KimiK2,
        "cwm": Cwm,
        "ernie4_5": Ernie,
        "gemma": Gemma,
        "granite": Llama,
        "internlm3": InternLM3,
        "ministral": Ministral,
        "ministral3": Ministral3,
        "seed_oss": SeedOss,
        "smollm3": SmolLM3,
        "Yi": Llama,
        **ARRANGED,
        **GATED,
        **PLAIN,
    }
)
