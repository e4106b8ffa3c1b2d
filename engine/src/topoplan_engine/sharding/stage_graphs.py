"""A stage as a graph of its own: its operators, and in place of other stages operators that receive and send.

What another stage makes is the output of an operator that *receives* it, in the sharding in which the stage's program
stores it; what another stage reads is the input of one that *sends* it, whole where devices have terms of a sum.  So
the reshardings inside of a stage follow as those of any program, once for all operators that need the same
(`topoplan_engine.sharding.programs`), and so do the gradients that come back.

    strategy, graph ─► StageGraph for each stage ─► reshardings ─► tasks (stage_tasks)
                       └► `Link`s: what goes from a stage to another ─► transfers (stage_links)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import attrs
import numpy as np

from topoplan.arrays import i32
from topoplan.errors import TopoplanError
from topoplan.model.graph import Axis, Operator, OperatorGraph, Tensor
from topoplan.model.sharding import REPLICATED, Holding, MeshSharding, Signature
from topoplan.model.spmd import SpmdProgram
from topoplan.model.staged import Stage, StagedStrategy
from topoplan.model.taskgraph import Collective
from topoplan_engine.sharding.mesh import MeshStep
from topoplan_engine.sharding.programs import Reshard, reshards_under
from topoplan_engine.sharding.resharding import CollectiveStep
from topoplan_engine.tied import TiedWeight, tied_weights
from topoplan_engine.trainer_kernels import kernels_of
from topoplan_engine.training import GradientFlow, gradient_flow, tensors_read

__all__ = ["Link", "StageGraph", "crossing_weights", "stage_graphs"]


class Link(NamedTuple):
    """A tensor that goes from a stage to another one.

    Attributes:
        op, output: the tensor, by the number of its operator in the model.
        source, target: stages.
        sent, arrives: its shardings on the meshes of both.
        gradient: whether its gradient comes back.
    """

    op: int
    output: int
    source: int
    target: int
    sent: MeshSharding
    arrives: MeshSharding
    gradient: bool


@attrs.frozen(eq=False)
class StageGraph:
    """The operators of a stage between those that receive and send.

    Attributes:
        stage: the stage.
        graph, program: of all operators, those that receive first, those that send behind what makes the tensor.
        operator: (n,) number of each in the model; -1 for those that receive or send.
        position: (n,) its place in the stage; -1 likewise.
        receives: operator -> the links whose tensor it receives: one.
        sends: operator -> the links whose tensor it sends: several where several stages read it.
        backward: (n,) whether each has a backward pass; of those that receive and send, whether a gradient goes by.
        arguments_read: (n,) arguments that the backward pass of each reads.
        reshards: of the program.
        copies: (operator, input) that is a copy of another stage's weight.
        inside: seconds in which GPUs of a device add up, or put together, one byte that each of them then has
            (`topoplan_engine.lowering.inside_sums`); 0 where a device is one GPU.
    """

    stage: Stage
    graph: OperatorGraph
    program: SpmdProgram
    operator: tuple[int, ...]
    position: tuple[int, ...]
    receives: Mapping[int, Link]
    sends: Mapping[int, tuple[Link, ...]]
    backward: tuple[bool, ...]
    arguments_read: tuple[frozenset[int], ...]
    reshards: tuple[Reshard, ...]
    copies: frozenset[tuple[int, int]]
    inside: float = 0.0

    def reads(self, op: int, reshard: Reshard) -> bool:
        """Return whether the backward pass of an operator reads what a resharding of an output gives it."""
        rows = self.graph.edges[self.graph.edges[:, 2] == op]
        places = rows[(rows[:, 0] == reshard.op) & (rows[:, 1] == reshard.output), 3].tolist()
        return any(place in self.arguments_read[op] for place in places)


def stage_graphs(strategy: StagedStrategy, graph: OperatorGraph) -> tuple[StageGraph, ...]:
    """Return the graphs of all stages; those of the last strategy are kept.

    Raises:
        TopoplanError: a tensor cannot be brought to a sharding in which it is needed, or arrives as terms of a sum.
    """
    global _last
    key, known_graph, stages = _last
    if key != strategy.key or known_graph is not graph:
        stages = _stage_graphs(strategy, graph)
        _last = strategy.key, graph, stages
    return stages


#: What `stage_graphs` made last, and of which strategy and graph.
_last: tuple[bytes, OperatorGraph | None, tuple[StageGraph, ...]] = b"", None, ()


def _stage_graphs(strategy: StagedStrategy, graph: OperatorGraph) -> tuple[StageGraph, ...]:
    links = _links(strategy, graph)
    copies: dict[int, set[tuple[int, int]]] = {}
    for tied in crossing_weights(strategy, graph):
        if len(strategy.stage_of_copies) > 1:
            names = [graph.operators[op].name for op in (tied.owner, tied.users[0][0])]
            raise TopoplanError(
                f"order {strategy.order.name!r}: {names[0]!r} and {names[1]!r} share a weight, and not each rank that "
                "has one has the other of some copy of the model (put them at both ends, give each its own weight, or "
                "choose another schedule)"
            )
        for op, argument in tied.users:
            if strategy.rank_of[op] != strategy.rank_of[tied.owner]:
                copies.setdefault(int(strategy.stage_of[op]), set()).add((op, argument))
    return tuple(
        _stage_graph(graph, stage, number, links, copies.get(number, set()))
        for number, stage in enumerate(strategy.stages)
    )


def crossing_weights(strategy: StagedStrategy, graph: OperatorGraph) -> tuple[TiedWeight, ...]:
    """Return the trained weights that operators of several ranks use; one rank has a weight once for all its stages.

    Where there are several copies of the model, a rank has a weight that the owner's stage of any of them has there.
    """
    flow, rank = gradient_flow(graph), strategy.order.rank_of[strategy.stage_of_copies]
    return tuple(
        tied
        for tied in tied_weights(graph)
        if flow.weights[tied.owner][tied.weight]
        and not set(rank[:, [op for op, _ in tied.users]].ravel()) <= set(rank[:, tied.owner])
    )


def _links(strategy: StagedStrategy, graph: OperatorGraph) -> dict[Link, list[tuple[int, int]]]:
    """Return what goes between stages, with (operator, argument) that read it."""
    flow = gradient_flow(graph)
    position = [0] * len(graph.operators)
    for stage in strategy.stages:
        for place, op in enumerate(stage.operators.tolist()):
            position[op] = place
    links: dict[Link, list[tuple[int, int]]] = {}
    trained: dict[tuple[object, ...], bool] = {}
    rows = []
    edges = itertools.product(strategy.stage_of_copies.tolist(), graph.edges.reshape(-1, 4).tolist())
    for stage_of, (u, output, v, argument) in edges:
        if stage_of[u] == stage_of[v]:
            continue
        arrives = strategy.stages[stage_of[v]].program.stored[position[v]][argument]
        if any(form.holding not in (Holding.REPLICATED, Holding.SHARDED) for form in arrives):
            raise TopoplanError(
                f"program: operator {graph.operators[v].name!r}: what {graph.operators[u].name!r} of another stage "
                f"makes arrives as {' x '.join(map(str, arrives))} (must be full, or gather of an axis)"
            )
        forms = strategy.stages[stage_of[u]].program.made(position[u], output)
        sent = tuple(form if form.sliced else REPLICATED for form in forms)
        key = (u, output, stage_of[u], stage_of[v], sent, arrives)
        trained[key] = trained.get(key, False) or flow.inputs[v][argument]
        rows.append((key, (v, argument)))
    for key, reader in rows:
        links.setdefault(Link(*key, gradient=trained[key]), []).append(reader)  # type: ignore[arg-type]
    return links


class _Builder:
    """Lists the operators of a stage, between those that receive and send."""

    def __init__(self, graph: OperatorGraph) -> None:
        self._graph = graph
        self.operators: list[Operator] = []
        self.rules: list[tuple[Signature, ...]] = []
        self.stored: list[tuple[MeshSharding, ...]] = []
        self.of_model: list[int] = []
        self.receives: dict[int, Link] = {}
        self.sends: dict[int, tuple[Link, ...]] = {}
        self.edges: list[tuple[int, int, int, int]] = []

    def add(self, operator: Operator, rules: tuple[Signature, ...], stored: tuple[MeshSharding, ...], of: int) -> int:
        """Add an operator, which is number ``of`` of the model; return its number in the stage."""
        self.operators.append(operator)
        self.rules.append(rules)
        self.stored.append(stored)
        self.of_model.append(of)
        return len(self.operators) - 1

    def receive(self, link: Link) -> int:
        """Add an operator that makes what arrives."""
        operator = Operator(
            name=f"receive {len(self.operators)}", kind="receive", dims=(), outputs=(_tensor(self._graph, link),)
        )
        index = self.add(operator, tuple(Signature((), (form,)) for form in link.arrives), (), -1)
        self.receives[index] = link
        return index

    def send(self, links: Sequence[Link], maker: int) -> None:
        """Add an operator that reads what is sent to some stages in one sharding."""
        tensor = _tensor(self._graph, links[0])
        name = f"send {len(self.operators)}"
        operator = Operator(name=name, kind="send", dims=(), inputs=(tensor,), outputs=(tensor,))
        index = self.add(operator, tuple(Signature((form,), (form,)) for form in links[0].sent), ((),), -1)
        self.sends[index] = tuple(links)
        self.edges.append((maker, links[0].output, index, 0))


def _stage_graph(
    graph: OperatorGraph,
    stage: Stage,
    number: int,
    links: Mapping[Link, list[tuple[int, int]]],
    copies: set[tuple[int, int]],
) -> StageGraph:
    place = {op: position for position, op in enumerate(stage.operators.tolist())}
    sent: dict[int, dict[tuple[int, MeshSharding], list[Link]]] = {}
    for link in links:
        if link.source == number:
            sent.setdefault(link.op, {}).setdefault((link.output, link.sent), []).append(link)
    builder = _Builder(graph)
    source_of: dict[tuple[int, int], int] = {}
    for link in links:
        if link.target == number:
            source_of.update(dict.fromkeys(links[link], builder.receive(link)))
    local: dict[int, int] = {}
    for op, position in place.items():
        forms = stage.program.stored[position]
        stored = tuple(() if (op, k) in source_of else form for k, form in enumerate(forms))
        local[op] = builder.add(graph.operators[op], stage.program.rules[position], stored, op)
        for several in sent.get(op, {}).values():
            builder.send(several, local[op])
    edges = [*builder.edges, *((source, 0, local[op], argument) for (op, argument), source in source_of.items())]
    edges += [
        (local[u], output, local[v], argument)
        for u, output, v, argument in graph.edges.reshape(-1, 4).tolist()
        if u in local and v in local
    ]
    program = attrs.evolve(stage.program, rules=tuple(builder.rules), stored=tuple(builder.stored))
    columns = i32(np.array(sorted(edges)).reshape(-1, 4))
    small = attrs.evolve(graph, operators=tuple(builder.operators), edges=columns)
    flow = _flow_of(gradient_flow(graph), small, builder.of_model, builder.receives, builder.sends)
    of_stage = frozenset((local[op], argument) for op, argument in copies)
    return StageGraph(
        stage=stage,
        graph=small,
        program=program,
        operator=tuple(builder.of_model),
        position=tuple(place.get(op, -1) for op in builder.of_model),
        receives=builder.receives,
        sends=builder.sends,
        backward=flow.backward,
        arguments_read=tuple(
            frozenset(tensors_read(op, (*flow.inputs[index], *flow.weights[index]))[0])
            if flow.backward[index] and builder.of_model[index] >= 0
            else frozenset()
            for index, op in enumerate(builder.operators)
        ),
        reshards=tuple(
            _joined(reshard, program.mesh)
            for reshard in reshards_under(program, small, flow, of_stage, _gathering_alone(small), any_order=True)
        ),
        copies=of_stage,
    )


def _gathering_alone(graph: OperatorGraph) -> tuple[tuple[int, int], ...]:
    """Return (operator, input) that is gathered for the operator though others gather the same.

    A dispatcher of Megatron-LM gathers tokens of its own (`MoEAllGatherTokenDispatcher`), and shared experts do so in
    their first matrix; torchtitan gathers where the tokens enter the experts of both kinds (``moe_sharding.py``).
    """
    kernels = kernels_of(graph)
    if kernels is not None and kernels.units:
        return ()
    return tuple((number, 0) for number, op in enumerate(graph.operators) if op.kind == "dispatch")


def _joined(reshard: Reshard, mesh: tuple[int, ...]) -> Reshard:
    """Return a resharding in which slices of slices are put together, made or exchanged by one collective."""
    return attrs.evolve(reshard, forward=_steps(reshard.forward, mesh), backward=_steps(reshard.backward, mesh))


def _steps(steps: tuple[MeshStep, ...], mesh: tuple[int, ...]) -> tuple[MeshStep, ...]:
    joined: list[MeshStep] = []
    for step in steps:
        last = joined[-1] if joined else None
        if last is not None and step.step == last.step and step.step.collective in _OF_SLICES:
            step = MeshStep(step.step, tuple(sorted(last.axes + step.axes)), max(last.share, step.share))
            joined.pop()
        elif last is not None and last.step.collective is step.step.collective is Collective.ALL_TO_ALL:
            # Slices along one axis and along the next are exchanged at once; before, the first step had slices of both.
            step = MeshStep(
                CollectiveStep(Collective.ALL_TO_ALL, last.step.axes + step.step.axes),
                tuple(sorted(last.axes + step.axes)),
                last.share * math.prod(mesh[axis] for axis in step.axes),
            )
            joined.pop()
        joined.append(step)
    return tuple(joined)


_OF_SLICES = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)


def _tensor(graph: OperatorGraph, link: Link) -> Tensor:
    """Return the tensor of a link, whose axes follow no dimension."""
    tensor = graph.operators[link.op].outputs[link.output]
    return attrs.evolve(tensor, axes=tuple(Axis(size) for size in tensor.shape))


def _flow_of(
    flow: GradientFlow,
    graph: OperatorGraph,
    of_model: list[int],
    receives: Mapping[int, Link],
    sends: Mapping[int, tuple[Link, ...]],
) -> GradientFlow:
    """Return the gradients of a stage's operators as they are in the model; its edges are not asked for."""
    passes = {index: link.gradient for index, link in receives.items()}
    passes |= {index: any(link.gradient for link in several) for index, several in sends.items()}
    return GradientFlow(
        everything=flow.everything,
        backward=tuple(flow.backward[op] if op >= 0 else passes[index] for index, op in enumerate(of_model)),
        inputs=tuple(
            flow.inputs[op] if op >= 0 else (passes[index],) * len(graph.operators[index].inputs)
            for index, op in enumerate(of_model)
        ),
        weights=tuple(flow.weights[op] if op >= 0 else () for op in of_model),
        edges=np.ones(len(graph.edges), dtype=np.bool_),
    )
