"""Families that arrange a layer in another way than Llama: where normalizations stand, what runs side by side.

    gpt_neox, phi           attention and feed-forward part read the same input; LayerNorm, one projection up
    gemma2, gemma3_text     a normalization before and behind each half
    olmo2                   a normalization behind each half, and none before
    phi3                    Llama's layer, with joint projections
    gpt_oss                 experts with biases, a score in every head that no position answers, windows in turn

Rotary positions turn all channels of a head here, also where a model turns a part of them: the kernel reads and writes
all.  A joint projection (``query_key_value``, ``qkv_proj``, ``gate_up_proj``) is several, which can be cut by heads.

Source: transformers 5.24.0, ``models/*/configuration_*.py`` and ``modeling_*.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import attrs

from topoplan_frontend_huggingface.families import DecoderKeys, GroupedKeys, Llama, chosen_experts, windows
from topoplan_frontend_huggingface.reading import key
from topoplan_frontend_huggingface.sizes import Decoder, Dense, Experts, Grouped, Modules, Norms, Plain, QueryNorm

__all__ = ["ARRANGED"]

_AROUND = Norms(
    before=("input_layernorm", "pre_feedforward_layernorm"),
    after=("post_attention_layernorm", "post_feedforward_layernorm"),
)


@attrs.frozen(kw_only=True)
class Gemma2(Llama):
    """``gemma2``: every other layer attends to a window; scores of words go through tanh."""

    vocab_size: int = key(256000)
    hidden_size: int = key(2304)
    intermediate_size: int = key(9216)
    num_hidden_layers: int = key(26, maximum=2000)
    num_attention_heads: int = key(8)
    num_key_value_heads: int | None = key(4)
    head_dim: int | None = key(256)
    hidden_act: str = key("gelu_pytorch_tanh", names=("hidden_activation",))
    max_position_embeddings: int = key(8192)
    tie_word_embeddings: bool = key(True)
    sliding_window: int | None = key(4096, minimum=0)
    layer_types: tuple[str, ...] | None = key(None)
    final_logit_softcapping: float | None = key(30.0)

    def decoder(self, where: str) -> Decoder:
        """Return the sizes of the model."""
        capped = self.final_logit_softcapping is not None
        return attrs.evolve(super().decoder(where), norms=_AROUND, capped=capped)

    def windows(self, where: str) -> tuple[int | None, ...]:
        """Return for each layer the positions that one attends to at most; None for all."""
        slides = [number % 2 == 0 for number in range(self.num_hidden_layers)]
        return windows(where, self.sliding_window, self.layer_types, slides)


@attrs.frozen(kw_only=True)
class Gemma3(Gemma2):
    """``gemma3_text``: five layers of six attend to a window; queries and keys are normalized."""

    vocab_size: int = key(262208)
    max_position_embeddings: int = key(131072)
    final_logit_softcapping: float | None = key(None)
    sliding_window_pattern: int = key(6, names=("_sliding_window_pattern",))
    normalized = True

    def windows(self, where: str) -> tuple[int | None, ...]:
        """Return for each layer the positions that one attends to at most; None for all."""
        slides = [(number + 1) % self.sliding_window_pattern != 0 for number in range(self.num_hidden_layers)]
        return windows(where, self.sliding_window, self.layer_types, slides)


@attrs.frozen(kw_only=True)
class Olmo2(GroupedKeys):
    """``olmo2``: queries and keys are normalized over all heads."""

    vocab_size: int = key(50304)
    attention_bias: bool = key(False)

    def attention(self, where: str) -> Grouped:
        """Return the attention of every layer."""
        return attrs.evolve(super().attention(where), normalized=QueryNorm.ALL)

    def decoder(self, where: str) -> Decoder:
        """Return the sizes of the model."""
        norms = Norms(before=("", ""), after=("post_attention_layernorm", "post_feedforward_layernorm"))
        return attrs.evolve(super().decoder(where), norms=norms)


@attrs.frozen(kw_only=True)
class GptNeoX(GroupedKeys):
    """``gpt_neox``: as many heads of keys and values as of queries."""

    vocab_size: int = key(50432)
    hidden_size: int = key(6144)
    num_hidden_layers: int = key(44, maximum=2000)
    num_attention_heads: int = key(64)
    intermediate_size: int = key(24576)
    hidden_act: str = key("gelu")
    attention_bias: bool = key(True)
    use_parallel_residual: bool = key(True)

    def attention(self, where: str) -> Grouped:
        """Return the attention of every layer."""
        joint = "query_key_value"
        names = (f"{joint}.q", f"{joint}.k", f"{joint}.v", "dense")
        return attrs.evolve(super().attention(where), names=names)

    def layer(self, number: int, where: str) -> Plain:
        """Return the feed-forward part of a layer."""
        del number, where
        return Plain(width=self.intermediate_size, bias=True, names=("dense_h_to_4h", "dense_4h_to_h"))

    def decoder(self, where: str) -> Decoder:
        """Return the sizes of the model."""
        return attrs.evolve(
            super().decoder(where),
            norms=Norms(parallel=self.use_parallel_residual, mean=True),
            modules=Modules(
                words="gpt_neox.embed_in",
                layers="gpt_neox.layers",
                attention="attention",
                norm="gpt_neox.final_layer_norm",
            ),
        )


@attrs.frozen(kw_only=True)
class Phi(GroupedKeys):
    """``phi``: one normalization a layer, and biases everywhere."""

    vocab_size: int = key(51200)
    hidden_size: int = key(2048)
    intermediate_size: int = key(8192)
    num_hidden_layers: int = key(24, maximum=2000)
    hidden_act: str = key("gelu_new")
    qk_layernorm: bool = key(False)

    def attention(self, where: str) -> Grouped:
        """Return the attention of every layer."""
        return attrs.evolve(
            super().attention(where),
            input_bias=True,
            output_bias=True,
            normalized=QueryNorm.LAYER if self.qk_layernorm else QueryNorm.NONE,
            names=("q_proj", "k_proj", "v_proj", "dense"),
        )

    def layer(self, number: int, where: str) -> Plain:
        """Return the feed-forward part of a layer."""
        del number, where
        return Plain(width=self.intermediate_size, bias=True, names=("fc1", "fc2"))

    def decoder(self, where: str) -> Decoder:
        """Return the sizes of the model."""
        return attrs.evolve(
            super().decoder(where),
            norms=Norms(before=("input_layernorm", ""), parallel=True, mean=True),
            modules=Modules(norm="model.final_layernorm"),
            head_bias=True,
        )


@attrs.frozen(kw_only=True)
class Phi3(GroupedKeys):
    """``phi3``, and Phi-4, whose files say so."""

    vocab_size: int = key(32064)
    hidden_size: int = key(3072)
    intermediate_size: int = key(8192)
    max_position_embeddings: int = key(4096)
    sliding_window: int | None = key(None, minimum=0)

    def attention(self, where: str) -> Grouped:
        """Return the attention of every layer."""
        names = ("qkv_proj.q", "qkv_proj.k", "qkv_proj.v", "o_proj")
        return attrs.evolve(super().attention(where), names=names)

    def layer(self, number: int, where: str) -> Dense:
        """Return the feed-forward part of a layer."""
        del number, where
        return Dense(width=self.intermediate_size, names=("gate_up_proj.gate", "gate_up_proj.up", "down_proj"))

    def windows(self, where: str) -> tuple[int | None, ...]:
        """Return for each layer the positions that one attends to at most; None for all."""
        return windows(where, self.sliding_window, None, (True,) * self.num_hidden_layers)


@attrs.frozen(kw_only=True)
class GptOss(GroupedKeys):
    """``gpt_oss``."""

    vocab_size: int = key(201088)
    hidden_size: int = key(2880)
    intermediate_size: int = key(2880)
    num_hidden_layers: int = key(36, maximum=2000)
    num_attention_heads: int = key(64)
    num_key_value_heads: int | None = key(8)
    head_dim: int | None = key(64)
    max_position_embeddings: int = key(131072)
    num_local_experts: int = key(128, names=("num_experts",))
    num_experts_per_tok: int = key(4, names=("experts_per_token",))
    sliding_window: int | None = key(128, minimum=0)
    layer_types: tuple[str, ...] | None = key(None)
    attention_bias: bool = key(True)
    swiglu_limit: float | None = key(7.0)

    def attention(self, where: str) -> Grouped:
        """Return the attention of every layer."""
        return attrs.evolve(super().attention(where), sinks=True)

    def layer(self, number: int, where: str) -> Experts:
        """Return the feed-forward part of a layer."""
        del number
        sizes = chosen_experts(where, self.num_local_experts, self.num_experts_per_tok, self.intermediate_size)
        return attrs.evolve(sizes, biases=True, limited=self.swiglu_limit is not None, gate="router")

    def windows(self, where: str) -> tuple[int | None, ...]:
        """Return for each layer the positions that one attends to at most; None for all."""
        slides = [number % 2 == 0 for number in range(self.num_hidden_layers)]
        return windows(where, self.sliding_window, self.layer_types, slides)


#: ``model_type`` -> its class of keys.
ARRANGED: Mapping[str, type[DecoderKeys]] = MappingProxyType(
    {
        "gemma2": Gemma2,
        "gemma3_text": Gemma3,
        "gpt_neox": GptNeoX,
        "gpt_oss": GptOss,
        "olmo2": Olmo2,
        "phi": Phi,
        "phi3": Phi3,
    }
)
