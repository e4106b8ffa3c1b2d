"""Families of two projections up and one back, whose normalizations, biases or experts are not Llama's.

    olmo                     LayerNorm without scale and bias
    olmo3, exaone4           a normalization behind each half, windows in three layers of four
    cohere, cohere2          attention and feed-forward part side by side, LayerNorm without bias
    stablelm                 LayerNorm, one after the other or side by side
    glm, glm4                joint projections, biases of queries, keys and values
    olmoe, granitemoe, phimoe, minimax_m2    experts in every layer
    glm4_moe, dots1          experts and shared ones behind the first layers
    hunyuan_v1_dense         Llama with normalized queries and keys
    exaone, internlm2, baichuan, minicpm     Llama by code of their own repositories

Source: transformers 5.24.0, ``models/*/configuration_*.py`` and ``modeling_*.py``; the last line: ``modeling_*.py`` of
LGAI-EXAONE/EXAONE-3.5-7.8B-Instruct, internlm/internlm2-7b, baichuan-inc/Baichuan2-7B-Base, openbmb/MiniCPM-2B.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import attrs

from topoplan import TopoplanError
from topoplan_frontend_huggingface.arranged import Olmo2
from topoplan_frontend_huggingface.families import DecoderKeys, GroupedKeys, Llama, chosen_experts, windows
from topoplan_frontend_huggingface.reading import key
from topoplan_frontend_huggingface.sizes import Decoder, Dense, Experts, FeedForward, Grouped, Norms, QueryNorm

__all__ = ["GATED"]


@attrs.frozen(kw_only=True)
class Olmo(GroupedKeys):
    """``olmo``, the first one."""

    vocab_size: int = key(50304)
    attention_bias: bool = key(False)

    def decoder(self, where: str) -> Decoder:
        """Return the sizes of the model."""
        return attrs.evolve(super().decoder(where), norms=Norms(mean=True, scale=False, bias=False))


@attrs.frozen(kw_only=True)
class Olmo3(Olmo2):
    """``olmo3``."""

    sliding_window: int | None = key(4096, minimum=0)
    layer_types: tuple[str, ...] | None = key(None)

    def windows(self, where: str) -> tuple[int | None, ...]:
        """Return for each layer the positions that one attends to at most; None for all."""
        slides = [(number + 1) % 4 != 0 for number in range(self.num_hidden_layers)]
        return windows(where, self.sliding_window, self.layer_types, slides)


@attrs.frozen(kw_only=True)
class Exaone4(GroupedKeys):
    """``exaone4``."""

    vocab_size: int = key(102400)
    intermediate_size: int = key(16384)
    sliding_window: int | None = key(4096, minimum=0)
    layer_types: tuple[str, ...] | None = key(None)
    normalized = True

    def windows(self, where: str) -> tuple[int | None, ...]:
        """Return for each layer the positions that one attends to at most; None for all."""
        slides = [(number + 1) % 4 != 0 for number in range(self.num_hidden_layers)]
        return windows(where, self.sliding_window, self.layer_types, slides)

    def decoder(self, where: str) -> Decoder:
        """Return the sizes of the model."""
        norms = Norms(before=("", ""), after=("post_attention_layernorm", "post_feedforward_layernorm"))
        return attrs.evolve(super().decoder(where), norms=norms)


@attrs.frozen(kw_only=True)
class Cohere(GroupedKeys):
    """``cohere`` (Command R)."""

    vocab_size: int = key(256000)
    hidden_size: int = key(8192)
    intermediate_size: int = key(22528)
    num_hidden_layers: int = key(40, maximum=2000)
    num_attention_heads: int = key(64)
    max_position_embeddings: int = key(8192)
    tie_word_embeddings: bool = key(True)
    attention_bias: bool = key(False)
    use_qk_norm: bool = key(False)

    def attention(self, where: str) -> Grouped:
        """Return the attention of every layer."""
        normalized = QueryNorm.OWN if self.use_qk_norm else QueryNorm.NONE
        return attrs.evolve(super().attention(where), normalized=normalized)

    def decoder(self, where: str) -> Decoder:
        """Return the sizes of the model."""
        norms = Norms(before=("input_layernorm", ""), parallel=True, mean=True, bias=False)
        return attrs.evolve(super().decoder(where), norms=norms)


@attrs.frozen(kw_only=True)
class Cohere2(Cohere):
    """``cohere2`` (Command R7B, Command A): three layers of four attend to a window."""

    use_qk_norm: bool = key(False, quiet=True)
    sliding_window: int | None = key(4096, minimum=0)
    sliding_window_pattern: int = key(4, names=("_sliding_window_pattern",), quiet=True)
    layer_types: tuple[str, ...] | None = key(None)

    def windows(self, where: str) -> tuple[int | None, ...]:
        """Return for each layer the positions that one attends to at most; None for all."""
        slides = [(number + 1) % self.sliding_window_pattern != 0 for number in range(self.num_hidden_layers)]
        return windows(where, self.sliding_window, self.layer_types, slides)


@attrs.frozen(kw_only=True)
class StableLm(GroupedKeys):
    """``stablelm``."""

    vocab_size: int = key(50304)
    hidden_size: int = key(2560)
    intermediate_size: int = key(6912)
    max_position_embeddings: int = key(4096)
    use_qkv_bias: bool = key(False)
    qk_layernorm: bool = key(False)
    use_parallel_residual: bool = key(False)

    def attention(self, where: str) -> Grouped:
        """Return the attention of every layer."""
        normalized = QueryNorm.OWN if self.qk_layernorm else QueryNorm.NONE
        return attrs.evolve(super().attention(where), input_bias=self.use_qkv_bias, normalized=normalized)

    def decoder(self, where: str) -> Decoder:
        """Return the sizes of the model."""
        norms = Norms(mean=True)
        if self.use_parallel_residual:
            norms = Norms(before=("input_layernorm", ""), parallel=True, mean=True)
        return attrs.evolve(super().decoder(where), norms=norms)


@attrs.frozen(kw_only=True)
class Glm(GroupedKeys):
    """``glm``: GLM-4 9B as transformers has it."""

    vocab_size: int = key(151552)
    intermediate_size: int = key(13696)
    num_hidden_layers: int = key(40, maximum=2000)
    num_key_value_heads: int | None = key(2)
    head_dim: int | None = key(128)
    max_position_embeddings: int = key(131072)
    attention_bias: bool = key(True)

    def attention(self, where: str) -> Grouped:
        """Return the attention of every layer."""
        return attrs.evolve(super().attention(where), output_bias=False)

    def layer(self, number: int, where: str) -> Dense:
        """Return the feed-forward part of a layer."""
        del number, where
        return Dense(width=self.intermediate_size, names=("gate_up_proj.gate", "gate_up_proj.up", "down_proj"))


@attrs.frozen(kw_only=True)
class Glm4(Glm):
    """``glm4``: GLM-4-0414, with normalizations before and behind each half."""

    def decoder(self, where: str) -> Decoder:
        """Return the sizes of the model."""
        after = ("post_self_attn_layernorm", "post_mlp_layernorm")
        return attrs.evolve(super().decoder(where), norms=Norms(after=after))


@attrs.frozen(kw_only=True)
class _SharedKeys(GroupedKeys):
    """Experts behind the first layers, beside one that every token goes through."""

    hidden_size: int = key(4096)
    intermediate_size: int = key(10944)
    moe_intermediate_size: int = key(1408)
    num_experts_per_tok: int | None = key(8)
    n_routed_experts: int | None = key(128, names=("num_local_experts",))
    n_shared_experts: int | None = key(1, minimum=0)
    first_k_dense_replace: int = key(1, minimum=0)
    attention_bias: bool = key(False)

    def layer(self, number: int, where: str) -> FeedForward:
        """Return the feed-forward part of a layer."""
        if number < self.first_k_dense_replace:
            return Dense(width=self.intermediate_size)
        for name in ("n_routed_experts", "num_experts_per_tok"):
            if getattr(self, name) is None:
                raise TopoplanError(f"{where}: {name} is missing (a number of experts, such as 8)")
        sizes = chosen_experts(
            where, self.n_routed_experts or 0, self.num_experts_per_tok or 0, self.moe_intermediate_size
        )
        shared = (self.n_shared_experts or 0) * self.moe_intermediate_size
        return attrs.evolve(sizes, shared=shared, chosen_by_bias=True)


@attrs.frozen(kw_only=True)
class Glm4Moe(_SharedKeys):
    """``glm4_moe`` (GLM-4.5, 4.6)."""

    vocab_size: int = key(151552)
    num_hidden_layers: int = key(46, maximum=2000)
    num_attention_heads: int = key(96)
    num_key_value_heads: int | None = key(8)
    max_position_embeddings: int = key(131072)
    use_qk_norm: bool = key(False)

    def attention(self, where: str) -> Grouped:
        """Return the attention of every layer."""
        keys = attrs.evolve(self, head_dim=self.head_dim or self.hidden_size // self.num_attention_heads)
        normalized = QueryNorm.HEADS if self.use_qk_norm else QueryNorm.NONE
        return attrs.evolve(super(Glm4Moe, keys).attention(where), output_bias=False, normalized=normalized)


@attrs.frozen(kw_only=True)
class Dots1(_SharedKeys):
    """``dots1``."""

    vocab_size: int = key(152064)
    hidden_size: int = key(4608)
    num_hidden_layers: int = key(62, maximum=2000)
    num_experts_per_tok: int | None = key(None)
    n_routed_experts: int | None = key(None, names=("num_local_experts",))
    n_shared_experts: int | None = key(None, minimum=0)
    first_k_dense_replace: int = key(0, minimum=0)
    sliding_window: int | None = key(4096, minimum=0)
    max_window_layers: int = key(62, minimum=0)
    layer_types: tuple[str, ...] | None = key(None)
    normalized = True

    def windows(self, where: str) -> tuple[int | None, ...]:
        """Return for each layer the positions that one attends to at most; None for all."""
        slides = [number >= self.max_window_layers for number in range(self.num_hidden_layers)]
        return windows(where, self.sliding_window, self.layer_types, slides)


@attrs.frozen(kw_only=True)
class _ExpertKeys(GroupedKeys):
    """Experts in every layer."""

    num_local_experts: int = key(8, names=("num_experts",))
    num_experts_per_tok: int = key(2)
    attention_bias: bool = key(False)

    def layer(self, number: int, where: str) -> Experts:
        """Return the feed-forward part of a layer."""
        del number
        return chosen_experts(where, self.num_local_experts, self.num_experts_per_tok, self.intermediate_size)


@attrs.frozen(kw_only=True)
class GraniteMoe(_ExpertKeys):
    """``granitemoe``."""


@attrs.frozen(kw_only=True)
class Olmoe(_ExpertKeys):
    """``olmoe``: queries and keys are normalized over all heads."""

    vocab_size: int = key(50304)
    hidden_size: int = key(2048)
    intermediate_size: int = key(2048)
    num_hidden_layers: int = key(16, maximum=2000)
    num_attention_heads: int = key(16)
    max_position_embeddings: int = key(4096)
    num_local_experts: int = key(64, names=("num_experts",))
    num_experts_per_tok: int = key(8)

    def attention(self, where: str) -> Grouped:
        """Return the attention of every layer."""
        return attrs.evolve(super().attention(where), normalized=QueryNorm.ALL)


@attrs.frozen(kw_only=True)
class PhiMoe(_ExpertKeys):
    """``phimoe`` (Phi-3.5-MoE)."""

    vocab_size: int = key(32064)
    intermediate_size: int = key(6400)
    num_key_value_heads: int | None = key(8)
    max_position_embeddings: int = key(131072)
    num_local_experts: int = key(16, names=("num_experts",))
    lm_head_bias: bool = key(False)
    sliding_window: int | None = key(None, minimum=0)

    def windows(self, where: str) -> tuple[int | None, ...]:
        """Return for each layer the positions that one attends to at most; None for all."""
        return windows(where, self.sliding_window, None, (True,) * self.num_hidden_layers)

    def decoder(self, where: str) -> Decoder:
        """Return the sizes of the model."""
        return attrs.evolve(super().decoder(where), norms=Norms(mean=True), head_bias=self.lm_head_bias)


@attrs.frozen(kw_only=True)
class MiniMaxM2(_ExpertKeys):
    """``minimax_m2``."""

    vocab_size: int = key(200064)
    hidden_size: int = key(3072)
    intermediate_size: int = key(1536)
    num_hidden_layers: int = key(62, maximum=2000)
    num_attention_heads: int = key(48)
    num_key_value_heads: int | None = key(8)
    head_dim: int | None = key(128)
    max_position_embeddings: int = key(196608)
    num_local_experts: int = key(256, names=("num_experts",))
    num_experts_per_tok: int = key(8)
    use_qk_norm: bool = key(True, quiet=True)

    def attention(self, where: str) -> Grouped:
        """Return the attention of every layer."""
        return attrs.evolve(super().attention(where), normalized=QueryNorm.ALL)

    def layer(self, number: int, where: str) -> Experts:
        """Return the feed-forward part of a layer."""
        return attrs.evolve(super().layer(number, where), chosen_by_bias=True)


@attrs.frozen(kw_only=True)
class HunyuanDense(GroupedKeys):
    """``hunyuan_v1_dense``."""

    vocab_size: int = key(290943)
    attention_bias: bool = key(False)
    normalized = True


@attrs.frozen(kw_only=True)
class Exaone(Llama):
    """``exaone`` (EXAONE 3.0 and 3.5)."""

    vocab_size: int = key(102400)
    num_hidden_layers: int = key(32, maximum=2000, names=("num_layers",))
    hidden_act: str = key("silu", names=("activation_function",))


@attrs.frozen(kw_only=True)
class InternLM2(Llama):
    """``internlm2``."""

    vocab_size: int = key(103168)
    attention_bias: bool = key(False, names=("bias",))


@attrs.frozen(kw_only=True)
class Baichuan(Llama):
    """``baichuan``: 13B has slopes in place of rotary positions, neither of which has weights."""

    vocab_size: int = key(64000)
    max_position_embeddings: int = key(4096, names=("model_max_length",))


@attrs.frozen(kw_only=True)
class MiniCpm(Llama):
    """``minicpm``: what it multiplies by a constant has no operator."""

    tie_word_embeddings: bool = key(True)


#: ``model_type`` -> its class of keys.
GATED: Mapping[str, type[DecoderKeys]] = MappingProxyType(
    {
        "baichuan": Baichuan,
        "cohere": Cohere,
        "cohere2": Cohere2,
        "dots1": Dots1,
        "exaone": Exaone,
        "exaone4": Exaone4,
        "glm": Glm,
        "glm4": Glm4,
        "glm4_moe": Glm4Moe,
        "granitemoe": GraniteMoe,
        "hunyuan_v1_dense": HunyuanDense,
        "internlm2": InternLM2,
        "minicpm": MiniCpm,
        "minimax_m2": MiniMaxM2,
        "olmo": Olmo,
        "olmo3": Olmo3,
        "olmoe": Olmoe,
        "phimoe": PhiMoe,
        "stablelm": StableLm,
    }
)
