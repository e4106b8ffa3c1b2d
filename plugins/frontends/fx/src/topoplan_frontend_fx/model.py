"""Nodes to an operator graph: inputs get their shapes, functions join what they follow, operators their inputs."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from topoplan import OperatorGraph, TopoplanError
from topoplan.errors import nearest, shown
from topoplan_engine.files import read_text
from topoplan_frontend_fx import Fx
from topoplan_frontend_fx.operators import ACTIVATIONS, ARITIES, OPERATORS, UNCHANGED
from topoplan_frontend_fx.reading import Node, parse
from topoplan_operators import GraphBuilder, Handle

__all__ = ["build"]

WHERE = "frontend fx"
#: Samples of a batch unless users say how many.
_BATCH = 64
#: Bytes of an index, and of any other element.
_INDEX, _ELEMENT = 8, 4
_SHAPE = re.compile(r"[1-9][0-9]{0,8}(x[1-9][0-9]{0,8})*")


def build(options: Fx, batch_size: int | None) -> OperatorGraph:
    """Build the graph of a file.

    Raises:
        TopoplanError: an option is missing or wrong, or a line; the message names file and line.
    """
    if not options.file:
        raise TopoplanError(f"{WHERE}: file is missing (-o file=model.ff, as torch_to_flexflow wrote it)")
    path = Path(options.file)
    nodes = parse(read_text(path, "a model of FlexFlow's PyTorch front end"), str(path))
    shapes = _shapes(options.inputs, [node.name for node in nodes if node.operator == "INPUT"])
    return _Model(nodes, shapes, GraphBuilder(path.stem, _BATCH if batch_size is None else batch_size)).build()


def _shapes(text: str, names: list[str]) -> dict[str, tuple[int, ...]]:
    """Read one shape for each input, such as ``3x224x224-16``."""
    words = text.split("-") if text else []
    if len(words) != len(names) or not all(map(_SHAPE.fullmatch, words)):
        raise TopoplanError(
            f"{WHERE}: inputs: {shown(text)} must be the shapes of {len(names)} inputs ({', '.join(names)}) without "
            "samples, such as 3x224x224, with dashes between"
        )
    return {name: tuple(map(int, word.split("x"))) for name, word in zip(names, words, strict=True)}


class _Model:
    """A graph under construction: what each name stands for."""

    def __init__(self, nodes: list[Node], shapes: dict[str, tuple[int, ...]], builder: GraphBuilder) -> None:
        self._nodes = nodes
        self._shapes = shapes
        self._builder = builder
        self._outputs: dict[str, list[Handle]] = {}
        readers = Counter(name for node in nodes for name in node.inputs)
        heads = {node.name for node in nodes if node.operator in ("CONV2D", "LINEAR") and readers[node.name] == 1}
        #: Function that becomes an activation -> the operator whose one it becomes.
        self._head_of = {
            node.name: node.inputs[0]
            for node in nodes
            if node.operator in ACTIVATIONS and len(node.inputs) == 1 and node.inputs[0] in heads
        }
        self._indices = {name for node in nodes if node.operator == "EMBEDDING" for name in node.inputs}

    def build(self) -> OperatorGraph:
        """Add all nodes in their order."""
        for node in self._nodes:
            if node.operator == "OUTPUT":
                self._inputs_of(node)
                continue
            try:
                self._outputs[node.name] = self._added(node)
            except TopoplanError as error:
                if str(error).startswith(node.where):
                    raise
                raise TopoplanError(f"{node.where}: {node.operator}: {error}") from None
        try:
            return self._builder.build()
        except TopoplanError as error:
            raise TopoplanError(f"{self._nodes[-1].where}: the file ends here, and {error}") from None

    def _added(self, node: Node) -> list[Handle]:
        """Add a node, and return its outputs."""
        if node.operator == "INPUT":
            itemsize = _INDEX if node.name in self._indices else _ELEMENT
            return [self._builder.input(self._shapes[node.name], itemsize)]
        if node.operator not in (*OPERATORS, *UNCHANGED, "GETITEM"):
            raise TopoplanError(
                f"{node.where}: operator {shown(node.operator)} of node {shown(node.name)} cannot be planned"
                f"{nearest(node.operator, OPERATORS)}"
            )
        inputs = self._inputs_of(node)
        if node.operator == "GETITEM":
            return [self._item(node)]
        flat_already = node.operator == "FLAT" and len(inputs[0].shape) == 2
        if node.name in self._head_of or node.operator in UNCHANGED or flat_already:
            return inputs[:1]
        operator = OPERATORS[node.operator](node, inputs, node.name in self._head_of.values())
        return self._builder.append(operator, inputs, node.name)

    def _item(self, node: Node) -> Handle:
        """Return one output of an operator that has several."""
        outputs = self._outputs[node.inputs[0]]
        number = node.integer(0, "number of an output (slices cannot be planned)", 0)
        if number >= len(outputs) or len(outputs) == 1:
            raise TopoplanError(f"{node.where}: GETITEM: {node.inputs[0]} has no output {number} of several")
        return outputs[number]

    def _inputs_of(self, node: Node) -> list[Handle]:
        """Return what a node reads: as many tensors as its operator needs, all of earlier lines."""
        for name in node.inputs:
            if name not in self._outputs:
                raise TopoplanError(
                    f"{node.where}: {node.operator} reads {shown(name)}, which no earlier line makes"
                    f"{nearest(name, self._outputs)}"
                )
        arity = None if node.operator == "OUTPUT" else ARITIES.get(node.operator, 1)
        if node.operator in UNCHANGED:
            arity = None
        if len(node.inputs) < (arity or 1) or (arity is not None and len(node.inputs) > arity):
            expected = "at least 1" if arity is None else str(arity)
            raise TopoplanError(f"{node.where}: {node.operator} reads {len(node.inputs)} tensors (expected {expected})")
        return [self._outputs[name][0] for name in node.inputs]
