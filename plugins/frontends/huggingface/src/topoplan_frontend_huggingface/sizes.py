"""What is built of a decoder: sizes of its attention, of its feed-forward parts, and how a layer is arranged.

    keys of a family (`families`, `relatives`, `arranged`) ─► Decoder ─► `decoders` builds it

Names of modules are those of transformers, where a family has others than Llama's.
"""

from __future__ import annotations

from enum import StrEnum

import attrs

__all__ = ["Decoder", "Dense", "Experts", "FeedForward", "Grouped", "Latent", "Modules", "Norms", "Plain", "QueryNorm"]


class QueryNorm(StrEnum):
    """How queries and keys are normalized before they meet."""

    NONE = "none"
    HEADS = "heads"
    """Mean square 1 in every head (Qwen3, Gemma 3)."""
    LAYER = "layer"
    """Mean 0 and variance 1 in every head (Phi)."""
    ALL = "all"
    """Mean square 1 over the channels of all heads (OLMo 2)."""
    OWN = "own"
    """Mean 0 and variance 1 in every head, with a scale of its own and no bias (Cohere, StableLM)."""


@attrs.frozen(kw_only=True)
class Grouped:
    """Attention with heads of keys and values that heads of queries share.

    Attributes:
        heads, kv_heads: of queries, and of keys and values.
        channels: of a head.
        input_bias, output_bias: whether projections to queries, keys and values, and the one of answers, have biases.
        normalized: how queries and keys are normalized.
        sinks: whether every head has a score of its own that no position answers (gpt-oss).
        names: modules of queries, keys, values and answers.
        rotary: whether queries and keys are turned by their positions.
    """

    heads: int
    kv_heads: int
    channels: int
    input_bias: bool
    output_bias: bool
    normalized: QueryNorm = QueryNorm.NONE
    sinks: bool = False
    names: tuple[str, str, str, str] = ("q_proj", "k_proj", "v_proj", "o_proj")
    rotary: bool = True


@attrs.frozen(kw_only=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): keys and values out of one short vector a position.

    Attributes:
        heads: of queries, keys and values.
        query_rank: channels that queries are made of; None where they are made of the hidden ones.
        rank: channels that keys and values are made of.
        plain, rotated: channels of a query or key without and with position.
        values: channels of a value.
        bias: whether the first projections and that of answers have biases.
    """

    heads: int
    query_rank: int | None
    rank: int
    plain: int
    rotated: int
    values: int
    bias: bool


@attrs.frozen(kw_only=True)
class Dense:
    """Two projections to ``width`` channels, one through an activation, multiplied, and one back."""

    width: int
    bias: bool = False
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")


@attrs.frozen(kw_only=True)
class Plain:
    """One projection to ``width`` channels, an activation, and one back, as in GPT."""

    width: int
    bias: bool
    names: tuple[str, str] = ("up_proj", "down_proj")


@attrs.frozen(kw_only=True)
class Experts:
    """Feed-forward networks that each token is sent to some of.

    Attributes:
        count, chosen: of all experts, and of those of a token.
        width: channels inside an expert.
        shared: channels inside the network that every token goes through; 0 where there is none.
        shared_name: of the module of that network.
        shared_gate: whether a gate weighs its answer.
        bias: whether that network has biases.
        biases: whether every expert and the gate have biases (gpt-oss).
        limited: whether what the activation and its factor read is clamped first (gpt-oss).
        gate: module that scores the experts.
        chosen_by_bias: whether a number for each expert is added to its score, which the balance of experts moves, and
            no gradient (DeepSeek-V3: ``e_score_correction_bias``).
    """

    count: int
    chosen: int
    width: int
    shared: int = 0
    shared_name: str = "shared_experts"
    shared_gate: bool = False
    bias: bool = False
    biases: bool = False
    limited: bool = False
    gate: str = "gate"
    chosen_by_bias: bool = False


FeedForward = Dense | Plain | Experts


@attrs.frozen(kw_only=True)
class Norms:
    """Which normalizations stand around attention and the feed-forward part; an empty name is none.

    Attributes:
        before: of what attention reads, and of what the feed-forward part reads.
        after: of what each of them answers (Gemma 2, OLMo 2).
        parallel: both read the input of the layer (GPT-NeoX); without a normalization of its own the feed-forward part
            reads what attention does (Phi).
        mean: they take the mean away, too: `layer_norm` in place of `rms_norm`.
        scale, bias: whether those that do have a scale and a bias (not in OLMo; no bias in Cohere).
    """

    before: tuple[str, str] = ("input_layernorm", "post_attention_layernorm")
    after: tuple[str, str] = ("", "")
    parallel: bool = False
    mean: bool = False
    scale: bool = True
    bias: bool = True


@attrs.frozen(kw_only=True)
class Modules:
    """Names of modules; an empty one is not there.

    Attributes:
        words, words_norm: the table of words, and a normalization behind it (BLOOM).
        positions: a table of positions, whose rows are added to words.
        layers, attention, feed_forward: layers, and what is in each; the parts of a feed-forward part without a name
            are in the layer itself (OPT).
        norm: behind the last layer.
    """

    words: str = "model.embed_tokens"
    words_norm: str = ""
    positions: str = ""
    layers: str = "model.layers"
    attention: str = "self_attn"
    feed_forward: str = "mlp"
    norm: str = "model.norm"


@attrs.frozen(kw_only=True)
class Decoder:
    """A decoder: a table of words, and layers of attention and feed-forward.

    Attributes:
        hidden, words: channels, and rows of the table.
        tied: whether a head over the words reads the table.
        activation: of the feed-forward parts.
        positions: that the model is made for.
        causal: whether no position attends to a later one.
        attention: of every layer.
        layers: the feed-forward part of each.
        windows: for each layer the positions that one attends to at most; None for all.
        norms, modules: how a layer is arranged, and what its modules are called.
        head_bias: whether a head over the words has a bias.
        capped: whether its scores go through tanh (Gemma 2).
        predictions: layers behind the last one that predict further words (DeepSeek-V3), each as the last one.
        rows: of a table of positions, where it has others than ``positions``.
    """

    hidden: int
    words: int
    tied: bool
    activation: str
    positions: int
    causal: bool
    attention: Grouped | Latent
    layers: tuple[FeedForward, ...]
    windows: tuple[int | None, ...]
    norms: Norms = Norms()
    modules: Modules = Modules()
    head_bias: bool = False
    capped: bool = False
    predictions: int = 0
    rows: int = 0
