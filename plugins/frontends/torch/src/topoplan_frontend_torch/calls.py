"""The graph under construction, and what a translation of one call may ask of it.

`Construction` emits operators: it lets views on tensors become operators only where one is needed, sets which
dimension holds the samples, and names operators by the modules that call them.  `Call` gives a translation its
arguments, in the forms that it needs.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence

import attrs

from topoplan import Operator, OperatorGraph, Tensor, TopoplanError
from topoplan.errors import shown
from topoplan.model.graph import Axis, Checkpoint, Dimension, Role
from topoplan_frontend_torch.layouts import Atom, Layout
from topoplan_frontend_torch.program import Argument, Node, Program, Ref, Region
from topoplan_frontend_torch.simplify import operator_of
from topoplan_operators import GraphBuilder, Handle, shaping

__all__ = ["Call", "Construction", "UntranslatedError", "joined"]

#: Bytes of an activation or weight: graphs are in fp32, and the user's precision halves them.
_ELEMENT = 4


class UntranslatedError(Exception):
    """A call of a form that no operator of the algebra has; the message says what of it."""


class Construction:
    """An operator graph under construction: operators, and where each value of the program lies."""

    def __init__(self, program: Program, batch_size: int, at_once: Collection[str] = ()) -> None:
        """Begin.

        Args:
            program: what is built.
            batch_size: samples.
            at_once: parameters that the first operator holds which reads them.  Others that are trained are held by the
                first one that computes a gradient of them.
        """
        self._program = program
        self._builder = GraphBuilder(program.name, batch_size)
        self._places: list[tuple[str, str, bool]] = []
        self._plain: dict[Layout, Layout] = {}
        self._viewed_as: dict[tuple[Layout, tuple[int, ...]], Layout] = {}
        self.batch_size = batch_size
        #: Numbers of the experts that were chosen last.
        self.chosen: Layout | None = None
        self.layouts: dict[str, Layout] = {}
        #: Parameters that an operator holds, with its number, and those that one reads without a gradient.
        self._held: dict[str, int] = {}
        self._passed: set[str] = set()
        self._at_once = frozenset(at_once)
        #: Values through which no gradient flows back to what they are views of.
        self.cut: set[str] = set()
        #: Names of the parameters that are trained.
        self._trained = _trained_parameters(program)
        self._moved_from: dict[Handle, Handle] = {}
        self._region = -1
        self._declare(batch_size)

    def _declare(self, batch_size: int) -> None:
        """Take note of what no node makes: parameters, inputs, constants."""
        values = self._program.values
        for name, parameter in self._program.parameters.items():
            itemsize = _ELEMENT if values[name].floating else values[name].itemsize
            self.layouts[name] = Layout.of(Handle(values[name].shape, itemsize), parameter=parameter)
        for name in (*self._program.inputs, *self._program.constants):
            if name in values:
                shape, is_constant = values[name].shape, name in self._program.constants or not values[name].floating
                itemsize = _ELEMENT if values[name].floating else values[name].itemsize
                has_samples = name in self._program.inputs or name in self._program.data
                sample = 0 if has_samples and shape and shape[0] % batch_size == 0 else None
                self.layouts[name] = Layout.of(Handle(shape, itemsize), sample, constant=is_constant)

    def emit(
        self,
        node: Node,
        operator: Operator,
        inputs: Sequence[Layout],
        weights: Sequence[Layout] = (),
        *,
        moves: bool = False,
        slots: int | None = None,
    ) -> list[Layout]:
        """Add an operator.

        Args:
            node: whose module names it.
            operator: of the algebra; its roles are set by where its inputs have their samples.
            inputs: plain layouts, one for each of its inputs.
            weights: plain layouts, one for each of its weights.
            moves: it only puts a view into order for the node.
            slots: dimension that holds places for samples, where samples themselves are summed over.

        Returns:
            Its outputs, as they are.
        """
        operator, samples = _with_samples(operator, [layout.sample for layout in inputs], slots)
        operator, sources = self._with_weights(operator, [*inputs, *weights], self._cut_sources(node, moves))
        operator = attrs.evolve(operator, checkpoint=self._checkpoint(node.region))
        self._places.append((node.path, operator.kind, moves))
        name = f"{len(self._places)}"
        handles = self._builder.append(operator, sources, name)
        if moves and sources:
            self._moved_from.update(dict.fromkeys(handles, sources[0]))
        return [Layout.of(handle, sample) for handle, sample in zip(handles, samples, strict=True)]

    def cut_by(self, node: Node) -> set[str]:
        """Return the values that a call reads and through which it sends no gradient back."""
        return {name for name in node.reads if name in node.cut or name in self.cut or not node.gradient}

    def look(self, node: Node, outputs: Sequence[Layout]) -> None:
        """Take note of what a call makes; a view on what it reads detached is detached, too."""
        self.layouts.update(zip(node.outputs, outputs, strict=False))
        cut = self._sources(self.cut_by(node))
        self.cut.update(name for name in node.outputs if self._sources({name}) & cut)

    def _sources(self, names: Collection[str]) -> set[Handle | str]:
        """Return what values are or look at: tensors that operators make, and names of parameters."""
        layouts = [self.layouts[name] for name in names if name in self.layouts]
        return {x.parameter or x.handle for x in layouts if x.parameter or x.handle.producer >= 0}

    def _cut_sources(self, node: Node, moves: bool) -> set[Handle | str]:
        """Return the tensors and parameters through which the operators of a call send no gradient back.

        A view for the call may be read by others, that do: it sends back what it gets.
        """
        if moves:
            return set()
        cut = self.cut_by(node)
        return self._sources(cut) - self._sources({*node.reads} - cut)

    def _checkpoint(self, region: Region | None) -> Checkpoint | None:
        """Return what an operator says of its region, given the last one's."""
        begins = region is not None and region.number != self._region
        self._region = -1 if region is None else region.number
        return None if region is None else Checkpoint(begins=begins, reentrant=region.reentrant)

    def _requires_grad(self, layout: Layout, cut: set[Handle | str], weight: bool) -> bool:
        """Whether a gradient of a tensor is computed, or one flows back through it.

        An operator that has a parameter as its ``weight`` stands for all that read it.
        """
        if layout.parameter:
            return layout.parameter in self._trained and (weight or layout.parameter not in cut)
        handle: Handle | None = layout.handle
        while handle is not None:
            if handle in cut:
                return False
            handle = self._moved_from.get(handle)
        return True

    def _with_weights(
        self, operator: Operator, layouts: Sequence[Layout], cut: set[Handle | str]
    ) -> tuple[Operator, list[Handle]]:
        """Return an operator whose weights are the parameters that it is the first to hold, and its inputs' handles.

        What is computed is an input wherever it stands.  A parameter that an earlier operator holds is an input of
        this one: it is kept and reduced once.

        Args:
            operator: of the algebra.
            layouts: where its inputs lie, then where its weights lie.
            cut: tensors through which it sends no gradient back.
        """
        weights: list[int] = []
        for index, layout in enumerate(layouts):
            name = layout.parameter
            if not name or name in self._held:
                continue
            if name in cut and name in self._trained and name not in self._at_once:
                self._passed.add(name)
                continue
            weights.append(index)
            self._held[name] = len(self._places)
        tensors = [
            tensor
            if self._requires_grad(layouts[index], cut, index in weights)
            else attrs.evolve(tensor, requires_grad=False)
            for index, tensor in enumerate((*operator.inputs, *operator.weights))
        ]
        for index in weights:  # parameters of integers
            tensors[index] = attrs.evolve(tensors[index], itemsize=layouts[index].handle.itemsize)
        inputs = [index for index in range(len(tensors)) if index not in weights]
        place = {index: number for number, index in enumerate((*inputs, *weights))}
        parameters = {tensors[index].name: layouts[index].parameter for index in inputs if layouts[index].parameter}
        owners = {f"owner.{name}": str(self._held[each]) for name, each in parameters.items() if each in self._held}
        return attrs.evolve(
            operator,
            inputs=tuple(tensors[index] for index in inputs),
            weights=tuple(tensors[index] for index in weights),
            linear_in=tuple(tuple(sorted(place[index] for index in linear)) for linear in operator.linear_in),
            tags={**operator.tags, "shared": " ".join(parameters), **owners} if parameters else operator.tags,
        ), [layouts[index].handle for index in inputs]

    def plain(self, node: Node, layout: Layout) -> Layout:
        """Return a view as a tensor of its own, made by operators where it is none, once for all that read it."""
        if layout.is_plain:
            return layout
        if layout not in self._plain:
            self._plain[layout] = self._made_plain(node, layout)
        return self._plain[layout]

    def _made_plain(self, node: Node, layout: Layout) -> Layout:
        is_data = layout.parameter or layout.constant or layout.handle.producer < 0
        if is_data and not (layout.parameter and layout.repeats):
            return _rearranged_data(layout)
        if layout.repeats:
            return self._repeated(node, layout)
        direct = attrs.evolve(Layout.of(layout.handle), sample=layout.sample).reshaped(layout.shape)
        if direct is None or direct.axes != layout.axes:
            layout = self.unmerged(node, layout)
            order = [atom.axis for axis in layout.axes for atom in axis]
            if order != sorted(order):
                handle, sample = layout.handle, layout.sample
                operator = shaping.permute(handle, order, sample=-1 if sample is None else sample)
                moved = self.emit(node, operator, [Layout.of(handle, sample)], moves=True)[0]
                back = {axis: k for k, axis in enumerate(order)}
                axes = tuple(tuple(attrs.evolve(a, axis=back[a.axis]) for a in axis) for axis in layout.axes)
                layout = Layout(moved.handle, axes, moved.sample)
        return self.viewed(node, layout, layout.shape)

    def unmerged(self, node: Node, layout: Layout) -> Layout:
        """Return a view each of whose axes holds whole axes of a tensor, so that it exchanges and joins them alone.

        Raises:
            UntranslatedError: it shows a part of a tensor.
        """
        split = layout.split()
        if split is None:
            raise UntranslatedError(f"a view of shape {layout.shape} on a part of a tensor")
        shape, view = split
        if shape == layout.handle.shape:
            return layout
        if layout.parameter or layout.constant or layout.handle.producer < 0:
            return view
        base = self.viewed(node, Layout.of(layout.handle, layout.sample), shape)
        return attrs.evolve(view, handle=base.handle, sample=base.sample)

    def viewed(self, node: Node, layout: Layout, shape: Sequence[int]) -> Layout:
        """Give a tensor another shape by an operator."""
        base = Layout.of(layout.handle, layout.sample)
        if tuple(shape) == layout.handle.shape:
            return base
        if (base, tuple(shape)) not in self._viewed_as:
            sample = -1 if layout.sample is None else layout.sample
            operator = shaping.view(layout.handle, shape, sample=sample)
            self._viewed_as[base, tuple(shape)] = self.emit(node, operator, [base], moves=True)[0]
        return self._viewed_as[base, tuple(shape)]

    def _repeated(self, node: Node, layout: Layout) -> Layout:
        """Return a tensor that holds elements several times."""
        once = self.plain(node, layout.without_repeats())
        return self.emit(node, _expand(once.handle, layout.shape), [once], moves=True)[0]

    @property
    def unheld(self) -> set[str]:
        """Names of the parameters that operators read, but none holds: all read them without a gradient."""
        return self._passed - self._held.keys()

    def build(self) -> OperatorGraph:
        """Return the graph, its operators named by their modules."""
        try:
            graph = self._builder.build()
        except TopoplanError as error:
            raise TopoplanError(f"frontend torch: {error}") from None
        names = _names(self._places)
        operators = [
            attrs.evolve(
                op, name=name, tags={k: names[int(v)] if k.startswith("owner.") else v for k, v in op.tags.items()}
            )
            for op, name in zip(graph.operators, names, strict=True)
        ]
        return attrs.evolve(graph, operators=tuple(operators))


