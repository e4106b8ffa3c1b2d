"""What is trained of a model: all of it, all but frozen modules, or low-rank adapters beside frozen matrices.

    patterns ─► which modules ─┬─► LoRA: `AdaptingBuilder` adds B (A x) beside each adapted matrix; all else is frozen
                               └─► frozen: weights of these modules have no gradient (`without_gradients`)

A frozen weight has no gradient, no all-reduce and no optimizer state; `topoplan_engine.training` derives what flows
back.  A pattern is a module's name or the end or middle of its path, as in peft: ``q_proj``, ``mlp.down_proj``,
``layers.0``; ``*`` and ``?`` stand for letters of one name.  Source: Hu et al. (2021), LoRA, section 4.1: two matrices,
rank x in and out x rank, beside each adapted matrix.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase

import attrs

from topoplan import Operator, OperatorGraph, TopoplanError
from topoplan.errors import nearest, shown
from topoplan_frontend_huggingface import HuggingFace
from topoplan_operators import GraphBuilder, Handle, dense, pointwise

__all__ = ["AdaptingBuilder", "builder_of", "is_within", "trained_as"]

#: What LoRA adapts unless users say: queries and values, as the paper and peft's defaults do.
_MODULES = ("q_proj", "v_proj")
#: Parts that models here have of a matrix that transformers keeps as one.
_JOINT = frozenset({"q", "k", "v", "gate", "up"})
#: Names of the two matrices of an adapter, as in peft.
_DOWN, _UP = "lora_A", "lora_B"


class AdaptingBuilder(GraphBuilder):
    """A builder that adds an adapter of low rank beside each matrix whose name a pattern has.

    Parts of a joint matrix (``qkv_proj.q``) share the adapter's first matrix, as one adapter of the whole has.
    """

    def __init__(self, name: str, batch_size: int, rank: int, modules: Sequence[str]) -> None:
        """Start a graph; ``rank`` is that of all adapters of ``modules``."""
        super().__init__(name, batch_size)
        self.rank, self.modules = rank, tuple(modules)
        self.matrices: list[str] = []
        self._first: dict[str, Handle] = {}

    def append(
        self,
        operator: Operator,
        sources: Sequence[Handle],
        name: str | None = None,
        flexnet_name: str | None = None,
    ) -> list[Handle]:
        """Add an operator, and its adapter where it has one."""
        outputs = super().append(operator, sources, name, flexnet_name)
        if name is None or operator.kind != "linear" or not operator.weights or "shared" in operator.tags:
            return outputs
        self.matrices.append(name)
        if not any(is_within(name, pattern) for pattern in self.modules):
            return outputs
        of, _, part = name.rpartition(".")
        whole = of if part in _JOINT else name
        low = self._first.get(whole)
        if low is None:
            low = super().append(_matrix(sources[0], self.rank), sources, f"{whole}.{_DOWN}")[0]
            self._first[whole] = low
        change = super().append(_matrix(low, outputs[0].shape[-1]), [low], f"{name}.{_UP}")[0]
        addends = [outputs[0], change]
        return super().append(pointwise.elementwise("add", addends), addends, f"{name}.lora_add")


def _matrix(x: Handle, out: int) -> Operator:
    return dense.linear(x, out, bias=False, activation=False)


def builder_of(options: HuggingFace, family: str, batch_size: int) -> GraphBuilder:
    """Return what builds the graph: with adapters where a rank is given.

    Raises:
        TopoplanError: modules without a rank.
    """
    if options.lora_rank is None:
        if options.lora_modules:
            raise TopoplanError("frontend huggingface: lora-modules: without lora-rank (such as -o lora-rank=16)")
        return GraphBuilder(family, batch_size)
    return AdaptingBuilder(family, batch_size, options.lora_rank, _patterns(options.lora_modules) or _MODULES)


def trained_as(graph: OperatorGraph, builder: GraphBuilder, options: HuggingFace, where: str) -> OperatorGraph:
    """Return a model without gradients of what is not trained.

    Raises:
        TopoplanError: a pattern that no module has, or nothing is left to train.
    """
    weighty = [op.name for op in graph.operators if op.weights]
    names: set[str] = set()
    if isinstance(builder, AdaptingBuilder):
        _check("lora-modules", builder.modules, builder.matrices, "matrix", where)
        names = {name for name in weighty if name.rpartition(".")[2] not in (_DOWN, _UP)}
    patterns = _patterns(options.frozen)
    _check("frozen", patterns, weighty, "module with weights", where)
    names |= {name for name in weighty if any(is_within(name, pattern) for pattern in patterns)}
    if len(names) == len(weighty):
        raise TopoplanError(f"frontend huggingface: frozen: {shown(options.frozen)} leaves nothing of {where} to train")
    return without_gradients(graph, names) if names else graph


def without_gradients(graph: OperatorGraph, names: Collection[str]) -> OperatorGraph:
    """Return a model whose operators of these names train no weight, nor do others with which they share one."""
    tables = {(tensor.name, tensor.shape) for op in graph.operators if op.name in names for tensor in op.weights}

    def still(op: Operator) -> Operator:
        shared = op.tags.get("shared", "").split()
        inputs = tuple(
            attrs.evolve(tensor, requires_grad=False)
            if tensor.name in shared and (tensor.name, tensor.shape) in tables
            else tensor
            for tensor in op.inputs
        )
        weights = op.weights
        if op.name in names:
            weights = tuple(attrs.evolve(tensor, requires_grad=False) for tensor in weights)
        return attrs.evolve(op, inputs=inputs, weights=weights) if (inputs, weights) != (op.inputs, op.weights) else op

    return attrs.evolve(graph, operators=tuple(map(still, graph.operators)))


def is_within(name: str, pattern: str) -> bool:
    """Whether a module is one of a pattern's, or lies inside of one.

    Examples:
        >>> is_within("model.layers.1.mlp.up_proj", "layers.1"), is_within("model.layers.11.mlp.up_proj", "layers.1")
        (True, False)
        >>> is_within("model.layers.1.mlp.up_proj", "u*_proj")
        True
    """
    parts, words = name.split("."), pattern.split(".")
    starts = range(len(parts) - len(words) + 1)
    return any(all(map(fnmatchcase, parts[start:], words)) for start in starts)


def _patterns(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def _check(option: str, patterns: Sequence[str], names: Sequence[str], what: str, where: str) -> None:
    """Raise `TopoplanError` for a pattern that no module has; the message names the nearest ones."""
    for pattern in patterns:
        if not any(is_within(name, pattern) for name in names):
            words = {word for name in names for word in name.split(".") if not word.isdigit()}
            close = difflib.get_close_matches(pattern, sorted(words), n=3)
            hint = f"; did you mean {', '.join(map(shown, close))}?" if close else nearest(pattern, words)
            raise TopoplanError(f"frontend huggingface: {option}: {where} has no {what} {shown(pattern)}{hint}")
