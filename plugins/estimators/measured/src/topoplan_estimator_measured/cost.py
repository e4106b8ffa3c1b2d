"""Match the operators of a graph with a table of measured times.

FlexNet names an operator by its kind and sizes (the tag ``flexnet`` of an operator), without input shapes, and measures
the *first* layer of each name.  In FlexNet every later layer of that name has the same times.  Here, if its shapes
differ, its times are scaled by its FLOPs, unless the option ``shapes`` selects equal times.

A file contains part sizes implicitly, as batch size over degree.  The batch size must therefore be that of the graph.
``ngpus`` of a file must be the number of devices of the cluster, as in FlexNet: its divisors are the degrees that were
measured.  With ``nodes=any`` it may differ, and other degrees are interpolated or refused.

With FlexNet's ``--big-gpu k`` an entry of ``i`` parts is the time of one of the ``i*k`` GPUs, so the file is valid for
clusters with that ``gpus_per_device``.  The file does not contain this number.

Everything is computed at the start or on first use.  Afterwards a price is one dictionary look-up.
"""

from __future__ import annotations

from pathlib import Path

import attrs
import numpy as np

from topoplan.arrays import I32, f64
from topoplan.errors import TopoplanError, nearest
from topoplan.model.cluster import Cluster
from topoplan.model.costs import CostFunction, PartCosts
from topoplan.model.graph import Operator, OperatorGraph, Tensor, Term
from topoplan_estimator_measured import Measured
from topoplan_estimator_measured.curves import interpolate
from topoplan_estimator_measured.own_table import TableCosts
from topoplan_estimator_measured.profiles import names, profile
from topoplan_estimator_measured.reading import Entry, Measurements, measurements_of, read_json
from topoplan_operator_times.flexnet import Cut, cut_of, name_of, output_dims, pc_str
from topoplan_operator_times.table import is_table, parse

__all__ = ["MeasuredCosts", "build"]


@attrs.frozen
class _Layer:
    """An operator's entry in the table: the first layer of its name, and the ratio of times to that layer."""

    operator: Operator
    first: Operator
    time_ratio: float


def build(options: Measured, graph: OperatorGraph, cluster: Cluster) -> CostFunction:
    """Read the times that the options name, and match them with a graph.

    Raises:
        TopoplanError: there are none, or they are not for this graph and cluster.
    """
    if options.file and options.profile:
        raise TopoplanError(
            f"estimator measured: profile={options.profile} and file={options.file} are both given (give one of them)"
        )
    if options.profile:
        return MeasuredCosts(options, profile(options.profile), graph, cluster)
    if not options.file:
        raise TopoplanError(
            "estimator measured: profile or file is missing (measured:profile=NAME names times that come with it: "
            f"{', '.join(names())}; measured:file=PATH a measurement file of FlexNet, or a table of "
            "topoplan profile operators)"
        )
    document = read_json(Path(options.file))
    if is_table(document):
        return TableCosts(parse(document, options.file), options.file, graph, cluster)
    return MeasuredCosts(options, measurements_of(document, Path(options.file)), graph, cluster)


