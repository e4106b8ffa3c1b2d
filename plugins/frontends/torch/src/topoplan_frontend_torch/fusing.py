"""Groups of ATen calls that are one operator: RMS norm, rotary embedding, GELU by hand, routing, copies into slices.

PyTorch has no operators for these, or models do not use them: an RMS norm arrives as six calls.  Unfused, an iteration
would have thousands of operators that no planner places one by one.  A group has one value that it begins with and one
that it ends with, and no other call reads what is between.  It becomes a node whose target begins with ``topoplan``.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import attrs

from topoplan_frontend_torch.parts import taken_apart
from topoplan_frontend_torch.program import Argument, Node, Program, Ref, Value
from topoplan_frontend_torch.separating import GROUPED, separated
from topoplan_frontend_torch.simplify import alive, operator_of

__all__ = ["fuse"]

#: Calls of one group, at most.
_LARGEST = 40
_ROTATING = frozenset(
    [
        "add",
        "cat",
        "chunk",
        "flatten",
        "mul",
        "neg",
        "reshape",
        "select",
        "slice",
        "split",
        "split_with_sizes",
        "squeeze",
        "stack",
        "sub",
        "transpose",
        "unbind",
        "unflatten",
        "unsqueeze",
        "view",
        "view_as_complex",
        "view_as_real",
    ]
)
_POINTWISE = frozenset(
    [
        "add",
        "div",
        "erf",
        "exp",
        "mul",
        "neg",
        "pow",
        "reciprocal",
        "relu",
        "rsub",
        "sigmoid",
        "sqrt",
        "square",
        "sub",
        "tanh",
    ]
)
_ROUTING = frozenset(["add", "div", "gather", "masked_fill", "mul", "sigmoid", "softmax", "sum", "topk"])


@attrs.frozen
class _Group:
    """Calls that become one: ``nodes`` in their order, from the value ``begin`` to the value ``end``."""

    begin: str
    end: str
    nodes: tuple[Node, ...]


def fuse(program: Program) -> Program:
    """Return the program with the groups that are known as one node each."""
    program = separated(taken_apart(program))
    for find in (_written_parts, _rms_norm, _rotary, _routing, _combination, _dispatch, _keys_and_values, _pointwise):
        program = _Finder(program).replaced(find)
    return program


class _Finder:
    """Who makes and who reads each value, and the groups between two values."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.maker: dict[str, Node] = {}
        self.place: dict[str, int] = {}
        self.readers: dict[str, list[Node]] = defaultdict(list)
        for index, node in enumerate(program.nodes):
            self.place[node.name] = index
            self.maker.update(dict.fromkeys(node.outputs, node))
            for name in dict.fromkeys(node.reads):
                self.readers[name].append(node)

    def replaced(self, find: Callable[[_Finder, Node], Node | None]) -> Program:
        """Return the program with what ``find`` makes of its nodes, the last ones first."""
        nodes: list[Node] = []
        gone: set[str] = set()
        for node in reversed(self.program.nodes):
            if gone.intersection(node.outputs):
                continue
            fused = find(self, node)
            nodes.append(fused or node)
            if fused is not None:
                gone.update(self._inside(node, set(fused.reads)))
        return alive(attrs.evolve(self.program, nodes=tuple(reversed(nodes))))

    def _inside(self, node: Node, begins: set[str]) -> Iterator[str]:
        """Yield what the calls between ``begins`` and ``node`` make."""
        visited: set[str] = set()
        waiting = list(node.reads)
        while waiting:
            name = waiting.pop()
            if name not in visited and name not in begins and name in self.maker:
                visited.add(name)
                yield name
                waiting += self.maker[name].reads

    def value(self, name: str) -> Value:
        """Return a value."""
        return self.program.values[name]

    def made(self, argument: Argument, *operators: str) -> Node | None:
        """Return the node that makes an argument, if it is one of these operators and nothing else reads it."""
        if not isinstance(argument, Ref) or argument.name not in self.maker or argument.name in self.program.outputs:
            return None
        node = self.maker[argument.name]
        return node if operator_of(node.target) in operators and len(self.readers[argument.name]) == 1 else None

    def sources(self, node: Node) -> list[str]:
        """Return what a node reads that is computed, or a parameter or an input: no constants."""
        constants = self.program.constants
        return [name for name in dict.fromkeys(node.reads) if name in self.maker or name not in constants]

    def groups(self, last: Node, allowed: frozenset[str]) -> Iterator[_Group]:
        """Yield groups of allowed operators that end with ``last``, small ones first."""
        if operator_of(last.target) not in allowed or len(last.outputs) != 1:
            return
        inside = {last.name: last}
        waiting = [
            (-self.place[self.maker[name].name], name) if name in self.maker else (1, name)
            for name in self.sources(last)
        ]
        heapq.heapify(waiting)
        waited = {name for _, name in waiting}
        while waiting:
            if len(waiting) == 1:
                nodes = sorted(inside.values(), key=lambda node: self.place[node.name])
                yield _Group(waiting[0][1], last.outputs[0], tuple(nodes))
            order, name = heapq.heappop(waiting)
            if order > 0:
                return
            node = self.maker[name]
            inside[node.name] = node
            remainder = [item for item in waiting if item[1] not in node.outputs]
            if len(remainder) != len(waiting):
                waiting = remainder
                heapq.heapify(waiting)
            read_outside = any(
                output in self.program.outputs or any(reader.name not in inside for reader in self.readers[output])
                for output in node.outputs
            )
            if operator_of(node.target) not in allowed or len(inside) > _LARGEST or read_outside:
                return
            for source in self.sources(node):
                if source not in waited:
                    waited.add(source)
                    place = -self.place[self.maker[source].name] if source in self.maker else 1
                    heapq.heappush(waiting, (place, source))


