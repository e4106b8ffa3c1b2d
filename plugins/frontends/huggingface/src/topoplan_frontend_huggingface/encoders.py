"""Encoders: BERT, which normalizes behind each half of a layer, and ViT, which does so before."""

from __future__ import annotations

from typing import Literal

import attrs

from topoplan import TopoplanError
from topoplan_frontend_huggingface.blocks import INDEX, Blocks, cross_entropy, learned_positions
from topoplan_frontend_huggingface.heads import SpanHead, TokenHead
from topoplan_frontend_huggingface.reading import key
from topoplan_operators import GraphBuilder, Handle, shaping, spatial

__all__ = ["Bert", "BertHead", "EncoderKeys", "Vit", "VitHead", "bert", "vit"]

BertHead = Literal[
    "BertForMaskedLM",
    "BertModel",
    "BertForPreTraining",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "BertForQuestionAnswering",
    "BertForMultipleChoice",
    "BertForNextSentencePrediction",
]
VitHead = Literal["ViTForImageClassification", "ViTModel"]
#: Heads that read every position, and so have no pooler.
_OF_POSITIONS = ("BertForMaskedLM", "BertForTokenClassification", "BertForQuestionAnswering")


@attrs.frozen(kw_only=True)
class EncoderKeys:
    """Keys that both have."""

    hidden_size: int = key(768)
    intermediate_size: int = key(3072)
    num_hidden_layers: int = key(12, maximum=2000)
    num_attention_heads: int = key(12)
    hidden_act: str = key("gelu")

    def check(self, where: str) -> None:
        """Raise `TopoplanError` where keys do not fit each other."""
        if self.hidden_size % self.num_attention_heads:
            raise TopoplanError(
                f"{where}: num_attention_heads: {self.num_attention_heads} does not divide hidden_size "
                f"{self.hidden_size}"
            )


@attrs.frozen(kw_only=True)
class Bert(EncoderKeys):
    """Keys of ``bert``."""

    vocab_size: int = key(30522)
    max_position_embeddings: int = key(512)
    type_vocab_size: int = key(2)
    tie_word_embeddings: bool = key(True)
    add_cross_attention: bool = key(False)
    is_decoder: bool = key(False)

    def check(self, where: str) -> None:
        """Raise `TopoplanError` where keys do not fit each other, or the model is not read."""
        super().check(where)
        for name in ("add_cross_attention", "is_decoder"):
            if getattr(self, name):
                raise TopoplanError(f"{where}: {name}: true is not read (expected false: an encoder)")


@attrs.frozen(kw_only=True)
class Vit(EncoderKeys):
    """Keys of ``vit``."""

    image_size: int = key(224)
    patch_size: int = key(16)
    num_channels: int = key(3)
    qkv_bias: bool = key(True)

    def check(self, where: str) -> None:
        """Raise `TopoplanError` where keys do not fit each other."""
        super().check(where)
        if self.patch_size > self.image_size:
            raise TopoplanError(f"{where}: patch_size: {self.patch_size} is larger than image_size {self.image_size}")


def bert(
    builder: GraphBuilder, sizes: Bert, head: BertHead, *, labels: int, layers: int, positions: int, activation: str
) -> None:
    """Add the operators of BERT, and of what is trained on it: ``head``, with ``labels`` classes where it has some."""
    b = Blocks(builder)
    x = _bert_layers(b, sizes, layers, positions, activation)
    if head == "BertForTokenClassification":
        TokenHead(labels=labels, module="classifier").add(b, x)
    if head == "BertForQuestionAnswering":
        SpanHead().add(b, x)
    if head in ("BertForMaskedLM", "BertForPreTraining"):
        _words(b, x, sizes, activation)
    if head in _OF_POSITIONS:
        return
    first = b.add(shaping.take_token(x), [x], "bert.pooler.first")[0]
    first = b.linear(first, sizes.hidden_size, "bert.pooler.dense", bias=True)
    first = b.apply("tanh", first, "bert.pooler.activation")
    if head == "BertForMultipleChoice":
        b.linear(first, 1, "classifier", bias=True)
    elif head == "BertForSequenceClassification":
        _scores(b, first, labels, "classifier", "loss")
    elif head != "BertModel":
        _scores(b, first, 2, "cls.seq_relationship", "pair_loss")


def _scores(b: Blocks, first: Handle, labels: int, module: str, loss: str) -> None:
    """Add the scores of a sample; one alone is a number to be met, whose loss costs nothing."""
    scores = b.linear(first, labels, module, bias=True)
    if labels > 1:
        targets = Handle(scores.shape[:1], INDEX)
        b.add(cross_entropy(scores, targets), [scores, targets], loss)


