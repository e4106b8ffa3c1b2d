"""Groups of nodes that are one operator: attention, layer and RMS normalization, and GELU, as exporters write them out.

ONNX had no operators for these for long, so that attention arrives as two products with a softmax between, and a layer
normalization as nine nodes.  A group becomes one node at the place of its last one.  It is left as it is where another
node reads what is inside, or where something in it is a parameter that the one operator does not have.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import attrs

from topoplan_frontend_onnx.folding import constant_of
from topoplan_frontend_onnx.reading import File, Node

__all__ = ["ATTENTION", "fused"]

#: Kind of a node that is attention: query, keys and values of shape (samples, heads, positions, channels), or
#: (samples x heads, positions, channels).
ATTENTION = "topoplan.Attention"
_SHAPES = ("Shape", "Size")
#: What the argument of the tanh in a GELU is made of: x + 0.044715 x^3, scaled (Hendrycks and Gimpel, 2016).
_POLYNOMIAL = ("Add", "Mul", "Pow")
_CUBIC = 3
_MOST_NODES = 8
#: What stands between scores and softmax: scales, masks, biases that are no parameters.
_ON_SCORES = ("Add", "Div", "Mul", "Where")


@attrs.frozen(eq=False)
class _Group:
    """Nodes that become others; the last of ``nodes`` is where the last of ``made`` stands."""

    nodes: tuple[Node, ...]
    made: tuple[Node, ...]


def fused(file: File) -> File:
    """Return a file with a node for each group that is known."""
    for find in (_gelu, _normalization, _attention):
        file = _Finder(file).replaced(find)
    return file


class _Finder:
    """Who makes and who reads each value, and which values no parameter and no input of real numbers decides."""

    def __init__(self, file: File) -> None:
        self.file = file
        self.maker = {name: node for node in file.nodes for name in node.outputs if name}
        self.readers: dict[str, list[Node]] = defaultdict(list)
        for node in file.nodes:
            for name in dict.fromkeys(node.inputs):
                self.readers[name].append(node)
        self.fixed, self.known = {""}, {""}
        for name, tensor in file.tensors.items():
            self.known.add(name)
            if (constant := constant_of(tensor, name)).number or not constant.source:
                self.fixed.add(name)
        self.fixed.update(each.name for each in file.inputs if not each.kind.startswith(("float", "bfloat")))
        for node in file.nodes:
            if node.kind in _SHAPES:
                self.fixed.update(node.outputs)
                self.known.update(node.outputs)
                continue
            if self.fixed.issuperset(node.inputs) and node.kind != "Constant":
                self.fixed.update(node.outputs)
            if self.known.issuperset(node.inputs):
                self.known.update(node.outputs)
            if node.kind == "Constant" and self._is_fixed(node):
                self.fixed.update(node.outputs)

    def _is_fixed(self, node: Node) -> bool:
        """Whether a constant in a node is one number, integers, or a mask: no parameter."""
        value = node.attributes.get("value")
        if value is None:
            return True
        shape, constant = getattr(value, "shape", ()), None
        if hasattr(value, "kind"):
            constant = constant_of(value, "constant")
        return not shape or (constant is not None and (constant.number or not constant.source))

    def replaced(self, find: Callable[[_Finder, Node], _Group | None]) -> File:
        """Return the file with what ``find`` makes of its nodes."""
        made_at: dict[int, tuple[Node, ...]] = {}
        for node in self.file.nodes:
            group = find(self, node)
            if group is None or not self._is_closed(group) or any(id(each) in made_at for each in group.nodes):
                continue
            made_at.update({id(each): () for each in group.nodes})
            made_at[id(group.nodes[-1])] = group.made
        if not made_at:
            return self.file
        nodes = tuple(each for node in self.file.nodes for each in made_at.get(id(node), (node,)))
        return attrs.evolve(self.file, nodes=nodes)

    def _is_closed(self, group: _Group) -> bool:
        """Whether nothing else reads what the nodes before the last one make."""
        inside = {id(node) for node in group.nodes}
        return all(
            name not in self.file.outputs and inside.issuperset(map(id, self.readers[name]))
            for node in group.nodes[:-1]
            for name in node.outputs
        )

    def made(self, name: str, *kinds: str) -> Node | None:
        """Return the node of one of these kinds that makes a value."""
        node = self.maker.get(name)
        return node if node is not None and node.kind in kinds else None

    def next(self, node: Node, *kinds: str) -> Node | None:
        """Return the only reader of what a node makes, if it is of one of these kinds."""
        readers = self.readers[node.outputs[0]]
        return readers[0] if len(readers) == 1 and readers[0].kind in kinds else None

    def besides_fixed(self, node: Node) -> str:
        """Return the only input of a node that is not fixed; nothing if there are several, or none, or it divides."""
        names = [name for name in node.inputs if name not in self.fixed]
        divides = node.kind == "Div" and node.inputs[0] in self.fixed
        return names[0] if len(names) == 1 and not divides else ""

    def is_channelwise(self, name: str) -> bool:
        """Whether a value is a parameter of the file with an element for each channel, the last axis."""
        while (same := self.made(name, "Identity")) is not None:
            name = same.inputs[0]
        tensor = self.file.tensors.get(name)
        return tensor is not None and name not in self.fixed and math.prod(tensor.shape) == tensor.shape[-1]

    def numbers(self, name: str) -> Sequence[float] | None:
        """Return the elements of a small constant; None where it is none."""
        maker = self.made(name, "Constant")
        stored = maker.attributes.get("value") if maker is not None else self.file.tensors.get(name)
        value = getattr(stored, "value", None)
        return None if value is None else [float(number) for number in value.ravel()]

    def over_last_axis(self, node: Node) -> bool:
        """Whether a mean is taken over the last axis, which stays, as an axis of one element."""
        axes = node.attributes.get("axes")
        if len(node.inputs) > 1:
            numbers = self.numbers(node.inputs[1])
            axes = None if numbers is None else [int(number) for number in numbers]
        shape = self.file.shapes.get(node.inputs[0])
        rank = len(shape.shape) if shape is not None and shape.shape is not None else 0
        return bool(node.attributes.get("keepdims", 1)) and axes in ([-1], [rank - 1] if rank else [-1])


def _other(node: Node, name: str) -> str:
    """Return the input of a node of two that is not ``name``; ``name`` if both are."""
    return next((each for each in node.inputs if each != name), name)


def _gelu(finder: _Finder, curve: Node) -> _Group | None:
    """Find ``x * (1 + curve) * 0.5``, the half before, between or behind; the curve is an erf of x, or a tanh."""
    plus = finder.next(curve, "Add") if curve.kind in ("Erf", "Tanh") else None
    if plus is None or not finder.besides_fixed(plus):
        return None
    if curve.kind == "Erf":
        scaled = finder.made(curve.inputs[0], "Div", "Mul")
        x = finder.besides_fixed(scaled) if scaled is not None else ""
        return _halved(finder, [scaled, curve, plus], x) if scaled is not None and x else None
    for x in _sources(finder, curve.inputs[0]):
        polynomial = dict[str, tuple[int, Node]]()
        if _degree(finder, curve.inputs[0], x, polynomial) == _CUBIC:
            return _halved(finder, [*(node for _, node in polynomial.values()), curve, plus], x)
    return None


def _sources(finder: _Finder, name: str) -> list[str]:
    """Return what a polynomial of few nodes may be one of, from its value on."""
    names = [name]
    for each in names:  # grows
        if len(names) > _MOST_NODES:
            break
        node = finder.made(each, *_POLYNOMIAL)
        names += [] if node is None else [source for source in node.inputs if source not in (*finder.fixed, *names)]
    return names[1:]


def _degree(finder: _Finder, name: str, x: str, polynomial: dict[str, tuple[int, Node]]) -> int:
    """Return the degree of a value as a polynomial of ``x``, and add its nodes; above `_CUBIC` if it is none."""
    if name == x or name in finder.fixed:
        return int(name == x)
    node = finder.made(name, *_POLYNOMIAL)
    if node is None or len(polynomial) > _MOST_NODES:
        return _CUBIC + 1
    if name not in polynomial:
        degrees = [_degree(finder, each, x, polynomial) for each in node.inputs]
        if node.kind == "Pow":
            exponent = finder.numbers(node.inputs[1])
            degree = degrees[0] * (int(exponent[0]) if exponent in ([2.0], [3.0]) else _CUBIC + 1)
        else:
            degree = sum(degrees) if node.kind == "Mul" else max(degrees)
        polynomial[name] = degree, node
    return polynomial[name][0]


def _halved(finder: _Finder, nodes: list[Node], x: str) -> _Group | None:
    """Add the products with ``x`` and with a half that follow; nothing if others do."""
    first, last, is_halved = len(nodes), nodes[-1], False
    while (product := finder.next(last, "Mul", "Div")) is not None:
        factor = _other(product, last.outputs[0])
        if product.kind == "Div" and factor == product.inputs[0]:
            return None
        half = finder.made(factor, "Mul", "Div")
        if factor in finder.fixed and not is_halved:
            is_halved = True
        elif product.kind == "Mul" and factor == x and x not in _products_of(nodes[first:]):
            pass
        elif product.kind == "Mul" and half is not None and finder.besides_fixed(half) == x and not is_halved:
            return _made([half, *nodes, product], "Gelu", [x])
        else:
            return None
        nodes.append(product)
        last = product
        if is_halved and x in _products_of(nodes[first:]):
            return _made(nodes, "Gelu", [x])
    return None


def _products_of(nodes: Sequence[Node]) -> set[str]:
    return {name for node in nodes for name in node.inputs}


def _made(nodes: Sequence[Node], kind: str, inputs: Sequence[str], **attributes: int) -> _Group:
    last = nodes[-1]
    return _Group(tuple(nodes), (attrs.evolve(last, kind=kind, inputs=tuple(inputs), attributes=attributes),))


def _normalization(finder: _Finder, root: Node) -> _Group | None:
    """Find what divides by the root of a mean of squares: layer normalization if a mean was subtracted, else RMS."""
    shifted = finder.made(root.inputs[0], "Add") if root.kind == "Sqrt" else None
    mean = finder.made(finder.besides_fixed(shifted), "ReduceMean") if shifted is not None else None
    square = finder.made(mean.inputs[0], "Pow", "Mul") if mean is not None else None
    if shifted is None or mean is None or square is None or not finder.over_last_axis(mean):
        return None
    centered = square.inputs[0]
    if (square.kind == "Mul" and _other(square, centered) != centered) or (
        square.kind == "Pow" and square.inputs[1] not in finder.fixed
    ):
        return None
    nodes = [square, mean, shifted, root]
    last = finder.next(root, "Div", "Reciprocal")
    if last is not None and (last.kind == "Reciprocal" or last.inputs[0] in finder.fixed):
        nodes.append(last)
        last = finder.next(last, "Mul")
    if last is None:
        return None
    nodes.append(last)
    divided = _other(last, nodes[-2].outputs[0])
    if last.kind == "Div" and divided != last.inputs[0]:
        return None
    x = _centered(finder, centered, divided, nodes)
    if x is None:
        return _scaled(finder, nodes, "RMSNormalization", centered) if divided == centered else None
    return _scaled(finder, nodes, "LayerNormalization", x)


def _centered(finder: _Finder, squared: str, divided: str, nodes: list[Node]) -> str | None:
    """Return x where both values are ``x - mean(x)``, and put the nodes that make them before ``nodes``."""
    group: dict[int, Node] = {}
    sources = set()
    for name in (squared, divided):
        difference = finder.made(name, "Sub")
        mean = finder.made(difference.inputs[1], "ReduceMean") if difference is not None else None
        if difference is None or mean is None or mean.inputs[0] != difference.inputs[0]:
            return None
        if not finder.over_last_axis(mean):
            return None
        group |= {id(mean): mean, id(difference): difference}
        sources.add(difference.inputs[0])
    if len(sources) != 1:
        return None
    nodes[:0] = group.values()
    return sources.pop()


def _scaled(finder: _Finder, nodes: list[Node], kind: str, x: str) -> _Group | None:
    """Add the product with a parameter, and the sum with another one, that follow a normalization."""
    inputs = [x]
    for follower in ("Mul", "Add") if kind == "LayerNormalization" else ("Mul",):
        node = finder.next(nodes[-1], follower)
        parameter = _other(node, nodes[-1].outputs[0]) if node is not None else ""
        if node is None or not finder.is_channelwise(parameter):
            break
        inputs.append(parameter)
        nodes.append(node)
    return _made(nodes, kind, inputs, axis=-1) if len(inputs) > 1 else None


def _attention(finder: _Finder, answers: Node) -> _Group | None:
    """Find ``softmax(q @ k.T * scale + mask) @ v`` of tensors of shapes that `ATTENTION` has."""
    if answers.kind != "MatMul":
        return None
    guards = _guards(finder, answers.inputs[0])
    weights = finder.made(guards[-1].inputs[0] if guards else answers.inputs[0], "Softmax")
    if weights is None:
        return None
    nodes = [answers, *guards, weights]
    scores = finder.maker.get(weights.inputs[0])
    while scores is not None and scores.kind in _ON_SCORES:
        nodes.append(scores)
        scores = finder.maker.get(finder.besides_fixed(scores))
    if scores is None or scores.kind != "MatMul":
        return None
    turned = list(_turned(finder, scores.inputs[1]))
    last_axis = len(turned[0].attributes["perm"]) - 1 if turned else -1
    if not turned or weights.attributes.get("axis", -1) not in (-1, last_axis):
        return None
    if finder.known.intersection((scores.inputs[0], answers.inputs[1], turned[0].inputs[0])):
        return None
    nodes_of_keys, keys = _untransposed(turned)
    query, values = scores.inputs[0], answers.inputs[1]
    nodes = [*turned, scores, *reversed(nodes)]
    whole = attrs.evolve(answers, kind=ATTENTION, inputs=(query, keys, values), attributes={})
    return _Group(tuple(nodes), (*nodes_of_keys, whole))


def _guards(finder: _Finder, name: str) -> list[Node]:
    """Return what replaces weights that are not numbers, where all positions are masked, from the last node on."""
    choice = finder.made(name, "Where")
    test = finder.made(choice.inputs[0], "IsNaN") if choice is not None else None
    if choice is None or test is None or choice.inputs[1] not in finder.fixed or test.inputs[0] != choice.inputs[2]:
        return []
    return [choice, test]


def _turned(finder: _Finder, name: str) -> Iterator[Node]:
    """Yield the transpose that exchanges keys' positions and channels, and what scales its answer; or nothing."""
    node = finder.maker.get(name)
    if node is not None and node.kind in ("Mul", "Div"):
        inner = list(_turned(finder, finder.besides_fixed(node)))
        if inner:
            yield from [*inner, node]
    elif node is not None and node.kind == "Transpose" and len(node.attributes.get("perm") or []) in (3, 4):
        yield node


def _untransposed(turned: Sequence[Node]) -> tuple[list[Node], str]:
    """Return nodes that make keys in the order of queries, and the name of what they make."""
    transpose = turned[0]
    order = [*transpose.attributes["perm"]]
    order[-2:] = reversed(order[-2:])
    name, nodes = transpose.inputs[0], []
    if order != sorted(order):
        name = f"{transpose.outputs[0]}.keys"
        nodes.append(attrs.evolve(transpose, outputs=(name,), attributes={"perm": order}))
    for before, scale in pairwise(turned):
        inputs = tuple(name if each == before.outputs[0] else each for each in scale.inputs)
        name = f"{scale.outputs[0]}.keys"
        nodes.append(attrs.evolve(scale, inputs=inputs, outputs=(name,)))
    return nodes, name
