"""The tasks of one micro-batch in one stage: what its devices compute and send in each pass.

Every device has one compute stream, and a communication stream for each communicator, which is a set of groups along
some axes of its mesh; on each of them tasks run in the order of the program.  `StageTasks` writes the passes of one
micro-batch: the forward pass, perhaps a recomputation, the backward pass, and the gradients of weights where the order
of passes gives them one of their own.  Which micro-batches are the first and the last one of a stage matters: the first
one gathers parameters that are stored in slices and kept, behind the last one gradients are summed, weights updated,
and what ZeRO shares is gathered.  `topoplan_engine.lowering.staged` copies these tasks for all micro-batches and ties
their streams together in the order of passes.

Recomputation: before the backward pass of a region (`topoplan.model.staged.Stage.recomputed`) its operators run forward
again, with the reshardings of what they read.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any, NamedTuple

import numpy as np

from topoplan.arrays import F64, I64
from topoplan.model.pass_order import Pass
from topoplan.model.sharding import Holding
from topoplan.model.taskgraph import Collective, TaskKind
from topoplan_engine.lowering.expert_messages import copies_of_tokens, sent_in_fp8
from topoplan_engine.lowering.gather_units import GathersAgain, GatherUnits, keeps_gathered, sent_again, units_of
from topoplan_engine.lowering.places import Places, TaskLayout
from topoplan_engine.lowering.spmd_costs import DeviceCosts
from topoplan_engine.lowering.stage_costs import StageCosts
from topoplan_engine.lowering.stage_rings import Ring, rings_of
from topoplan_engine.lowering.stage_sums import REDUCE, Gathering, GathersAhead, Sums
from topoplan_engine.lowering.stage_writer import Arrival, Before, Part, StageWriter
from topoplan_engine.lowering.task_columns import Weights
from topoplan_engine.sharding.mesh import MeshStep
from topoplan_engine.sharding.programs import Reshard, pieces
from topoplan_engine.sharding.stage_graphs import Link, StageGraph

__all__ = ["END", "SUMS", "Part", "Shared", "StageTasks", "Variant"]

#: What follows all passes of a rank: sums of gradients that would be in the way of activations; numbered behind `Pass`.
SUMS = len(Pass)
#: What follows these: updates of weights, and gathers of what ZeRO shares.
END = SUMS + 1


class Variant(NamedTuple):
    """Which of the micro-batches of a stage.

    Attributes:
        first, last: whether it is the first one that runs forward, and the last one back.
        separate: passes that it has beside the forward and backward ones.
        at_once: whether its backward pass follows its forward pass, with no pass of another one in between.
    """

    first: bool
    last: bool
    separate: frozenset[Pass]
    at_once: bool = True


class Shared(NamedTuple):
    """What the micro-batches of a program share that take turns on one stream (`topoplan_engine.lowering.turns`).

    Attributes:
        writer, sums: that have the tasks of all of them.
        parameters: gathered once for all -> the tasks that end that.
        units: layers whose parameters are gathered together, if any are given back.
        layer_ends: layer -> its last computation in forward passes.
        gathers: of parameters for the backward pass.
        computed: of each micro-batch, the last task of each operator in the backward pass.
    """

    writer: StageWriter
    sums: Sums
    parameters: dict[Reshard, list[Any]]
    units: GatherUnits | None
    layer_ends: dict[int, I64]
    gathers: GathersAgain | None
    computed: tuple[dict[int, I64], ...]

    @classmethod
    def of(
        cls,
        stage: StageGraph,
        places: Places,
        layout: TaskLayout,
        part_of: Sequence[int],
        *,
        sums_now: bool = True,
        at_once: bool = True,
        turns: int = 0,
    ) -> Shared:
        """Return what nothing is written of yet.

        Args:
            stage: what to write.
            places: of the stage.
            layout: has the groups of all stages.
            part_of: operator -> a part that no layer divides whose parameters are gathered together.
            sums_now: whether gradients are summed behind these backward passes.
            at_once: see `Variant`.
            turns: micro-batches that take turns on one stream; 0: there is one micro-batch.
        """
        writer = StageWriter(stage.stage.mesh, places, layout.groups, one_stream=turns > 0)
        writer.weights, writer.smaller = _weights_of(stage), sent_in_fp8(stage)
        units = None
        if stage.program.gathers_again:
            units = units_of(stage.program, stage.graph, stage.reshards, part_of)
        gathers = None
        if units is not None:
            gathers = GathersAgain(Gathering(writer, stage), units, stage.backward, at_once=at_once)
        sums = Sums(writer, stage, sums_now, one_stream=turns > 0)
        return cls(writer, sums, {}, units, {}, gathers, tuple({} for _ in range(turns or 1)))


class StageTasks:
    """The tasks of one micro-batch in a stage, and where they are tied to others.

    Attributes:
        parts: `Pass`, `SUMS` or `END` -> its first and last tasks.
        leaves: (link, whether it is its gradient) -> the tasks after which it is sent, several arrays of (D,).
        arrives: (link, whether it is its gradient) -> the tasks that wait for it.
        summed: (operator of the model, argument) -> the tasks after which the gradient of a weight is summed.
        waiting: (operator of the model, argument) -> the tasks that wait for that sum: updates, and gathers of what
            devices have updated for each other.
        columns: of the tasks, see `TaskColumns.columns`; ``size`` are bytes of the batch, to be divided by ``divisor``.
        tails, heads: of the edges between these tasks.
    """

    def __init__(
        self,
        stage: StageGraph,
        costs: StageCosts,
        variant: Variant,
        places: Places,
        layout: TaskLayout,
        shared: Shared | None = None,
    ) -> None:
        """Write the tasks; or nothing yet, where micro-batches share what writes them.

        Args:
            stage: what to write.
            costs: of its operators.
            variant: of its micro-batches.
            places: of the stage.
            layout: has the groups of all stages.
            shared: of micro-batches that take turns; None for one by itself.
        """
        self._stage, self._costs, self._variant = stage, costs.at(places.rows), variant
        self._separate = variant.separate
        self._further = layout.columns
        self._takes_turns = shared is not None
        self._keeps = self._takes_turns or keeps_gathered(stage, at_once=variant.at_once)
        operators = range(len(stage.operator))
        self._shared = shared or Shared.of(
            stage, places, layout, operators, sums_now=variant.last, at_once=variant.at_once
        )
        self._writer, self._sums = self._shared.writer, self._shared.sums
        self.parts: dict[int, Part] = {}
        self.leaves: dict[tuple[Link, bool], list[I64]] = {}
        self._arrivals: dict[tuple[Link, bool], Arrival] = {}
        self.summed: dict[tuple[int, int], list[I64]] = {}
        self.waiting: dict[tuple[int, int], list[I64]] = {}
        self._begins: dict[int, list[Reshard]] = {}
        self._inputs: dict[int, list[Reshard]] = {}
        self._outputs: dict[int, list[Reshard]] = {}
        for reshard in stage.reshards:
            self._begins.setdefault(reshard.users[0], []).append(reshard)
            for op in reshard.users:
                self._inputs.setdefault(op, []).append(reshard)
            if reshard.output >= 0:
                self._outputs.setdefault(reshard.op, []).append(reshard)
        self._gathering, self._ahead = Gathering(self._writer, stage), GathersAhead(self._writer, stage)
        self._ends: dict[object, list[Any]] = {}  # of the forward pass
        self._ends_back: dict[object, list[Any]] = {}
        self._computed = self._shared.computed[self._writer.micro_batch]
        self._rings = {op: ring._replace(work=ring.work[:, places.rows]) for op, ring in rings_of(stage).items()}
        self._rung = {reshard for ring in self._rings.values() for reshard in ring.reshards}
        self._direct = _direct_readers(stage)
        self._regions = _regions_of(stage)
        apart = Pass.RECOMPUTE in variant.separate
        self._region_at = {} if apart else {region[-1]: region for region in self._regions}
        self._again: dict[Reshard, I64 | None] = {}  # of the backward pass
        self._combined: dict[int, list[I64 | None]] = {}  # of losses, after which their backward passes begin
        self._repeats = sent_again(stage.graph, stage.reshards, stage.backward)
        if not self._takes_turns:
            self._write()

    @property
    def arrives(self) -> dict[tuple[Link, bool], list[I64]]:
        """See the class."""
        return {key: arrival.heads for key, arrival in self._arrivals.items()}

    @property
    def n_tasks(self) -> int:
        """Number of tasks."""
        return self._writer.n_tasks

    def columns(self) -> dict[str, Any]:
        """See the class."""
        columns = self._writer.columns(divisor=1, scale=1.0, **self._further)
        sent = {op: links[0].op for op, links in self._stage.sends.items()}
        columns["op"] = np.array([sent.get(op, number) for op, number in enumerate(self._stage.operator)])[
            columns["op"]
        ]
        return columns

    def ends(self) -> tuple[I64, I64]:
        """See the class."""
        return self._writer.ends()

    def _write(self) -> None:
        operators = range(len(self._stage.operator))
        for op in operators:
            self.forward([op], self._begins.get(op, ()))
        self.parts[Pass.FORWARD] = self._writer.end_pass()
        if Pass.RECOMPUTE in self._separate:
            for region in self._regions:
                self._recompute(region)
            self.parts[Pass.RECOMPUTE] = self._writer.end_pass()
        for op in reversed(operators):
            self.backward([op], self._begins.get(op, ()))
        computed = self._computed
        if Pass.WEIGHTS in self._separate:
            self.parts[Pass.BACKWARD] = self._writer.end_pass()
            self._gradients_of_weights(computed)
            self._sums.send_rest()
            self.parts[Pass.WEIGHTS] = self._writer.end_pass()
        else:
            self._sums.send_rest()
            self.parts[Pass.BACKWARD] = self._writer.end_pass()
        if self._variant.last:
            self._sums.send_later()
            self.parts[SUMS] = self._writer.end_pass()
            self.end(computed)
            self.parts[END] = self._writer.end_pass()

    def _arrival(self, link: Link, gradient: bool) -> Arrival:
        return self._arrivals.setdefault((link, gradient), Arrival())

    def _price(self, op: int) -> DeviceCosts:
        return self._costs.passes[self._stage.position[op]]

    def forward(self, operators: Sequence[int], reshards: Sequence[Reshard]) -> None:
        """Write the forward pass of some operators, which begins with reshardings."""
        stage, units, ends = self._stage, self._shared.units, self._ends
        for reshard in reshards:
            given_back = units is not None and reshard in units.given_back
            earlier_ends = self._shared.parameters.get(reshard)
            ends[reshard] = ends.get(reshard, []) if earlier_ends is None else earlier_ends
            comes_each_time = given_back or not (self._keeps or reshard in self._ahead)
            if reshard.parameter and not (self._variant.first or (comes_each_time and earlier_ends is None)):
                continue
            if reshard in self._ahead:
                ends[reshard] = self._ahead.end(reshard)
                continue
            before = list(ends[reshard.op]) if reshard.output >= 0 else []
            if reshard in self._rung:  # what is added up along a ring ended with what makes it
                ends[reshard] = ends[reshard] or before
                continue
            if units is not None and given_back:
                before.append(self._shared.layer_ends.get(int(units.unit[reshard.users[0]]) - 2))
            last = self._gathering.exchange(reshard, reshard.forward, before)
            # Nothing is sent: who reads it waits for what it is made of, if that arrives from elsewhere.
            ends[reshard] = [end for end in before if isinstance(end, Arrival)] if last is None else [last]
            if reshard.parameter:
                self._shared.parameters[reshard] = ends[reshard]
        for op in operators:
            if op in stage.receives:
                ends[op] = [self._arrival(stage.receives[op], False)]
                continue
            before = [end for reshard in self._inputs.get(op, ()) for end in ends[reshard]]
            sources = self._direct.sources(op)
            if op in stage.sends:
                tails = [end for end in before if not isinstance(end, Arrival)] or ends[sources[0]]
                for link in stage.sends[op]:
                    self.leaves[link, False] = tails
                continue
            before += [end for source in sources if self._direct.first[source] == op for end in ends[source]]
            ends[op] = [self._forward_of(op, before, ends)]
            if not self._takes_turns:
                self._combine(op, ends[op])
            if units is not None:
                self._shared.layer_ends[int(units.unit[op])] = ends[op][0]

    def _forward_of(
        self, op: int, before: list[Any], ends: dict[object, list[Any]], inside: Container[int] | None = None
    ) -> I64:
        """Write the forward pass of an operator, piece by piece along a ring if it has one.

        Args:
            op: the operator.
            before: what it waits for.
            ends: gets the tasks that end what the ring has in place of reshardings.
            inside: operators whose reading counts; None for all.

        Returns:
            The last tasks of the operator.
        """
        ring, seconds, writer = self._rings.get(op), self._price(op).forward, self._writer
        if ring is None:
            return writer.compute(TaskKind.FORWARD, op, seconds, before)
        scatters = [each for each in ring.scatters if inside is None or any(user in inside for user in each.users)]
        arrived = sums = writer.join(ring.axis, op, before)
        for piece, work in enumerate(ring.work):
            if piece and ring.gathers:
                arrived = writer.hop(ring.axis, op, ring.gathered, [arrived])
            task = writer.compute(TaskKind.FORWARD, op, seconds * work, [arrived] if piece else before)
            if piece < len(ring.work) - 1 and scatters:
                sums = writer.hop(ring.axis, op, ring.scattered, [task, sums])
        writer.join(ring.axis, op, [arrived, sums])
        ends.update({each: [arrived] for each in ring.gathers} | {each: [sums, task] for each in scatters})
        return task

    def _backward_of_attention(self, op: int, ring: Ring, before: list[Any]) -> tuple[list[Any], I64]:
        """Write the backward pass of an operator without weights that reads from a ring; see `_backward_of`."""
        writer, seconds = self._writer, self._price(op).backward
        gradients = arrived = writer.join(ring.axis, op, [writer.computed, *before])
        task = writer.compute(TaskKind.BACKWARD, op, seconds * ring.work[0], before)
        for work in ring.work[1:]:
            arrived = writer.hop(ring.axis, op, ring.gathered, [arrived])
            task = writer.compute(TaskKind.BACKWARD, op, seconds * work, [arrived, gradients])
            gradients = writer.hop(ring.axis, op, ring.gathered, [task])
        writer.join(ring.axis, op, [gradients])
        return [task, gradients], task

    def _gradients_of_inputs(self, op: int, before: list[Any]) -> list[I64]:
        """Write the gradients of a matrix's inputs, piece by piece along a ring; return what ends them, the task first.

        Gradients of what it made go around the ring; those of what it read are added up along it.
        """
        ring, price, writer = self._rings[op], self._price(op), self._writer
        seconds = price.backward - price.weight_gradient
        arrived = sums = writer.join(ring.axis, op, [writer.computed, *before])
        for piece, work in enumerate(ring.work):
            if piece and ring.scatters:
                arrived = writer.hop(ring.axis, op, ring.scattered, [arrived])
            task = writer.compute(TaskKind.BACKWARD, op, seconds * work, [arrived] if piece else before)
            if piece < len(ring.work) - 1 and ring.gathers:
                sums = writer.hop(ring.axis, op, ring.gathered, [task, sums])
        writer.join(ring.axis, op, [arrived, sums])
        return [task, sums]

    def _combine(self, op: int, before: Before) -> None:
        """Add what devices have of the outputs of a loss: maxima and sums over their slices of a vocabulary.

        Shoeybi et al., Megatron-LM (2019), section 3: the loss sends these, and no scores.
        """
        stage = self._stage
        rules, operator = stage.program.rules[op], stage.graph.operators[op]
        axes = tuple(axis for axis, rule in enumerate(rules) if rule.dim in operator.combines)
        if not axes or op in stage.graph.edges[:, 0]:
            return
        for output, tensor in enumerate(operator.outputs):
            slices = pieces(stage.program, stage.program.made(op, output))
            steps = (MeshStep(REDUCE, axes, 1.0 / slices),)
            nbytes = tensor.elements * max(tensor.itemsize, 4)  # losses are computed in fp32
            sums = Reshard(op, output, -1, False, nbytes, (op,), steps, ())
            self._combined.setdefault(op, []).append(self._writer.exchange(sums, steps, before))

    def _recompute(self, region: Sequence[int]) -> None:
        """Run the operators of a region forward again, with the reshardings of what they read."""
        writer, gathers, inside = self._writer, self._shared.gathers, set(region)
        ends: dict[object, list[Any]] = {}
        for op in region:
            inputs = self._inputs.get(op, ())
            before: list[Any] = [] if gathers is None else gathers.before(op, inputs)
            for reshard in inputs:
                if reshard.output < 0 or (reshard.op not in inside and self._is_sum(reshard)):
                    continue
                source = ends[reshard.op] if reshard.op in inside else [writer.computed]
                if reshard in self._rung:
                    before += ends.get(reshard, source)
                    continue
                if reshard not in ends:
                    ends[reshard] = [writer.exchange(reshard, reshard.forward, source)]
                before += ends[reshard]
            ends[op] = [self._forward_of(op, before, ends, inside)]

    def _is_sum(self, reshard: Reshard) -> bool:
        """Whether it adds terms: what a region reads of others is kept as a sum then, and else as slices."""
        forms = self._stage.program.made(reshard.op, reshard.output)
        return any(form.holding is Holding.PARTIAL for form in forms)

    def backward(self, operators: Sequence[int], reshards: Sequence[Reshard]) -> None:
        """Write the backward pass of some operators, which ends with the reshardings of what they read."""
        stage, writer, gathers = self._stage, self._writer, self._shared.gathers
        split = Pass.WEIGHTS in self._separate
        ends, computed = self._ends_back, self._computed
        for op in reversed(operators):
            if op in self._region_at:
                self._recompute(self._region_at[op])
            before = [end for reshard in self._outputs.get(op, ()) for end in ends.get(reshard, ())]
            before += [end for reader in self._direct.senders(op) for end in ends.get(reader, ())]
            if not stage.backward[op]:
                pass
            elif op in stage.sends:
                ends[op] = [self._arrival(link, True) for link in stage.sends[op] if link.gradient]
            elif op in stage.receives:
                self.leaves[stage.receives[op], True] = [*before, *self._last_readers(op, ends, computed)]
            else:
                if gathers is not None:
                    before += gathers.before(op, self._inputs.get(op, ()))
                for reshard in (each for each in self._repeats.get(op, ()) if each not in self._rung):
                    before.append(writer.exchange(reshard, reshard.forward, [writer.computed, *before]))
                ends[op], computed[op] = self._backward_of(op, before, split=split)
        for reshard in reversed(reshards):
            if not reshard.parameter:
                users = [end for user in reshard.users if stage.backward[user] for end in ends.get(user, ())]
                steps = () if reshard in self._rung else reshard.backward
                last = writer.exchange(reshard, steps, users)
                ends[reshard] = [end for end in users if isinstance(end, Arrival)] if last is None else [last]
                if reshard in self._rung:
                    ends[reshard] = users
            elif not split and self._sums_now(reshard):
                users = [each[user] for user in reshard.users for each in self._shared.computed if user in each]
                self._sums.take(reshard, users)

    def _backward_of(self, op: int, before: list[Any], *, split: bool) -> tuple[list[Any], I64]:
        """Write the backward pass of an operator; return what makes its gradients of inputs, and its last task.

        What it reads of a tensor whose slices alone are kept is gathered again, beside the gradients of inputs if
        those of weights need it (Korthikanti et al., 2022, section 4.2.2).
        """
        writer, price = self._writer, self._price(op)
        before = [*before, *self._combined.get(op, ())]
        if op in self._rings and not self._has_weights(op):
            return self._backward_of_attention(op, self._rings[op], before)
        kept_slices = [] if split and self._has_weights(op) else self._gather_again(op)
        if op in self._rings:
            ends = self._gradients_of_inputs(op, before)
            last = (
                [] if split else [writer.compute(TaskKind.BACKWARD, op, price.weight_gradient, [*ends, *kept_slices])]
            )
            return ends, [*ends[:1], *last][-1]
        if split:
            task = writer.compute(
                TaskKind.BACKWARD, op, price.backward - price.weight_gradient, [*before, *kept_slices]
            )
            return [task], task
        if not kept_slices or not self._has_weights(op):
            task = writer.compute(TaskKind.BACKWARD, op, price.backward, [*before, *kept_slices])
            return [task], task
        task = writer.compute(TaskKind.BACKWARD, op, price.backward - price.weight_gradient, before)
        return [task], writer.compute(TaskKind.BACKWARD, op, price.weight_gradient, kept_slices)

    def _has_weights(self, op: int) -> bool:
        return bool((self._price(op).weight_gradient > 0).any())

    def _gather_again(self, op: int) -> list[I64]:
        """Gather what the backward pass of an operator reads and only slices were kept of, once for all readers.

        Micro-batches that take turns keep what they have gathered.
        """
        ends = []
        for reshard in () if self._takes_turns else self._inputs.get(op, ()):
            if reshard.output < 0 or not self._stage.reads(op, reshard) or not _is_gathered(reshard):
                continue
            if reshard in self._rung and not self._has_weights(op):
                continue
            if reshard not in self._again:
                self._again[reshard] = self._writer.exchange(reshard, reshard.forward, [self._writer.computed])
            if (end := self._again[reshard]) is not None:
                ends.append(end)
        return ends

    def _last_readers(self, op: int, ends: dict[object, list[Any]], computed: dict[int, I64]) -> list[I64]:
        """Return the tasks that make the gradient of what operator ``op`` receives where nothing is sent for it."""
        free = [user for r in self._outputs.get(op, ()) if not ends.get(r) for user in r.users]
        readers = [[user for user in users if user in computed] for users in (self._direct.readers(op), free)]
        return [computed[min(users)] for users in readers if users]

    def _sums_now(self, reshard: Reshard) -> bool:
        """Whether the gradient of a weight is summed in this micro-batch: the last one, or each that is not kept whole.

        Gradients are not kept whole where devices share them, or store weights in slices that they give back.
        """
        in_slices = any(step.step.collective is Collective.REDUCE_SCATTER for step in reshard.backward)
        in_slices = in_slices and not self._keeps
        return self._variant.last or in_slices or self._stage.stage.zero.level == 2

    def _gradients_of_weights(self, computed: dict[int, I64]) -> None:
        """Write the pass that makes the gradients of weights; ``computed`` are the last tasks of operators so far."""
        for op in sorted(computed, reverse=True):
            price = self._price(op)
            if self._has_weights(op):
                before = [computed[op], *self._gather_again(op)]
                computed[op] = self._writer.compute(TaskKind.BACKWARD, op, price.weight_gradient, before)
            for reshard in reversed(self._begins.get(op, ())):
                if reshard.parameter and self._sums_now(reshard):
                    self._sums.take(reshard, [computed[user] for user in reshard.users if user in computed])

    def _stored_share(self, op: int) -> F64:
        """(weights, 1) the part of each weight that is used which a device stores."""
        program, operator = self._stage.program, self._stage.graph.operators[op]
        places = range(len(operator.inputs), len(operator.inputs) + len(operator.weights))
        return np.array(
            [[pieces(program, program.wanted(op, k)) / pieces(program, program.stored[op][k])] for k in places]
        )

    def end(self, computed: dict[int, I64]) -> None:
        """Write updates of weights, and gathers of what devices have updated for each other."""
        stage = self._stage
        tied = {(op, k) for op, k in stage.copies}
        updated: dict[int, I64 | None] = {}
        for op in sorted(computed):
            number, operator = stage.operator[op], stage.graph.operators[op]
            weights = [*range(len(operator.inputs), len(operator.inputs) + len(operator.weights))]
            for argument in [*weights, *(k for user, k in tied if user == op)]:
                self.summed[number, argument] = self._sums.ends.get((op, argument), [computed[op]])
            update = self._costs.updates[stage.position[op]]
            if update is not None and weights:
                before = [end for k in weights for end in self.summed[number, k]]
                share = self._sums.shares(op, len(operator.inputs)) * self._stored_share(op)
                task = self._writer.compute(TaskKind.UPDATE, op, (update * share).sum(axis=0), before)
                updated[op] = task
                self.waiting |= {(number, k): [task] for k in weights}
        for (op, argument), gather in self._sums.gather(updated).items():
            self.waiting.setdefault((stage.operator[op], argument), []).append(gather)


def _weights_of(stage: StageGraph) -> dict[Reshard, tuple[list[Weights], list[Weights]]]:
    """Return the all-to-alls whose members do not all send as much, and how much they do forward and back.

    Those on one side of which places have more or less of an operator than others, and those of tokens that are sent
    once to several experts.
    """
    rows = stage.stage.share_of.tolist()

    def row_of(op: int) -> int:
        return rows[stage.position[op]] if rows and stage.position[op] >= 0 else -1

    ways: dict[Reshard, tuple[list[Weights], list[Weights]]] = {}
    for reshard in stage.reshards:
        before, after = row_of(reshard.op), row_of(reshard.users[0])
        if before != after and any(step.step.collective is Collective.ALL_TO_ALL for step in reshard.forward):
            shares = stage.stage.shares[max(before, after)]
            ways[reshard] = [Weights(shares, int(after >= 0))], [Weights(shares, int(after < 0))]
    for reshard, copies in copies_of_tokens(stage).items():
        for way in ways.setdefault(reshard, ([], [])):
            way.append(Weights(copies, 2))
    return ways


def _is_gathered(reshard: Reshard) -> bool:
    """Whether slices of a tensor are put together, and were not exchanged before: what came in exchange is kept."""
    collectives = {step.step.collective for step in reshard.forward}
    return Collective.ALL_GATHER in collectives and Collective.ALL_TO_ALL not in collectives


class _Direct(NamedTuple):
    """Who reads what without a resharding: (reader, source) pairs, and the first reader of each source."""

    pairs: tuple[tuple[int, int], ...]
    first: dict[int, int]
    sending: frozenset[int]

    def sources(self, op: int) -> list[int]:
        """Return the receiving or sending neighbours that an operator reads as they are."""
        return [source for reader, source in self.pairs if reader == op]

    def readers(self, source: int) -> list[int]:
        """Return the operators that read what ``source`` makes, ascending."""
        return [reader for reader, made_by in self.pairs if made_by == source]

    def senders(self, source: int) -> list[int]:
        """Return those that send it to other stages."""
        return [reader for reader in self.readers(source) if reader in self.sending]


def _direct_readers(stage: StageGraph) -> _Direct:
    """Return the pairs that have no resharding in between, where one of both receives or sends."""
    resharded = {(reshard.op, reshard.output, user) for reshard in stage.reshards for user in reshard.users}
    ends = {(v, u) for u, output, v, _ in stage.graph.edges.reshape(-1, 4).tolist() if (u, output, v) not in resharded}
    pairs = tuple(sorted((v, u) for v, u in ends if u in stage.receives or v in stage.sends))
    first: dict[int, int] = {}
    for reader, source in pairs:
        first.setdefault(source, reader)
    return _Direct(pairs, first, frozenset(stage.sends))


def _regions_of(stage: StageGraph) -> list[list[int]]:
    """Return the operators of each region that runs again, in the order of the forward pass."""
    regions: dict[int, list[int]] = {}
    for op, position in enumerate(stage.position):
        if position >= 0 and (region := int(stage.stage.regions[position])) >= 0:
            regions.setdefault(region, []).append(op)
    return [region for region in regions.values() if any(stage.backward[op] for op in region)]
