"""Joins the layers of a file to an operator graph.

Layers read what ``from`` names, or else the layer before; the first layer reads the first input.  A block hands its
layers one or several tensors, as ``in``, and repeats; names inside carry the block's name and its number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from topoplan import Operator, OperatorGraph, TopoplanError
from topoplan.errors import nearest, shown
from topoplan_frontend_layers import Layers
from topoplan_frontend_layers.algebra import operator_of
from topoplan_frontend_layers.kinds import KINDS
from topoplan_frontend_layers.reading import IN, Block, Layer, Model, read, required
from topoplan_operators import GraphBuilder, Handle

__all__ = ["build"]

#: The kind of a layer that is described by its algebra.
_OPERATOR = "operator"
#: Operators of the largest model.
_MOST = 100_000

#: Name -> outputs, by the names of the operator's tensors.
Names = Mapping[str, Mapping[str, Handle]]


def build(options: Layers, batch_size: int | None) -> OperatorGraph:
    """Build the graph of a file.

    Raises:
        TopoplanError: the option is missing, or the file is wrong; the message names file, table, key and value.
    """
    if not options.file:
        raise TopoplanError("frontend layers: file is missing (-o file=model.toml)")
    path = Path(options.file)
    model = read(path)
    batch = model.batch_size if batch_size is None else batch_size
    if _number(model.layers) > _MOST:
        raise TopoplanError(f"{path}: has more than {_MOST} layers with all repetitions of blocks")
    return _Joining(model, GraphBuilder(model.name, batch), str(path)).graph()


def _number(layers: Sequence[Layer | Block]) -> int:
    """Count layers with all repetitions."""
    return sum(layer.repeat * _number(layer.layers) if isinstance(layer, Block) else 1 for layer in layers)


class _Joining:
    """A graph under construction."""

    def __init__(self, model: Model, builder: GraphBuilder, where: str) -> None:
        self._model = model
        self._builder = builder
        self._where = where

    def graph(self) -> OperatorGraph:
        """Add all layers, and return the graph."""
        names: dict[str, Mapping[str, Handle]] = {}
        for k, data in enumerate(self._model.inputs, 1):
            if data.name in names:
                raise TopoplanError(f"{self._where}: input {k}: two are named {shown(data.name)}")
            names[data.name] = {"x": self._builder.input(data.shape, data.itemsize)}
        self._add(self._model.layers, names, (next(iter(names)),), "")
        try:
            return self._builder.build()
        except TopoplanError as error:
            raise TopoplanError(f"{self._where}: {error}") from None

    def _add(
        self,
        layers: Sequence[Layer | Block],
        names: dict[str, Mapping[str, Handle]],
        first: tuple[str, ...],
        prefix: str,
    ) -> Mapping[str, Handle]:
        """Add layers, their names to ``names``; return the outputs of the last one.

        Args:
            layers: of a block, or of the model.
            names: what they can refer to.
            first: names of what the first layer reads, where it does not say.
            prefix: of the names of operators.
        """
        before = first
        outputs: Mapping[str, Handle] = {}
        occupied = {layer.name for layer in layers} | {*names}
        counts: Counter[str] = Counter()
        for layer in layers:
            name = layer.name
            while not name or (name in occupied and not layer.name):
                word = layer.kind if isinstance(layer, Layer) else "block"
                counts[word] += 1
                name = f"{word}{counts[word]}"
            if layer.name in names:
                raise TopoplanError(f"{layer.where}: name: {shown(layer.name)} is taken by another layer or input")
            xs = [_found(source, names, layer.where) for source in layer.sources or before]
            if isinstance(layer, Block):
                outputs = self._block(layer, xs, names, prefix)
            else:
                outputs = self._layer(layer, xs, prefix + name)
            names[name] = outputs
            before = (name,)
        return outputs

    def _layer(self, layer: Layer, xs: Sequence[Handle], name: str) -> Mapping[str, Handle]:
        try:
            operator = self._operator(layer, xs, name)
        except TopoplanError as error:
            if str(error).startswith(layer.where):
                raise
            raise TopoplanError(f"{layer.where}: {error}") from None
        handles = self._builder.append(operator, xs, name)
        return {tensor.name: handle for tensor, handle in zip(operator.outputs, handles, strict=True)}

    def _operator(self, layer: Layer, xs: Sequence[Handle], name: str) -> Operator:
        if layer.kind == _OPERATOR:
            return operator_of(layer.options, xs, self._builder.batch_size, name, layer.where)
        if layer.kind not in KINDS:
            raise TopoplanError(f"kind: no kind {shown(layer.kind)}{nearest(layer.kind, (*KINDS, _OPERATOR))}")
        kind = required(KINDS[layer.kind], layer.options, layer.where)
        kind.check(xs)
        return kind.operator(xs)

    def _block(
        self, block: Block, xs: Sequence[Handle], names: dict[str, Mapping[str, Handle]], prefix: str
    ) -> Mapping[str, Handle]:
        """Add a block as often as it repeats; return the outputs of the last layer of the last time."""
        reads: Mapping[str, Handle] = {f"x{k}": x for k, x in enumerate(xs)}
        for k in range(block.repeat):
            reads = self._add(block.layers, {**names, IN: reads}, (IN,), f"{prefix}{block.name}.{k}.")
        return reads


def _found(source: str, names: Names, where: str) -> Handle:
    """Return the tensor that ``name`` or ``name:output`` names; a name alone means its first output."""
    name, colon, output = source.partition(":")
    if name not in names:
        raise TopoplanError(f"{where}: from: nothing before is named {shown(name)}{nearest(name[:60], names)}")
    outputs = names[name]
    if not colon:
        return next(iter(outputs.values()))
    if output not in outputs:
        raise TopoplanError(
            f"{where}: from: {shown(name)} has no output {shown(output)}{nearest(output[:60], outputs)}"
        )
    return outputs[output]