class MeasuredCosts(CostFunction):
    """A `topoplan.CostFunction`: see the module."""

    def __init__(self, options: Measured, table: Measurements, graph: OperatorGraph, cluster: Cluster) -> None:
        self._table = table
        if self._table.batch_size != graph.batch_size:
            raise TopoplanError(
                f"{self._table.where}: batch_size {self._table.batch_size} is not that of model {graph.name!r}, "
                f"{graph.batch_size} (use --batch-size {self._table.batch_size}, or times measured for "
                f"{graph.batch_size})"
            )
        same = options.nodes == "same" or (options.nodes == "auto" and bool(options.file))
        if same and self._table.ngpus != cluster.n_devices:
            raise TopoplanError(
                f"{self._table.where}: ngpus {self._table.ngpus} is not the number of devices of the cluster, "
                f"{cluster.n_devices} (use --servers {self._table.ngpus}, or times measured for {cluster.n_devices}; "
                "measured:nodes=any takes these times all the same)"
            )
        self._interpolates = options.missing == "interpolate"
        shapes = options.shapes
        if shapes == "auto":
            shapes = "share" if graph.tags.get("dialect") == "flexnet" else "scale"
        self._shares = shapes == "share"
        self._layers = _match(graph, self._table, shapes)
        self._speed = cluster.device_speed
        self._equal = bool((self._speed == 1).all())
        forms: dict[object, int] = {}
        #: By operator: equal numbers where entries are equal, as those of many tables of one size.
        self._forms = [forms.setdefault(self._form(layer), len(forms)) for layer in self._layers]
        #: By form and degrees.
        self._entries: dict[tuple[int, tuple[int, ...]], Entry | str] = {}
        self._prices: dict[tuple[int, tuple[int, ...]], PartCosts] = {}

    def _form(self, layer: _Layer) -> object:
        """Return all that `_look_up` depends on, besides the degrees."""
        op = layer.operator
        tensors = () if self._shares else (*op.inputs, *op.weights, *op.outputs)
        sizes = tuple((tensor.nbytes, tensor.axes) for tensor in tensors)
        return name_of(op), op.dims, output_dims(op), sizes, layer.first.name, layer.time_ratio

    def supports(self, op: int, degrees: tuple[int, ...]) -> bool:
        """Say whether this cut was measured or can be interpolated."""
        return isinstance(self._entry(op, degrees), Entry)

    def price(self, op: int, degrees: tuple[int, ...], devices: I32) -> PartCosts:
        """Price every part; the arrays are shared between calls and read-only.

        Raises:
            TopoplanError: the cut was not measured and cannot be interpolated; the message says why.
        """
        form = self._forms[op]
        cached = self._prices.get((form, degrees))
        if cached is not None:
            return cached
        entry = self._entry(op, degrees)
        if isinstance(entry, str):
            raise TopoplanError(f"{self._table.where}: operator {self._layers[op].operator.name!r}: {entry}")
        slowness = np.ones(len(devices)) if self._equal else 1 / self._speed[devices]
        costs = PartCosts(
            forward=f64(entry.forward * slowness),
            backward=f64(entry.backward * slowness),
            memory=f64(np.full(len(devices), entry.memory)),
        )
        if self._equal:
            self._prices[form, degrees] = costs
        return costs

    def _entry(self, op: int, degrees: tuple[int, ...]) -> Entry | str:
        """Return the costs of one part, or the reason if there are none."""
        key = (self._forms[op], degrees)
        cached = self._entries.get(key)
        if cached is None:
            cached = self._entries[key] = self._look_up(self._layers[op], degrees)
        return cached

    def _look_up(self, layer: _Layer, degrees: tuple[int, ...]) -> Entry | str:
        op = layer.operator
        cut = cut_of(op, degrees)
        if isinstance(cut, str):
            return cut
        entry = self._of_first(op, cut)
        if isinstance(entry, str) or self._shares:
            return entry
        parts = degrees[op.sample_dim] if op.sample_dim >= 0 else 1
        held_bytes, held_first = _held_bytes(op, parts), _held_bytes(layer.first, parts)
        return Entry(
            forward=entry.forward * layer.time_ratio,
            backward=entry.backward * layer.time_ratio,
            memory=entry.memory * (held_bytes / held_first if held_first else 1.0),
        )

    def _of_first(self, op: Operator, cut: Cut) -> Entry | str:
        """Return the measured or interpolated costs of the first layer with the name of ``op``."""
        name = name_of(op)
        entries, failed = self._table.entries.get(name, {}), self._table.failed.get(name, {})
        if cut in entries:
            return entries[cut]
        if cut in failed:
            return f"{name}:{pc_str(cut)} was {failed[cut]}; choose more parts"
        message = f"{name}:{pc_str(cut)} was not measured (measured: {', '.join(map(pc_str, sorted(entries)))})"
        if not self._interpolates:
            return message
        axes = output_dims(op)
        axis = axes.index(op.sample_dim) if op.sample_dim in axes else -1
        if axis < 0 or not _cuts_only(cut, axis):
            return f"{message}; only cuts of the samples are interpolated"
        for candidate, reason in failed.items():
            if len(candidate) == len(cut) and _cuts_only(candidate, axis) and candidate[axis] > cut[axis]:
                return f"{message}, and the smaller part {pc_str(candidate)} was {reason}; choose more parts"
        points = {
            self._table.batch_size / candidate[axis]: entry
            for candidate, entry in entries.items()
            if len(candidate) == len(cut) and _cuts_only(candidate, axis)
        }
        if len(points) < 2:
            return f"{message}; interpolation needs two measured cuts of the samples"
        return interpolate(points, self._table.batch_size / cut[axis])