def _trained_parameters(program: Program) -> set[str]:
    """Return the names of the parameters that require a gradient and are read where one is recorded."""
    read = {name for node in program.nodes if node.gradient for name in node.reads if name not in node.cut}

    def is_frozen(parameter: str) -> bool:
        return parameter in program.frozen or re.sub(r"(\.part\d+)+$", "", parameter) in program.frozen

    return {parameter for name, parameter in program.parameters.items() if name in read and not is_frozen(parameter)}


def joined(operator: Operator, split: Sequence[int], shape: Sequence[int]) -> Operator:
    """Return an operator on tensors of shape ``split`` for tensors of ``shape``, which have adjacent axes in one.

    The joined axis follows the first of its axes, and has all elements of the others, which cannot be cut.
    """
    groups: list[list[int]] = []
    places = iter(range(len(split)))
    for size in shape:
        group = [next(places)] if size > 1 else []
        while math.prod(split[k] for k in group) != size:
            group.append(next(places))
        groups.append(group)
    inner = {operator.outputs[0].axes[k].dim for group in groups for k in group[1:]}

    def tensor(each: Tensor) -> Tensor:
        if each.shape != tuple(split):
            return each
        axes = []
        for group in groups:
            size = math.prod(each.axes[k].size for k in group[1:])
            first = each.axes[group[0]] if group else Axis(1)
            axes.append(first if size == 1 else Axis(first.size * size, first.dim, scale=size, extent=size))
        return attrs.evolve(each, axes=tuple(axes))

    return attrs.evolve(
        operator,
        dims=tuple(Dimension(dim.name, dim.size) if k in inner else dim for k, dim in enumerate(operator.dims)),
        inputs=tuple(map(tensor, operator.inputs)),
        outputs=tuple(map(tensor, operator.outputs)),
    )


