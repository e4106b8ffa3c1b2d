"""What stands behind the last layer: a head over the words, scores of sequences, tokens or spans, or nothing.

    channels of all positions ─► head ─► scores ─► loss

The scores of a sequence are computed at every position, of which the last one counts, as in transformers
(``modeling_layers.GenericForSequenceClassification``).  One score is a reward, which has no loss of its own: it is
compared with that of another sample.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import attrs

from topoplan_frontend_huggingface.blocks import INDEX, Blocks, cross_entropy
from topoplan_operators import Handle, shaping

__all__ = ["Head", "NoHead", "RewardHead", "SequenceHead", "SpanHead", "TokenHead", "WordHead"]


@attrs.frozen(kw_only=True)
class Head(ABC):
    """Adds what is trained on the last channels."""

    @abstractmethod
    def add(self, b: Blocks, x: Handle) -> None:
        """Add operators behind ``x`` (samples, positions, channels)."""


@attrs.frozen(kw_only=True)
class NoHead(Head):
    """The model alone, such as ``MistralModel``: its channels are the answer."""

    def add(self, b: Blocks, x: Handle) -> None:
        """Add nothing."""
        del b, x


@attrs.frozen(kw_only=True)
class WordHead(Head):
    """Scores of all words at every position.

    Attributes:
        words: rows of the table.
        tied: whether the table is that of the embedding.
        bias: whether every word has one.
        capped: whether scores go through tanh (Gemma 2).
    """

    words: int
    tied: bool
    bias: bool = False
    capped: bool = False

    def add(self, b: Blocks, x: Handle) -> None:
        """Add the head and the loss."""
        project = b.tied_linear if self.tied else b.linear
        self._score(b, project(x, self.words, "lm_head", bias=self.bias))

    def add_again(self, b: Blocks, x: Handle) -> None:
        """Add scores and a loss of other positions with the same matrix, behind those of `add`."""
        scores = b.tied_linear(x, self.words, "lm_head", bias=self.bias, of="table" if self.tied else "kernel")
        self._score(b, scores)

    def _score(self, b: Blocks, scores: Handle) -> None:
        _loss(b, b.apply("tanh", scores, "softcap") if self.capped else scores, "loss")


@attrs.frozen(kw_only=True)
class SequenceHead(Head):
    """Scores of a sequence, those of its last position: ``LlamaForSequenceClassification``, and reward models."""

    labels: int

    def add(self, b: Blocks, x: Handle) -> None:
        """Add the scores of every position, and the loss of the last one."""
        _last(b, b.linear(x, self.labels, "score"))


@attrs.frozen(kw_only=True)
class RewardHead(Head):
    """Two linear layers to scores: ``Qwen2ForRewardModel`` (one), ``Qwen2ForProcessRewardModel`` (two a position).

    Source: Qwen/Qwen2.5-Math-RM-72B and -PRM-7B, ``modeling_qwen2_rm.py``.
    """

    labels: int
    every_position: bool

    def add(self, b: Blocks, x: Handle) -> None:
        """Add the layers."""
        y = b.apply("relu", b.linear(x, x.shape[2], "score.0", bias=True), "score.1")
        scores = b.linear(y, self.labels, "score.2", bias=True)
        if self.every_position:
            _loss(b, scores, "loss")
        else:
            _last(b, scores)


@attrs.frozen(kw_only=True)
class TokenHead(Head):
    """Scores of every position: ``LlamaForTokenClassification``.

    Attributes:
        labels: classes.
        module: name of the layer.
    """

    labels: int
    module: str = "score"

    def add(self, b: Blocks, x: Handle) -> None:
        """Add the scores and their loss."""
        scores = b.linear(x, self.labels, self.module, bias=True)
        if self.labels > 1:
            _loss(b, scores, "loss")


@attrs.frozen(kw_only=True)
class SpanHead(Head):
    """Two scores of every position, for where an answer begins and ends: ``LlamaForQuestionAnswering``."""

    def add(self, b: Blocks, x: Handle) -> None:
        """Add the scores."""
        b.linear(x, 2, "qa_outputs", bias=True)


def _loss(b: Blocks, scores: Handle, module: str) -> None:
    targets = Handle(scores.shape[:-1], INDEX)
    b.add(cross_entropy(scores, targets), [scores, targets], module)


def _last(b: Blocks, scores: Handle) -> None:
    last = b.add(shaping.take_token(scores), [scores], "score_of_last")[0]
    if last.shape[1] > 1:
        _loss(b, last, "loss")
