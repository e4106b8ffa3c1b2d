"""A program without what does not matter to a plan: in-place calls, bookkeeping, integers, masks, dead code.

A value is *active* if a gradient may pass through it: parameters, inputs of floating type, and what is computed from
these.  Position ids, masks, tables of angles and the choice of experts are not active.  They cost next to nothing, and
every device computes them for itself.  Calls that make no active value are dropped; their values stay as constants.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from topoplan_frontend_torch.masks import attended
from topoplan_frontend_torch.program import Argument, Node, Program, Ref

__all__ = ["alive", "operator_of", "renamed", "simplify"]

#: Operators that return their first argument, or a copy of it.
_SAME = frozenset(
    {
        "alias",
        "clone",
        "contiguous",
        "detach",
        "feature_dropout",
        "lift_fresh_copy",
        "positive",
        "to",
        "type_as",
        "_to_copy",
    }
)
#: Operators that move no element where the shape stays.
_SAME_IF_SHAPE = frozenset({"view", "reshape", "_unsafe_view", "expand", "expand_as", "view_as", "flatten", "slice"})
#: Operators whose values come from the shape or the type of what they read alone.
_FILLED = frozenset(
    {
        "empty_like",
        "full_like",
        "new_empty",
        "new_empty_strided",
        "new_full",
        "new_ones",
        "new_zeros",
        "ones_like",
        "rand_like",
        "randn_like",
        "zeros_like",
    }
)
#: Operators that return a window on their first argument, which calls in place write through.
_WINDOWS = frozenset({"slice", "select", "view", "unsqueeze", "squeeze", "transpose", "permute", "reshape"})


def operator_of(target: str) -> str:
    """Return the operator's name of a target: ``add`` of ``aten.add.Tensor``; other namespaces than ATen stay."""
    words = target.split(".")
    if words[0] == "aten" and len(words) > 1:
        return words[1]
    return ".".join(words[:2])


def simplify(program: Program) -> Program:
    """Return the program without in-place calls, bookkeeping, and what makes no active value."""
    functional = _Functional(program).program()
    return _active_only(attrs.evolve(functional, attended=_attended(functional)))


def _attended(program: Program) -> dict[str, tuple[bool, int | None]]:
    """Return what the masks of attention hide, by the calls that read them; layers share a mask."""
    makers = {name: node for node in program.nodes for name in node.outputs}
    of_mask: dict[Argument, tuple[bool, int | None]] = {}
    hidden = {}
    for node in program.nodes:
        mask = node.arguments.get("attn_mask")
        if isinstance(mask, Ref):
            if mask not in of_mask:
                of_mask[mask] = attended(program, makers, mask)
            hidden[node.name] = of_mask[mask]
    return hidden


def renamed(argument: Argument, names: Mapping[str, str]) -> Argument:
    """Return an argument with values replaced by others."""
    if isinstance(argument, Ref):
        return Ref(names.get(argument.name, argument.name))
    if isinstance(argument, tuple):
        return tuple(renamed(item, names) for item in argument)
    return argument


def alive(program: Program) -> Program:
    """Return the program without calls whose values no other call reads, nor the caller."""
    names_read = set(program.outputs)
    live_nodes = []
    for node in reversed(program.nodes):
        if names_read.intersection(node.outputs):
            live_nodes.append(node)
            names_read.update(node.reads)
    return attrs.evolve(program, nodes=tuple(reversed(live_nodes)))