def _rearranged_data(layout: Layout) -> Layout:
    """Return data, or a parameter, in the shape of a view: it is stored so."""
    handle = Handle(layout.shape, layout.handle.itemsize)
    sample = next((k for k, axis in enumerate(layout.axes) if axis and axis[0].axis == layout.sample), None)
    if layout.sample is None:
        sample = None
    return Layout.of(handle, sample, parameter=layout.parameter, constant=layout.constant)


def _expand(x: Handle, shape: Sequence[int]) -> Operator:
    """Repeat ``x`` along axes of size 1."""
    dims = tuple(Dimension(f"a{k}", size, Role.ATTRIBUTE) for k, size in enumerate(shape))
    follows = tuple(Axis(size, k if size == shape[k] else -1) for k, size in enumerate(x.shape))
    return Operator(
        name="",
        kind="expand",
        dims=dims,
        inputs=(Tensor("x", follows, x.itemsize),),
        outputs=(Tensor("y", tuple(Axis(size, k) for k, size in enumerate(shape)), x.itemsize),),
        linear_in=((0,),),
    )


def _with_samples(
    operator: Operator, samples: Sequence[int | None], slots: int | None
) -> tuple[Operator, list[int | None]]:
    """Return an operator whose dimension of samples is the one that its inputs' samples follow, or ``slots``.

    Returns:
        The operator, and for each output the axis that holds the samples, or None.
    """
    output_dims = {axis.dim for tensor in operator.outputs for axis in tensor.axes}
    followed = [
        tensor.axes[axis].dim
        for tensor, axis in zip(operator.inputs, samples, strict=True)
        if axis is not None and axis < len(tensor.axes) and tensor.axes[axis].dim >= 0
    ]
    candidates = [dim for dim in followed if dim in output_dims] + followed
    sample = slots if slots is not None else candidates[0] if candidates else -1
    dims = []
    for index, dim in enumerate(operator.dims):
        role = dim.role
        if index == sample and role in (Role.ATTRIBUTE, Role.SAMPLE):
            role = Role.SAMPLE
        elif role is Role.SAMPLE:
            role = Role.ATTRIBUTE if index in output_dims else Role.REDUCTION
        dims.append(attrs.evolve(dim, role=role))
    outputs: list[int | None] = [
        next((k for k, axis in enumerate(tensor.axes) if sample >= 0 and axis.dim == sample), None)
        for tensor in operator.outputs
    ]
    return attrs.evolve(operator, dims=tuple(dims)), outputs