def _words(b: Blocks, x: Handle, sizes: Bert, activation: str) -> None:
    """Add the scores of all words at every position."""
    inner = b.within("cls.predictions")
    y = inner.apply(activation, inner.linear(x, sizes.hidden_size, "transform.dense", bias=True), "transform.act")
    y = inner.layer_norm(y, "transform.LayerNorm")
    tied = sizes.tie_word_embeddings
    scores = (inner.tied_linear if tied else inner.linear)(y, sizes.vocab_size, "decoder", bias=True)
    targets = Handle(scores.shape[:-1], INDEX)
    b.add(cross_entropy(scores, targets), [scores, targets], "loss")


def _bert_layers(b: Blocks, sizes: Bert, layers: int, positions: int, activation: str) -> Handle:
    """Return the channels of the last layer."""
    width, builder = sizes.hidden_size, b.builder
    tokens, kinds = builder.input((positions,), INDEX), builder.input((positions,), INDEX)
    inner = b.within("bert.embeddings")
    x = inner.words(tokens, sizes.vocab_size, width, "word_embeddings")
    x = inner.sum(x, inner.words(kinds, sizes.type_vocab_size, width, "token_type_embeddings"), "add")
    x = inner.add(learned_positions(x, sizes.max_position_embeddings), [x], "position_embeddings")[0]
    x = inner.layer_norm(x, "LayerNorm")
    for number in range(layers):
        layer = b.within(f"bert.encoder.layer.{number}")
        y = _attention(layer.within("attention"), x, sizes.num_attention_heads, "self", bias=True)
        x = layer.layer_norm(layer.sum(x, y, "attention.output.add"), "attention.output.LayerNorm")
        y = layer.linear(x, sizes.intermediate_size, "intermediate.dense", bias=True)
        y = layer.linear(layer.apply(activation, y, "intermediate.act"), width, "output.dense", bias=True)
        x = layer.layer_norm(layer.sum(x, y, "output.add"), "output.LayerNorm")
    return x


def vit(builder: GraphBuilder, sizes: Vit, head: VitHead, labels: int, layers: int, activation: str) -> None:
    """Add the operators of ViT, and of its classifier with ``labels`` classes."""
    b = Blocks(builder)
    width, side = sizes.hidden_size, sizes.image_size // sizes.patch_size
    image = builder.input((sizes.num_channels, sizes.image_size, sizes.image_size))
    inner = b.within("vit.embeddings")
    patch = sizes.patch_size
    cut = spatial.conv2d(image, width, patch, stride=patch, padding=0, bias=True, activation=False)
    x = inner.add(cut, [image], "patch_embeddings.projection")[0]
    x = inner.add(shaping.flatten(x, 2), [x], "patch_embeddings.flatten")[0]
    x = inner.add(shaping.transpose(x, 1, 2), [x], "patch_embeddings.transpose")[0]
    x = inner.add(shaping.append_token(x), [x], "cls_token")[0]
    x = inner.add(learned_positions(x, side * side + 1), [x], "position_embeddings")[0]
    for number in range(layers):
        layer = b.within(f"vit.encoder.layer.{number}")
        y = layer.layer_norm(x, "layernorm_before")
        y = _attention(layer.within("attention"), y, sizes.num_attention_heads, "attention", bias=sizes.qkv_bias)
        x = layer.sum(x, y, "add1")
        y = layer.linear(
            layer.layer_norm(x, "layernorm_after"), sizes.intermediate_size, "intermediate.dense", bias=True
        )
        y = layer.linear(layer.apply(activation, y, "intermediate.act"), width, "output.dense", bias=True)
        x = layer.sum(x, y, "add2")
    x = b.layer_norm(x, "vit.layernorm")
    first = b.add(shaping.take_token(x), [x], "vit.first")[0]
    if head == "ViTModel":
        b.apply("tanh", b.linear(first, width, "vit.pooler.dense", bias=True), "vit.pooler.activation")
        return
    scores = b.linear(first, labels, "classifier", bias=True)
    targets = Handle(scores.shape[:1], INDEX)
    b.add(cross_entropy(scores, targets), [scores, targets], "loss")


def _attention(b: Blocks, x: Handle, heads: int, module: str, *, bias: bool) -> Handle:
    """Return the answers of attention among all positions, projected; the last projection always has a bias."""
    inner = b.within(module)
    q, k, v = (inner.linear(x, x.shape[2], word, bias=bias) for word in ("query", "key", "value"))
    y = inner.attend(q, k, v, (heads, heads), "attention")
    return b.linear(y, x.shape[2], "output.dense", bias=True)