class _Functional:
    """Replaces calls in place by values of their own, and drops bookkeeping."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._values = dict(program.values)
        #: Name in the program -> the value that it stands for now.
        self._now: dict[str, str] = {}
        self._made_by: dict[str, Node] = {}
        self._nodes: list[Node] = []
        #: Names in the program of values that are detached.
        self._detached: set[str] = set()

    def program(self) -> Program:
        """Return the program."""
        for original in self._program.nodes:
            arguments = {key: renamed(argument, self._now) for key, argument in original.arguments.items()}
            node = attrs.evolve(original, arguments=arguments, cut=self._cut(original))
            name = operator_of(node.target)
            first = next(iter(node.reads), "")
            in_place = name.endswith("_") and not name.endswith("__") and node.target.startswith("aten.")
            if name == "detach_" and first:
                self._detached.update((*original.reads[:1], *node.outputs))
                self._now.update(dict.fromkeys(node.outputs, first))
            elif in_place and node.outputs and first:
                target = node.target.replace(f".{name}.", f".{name[:-1]}.")
                self._write(attrs.evolve(node, target=target), next(iter(original.reads)), first)
            elif node.outputs and first and self._is_same(node, first):
                self._now[node.outputs[0]] = first
                if name == "detach" or node.cut or not node.gradient:
                    self._detached.update(node.outputs)
            else:
                self._add(node)
        outputs = tuple(self._now.get(name, name) for name in self._program.outputs)
        return attrs.evolve(self._program, nodes=tuple(self._nodes), values=self._values, outputs=outputs)

    def _cut(self, node: Node) -> frozenset[str]:
        """Return the values that a call of the program reads detached, and not as they are, too."""
        now = [(name, self._now.get(name, name)) for name in node.reads]
        as_they_are = {value for name, value in now if name not in self._detached}
        return frozenset(value for name, value in now if name in self._detached) - as_they_are

    def _add(self, node: Node) -> None:
        self._nodes.append(node)
        self._made_by.update(dict.fromkeys(node.outputs, node))

    def _write(self, node: Node, written: str, first: str) -> None:
        """Add a call that was in place, and let later readers see what it wrote, also through windows.

        Args:
            node: the call, with a target that is not in place.
            written: name of what it writes, in the program.
            first: the value that this stands for.
        """
        result = node.outputs[0]
        sources = [argument.name for argument in node.arguments.values() if isinstance(argument, Ref)]
        copies = operator_of(node.target) == "copy" and len(sources) > 1
        if copies and self._values[sources[1]].shape == self._values[result].shape:
            self._now[result] = result = sources[1]
        else:
            self._add(node)
        self._now[written] = self._now[first] = result
        window = self._made_by.get(first)
        while window is not None and operator_of(window.target) in _WINDOWS:
            base = window.reads[0]
            result = self._written_back(node, window, base, result)
            window = self._made_by.get(base)

    def _written_back(self, node: Node, window: Node, base: str, part: str) -> str:
        """Add a call that puts ``part`` into ``base`` where ``window`` looks; return the value that it makes."""
        name = f"{part}.in.{base}"
        while name in self._values:
            name += "'"
        arguments: dict[str, Argument] = {"self": Ref(base), "src": Ref(part)}
        arguments |= {key: argument for key, argument in window.arguments.items() if key != "self"}
        self._values[name] = self._values[base]
        target = f"aten.{operator_of(window.target)}_scatter.default"
        self._add(attrs.evolve(node, name=name, target=target, arguments=arguments, outputs=(name,)))
        self._now.update({name_known: name for name_known, stands in self._now.items() if stands == base})
        self._now[base] = name
        return name

    def _is_same(self, node: Node, first: str) -> bool:
        """Whether a call returns what it reads, as far as a plan can tell."""
        name, after, before = operator_of(node.target), self._values[node.outputs[0]], self._values[first]
        if name in ("dropout", "native_dropout", "alpha_dropout"):
            return not node.arguments.get("train", True) or node.arguments.get("p") == 0
        if after.shape != before.shape or after.floating != before.floating:
            return False
        return name in _SAME or name in _SAME_IF_SHAPE


def _active_only(program: Program) -> Program:
    """Return the program without calls that make no active value; those that others read become constants."""
    active = set(program.parameters)
    active.update(name for name in program.inputs if program.values[name].floating)
    nodes = []
    constants, data = set(program.constants), set(program.inputs)
    for node in program.nodes:
        if data.intersection(node.reads):
            data.update(node.outputs)
        reads_active = any(name in active for name in node.reads)
        results = [name for name in node.outputs if program.values[name].floating]
        if reads_active and results and operator_of(node.target) not in _FILLED:
            active.update(results)
            constants.update(name for name in node.outputs if name not in results)
            nodes.append(node)
        else:
            constants.update(node.outputs)
    data &= constants
    live = alive(attrs.evolve(program, nodes=tuple(nodes), constants=frozenset(constants), data=frozenset(data)))
    outputs = tuple(dict.fromkeys(name for name in live.outputs if name in active))
    return alive(attrs.evolve(live, outputs=outputs))
