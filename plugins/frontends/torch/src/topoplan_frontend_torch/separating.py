"""Products of experts whose one weight holds several, as one product for each.

transformers 5 keeps the gate and up projections of all experts in one parameter: a product, whose channels are then
split.  As one operator, no cut of its channels would cut both halves in the same way, the split would move elements
that no kernel moves, and the gradient of the whole parameter would wait for both halves.  A product with a part of the
columns is that part of the product, so the two are the same numbers: parameters and FLOPs stay exactly as they are.

This is for weights of experts (three axes) alone.  A linear layer stays one operator, since its module is launched as
one (`topoplan_exporter_dtensor`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import attrs

from topoplan_frontend_torch.program import Argument, Node, Program, Value
from topoplan_frontend_torch.simplify import operator_of, renamed

__all__ = ["GROUPED", "separated"]

#: Products of groups of rows, each with the matrix of its expert.
GROUPED = ("_grouped_mm", "grouped_mm", "transformers.grouped_mm", "transformers.grouped_mm_fallback")
_PRODUCTS = frozenset({*GROUPED, "bmm", "matmul"})
_SPLITS = frozenset({"chunk", "split", "split_with_sizes", "tensor_split", "unsafe_split"})
_TRANSPOSES = frozenset({"permute", "transpose"})


def separated(program: Program) -> Program:
    """Return the program with a product of its own for each part of a weight of experts, where they are equal parts."""
    maker = {name: node for node in program.nodes for name in node.outputs}
    reads = Counter(name for node in program.nodes for name in node.reads)
    reads.update(program.outputs)
    shared = Counter(program.parameters.values())
    values, parameters = dict(program.values), dict(program.parameters)
    nodes: dict[str, list[Node]] = {}
    for split in program.nodes:
        product = _product(split, maker, reads, values)
        views = _views_of_weight(product, maker, reads, program.parameters) if product is not None else None
        if product is None or views is None:
            continue
        parameter = views[0].reads[0] if views else _weight(product)
        if reads[parameter] != 1 or shared[program.parameters[parameter]] != 1:
            continue
        nodes[product.name] = []
        nodes.update({view.name: [] for view in views})
        nodes[split.name] = _parts(split, product, views, parameter, values, parameters)
    replaced = tuple(each for node in program.nodes for each in nodes.get(node.name, [node]))
    return attrs.evolve(program, nodes=replaced, values=values, parameters=parameters)


def _weight(product: Node) -> str:
    """Return the second value that a product reads."""
    return product.reads[1]


def _product(split: Node, maker: dict[str, Node], reads: Counter[str], values: dict[str, Value]) -> Node | None:
    """Return the product with experts' weights whose last axis a node splits in equal parts, all of them read."""
    product = maker.get(split.reads[0]) if operator_of(split.target) in _SPLITS else None
    if product is None or operator_of(product.target) not in _PRODUCTS or len(product.reads) < 2:
        return None
    whole, parts = values[split.reads[0]].shape, [values[name].shape for name in split.outputs]
    equal = len(set(parts)) == 1 and parts[0][:-1] == whole[:-1] and len(parts) * parts[0][-1] == whole[-1]
    read_by_split_alone = reads[split.reads[0]] == 1 and all(reads[name] for name in split.outputs)
    is_of_experts = len(values[_weight(product)].shape) == 3
    return product if equal and read_by_split_alone and is_of_experts and len(parts) > 1 else None


def _views_of_weight(
    product: Node, maker: dict[str, Node], reads: Counter[str], parameters: Mapping[str, str]
) -> list[Node] | None:
    """Return the transposes between a parameter and a product, in their order; None if there is anything else."""
    views: list[Node] = []
    name = _weight(product)
    while name not in parameters:
        node = maker.get(name)
        if node is None or operator_of(node.target) not in _TRANSPOSES or reads[name] != 1:
            return None
        views.insert(0, node)
        name = node.reads[0]
    return views


def _parts(
    split: Node,
    product: Node,
    views: list[Node],
    parameter: str,
    values: dict[str, Value],
    parameters: dict[str, str],
) -> list[Node]:
    """Return the products with each part of a parameter; their values and parameters are added to the mappings."""
    nodes: list[Node] = []
    count = len(split.outputs)
    axis = _axis(views, 2)
    for number, output in enumerate(split.outputs, 1):
        part = f"{parameter}.part{number}"
        parameters[part] = f"{parameters[parameter]}.part{number}"
        values[part] = _cut(values[parameter], axis, count)
        names = {parameter: part}
        for place, view in enumerate(views):
            name = names[view.outputs[0]] = f"{view.outputs[0]}.part{number}"
            values[name] = _cut(values[view.outputs[0]], _axis(views[place + 1 :], 2), count)
            nodes.append(attrs.evolve(_reading(view, names), name=name, outputs=(name,)))
        nodes.append(attrs.evolve(_reading(product, names), name=f"{product.name}.part{number}", outputs=(output,)))
    del parameters[parameter]
    return nodes


def _reading(node: Node, names: dict[str, str]) -> Node:
    arguments: dict[str, Argument] = {key: renamed(each, names) for key, each in node.arguments.items()}
    return attrs.evolve(node, arguments=arguments)


def _axis(views: list[Node], axis: int) -> int:
    """Return which of three axes becomes ``axis`` by transposes."""
    for view in reversed(views):
        dims = view.arguments.get("dims")
        if isinstance(dims, tuple):
            order = [each % 3 for each in dims if isinstance(each, int)]
        else:
            first, second = (_place(view.arguments[name]) for name in ("dim0", "dim1"))
            order = [0, 1, 2]
            order[first], order[second] = second, first
        axis = order[axis]
    return axis


def _place(argument: Argument) -> int:
    assert isinstance(argument, int)
    return argument % 3


def _cut(value: Value, axis: int, count: int) -> Value:
    shape = list(value.shape)
    shape[axis] //= count
    return attrs.evolve(value, shape=tuple(shape))
