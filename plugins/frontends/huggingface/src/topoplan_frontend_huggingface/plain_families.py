"""Families whose feed-forward part is one projection up and one back, most of them with LayerNorm.

    falcon, gptj, codegen       attention and feed-forward part read the same input
    bloom, mpt                  positions by a slope of each head (ALiBi), which has no operator and no weights
    opt, gpt_neo, gpt_bigcode   a table of positions
    starcoder2, arcee, nemotron Llama's layer otherwise

A joint projection is several, which can be cut by heads.

Source: transformers 5.24.0, ``models/*/configuration_*.py`` and ``modeling_*.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import attrs

from topoplan import TopoplanError
from topoplan_frontend_huggingface.families import DecoderKeys, GroupedKeys, windows
from topoplan_frontend_huggingface.reading import key
from topoplan_frontend_huggingface.sizes import Decoder, Grouped, Modules, Norms, Plain

__all__ = ["PLAIN"]

_GPT = Modules(words="transformer.wte", layers="transformer.h", attention="attn", norm="transformer.ln_f")


@attrs.frozen(kw_only=True)
class _PlainKeys(GroupedKeys):
    """Channels inside are four times those outside, unless a key says others."""

    intermediate_size: int = key(0, minimum=0, quiet=True)
    n_inner: int | None = key(None)

    def attention(self, where: str) -> Grouped:
        """Return the attention of every layer."""
        return super().attention(where)

    @property
    def width(self) -> int:
        """Channels inside of a feed-forward part."""
        return self.n_inner or self.intermediate_size or 4 * self.hidden_size


@attrs.frozen(kw_only=True)
class Falcon(_PlainKeys):
    """``falcon``: 7B with one head of keys, 40B and 180B in their new arrangement, and models of RefinedWeb."""

    vocab_size: int = key(65024)
    hidden_size: int = key(4544)
    num_hidden_layers: int = key(32, maximum=2000, names=("n_layer",))
    num_attention_heads: int = key(71, names=("n_head",))
    num_key_value_heads: int | None = key(None, names=("num_kv_heads", "n_head_kv"))
    n_inner: int | None = key(None, names=("ffn_hidden_size",))
    hidden_act: str = key("gelu", names=("activation",))
    tie_word_embeddings: bool = key(True)
    bias: bool = key(False)
    alibi: bool = key(False)
    multi_query: bool = key(True)
    parallel_attn: bool = key(True)
    new_decoder_architecture: bool = key(False)
    num_ln_in_parallel_attn: int | None = key(None)

    def attention(self, where: str) -> Grouped:
        """Return the attention of every layer."""
        keys = self
        if not self.new_decoder_architecture and self.multi_query:
            keys = attrs.evolve(self, num_key_value_heads=1)
        return attrs.evolve(
            super(Falcon, keys).attention(where),
            input_bias=self.bias,
            output_bias=self.bias,
            names=("query_key_value.q", "query_key_value.k", "query_key_value.v", "dense"),
            rotary=not self.alibi,
        )

    def layer(self, number: int, where: str) -> Plain:
        """Return the feed-forward part of a layer."""
        del number, where
        return Plain(width=self.width, bias=self.bias, names=("dense_h_to_4h", "dense_4h_to_h"))

    def decoder(self, where: str) -> Decoder:
        """Return the sizes of the model."""
        norm_count = self.num_ln_in_parallel_attn or (2 if self.new_decoder_architecture else 1)
        norms = Norms(mean=True)
        if self.parallel_attn:
            before = ("ln_attn", "ln_mlp") if norm_count == 2 else ("input_layernorm", "")
            norms = Norms(before=before, parallel=True, mean=True)
        modules = Modules(
            words="transformer.word_embeddings",
            layers="transformer.h",
            attention="self_attention",
            norm="transformer.ln_f",
        )
        return attrs.evolve(super().decoder(where), norms=norms, modules=modules)


@attrs.frozen(kw_only=True)
class Bloom(_PlainKeys):
    """``bloom``: words are normalized, heads know positions by a slope of their own."""

    vocab_size: int = key(250880)
    hidden_size: int = key(64, names=("n_embed",))
    num_hidden_layers: int = key(2, maximum=2000, names=("n_layer",))
    num_attention_heads: int = key(8, names=("n_head",))
    max_position_embeddings: int = key(2048, names=("seq_length",))
    hidden_act: str = key("gelu", quiet=True)
    tie_word_embeddings: bool = key(True)

    def attention(self, where: str) -> Grouped:
        """Return the attention of every layer."""
        return attrs.evolve(
            super().attention(where),
            input_bias=True,
            output_bias=True,
            names=("query_key_value.q", "query_key_value.k", "query_key_value.v", "dense"),
            rotary=False,
        )

    def layer(self, number: int, where: str) -> Plain:
        """Return the feed-forward part of a layer."""
        del number, where
        return Plain(width=self.width, bias=True, names=("dense_h_to_4h", "dense_4h_to_h"))

    def decoder(self, where: str) -> Decoder:
        """Return the sizes of the model."""
        modules = Modules(
            words="transformer.word_embeddings",
            words_norm="transformer.word_embeddings_layernorm",
            layers="transformer.h",
            attention="self_attention",
            norm="transformer.ln_f",
        )
        return attrs.evolve(super().decoder(where), norms=Norms(mean=True), modules=modules)


@attrs.frozen(kw_only=True)
class Opt(_PlainKeys):
    """``opt``: a table of positions with two rows more than positions."""

    vocab_size: int = key(50272)
    hidden_size: int = key(768)
    num_hidden_layers: int = key(12, maximum=2000)
    num_attention_heads: int = key(12)
    ffn_dim: int = key(3072)
    hidden_act: str = key("relu", names=("activation_function",))
    tie_word_embeddings: bool = key(True)
    enable_bias: bool = key(True, quiet=True)
    do_layer_norm_before: bool = key(True, quiet=True)
    word_embed_proj_dim: int | None = key(None)

    def attention(self, where: str) -> Grouped:
        """Return the attention of every layer."""
        return attrs.evolve(
            super().attention(where),
            input_bias=self.enable_bias,
            output_bias=self.enable_bias,
            names=("q_proj", "k_proj", "v_proj", "out_proj"),
            rotary=False,
        )

    def layer(self, number: int, where: str) -> Plain:
        """Return the feed-forward part of a layer."""
        del number, where
        return Plain(width=self.ffn_dim, bias=self.enable_bias, names=("fc1", "fc2"))

    def decoder(self, where: str) -> Decoder:
        """Return the sizes of the model.

        Raises:
            TopoplanError: layers or words are those of OPT-350M, which has others than all other models.
        """
        if not self.do_layer_norm_before:
            raise TopoplanError(f"{where}: do_layer_norm_before: false is not read (expected true, as in all but 350M)")
        if self.word_embed_proj_dim not in (None, self.hidden_size):
            raise TopoplanError(
                f"{where}: word_embed_proj_dim: {self.word_embed_proj_dim} is not read (expected hidden_size "
                f"{self.hidden_size}, as in all but 350M)"
            )
        path = "model.decoder"
        modules = Modules(
            words=f"{path}.embed_tokens",
            positions=f"{path}.embed_positions",
            layers=f"{path}.layers",
            feed_forward="",
            norm=f"{path}.final_layer_norm",
        )
        norms = Norms(before=("self_attn_layer_norm", "final_layer_norm"), mean=True)
        return attrs.evolve(super().decoder(where), norms=norms, modules=modules, rows=self.max_position_embeddings + 2)


@attrs.frozen(kw_only=True)
class GptJ(_PlainKeys):
    """``gptj``, and ``codegen``, whose joint projection has the same weights."""

    vocab_size: int = key(50400)
    hidden_size: int = key(4096, names=("n_embd",))
    num_hidden_layers: int = key(28, maximum=2000, names=("n_layer",))
    num_attention_heads: int = key(16, names=("n_head",))
    max_position_embeddings: int = key(2048, names=("n_positions",))
    hidden_act: str = key("gelu_new", names=("activation_function",))

    def attention(self, where: str) -> Grouped:
        """Return the attention of every layer."""
        return attrs.evolve(super().attention(where), names=("q_proj", "k_proj", "v_proj", "out_proj"))

    def layer(self, number: int, where: str) -> Plain:
        """Return the feed-forward part of a layer."""
        del number, where
        return Plain(width=self.width, bias=True, names=("fc_in", "fc_out"))

    def decoder(self, where: str) -> Decoder:
        """Return the sizes of the model."""
        norms = Norms(before=("ln_1", ""), parallel=True, mean=True)
        return attrs.evolve(super().decoder(where), norms=norms, modules=_GPT, head_bias=True)


@attrs.frozen(kw_only=True)
class GptNeo(_PlainKeys):
    """``gpt_neo``: every other layer attends to a window."""

    vocab_size: int = key(50257)
    hidden_size: int = key(2048)
    num_hidden_layers: int = key(24, maximum=2000, names=("num_layers",))
    num_attention_heads: int = key(16, names=("num_heads",))
    n_inner: int | None = key(None, names=("intermediate_size",))
    window_size: int = key(256)
    attention_layers: tuple[str, ...] | None = key(None)
    hidden_act: str = key("gelu_new", names=("activation_function",))
    tie_word_embeddings: bool = key(True)

    def attention(self, where: str) -> Grouped:
        """Return the attention of every layer."""
        names = ("attention.q_proj", "attention.k_proj", "attention.v_proj", "attention.out_proj")
        return attrs.evolve(super().attention(where), output_bias=True, names=names, rotary=False)

    def layer(self, number: int, where: str) -> Plain:
        """Return the feed-forward part of a layer."""
        del number, where
        return Plain(width=self.width, bias=True, names=("c_fc", "c_proj"))

    def windows(self, where: str) -> tuple[int | None, ...]:
        """Return for each layer the positions that one attends to at most; None for all."""
        names = {"global": "full_attention", "local": "sliding_attention"}
        types = None if self.attention_layers is None else [names.get(word, word) for word in self.attention_layers]
        slides = [number % 2 == 1 for number in range(self.num_hidden_layers)]
        return windows(where, self.window_size, types, slides)

    def decoder(self, where: str) -> Decoder:
        """Return the sizes of the model."""
        modules = attrs.evolve(_GPT, positions="transformer.wpe")
        return attrs.evolve(super().decoder(where), norms=Norms(before=("ln_1", "ln_2"), mean=True), modules=modules)


@attrs.frozen(kw_only=True)
class GptBigCode(_PlainKeys):
    """``gpt_bigcode``: GPT-2 with one head of keys and values (StarCoder, SantaCoder)."""

    vocab_size: int = key(50257)
    hidden_size: int = key(768, names=("n_embd",))
    num_hidden_layers: int = key(12, maximum=2000, names=("n_layer",))
    num_attention_heads: int = key(12, names=("n_head",))
    max_position_embeddings: int = key(1024, names=("n_positions",))
    hidden_act: str = key("gelu_pytorch_tanh", names=("activation_function",))
    tie_word_embeddings: bool = key(True)
    multi_query: bool = key(True)

    def attention(self, where: str) -> Grouped:
        """Return the attention of every layer."""
        heads = 1 if self.multi_query else self.num_attention_heads
        return attrs.evolve(
            super(GptBigCode, attrs.evolve(self, num_key_value_heads=heads)).attention(where),
            input_bias=True,
            output_bias=True,
            names=("c_attn.q", "c_attn.k", "c_attn.v", "c_proj"),
            rotary=False,
        )

    def layer(self, number: int, where: str) -> Plain:
        """Return the feed-forward part of a layer."""
        del number, where
        return Plain(width=self.width, bias=True, names=("c_fc", "c_proj"))

    def decoder(self, where: str) -> Decoder:
        """Return the sizes of the model."""
        modules = attrs.evolve(_GPT, positions="transformer.wpe")
        return attrs.evolve(super().decoder(where), norms=Norms(before=("ln_1", "ln_2"), mean=True), modules=modules)


@attrs.frozen(kw_only=True)
class Mpt(_PlainKeys):
    """``mpt``: no biases anywhere."""

    vocab_size: int = key(50368)
    hidden_size: int = key(2048, names=("d_model",))
    num_hidden_layers: int = key(24, maximum=2000, names=("n_layers",))
    num_attention_heads: int = key(16, names=("n_heads",))
    max_position_embeddings: int = key(2048, names=("max_seq_len",))
    expansion_ratio: int = key(4)
    hidden_act: str = key("gelu", quiet=True)
    tie_word_embeddings: bool = key(True)

    def attention(self, where: str) -> Grouped:
        """Return the attention of every layer."""
        return attrs.evolve(super().attention(where), names=("Wqkv.q", "Wqkv.k", "Wqkv.v", "out_proj"), rotary=False)

    def layer(self, number: int, where: str) -> Plain:
        """Return the feed-forward part of a layer."""
        del number, where
        return Plain(width=self.expansion_ratio * self.hidden_size, bias=False)

    def decoder(self, where: str) -> Decoder:
        """Return the sizes of the model."""
        modules = Modules(
            words="transformer.wte",
            layers="transformer.blocks",
            attention="attn",
            feed_forward="ffn",
            norm="transformer.norm_f",
        )
        norms = Norms(before=("norm_1", "norm_2"), mean=True, bias=False)
        return attrs.evolve(super().decoder(where), norms=norms, modules=modules)


@attrs.frozen(kw_only=True)
class Starcoder2(GroupedKeys):
    """``starcoder2``."""

    vocab_size: int = key(49152)
    hidden_size: int = key(3072)
    intermediate_size: int = key(12288)
    num_hidden_layers: int = key(30, maximum=2000)
    num_attention_heads: int = key(24)
    num_key_value_heads: int | None = key(2)
    hidden_act: str = key("gelu_pytorch_tanh")
    max_position_embeddings: int = key(4096)
    sliding_window: int | None = key(None, minimum=0)
    tie_word_embeddings: bool = key(True)
    use_bias: bool = key(True)

    def attention(self, where: str) -> Grouped:
        """Return the attention of every layer."""
        return attrs.evolve(super().attention(where), input_bias=self.use_bias, output_bias=self.use_bias)

    def layer(self, number: int, where: str) -> Plain:
        """Return the feed-forward part of a layer."""
        del number, where
        return Plain(width=self.intermediate_size, bias=self.use_bias, names=("c_fc", "c_proj"))

    def windows(self, where: str) -> tuple[int | None, ...]:
        """Return for each layer the positions that one attends to at most; None for all."""
        return windows(where, self.sliding_window, None, (True,) * self.num_hidden_layers)

    def decoder(self, where: str) -> Decoder:
        """Return the sizes of the model."""
        return attrs.evolve(super().decoder(where), norms=Norms(mean=True))


@attrs.frozen(kw_only=True)
class Arcee(GroupedKeys):
    """``arcee``: squared ReLU."""

    hidden_size: int = key(2560)
    intermediate_size: int = key(18432)
    hidden_act: str = key("relu2")
    max_position_embeddings: int = key(4096)
    attention_bias: bool = key(False)
    mlp_bias: bool = key(False)

    def layer(self, number: int, where: str) -> Plain:
        """Return the feed-forward part of a layer."""
        del number, where
        return Plain(width=self.intermediate_size, bias=self.mlp_bias)


@attrs.frozen(kw_only=True)
class Nemotron(Arcee):
    """``nemotron``: Nemotron-3 and -4, and Minitron.  Normalizations subtract the mean."""

    vocab_size: int = key(256000)
    hidden_size: int = key(6144)
    intermediate_size: int = key(24576)
    num_attention_heads: int = key(48)

    def decoder(self, where: str) -> Decoder:
        """Return the sizes of the model."""
        return attrs.evolve(super().decoder(where), norms=Norms(mean=True))


#: ``model_type`` -> its class of keys.
PLAIN: Mapping[str, type[DecoderKeys]] = MappingProxyType(
    {
        "arcee": Arcee,
        "bloom": Bloom,
        "codegen": GptJ,
        "falcon": Falcon,
        "gpt_bigcode": GptBigCode,
        "gpt_neo": GptNeo,
        "gptj": GptJ,
        "mpt": Mpt,
        "nemotron": Nemotron,
        "opt": Opt,
        "starcoder2": Starcoder2,
    }
)