def _names(places: Sequence[tuple[str, str, bool]]) -> list[str]:
    """Name operators by the paths of their modules; several of one module get their kinds, those of a kind numbers.

    Args:
        places: path, kind, and whether it is a view for another operator of the path.
    """
    of_path = Counter(path for path, _, moves in places if not moves)
    of_kind = Counter((path, kind) for path, kind, _ in places)
    numbers: Counter[tuple[str, str]] = Counter()
    names: list[str] = []
    used_names: set[str] = set()
    for path, kind, moves in places:
        if path and of_path[path] == 1 and not moves:
            name = path
        else:
            numbers[path, kind] += 1
            number = str(numbers[path, kind]) if of_kind[path, kind] > 1 or not path else ""
            name = f"{path}.{kind}{number}" if path else f"{kind}{number}"
        while name in used_names:
            name += "'"
        used_names.add(name)
        names.append(name)
    return names


@attrs.frozen
class Call:
    """One call: its arguments, and the graph that its operators go to."""

    node: Node
    program: Program
    graph: Construction

    @property
    def operator(self) -> str:
        """Name of the operator, such as ``add``."""
        return operator_of(self.node.target)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of what it makes."""
        return tuple(self.program.values[name].shape for name in self.node.outputs)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the first value that it makes."""
        return self.shapes[0]

    def argument(self, *names: str, default: Argument = None) -> Argument:
        """Return the first of these arguments that is given."""
        return next((self.node.arguments[name] for name in names if name in self.node.arguments), default)

    def has(self, name: str) -> bool:
        """Whether an argument is a value."""
        return isinstance(self.node.arguments.get(name), Ref)

    def view(self, *names: str) -> Layout:
        """Return where an argument lies.

        Raises:
            UntranslatedError: it is no value.
        """
        argument = self.argument(*names)
        if not isinstance(argument, Ref) or argument.name not in self.graph.layouts:
            raise UntranslatedError(f"{names[0]} is {shown(argument)}")
        return self.graph.layouts[argument.name]

    def views(self, *names: str) -> list[Layout]:
        """Return where the values of a list lie.

        Raises:
            UntranslatedError: it is no list of values.
        """
        argument = self.argument(*names)
        if not isinstance(argument, tuple) or not all(isinstance(item, Ref) for item in argument):
            raise UntranslatedError(f"{names[0]} is {shown(argument)}")
        return [self.graph.layouts[item.name] for item in argument if isinstance(item, Ref)]

    def plain(self, *names: str) -> Layout:
        """Return an argument as a tensor of its own."""
        return self.made_plain(self.view(*names))

    def made_plain(self, layout: Layout) -> Layout:
        """Return a view as a tensor of its own."""
        return self.graph.plain(self.node, layout)

    def followed(self, layout: Layout, axis: int) -> Layout:
        """Return a view whose ``axis`` is a whole axis of its tensor."""
        if layout.follows(axis) < 0 and not layout.repeats and layout.split() is not None:
            layout = self.graph.unmerged(self.node, layout)
        return layout if layout.follows(axis) >= 0 else self.made_plain(layout)

    def on_last_axes(
        self, layout: Layout, count: int, make: Callable[[Handle], Operator], weights: Sequence[Layout] = ()
    ) -> Layout:
        """Apply an operator that works on the last ``count`` axes, as normalization does, and look at it likewise.

        Where these lie in one axis of the tensor with others, such as heads, the operator works on that axis.
        """
        split = layout.split()
        if split is not None and not layout.repeats and split[1].ends_plainly(count):
            shape = split[0]
        else:
            layout = self.made_plain(layout)
            shape = layout.handle.shape
        operator = make(Handle(shape, layout.handle.itemsize))
        if shape != layout.handle.shape:
            operator = joined(operator, shape, layout.handle.shape)
        output = self.emit(operator, [layout.base], weights)[0]
        return layout.on(output.handle, output.sample)

    def ending_whole(self, layout: Layout) -> Layout:
        """Return a view whose last axis is the last one of its tensor, if it holds the last ones in order; else as is.

        So attention's heads and channels are joined, in whatever order the axes before them are looked at.
        """
        atoms, shape = layout.axes[-1] if layout.axes else (), layout.handle.shape
        first = len(shape) - len(atoms)
        whole = [Atom(first + k, 1, size) for k, size in enumerate(shape[first:])]
        if len(atoms) < 2 or list(atoms) != whole or layout.parameter or layout.constant:
            return layout
        size = math.prod(shape[first:])
        base = self.graph.viewed(self.node, Layout.of(layout.handle, layout.sample), (*shape[:first], size))
        return Layout(base.handle, (*layout.axes[:-1], (Atom(first, 1, size),)), base.sample)

    def in_one_order(self, layouts: Sequence[Layout]) -> list[Layout]:
        """Return views of as many axes as tensors whose axes lie in one order, that of the first if it can be."""
        first = layouts[0]
        if not first.repeats and first.split() is not None and not first.parameter:
            first = self.graph.unmerged(self.node, first)
        places = [first.follows(axis) for axis in range(len(first.axes))]
        if sorted(places) != list(range(len(first.handle.shape))):
            return [self.made_plain(layout) for layout in layouts]
        order = sorted(range(len(places)), key=lambda axis: places[axis])
        followers = [self.made_plain(layout.permuted(order)).permuted(places) for layout in layouts[1:]]
        return [first, *followers]

    def integer(self, *names: str, default: int | None = None) -> int:
        """Return an integer.

        Raises:
            UntranslatedError: it is none.
        """
        value = self.argument(*names, default=default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise UntranslatedError(f"{names[0]} is {shown(value)}")
        return value

    def axis(self, *names: str, rank: int, default: int | None = None) -> int:
        """Return an axis, counted from the first."""
        axis = self.integer(*names, default=default)
        if not -rank <= axis < rank:
            raise UntranslatedError(f"axis {axis} of {rank}")
        return axis % rank

    def integers(self, *names: str, count: int, default: Sequence[int] | None = None) -> tuple[int, ...]:
        """Return as many integers as there should be; a single one stands for all."""
        value = self.argument(*names)
        value = tuple(default) if value in (None, ()) and default is not None else value
        values = value if isinstance(value, tuple) else (value,) * count
        values = values * count if len(values) == 1 else values
        if len(values) != count or not all(type(each) is int for each in values):
            raise UntranslatedError(f"{names[0]} is {shown(value)}")
        return tuple(each for each in values if isinstance(each, int))

    def emit(
        self,
        operator: Operator,
        inputs: Sequence[Layout],
        weights: Sequence[Layout] = (),
        *,
        slots: int | None = None,
    ) -> list[Layout]:
        """Add an operator; see `Construction.emit`."""
        return self.graph.emit(self.node, operator, inputs, weights, slots=slots)
