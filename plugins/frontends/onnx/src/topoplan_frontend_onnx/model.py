"""Joins the nodes of an ONNX file to an operator graph.

What depends on no input is computed (`folding`), what is prepared with the training data is no part of the model, and
what no output needs is left out.  All else is translated (`operators`), or *opaque*: planned as a whole, cut in samples
alone, with no cost but that of its bytes.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from topoplan import Operator, OperatorGraph, TopoplanError
from topoplan.errors import TopoplanWarning, exception_line, nearest, shown
from topoplan.model.graph import Axis, Dimension, Role, Tensor
from topoplan_frontend_onnx import Onnx
from topoplan_frontend_onnx.calls import Call, Unknown
from topoplan_frontend_onnx.folding import constant_of, folded
from topoplan_frontend_onnx.fusing import fused
from topoplan_frontend_onnx.operators import OPERATORS
from topoplan_frontend_onnx.reading import File, Input, Node, read
from topoplan_frontend_onnx.values import Activation, Constant, Value
from topoplan_operators import GraphBuilder, Handle

__all__ = ["build"]

#: Samples of an iteration where neither user nor file says more than declared.
_BATCH_SIZE = 64
#: Operators without translation whose first output has the shape of their first input.
_SAME_SHAPE = frozenset({"CumSum", "GroupNormalization", "InstanceNormalization", "MeanVarianceNormalization"})
#: Operators that hold no matrix products, so that a plan's model FLOPs miss nothing where one is opaque.
_NAMES = """
AffineGrid ArgMax ArgMin Bernoulli BitShift Cast CenterCropPad Col2Im Compress Concat CumSum DepthToSpace Det Dropout
Expand EyeLike Flatten Gather GatherElements GatherND GridSample GroupNormalization Hardmax InstanceNormalization IsInf
IsNaN LpNormalization LpPool MaxRoiPool MaxUnpool MeanVarianceNormalization Multinomial NonMaxSuppression NonZero OneHot
Pad RandomNormal RandomNormalLike RandomUniform RandomUniformLike ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp
ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Reshape Resize ReverseSequence RoiAlign Round
RotaryEmbedding Scatter ScatterElements ScatterND Shrink Slice SoftmaxCrossEntropyLoss SpaceToDepth Split Squeeze
ThresholdedRelu Tile TopK Transpose Trilu Unique Unsqueeze Upsample Where
"""
_WITHOUT_PRODUCTS = frozenset(_NAMES.split())
#: What a node raises whose attributes or inputs are of another kind than its operator has.
_ODD = (ValueError, IndexError, KeyError, TypeError, OverflowError, ZeroDivisionError)


def build(options: Onnx, batch_size: int | None) -> OperatorGraph:
    """Build the graph of a file.

    Raises:
        TopoplanError: the option is missing, the file is wrong, or a size is not known; the message names file,
            and node or dimension.
    """
    if not options.file:
        raise TopoplanError("frontend onnx: file is missing (-o file=model.onnx)")
    path = Path(options.file)
    file = fused(read(path))
    try:
        return _Joining(file, path.stem, _sizes(options.sizes), batch_size, options.strict).graph()
    except TopoplanError as error:
        raise TopoplanError(f"{path}: {error}") from None


def _sizes(text: str) -> dict[str, int]:
    sizes = {}
    for part in text.split(",") if text else ():
        name, _, number = part.rpartition("=")
        if not name or not number.strip().isdecimal() or not 0 < int(number) <= 2**40:
            raise TopoplanError(f"sizes: {shown(part)} is no name=size (sequence=128)")
        sizes[name.strip()] = int(number)
    return sizes


class _Joining:
    """A graph under construction."""

    def __init__(self, file: File, name: str, sizes: Mapping[str, int], batch_size: int | None, strict: bool) -> None:
        self._file, self._strict = file, strict
        self._nodes = _needed(file)
        names = {name for node in self._nodes for name in node.inputs}
        self._inputs = [declared for declared in file.inputs if declared.name in names]
        self._symbol, self._traced = self._batch_of_file()
        traced = self._traced
        self._batch = batch_size if batch_size is not None else traced if traced > 1 else _BATCH_SIZE
        if not traced:
            self._traced = self._batch
        self._sizes = sizes
        self._check_sizes()
        self._builder = GraphBuilder(name, self._batch)
        self._readers = Counter(name for node in self._nodes for name in node.inputs)
        self._readers.update(file.outputs)
        self._additions = {name: node for node in self._nodes if node.kind == "Add" for name in node.inputs}
        self._values: dict[str, Value] = {
            name: constant_of(tensor, name) for name, tensor in file.tensors.items() if name in names
        }
        self._left_out: set[int] = set()
        #: Parameter -> number of the first operator that has it, and the names of operators.
        self._parameters: dict[str, int] = {}
        self._named: list[str] = []
        self._normalized: dict[int, str] = {}
        self._opaque: Counter[str] = Counter()
        self._names: Counter[str] = Counter()
        self._node = self._nodes[0]

    def graph(self) -> OperatorGraph:
        """Translate all nodes, and return the graph."""
        for declared in self._inputs:
            self._values[declared.name] = self._input(declared)
        for node in self._nodes:
            self._node = node
            try:
                values = self._translated(node)
            except TopoplanError as error:
                raise TopoplanError(f"{node.where}: {error}") from None
            except _ODD as error:
                raise TopoplanError(
                    f"{node.where}: its inputs or attributes do not fit ({exception_line(error)})"
                ) from None
            self._values.update(zip(node.outputs, values, strict=False))
        if self._opaque:
            kinds = ", ".join(f"{count} x {kind}" for kind, count in self._opaque.most_common(10))
            total = self._opaque.total()
            text = f"onnx: {total} operator{'s' if total > 1 else ''} planned as a whole (opaque): {kinds}"
            warnings.warn(TopoplanWarning(text), stacklevel=2)
        return self._builder.build()

    def add(self, operator: Operator, sources: Sequence[Activation]) -> Sequence[Handle]:
        """Append an operator, named by its node."""
        name = (self._node.name or next(iter(self._node.outputs), "")).strip("/") or self._node.kind
        self._names[name] += 1
        if self._names[name] > 1:
            name = f"{name}#{self._names[name]}"
        self._named.append(name)
        return self._builder.append(operator, [x.handle for x in sources], name)

    def bias_behind(self, node: Node, channels: int) -> bool:
        """Whether an addition of parameters is all that reads the output of ``node``; it is then left out."""
        output = node.outputs[0]
        addition = self._additions.get(output)
        if addition is None or self._readers[output] != 1:
            return False
        bias = self._values.get(next((name for name in addition.inputs if name != output), ""))
        if not isinstance(bias, Constant) or not bias.source or bias.shape != (channels,):
            return False
        self._left_out.add(id(addition))
        return True

    def first_use(self, source: str) -> bool:
        """Whether no operator has this parameter yet; from now on one has."""
        first = source not in self._parameters
        self._parameters.setdefault(source, len(self._named))
        return first

    def owner(self, source: str) -> str:
        """Return the name of the first operator that has this parameter."""
        return self._named[self._parameters[source]]

    def only_reader(self, node: Node, place: int) -> bool:
        """Whether nothing but ``node`` reads this input of it."""
        return self._readers[node.inputs[place]] == 1

    def _translated(self, node: Node) -> Sequence[Value]:
        inputs = [self._value(name) for name in node.inputs]
        constants = [x for x in inputs if not isinstance(x, Activation)]
        call = Call(node, inputs, self._file.opset, self, self._traced, self._batch)
        if len(constants) == len(inputs) and (computed := folded(node, constants)) is not None:
            return computed
        if node.kind in ("Shape", "Size") and isinstance(inputs[0], Activation):
            return [_shape_of(node, call.traced(inputs[0]))]
        if id(node) in self._left_out or self._scales_norm(node, inputs):
            return [next(x for x in inputs if isinstance(x, Activation))]
        try:
            values = _of_operator(call)
        except Unknown as reason:
            return self._opaque_of(node, [x for x in inputs if x is not None], str(reason))
        outputs = [values] if isinstance(values, Activation | Constant) else list(values)
        if node.kind == "BatchNormalization" and isinstance(outputs[0], Activation):
            self._normalized[outputs[0].handle.producer] = "Mul"
        return outputs

    def _value(self, name: str) -> Value | None:
        if not name:
            return None
        if name not in self._values:
            raise TopoplanError(
                f"reads {shown(name)}, which nothing before it gives (nodes must stand in topological order)"
            )
        return self._values[name]

    def _scales_norm(self, node: Node, inputs: Sequence[Value | None]) -> bool:
        """Whether a node multiplies, or then adds, what stands for the weights of the batch normalization before it.

        Converters from Caffe, whose normalization has no weights, write so; those of the normalization are constants.
        """
        x = next((x for x in inputs if isinstance(x, Activation)), None)
        scale = next((x for x in inputs if isinstance(x, Constant)), None)
        if x is None or scale is None or len(inputs) != 2 or not scale.source or len(x.shape) < 2:
            return False
        producer = x.handle.producer
        per_channel = scale.elements == x.shape[1] and scale.shape == (x.shape[1], *[1] * (len(x.shape) - 2))
        if self._normalized.get(producer) != node.kind or not per_channel:
            return False
        if not self.only_reader(node, inputs.index(x)):
            return False
        self._normalized[producer] = "Add" if node.kind == "Mul" else ""
        return True

    def _opaque_of(self, node: Node, inputs: Sequence[Value], reason: str) -> Sequence[Value]:
        """Plan a node as a whole; shapes of its outputs must stand in the file."""
        if self._strict:
            raise TopoplanError(f"cannot be planned operator by operator: {reason} (without strict, it is opaque)")
        if node.kind in OPERATORS and not any(isinstance(x, Activation) for x in inputs):
            raise TopoplanError(reason)
        sources = [x for x in inputs if isinstance(x, Activation)]
        samples = any(x.samples == 0 for x in sources)
        shapes = []
        for name in node.outputs:
            info = self._file.shapes.get(name)
            if name and name == node.outputs[0] and info is None and node.kind in _SAME_SHAPE and sources:
                shapes.append(sources[0].handle)
                continue
            if name and (info is None or info.shape is None):
                raise TopoplanError(
                    f"{reason}, and the file has no shape of {shown(name)} (onnx.shape_inference adds it)"
                )
            shape = self._resolved(info) if info is not None else (1,)
            if samples and shape and shape[0] == self._traced:
                shape = (self._batch, *shape[1:])
            shapes.append(Handle(shape, info.itemsize if info is not None else 4))
        cut = bool(samples and all(y.shape and y.shape[0] == self._batch for y in shapes))
        if sources and all(x.data for x in sources):
            return [Activation(y, 0 if cut else -1, True) for y in shapes]

        def tensor(name: str, x: Handle, follows: bool) -> Tensor:
            axes = tuple(Axis(size, 0 if cut and follows and k == 0 else -1) for k, size in enumerate(x.shape))
            return Tensor(name, axes, x.itemsize)

        weights = [
            Handle(x.table or x.shape, x.itemsize)
            for x in inputs
            if isinstance(x, Constant) and x.source and self.first_use(x.source)
        ]
        operator = Operator(
            name="",
            kind=node.kind,
            dims=(Dimension("n", self._batch, Role.SAMPLE),) if cut else (),
            inputs=tuple(tensor(f"x{k}", x.handle, x.samples == 0) for k, x in enumerate(sources)),
            weights=tuple(tensor(f"w{k}", x, False) for k, x in enumerate(weights)),
            outputs=tuple(tensor(f"y{k}", y, True) for k, y in enumerate(shapes)),
            tags={} if node.kind in _WITHOUT_PRODUCTS else {"flops": "unknown"},
        )
        self._opaque[node.kind] += 1
        return [Activation(handle, 0 if cut else -1) for handle in self.add(operator, sources)]

    def _batch_of_file(self) -> tuple[str, int]:
        """Return the name of the batch and 0, or the batch for which the file was written."""
        for declared in self._inputs:
            if declared.shape:
                size = declared.shape[0]
                return (size, 0) if isinstance(size, str) else ("", max(size, 1))
        return "", 1

    def _input(self, declared: Input) -> Activation:
        if declared.shape is None:
            raise TopoplanError(f"input {shown(declared.name)} has no shape")
        shape = self._resolved(declared)
        first = declared.shape[0] if declared.shape else None
        samples = first == (self._symbol if isinstance(first, str) else self._traced) and first is not None
        if samples and not isinstance(first, str):
            shape = (self._batch, *shape[1:])
        real = declared.kind.startswith(("float", "bfloat"))
        return Activation(Handle(shape, declared.itemsize), 0 if samples else -1, not real)

    def _resolved(self, declared: Input) -> tuple[int, ...]:
        """Return a shape with the sizes of symbolic dimensions."""
        sizes = []
        for axis, size in enumerate(declared.shape or ()):
            if isinstance(size, str):
                if size == self._symbol and (size or axis == 0):
                    size = self._batch
                elif not size:
                    raise TopoplanError(f"{shown(declared.name)}: axis {axis} has neither a size nor a name")
                elif size not in self._sizes:
                    raise TopoplanError(
                        f"{shown(declared.name)}: axis {axis} is the symbolic dimension {shown(size)}; "
                        f"give its size (-o sizes={size[:40]}=128)"
                    )
                else:
                    size = self._sizes[size]
            if not 0 < size <= 2**40:
                raise TopoplanError(f"{shown(declared.name)}: axis {axis} has size {size}")
            sizes.append(size)
        return tuple(sizes)

    def _check_sizes(self) -> None:
        symbols = {
            size for declared in self._file.shapes.values() for size in declared.shape or () if isinstance(size, str)
        }
        for name in self._sizes:
            if name == self._symbol:
                raise TopoplanError(f"sizes: {shown(name)} is the batch (give --batch-size)")
            if name not in symbols:
                raise TopoplanError(f"sizes: no dimension is named {shown(name)}{nearest(name, symbols - {''})}")


def _needed(file: File) -> tuple[Node, ...]:
    """Return the nodes that an output needs; all of them where the file names no output that a node gives."""
    names = {*file.outputs}
    needed = []
    for node in reversed(file.nodes):
        if names.intersection(node.outputs):
            names.update(node.inputs)
            needed.append(node)
    return tuple(reversed(needed)) or file.nodes


def _of_operator(call: Call) -> Value | Sequence[Value]:
    """Translate a call; where no translation takes a constant as the first input, as one of something computed.

    Raises:
        Unknown: there is no translation.
    """
    translate = OPERATORS.get(call.node.kind)
    if translate is None:
        raise Unknown(f"operator {call.node.kind} is not known")
    try:
        return translate(call)
    except Unknown:
        if not call.inputs or not isinstance(call.inputs[0], Constant):
            raise
        return translate(call.with_computed(0))


def _shape_of(node: Node, shape: tuple[int, ...]) -> Constant:
    if node.kind == "Size":
        return Constant((), 8, np.array(int(np.prod(shape, dtype=np.int64)), dtype=np.int64))
    start, end = node.attributes.get("start", 0), node.attributes.get("end", len(shape))
    part = np.array(shape[start:end], dtype=np.int64)
    return Constant(part.shape, 8, part)