def _fused(node: Node, kind: str, arguments: dict[str, Argument]) -> Node:
    return attrs.evolve(node, target=f"topoplan.{kind}", arguments=arguments)


def _rms_norm(finder: _Finder, last: Node) -> Node | None:
    """Fuse ``x * rsqrt(mean(x ** 2) + eps) * weight``, or ``x / sqrt(...)``, with or without a weight."""
    if operator_of(last.target) not in ("mul", "div"):
        return None
    normalized, weight = _normalized(finder, last), None
    if normalized is None and operator_of(last.target) == "mul":
        for scale, x in _both(last):
            product = finder.made(x, "mul", "div")
            if product is not None and isinstance(scale, Ref) and (match := _normalized(finder, product)):
                normalized, weight = match, _weight(finder, scale)
                break
        if weight is None:
            return None
    if normalized is None:
        return None
    x, axes = normalized
    if weight is not None and finder.value(weight.name).shape != finder.value(x.name).shape[-axes:]:
        return None
    return _fused(last, "rms_norm", {"self": x, "weight": weight, "axes": axes})


def _both(node: Node) -> list[tuple[Argument, Argument]]:
    """Return the two operands in both orders."""
    operands = [node.arguments.get("self"), node.arguments.get("other")]
    return [(operands[0], operands[1]), (operands[1], operands[0])]


def _weight(finder: _Finder, scale: Ref) -> Ref | None:
    """Return the parameter that a scale is, or is one more than (as in Gemma)."""
    if scale.name in finder.program.parameters:
        return scale
    more = finder.made(scale, "add")
    parameters = [name for name in more.reads if name in finder.program.parameters] if more is not None else []
    return Ref(parameters[0]) if len(parameters) == 1 else None


def _normalized(finder: _Finder, node: Node) -> tuple[Ref, int] | None:
    """Return x and the number of its last axes where a node is ``x * rsqrt(mean(x ** 2) + eps)``."""
    inverse = "rsqrt" if operator_of(node.target) == "mul" else "sqrt"
    pairs = _both(node) if inverse == "rsqrt" else _both(node)[:1]
    for x, root in pairs:
        step = finder.made(root, inverse)
        shifted = finder.made(step.arguments.get("self"), "add") if step is not None else None
        mean = (
            next((match for each, _ in _both(shifted) if (match := finder.made(each, "mean"))), None)
            if shifted
            else None
        )
        square = finder.made(mean.arguments.get("self"), "pow", "mul", "square") if mean is not None else None
        if mean is None or square is None or not isinstance(x, Ref) or set(square.reads) != {x.name}:
            continue
        if operator_of(square.target) == "pow" and square.arguments.get("exponent") != 2:
            continue
        rank, dims = len(finder.value(x.name).shape), mean.arguments.get("dim")
        axes = sorted(dim % rank for dim in (dims if isinstance(dims, tuple) else (dims,)) if isinstance(dim, int))
        if axes and axes == list(range(rank - len(axes), rank)) and mean.arguments.get("keepdim"):
            return x, len(axes)
    return None