def _match(graph: OperatorGraph, table: Measurements, shapes: str) -> list[_Layer]:
    """Find the first layer of every operator's name; refuse operators without measurements."""
    first: dict[str, Operator] = {}
    layers = []
    for op in graph.operators:
        name = name_of(op)
        if not name:
            raise TopoplanError(
                f"{table.where}: operator {op.name!r} ({op.kind}) has no name that FlexNet measures under "
                "(use another estimator for this model)"
            )
        if name not in table.entries:
            if name in table.failed:
                reason = next(iter(table.failed[name].values()))
                raise TopoplanError(f"{table.where}: operator {op.name!r}: every {name} was {reason}")
            hint = (
                ""
                if graph.tags.get("dialect") == "flexnet"
                else "; dialect=flexnet builds the model as FlexNet measured it"
            )
            raise TopoplanError(
                f"{table.where}: operator {op.name!r}: {name} was not measured{nearest(name, table.names)}{hint}"
            )
        leader = first.setdefault(name, op)
        same = op is leader or _same_shapes(leader, op)
        if not same and shapes == "refuse":
            raise TopoplanError(
                f"{table.where}: operator {op.name!r}: {name} was measured for {leader.name!r}, whose shapes differ "
                f"({_input_shape(leader)} there, {_input_shape(op)} here; shapes=scale or shapes=share would take it)"
            )
        layers.append(_Layer(op, leader, 1.0 if same else _effort(op) / _effort(leader)))
    return layers


def _cuts_only(cut: Cut, axis: int) -> bool:
    """Say whether ``cut`` cuts nothing but ``axis``."""
    return all(degree == 1 for position, degree in enumerate(cut) if position != axis)


def _same_shapes(first: Operator, second: Operator) -> bool:
    """Compare shapes; attention with one tensor for keys and values may list it once or twice."""

    def shapes(tensors: tuple[Tensor, ...]) -> list[tuple[int, ...]]:
        return [tensor.shape for tensor in tensors]

    return (
        shapes(first.weights) == shapes(second.weights)
        and shapes(first.outputs) == shapes(second.outputs)
        and set(shapes(first.inputs)) == set(shapes(second.inputs))
        and _effort(first) == _effort(second)
    )


def _input_shape(op: Operator) -> str:
    return " and ".join(str(t.shape) for t in op.inputs[:2]) or "no input"


def _effort(op: Operator) -> float:
    """Return forward FLOPs per sample, or bytes if an operator only moves data."""
    samples = op.dims[op.sample_dim].size if op.sample_dim >= 0 else 1
    flops = _polynomial(op.work, op.sizes)
    traffic = _polynomial(op.traffic, op.sizes) or sum(t.nbytes for t in (*op.inputs, *op.weights, *op.outputs))
    return (flops or traffic) / samples


def _polynomial(terms: tuple[Term, ...], sizes: tuple[int, ...]) -> float:
    return sum(float(term.coefficient) * float(np.prod([float(sizes[d]) for d in term.dims])) for term in terms)


def _held_bytes(op: Operator, parts: int) -> float:
    """Return the bytes of all tensors of a part, samples cut into ``parts``."""

    def share(tensor: Tensor) -> float:
        cut = op.sample_dim >= 0 and any(axis.dim == op.sample_dim for axis in tensor.axes)
        return tensor.nbytes / parts if cut else tensor.nbytes

    return sum(map(share, (*op.inputs, *op.weights, *op.outputs)))
