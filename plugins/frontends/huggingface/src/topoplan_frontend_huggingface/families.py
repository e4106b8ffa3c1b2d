"""What each ``model_type`` of a decoder makes of its keys: classes of keys, with the defaults of transformers 5.23.0.

    config.json ─► Llama, Mixtral, … (keys) ─► `sizes.Decoder` (attention, feed-forward of each layer) ─► `decoders`

`relatives` has the families whose layers are those of one here, with other defaults, and `arranged` those whose layers
are arranged in another way.

Source: transformers 5.23.0, ``models/*/configuration_*.py`` and ``modeling_*.py``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import attrs

from topoplan import TopoplanError
from topoplan.errors import shown
from topoplan_engine.experts import ExpertGroups
from topoplan_frontend_huggingface.reading import key
from topoplan_frontend_huggingface.sizes import Decoder, Dense, Experts, FeedForward, Grouped, Latent, QueryNorm

__all__ = [
    "DecoderKeys",
    "DeepseekV2",
    "DeepseekV3",
    "GroupedKeys",
    "Llama",
    "Mistral",
    "Mixtral",
    "Qwen2",
    "Qwen2Moe",
    "Qwen3",
    "Qwen3Moe",
    "SparseKeys",
    "chosen_experts",
    "windows",
]

#: Words of ``layer_types`` -> whether a layer attends to a window only.
_LAYER_TYPES = {"full_attention": False, "sliding_attention": True}


@attrs.frozen(kw_only=True)
class DecoderKeys(ABC):
    """Keys that all decoders have."""

    hidden_size: int = key(4096)
    intermediate_size: int = key(11008)
    num_hidden_layers: int = key(32, maximum=2000)
    num_attention_heads: int = key(32)
    vocab_size: int = key(32000)
    max_position_embeddings: int = key(2048)
    hidden_act: str = key("silu")
    tie_word_embeddings: bool = key(False)
    is_causal: bool = key(True, quiet=True)

    def decoder(self, where: str) -> Decoder:
        """Return the sizes of the model.

        Raises:
            TopoplanError: keys that do not fit each other; the message names them.
        """
        return Decoder(
            hidden=self.hidden_size,
            words=self.vocab_size,
            tied=self.tie_word_embeddings,
            activation=self.hidden_act,
            positions=self.max_position_embeddings,
            causal=self.is_causal,
            attention=self.attention(where),
            layers=tuple(self.layer(number, where) for number in range(self.num_hidden_layers)),
            windows=self.windows(where),
        )

    @abstractmethod
    def attention(self, where: str) -> Grouped | Latent:
        """Return the attention of every layer."""

    def layer(self, number: int, where: str) -> FeedForward:
        """Return the feed-forward part of a layer."""
        del number, where
        return Dense(width=self.intermediate_size)

    def windows(self, where: str) -> tuple[int | None, ...]:
        """Return for each layer the positions that one attends to at most; None for all."""
        del where
        return (None,) * self.num_hidden_layers

    def expert_groups(self, where: str) -> ExpertGroups:
        """Return the groups of experts, of some of which all experts of a token are."""
        del where
        return ExpertGroups()


def windows(
    where: str, window: int | None, types: Sequence[str] | None, defaults: Sequence[bool]
) -> tuple[int | None, ...]:
    """Return for each layer the positions that one attends to at most; None for all.

    Args:
        where: name of the file.
        window: ``sliding_window``; None or 0 where the model has none.
        types: ``layer_types``, if the file has them.
        defaults: for each layer, whether it has a window unless ``types`` says otherwise.

    Raises:
        TopoplanError: types that are not known, or not one for each layer.
    """
    slides = list(defaults)
    if types is not None:
        unknown = next((word for word in types if word not in _LAYER_TYPES), None)
        if unknown is not None:
            raise TopoplanError(
                f"{where}: layer_types: {shown(unknown)} is not read (one of {', '.join(_LAYER_TYPES)})"
            )
        if len(types) < len(slides):
            raise TopoplanError(f"{where}: layer_types: {len(types)} for num_hidden_layers {len(slides)} (one each)")
        slides = [_LAYER_TYPES[word] for word in types[: len(slides)]]
    return tuple(window or None if slid else None for slid in slides)


@attrs.frozen(kw_only=True)
class GroupedKeys(DecoderKeys):
    """Attention whose heads of keys and values are shared by heads of queries."""

    num_key_value_heads: int | None = key(None)
    head_dim: int | None = key(None)

    #: Biases of queries, keys and values that no key says.
    input_bias: ClassVar[bool] = False
    #: Whether queries and keys are normalized.
    normalized: ClassVar[bool] = False

    def attention(self, where: str) -> Grouped:
        """Return the attention of every layer."""
        heads, kv_heads = self.num_attention_heads, self.num_key_value_heads or self.num_attention_heads
        if heads % kv_heads:
            raise TopoplanError(f"{where}: num_key_value_heads: {kv_heads} does not divide num_attention_heads {heads}")
        if self.head_dim is None and self.hidden_size % heads:
            raise TopoplanError(
                f"{where}: num_attention_heads: {heads} does not divide hidden_size {self.hidden_size} "
                "(or head_dim must say the channels of a head)"
            )
        channels = self.head_dim or self.hidden_size // heads
        if channels % 2:
            raise TopoplanError(
                f"{where}: head_dim: {channels} channels of a head are odd (rotary positions need pairs)"
            )
        bias = getattr(self, "attention_bias", False)
        return Grouped(
            heads=heads,
            kv_heads=kv_heads,
            channels=channels,
            input_bias=bias or getattr(self, "qkv_bias", self.input_bias),
            output_bias=bias,
            normalized=QueryNorm.HEADS if self.normalized else QueryNorm.NONE,
        )


@attrs.frozen(kw_only=True)
class Llama(GroupedKeys):
    """``llama``."""

    attention_bias: bool = key(False)
    mlp_bias: bool = key(False)

    def layer(self, number: int, where: str) -> Dense:
        """Return the feed-forward part of a layer."""
        del number, where
        return Dense(width=self.intermediate_size, bias=self.mlp_bias)


@attrs.frozen(kw_only=True)
class Mistral(GroupedKeys):
    """``mistral``."""

    intermediate_size: int = key(14336)
    num_key_value_heads: int | None = key(8)
    max_position_embeddings: int = key(131072)
    sliding_window: int | None = key(4096, minimum=0)

    def windows(self, where: str) -> tuple[int | None, ...]:
        """Return for each layer the positions that one attends to at most; None for all."""
        return windows(where, self.sliding_window, None, (True,) * self.num_hidden_layers)


@attrs.frozen(kw_only=True)
class Mixtral(Mistral):
    """``mixtral``."""

    sliding_window: int | None = key(None, minimum=0)
    num_local_experts: int = key(8, names=("num_experts",))
    num_experts_per_tok: int = key(2)

    def layer(self, number: int, where: str) -> Experts:
        """Return the feed-forward part of a layer."""
        del number
        return chosen_experts(where, self.num_local_experts, self.num_experts_per_tok, self.intermediate_size)


@attrs.frozen(kw_only=True)
class _SlidingKeys(GroupedKeys):
    """Layers from ``max_window_layers`` on attend to a window, where ``use_sliding_window`` says so."""

    use_sliding_window: bool = key(False)
    sliding_window: int | None = key(4096, minimum=0)
    max_window_layers: int = key(28, minimum=0)
    layer_types: tuple[str, ...] | None = key(None)

    def windows(self, where: str) -> tuple[int | None, ...]:
        """Return for each layer the positions that one attends to at most; None for all."""
        window = self.sliding_window if self.use_sliding_window else None
        slides = [number >= self.max_window_layers for number in range(self.num_hidden_layers)]
        return windows(where, window, self.layer_types, slides)


@attrs.frozen(kw_only=True)
class Qwen2(_SlidingKeys):
    """``qwen2``."""

    intermediate_size: int = key(22016)
    num_key_value_heads: int | None = key(32)
    vocab_size: int = key(151936)
    max_position_embeddings: int = key(32768)
    input_bias = True


@attrs.frozen(kw_only=True)
class Qwen3(_SlidingKeys):
    """``qwen3``."""

    intermediate_size: int = key(22016)
    num_key_value_heads: int | None = key(32)
    head_dim: int | None = key(128)
    vocab_size: int = key(151936)
    max_position_embeddings: int = key(32768)
    attention_bias: bool = key(False)
    normalized = True


@attrs.frozen(kw_only=True)
class SparseKeys(GroupedKeys):
    """Some layers have experts: every ``decoder_sparse_step``-th, but those of ``mlp_only_layers``."""

    hidden_size: int = key(2048)
    num_hidden_layers: int = key(24, maximum=2000)
    vocab_size: int = key(151936)
    max_position_embeddings: int = key(32768)
    num_experts: int = key(60, minimum=0, names=("num_local_experts",))
    num_experts_per_tok: int = key(4)
    moe_intermediate_size: int = key(1408)
    decoder_sparse_step: int = key(1, quiet=True)
    mlp_only_layers: tuple[int, ...] | None = key(None, minimum=0)
    use_sliding_window: bool = key(False)
    sliding_window: int | None = key(4096, minimum=0)

    def windows(self, where: str) -> tuple[int | None, ...]:
        """Return for each layer the positions that one attends to at most; None for all."""
        window = self.sliding_window if self.use_sliding_window else None
        return windows(where, window, None, (True,) * self.num_hidden_layers)

    def layer(self, number: int, where: str) -> FeedForward:
        """Return the feed-forward part of a layer."""
        is_sparse = self.num_experts > 0 and (number + 1) % self.decoder_sparse_step == 0
        if not is_sparse or number in (self.mlp_only_layers or ()):
            return Dense(width=self.intermediate_size)
        return self.experts(where)

    def experts(self, where: str) -> Experts:
        """Return the experts of a layer that has some."""
        return chosen_experts(where, self.num_experts, self.num_experts_per_tok, self.moe_intermediate_size)


@attrs.frozen(kw_only=True)
class Qwen2Moe(SparseKeys):
    """``qwen2_moe``."""

    intermediate_size: int = key(5632)
    num_attention_heads: int = key(16)
    num_key_value_heads: int | None = key(16)
    qkv_bias: bool = key(True)
    shared_expert_intermediate_size: int = key(5632, minimum=0)
    max_window_layers: int = key(28, minimum=0)
    layer_types: tuple[str, ...] | None = key(None)

    def windows(self, where: str) -> tuple[int | None, ...]:
        """Return for each layer the positions that one attends to at most; None for all."""
        window = self.sliding_window if self.use_sliding_window else None
        slides = [number % 2 == 0 and number < self.max_window_layers for number in range(self.num_hidden_layers)]
        return windows(where, window, self.layer_types, slides)

    def experts(self, where: str) -> Experts:
        """Return the experts of a layer that has some."""
        return attrs.evolve(
            super().experts(where),
            shared=self.shared_expert_intermediate_size,
            shared_name="shared_expert",
            shared_gate=True,
        )


@attrs.frozen(kw_only=True)
class Qwen3Moe(SparseKeys):
    """``qwen3_moe``."""

    intermediate_size: int = key(6144)
    num_attention_heads: int = key(32)
    num_key_value_heads: int | None = key(4)
    num_experts: int = key(128, minimum=0, names=("num_local_experts",))
    num_experts_per_tok: int = key(8)
    moe_intermediate_size: int = key(768)
    attention_bias: bool = key(False)
    normalized = True


@attrs.frozen(kw_only=True)
class _LatentKeys(DecoderKeys):
    """Latent attention, and experts behind the first layers."""

    attention_bias: bool = key(False)
    q_lora_rank: int | None = key(1536)
    kv_lora_rank: int = key(512)
    qk_nope_head_dim: int = key(128)
    qk_rope_head_dim: int = key(64)
    v_head_dim: int = key(128)
    n_routed_experts: int = key(64, names=("num_local_experts",))
    n_shared_experts: int | None = key(2, minimum=0)
    num_experts_per_tok: int | None = key(None)
    moe_intermediate_size: int = key(1407)
    first_k_dense_replace: int = key(0, minimum=0)
    moe_layer_freq: int = key(1, quiet=True)
    n_group: int | None = key(None, quiet=True)
    topk_group: int | None = key(None, quiet=True)

    #: Whether each expert has a bias that chooses it and that no gradient trains (DeepSeek-V3).
    chooses_by_bias: ClassVar[bool] = False

    def expert_groups(self, where: str) -> ExpertGroups:
        """Return the groups of experts, of some of which all experts of a token are; one if the file has none.

        Raises:
            TopoplanError: they do not divide the experts, or those of a token have no room in them.
        """
        count, chosen = self.n_group or 1, self.topk_group or 1
        if self.n_routed_experts % count:
            raise TopoplanError(f"{where}: n_group: {count} does not divide the {self.n_routed_experts} experts")
        size = self.n_routed_experts // count
        if chosen > count or chosen * size < (self.num_experts_per_tok or 1):
            fewest = -(-(self.num_experts_per_tok or 1) // size)
            raise TopoplanError(f"{where}: topk_group: {chosen} of {count} groups (must be {fewest} to {count})")
        return ExpertGroups(count, chosen)

    def attention(self, where: str) -> Latent:
        """Return the attention of every layer."""
        if self.qk_rope_head_dim % 2:
            raise TopoplanError(f"{where}: qk_rope_head_dim: {self.qk_rope_head_dim} is odd (channels rotate in pairs)")
        return Latent(
            heads=self.num_attention_heads,
            query_rank=self.q_lora_rank,
            rank=self.kv_lora_rank,
            plain=self.qk_nope_head_dim,
            rotated=self.qk_rope_head_dim,
            values=self.v_head_dim,
            bias=self.attention_bias,
        )

    def layer(self, number: int, where: str) -> FeedForward:
        """Return the feed-forward part of a layer."""
        if number < self.first_k_dense_replace or number % self.moe_layer_freq:
            return Dense(width=self.intermediate_size, bias=self.mlp_has_bias)
        if self.num_experts_per_tok is None:
            raise TopoplanError(f"{where}: num_experts_per_tok is missing (experts of a token, such as 6)")
        experts = chosen_experts(where, self.n_routed_experts, self.num_experts_per_tok, self.moe_intermediate_size)
        shared = (self.n_shared_experts or 0) * self.moe_intermediate_size
        return attrs.evolve(experts, shared=shared, bias=self.mlp_has_bias, chosen_by_bias=self.chooses_by_bias)

    @property
    def mlp_has_bias(self) -> bool:
        """Whether dense networks have biases."""
        return False


@attrs.frozen(kw_only=True)
class DeepseekV2(_LatentKeys):
    """``deepseek_v2``."""

    vocab_size: int = key(102400)
    mlp_bias: bool = key(False)

    @property
    def mlp_has_bias(self) -> bool:
        """Whether dense networks have biases."""
        return self.mlp_bias


@attrs.frozen(kw_only=True)
class DeepseekV3(_LatentKeys):
    """``deepseek_v3``."""

    hidden_size: int = key(7168)
    intermediate_size: int = key(18432)
    num_hidden_layers: int = key(61, maximum=2000)
    num_attention_heads: int = key(128)
    vocab_size: int = key(129280)
    max_position_embeddings: int = key(4096)
    n_routed_experts: int = key(256, names=("num_local_experts",))
    n_shared_experts: int | None = key(1, minimum=0)
    num_experts_per_tok: int | None = key(8)
    moe_intermediate_size: int = key(2048)
    first_k_dense_replace: int = key(3, minimum=0)
    n_group: int | None = key(8)
    topk_group: int | None = key(4)
    chooses_by_bias = True


def chosen_experts(where: str, count: int, chosen: int, width: int) -> Experts:
    """Return ``count`` experts of ``width`` channels, of which each token is sent to ``chosen``.

    Raises:
        TopoplanError: a token is sent to more experts than there are.
    """
    if chosen > count:
        raise TopoplanError(f"{where}: num_experts_per_tok: {chosen} of {count} experts (at most all)")
    return Experts(count=count, chosen=chosen, width=width)