def _rotary(finder: _Finder, last: Node) -> Node | None:
    """Fuse products with tables of cosines and sines, of real pairs in any order or of complex numbers."""
    for group in finder.groups(last, _ROTATING):
        products = [node for node in group.nodes if _by_table(finder, node)]
        turns = any(operator_of(node.target) in ("neg", "sub", "view_as_complex") for node in group.nodes)
        shape = finder.value(group.begin).shape
        if products and turns and shape and shape == finder.value(group.end).shape:
            if not all(_linear(finder, node) for node in group.nodes):
                return None
            turned = sum(_width(finder.value(node.outputs[0])) for node in products) // 2
            arguments: dict[str, Argument] = {"self": Ref(group.begin), "rotated": min(turned, shape[-1]) // 2 * 2}
            return _fused(last, "rotary", arguments)
    return None


def _width(value: Value) -> int:
    """Return the products of real numbers for each position: four for a complex one."""
    return value.shape[-1] * (4 if value.dtype.startswith("complex") else 1)


def _by_table(finder: _Finder, node: Node) -> bool:
    """Whether a node multiplies by a constant tensor whose last axis has several elements."""
    tables = [name for name in node.reads if name in finder.program.constants]
    sizes = [finder.value(name).shape for name in tables]
    return operator_of(node.target) == "mul" and any(shape and shape[-1] > 1 for shape in sizes)


def _linear(finder: _Finder, node: Node) -> bool:
    """Whether a node is linear in what it reads together: no product of two computed values."""
    return operator_of(node.target) != "mul" or len(finder.sources(node)) == 1


def _routing(finder: _Finder, last: Node) -> Node | None:
    """Fuse the choice of the best experts and their weights: softmax, top-k, weights that add up to one."""
    match = None
    for group in finder.groups(last, _ROUTING):
        chosen = [node for node in group.nodes if operator_of(node.target) == "topk"]
        scores, end = finder.value(group.begin).shape, finder.value(group.end).shape
        scored = any(operator_of(node.target) in ("softmax", "sigmoid") for node in group.nodes)
        if chosen and scored and len(scores) == len(end) and end[:-1] == scores[:-1]:
            match = group
    if match is None:
        return None
    return _fused(last, "top_k", {"self": Ref(match.begin), "k": finder.value(match.end).shape[-1]})


def _dispatch(finder: _Finder, last: Node) -> Node | None:
    """Mark the call that puts tokens into the order of their experts: groups of them are multiplied next."""
    if operator_of(last.target) != "index" or not last.outputs:
        return None
    readers = [node for node in finder.readers[last.outputs[0]] if operator_of(node.target) in GROUPED]
    indices = last.arguments.get("indices")
    if not readers or not isinstance(indices, tuple) or len(indices) != 1:
        return None
    weights = [name for name in readers[0].reads if len(finder.value(name).shape) == 3]
    if not weights:
        return None
    experts = finder.value(weights[0]).shape[0]
    return _fused(last, "dispatch", {"self": last.arguments["self"], "indices": indices, "experts": experts})


def _keys_and_values(finder: _Finder, last: Node) -> Node | None:
    """Fuse what latent attention makes its keys of: a part of a projection, and channels that all heads share."""
    tensors = last.arguments.get("tensors")
    if operator_of(last.target) not in ("cat", "topoplan.cat") or not isinstance(tensors, tuple) or len(tensors) != 2:
        return None
    part, shared = tensors
    repeated = finder.made(shared, "expand")
    split = finder.maker.get(part.name) if isinstance(part, Ref) else None
    rank = len(finder.value(last.outputs[0]).shape)
    if repeated is None or split is None or rank != 4 or last.arguments.get("dim") not in (-1, 3):
        return None
    if operator_of(split.target) != "split_with_sizes" or split.arguments.get("dim") not in (-1, 3):
        return None
    keys = split.outputs[0]
    if len(split.outputs) != 2 or part != Ref(keys) or [node.name for node in finder.readers[keys]] != [last.name]:
        return None
    narrow = repeated.arguments.get("self")
    if not isinstance(narrow, Ref) or finder.value(narrow.name).shape[1] != 1:
        return None
    arguments: dict[str, Argument] = {"self": split.arguments["self"], "shared": narrow}
    fused = _fused(last, "keys_and_values", arguments)
    return attrs.evolve(fused, outputs=(last.outputs[0], split.outputs[1]))


def _combination(finder: _Finder, last: Node) -> Node | None:
    """Fuse what experts' answers go through: weighed, put back into the order of tokens, added for each token."""
    if operator_of(last.target) != "sum" or last.arguments.get("dim") != (1,) or last.arguments.get("keepdim"):
        return None
    rows = _before_index(finder, last.arguments.get("self"))
    product = finder.made(rows, "mul")
    for answers, weights in _both(product) if product is not None else []:
        gates = _before_index(finder, weights)
        if isinstance(gates, Ref) and isinstance(answers, Ref):
            tokens, chosen = finder.value(last.outputs[0]).shape[0], finder.value(gates.name).shape[-1]
            if finder.value(gates.name).shape == (tokens, chosen):
                return _fused(last, "combine", {"self": answers, "gates": gates})
    return None


def _before_index(finder: _Finder, argument: Argument) -> Argument:
    """Return what an argument is before constant indices choose rows of it, and before views; None if none do."""
    chooses = False
    while (node := finder.made(argument, "index", "reshape", "unsqueeze", "view")) is not None:
        if operator_of(node.target) == "index":
            if len(finder.sources(node)) != 1:
                break
            chooses = True
        argument = node.arguments.get("self")
    return argument if chooses else None


def _pointwise(finder: _Finder, last: Node) -> Node | None:
    """Fuse functions of one tensor, element by element, such as GELU in its approximation by tanh."""
    match = None
    for group in finder.groups(last, _POINTWISE):
        shape = finder.value(group.begin).shape
        scalars = all(finder.value(name).elements == 1 for node in group.nodes for name in _constants(finder, node))
        same_shape = all(finder.value(node.outputs[0]).shape == shape for node in group.nodes)
        if not (scalars and same_shape) or group.begin in finder.program.parameters:
            break
        match = group
    if match is None or len(match.nodes) < 2:
        return None
    return _fused(last, _word([operator_of(node.target) for node in match.nodes]), {"self": Ref(match.begin)})


def _constants(finder: _Finder, node: Node) -> list[str]:
    return [name for name in node.reads if name in finder.program.constants and name not in finder.maker]


def _word(operators: Sequence[str]) -> str:
    """Name a function by the operators that it is made of."""
    if "erf" in operators or ("tanh" in operators and "mul" in operators):
        return "gelu"
    return "silu" if sorted(operators) == ["mul", "sigmoid"] else operators[-1]


def _written_parts(finder: _Finder, last: Node) -> Node | None:
    """Fuse copies into the slices of an empty tensor, which together fill it, to a concatenation."""
    if operator_of(last.target) != "slice_scatter":
        return None
    axis = last.arguments.get("dim", 0)
    size = finder.value(last.outputs[0]).shape[axis] if isinstance(axis, int) else 0
    parts: dict[int, tuple[int, Argument]] = {}
    node: Node | None = last
    base: Argument = None
    while node is not None:
        start, end = node.arguments.get("start") or 0, node.arguments.get("end")
        stop = min(end if isinstance(end, int) else size, size)
        if node.arguments.get("dim", 0) != axis or not isinstance(start, int) or node.arguments.get("step", 1) != 1:
            return None
        parts[start] = (stop, node.arguments.get("src"))
        base = node.arguments.get("self")
        node = finder.made(base, "slice_scatter")
    position = 0
    for start in sorted(parts):
        if start != position:
            return None
        position = parts[start][0]
    if position != size or not isinstance(base, Ref) or base.name in finder.maker:
        return None
    return _fused(last, "cat", {"tensors": tuple(parts[start][1] for start in sorted(parts)), "dim": axis})
