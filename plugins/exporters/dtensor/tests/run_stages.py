"""Run a plan of stages as an exported file says, in one of several processes that torchrun started, and compare.

    torchrun … run_stages.py FOLDER MODEL:LAYERS:PLAN[,SCHEDULE]…

MODEL is ``llama`` or ``experts`` of the samples.  Every operator runs on local tensors: its inputs are brought to the
placements that the file says (`redistribute`), and its outputs are what the file says that it makes.  Stages send to
each other what the next one says that it stores; torch's pipelining runtime takes the order of passes from the CSV.
Weights are leaves as they are stored; gradients of those that all devices of a replica have are summed at the end.

Every process compares its gradients with those of the module by itself, and writes what differs to
``FOLDER/RANK.json``.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn import functional

from topoplan_exporter_dtensor.modules import placements_of, rank_of_devices
from topoplan_exporter_dtensor.reader import read
from topoplan_samples import experts, llama

MODELS = {"llama": llama, "experts": experts}


def attention(query, key, value):
    """Causal attention of (samples, positions, heads, channels)."""
    heads = [x.transpose(1, 2) for x in (query, key, value)]
    answer = functional.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)
    return answer.transpose(1, 2)


def rotated(x):
    """Rotary embedding of (samples, positions, heads, channels)."""
    positions, size = x.shape[1], x.shape[3]
    angles = torch.outer(torch.arange(positions), 10000.0 ** (-torch.arange(0, size, 2) / size))
    cos, sin = angles.cos()[None, :, None, :], angles.sin()[None, :, None, :]
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


def norm(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * weight


def dispatched(x, chosen, shape):
    """Tokens in the slots of their experts, (samples, experts, slots, channels); those beyond the slots are lost."""
    slots = x.new_zeros(x.shape[0], *shape[1:])
    for sample, token, expert, slot in experts.slots_of(chosen, shape[1], shape[2]):
        slots[sample, expert, slot] = slots[sample, expert, slot] + x[sample, token]
    return slots


def combined(answers, gates, chosen):
    """Answers of experts, weighed by gates, (samples, positions, channels)."""
    rows = [[answers.new_zeros(answers.shape[-1]) for _ in range(chosen.shape[1])] for _ in range(len(chosen))]
    picks = {
        (sample, token, expert): slot
        for sample, token, expert, slot in experts.slots_of(chosen, answers.shape[1], answers.shape[2])
    }
    for (sample, token, expert), slot in picks.items():
        choice = chosen[sample, token].tolist().index(expert)
        rows[sample][token] = rows[sample][token] + gates[sample, token, choice] * answers[sample, expert, slot]
    return torch.stack([torch.stack(row) for row in rows])


def in_heads(x, size):
    return x if x.ndim == 4 else x.view(*x.shape[:2], -1, size)


class Stage(torch.nn.Module):
    """The operators of a stage, on the local tensors of this process."""

    def __init__(self, document, members, mesh, weights, heads):
        super().__init__()
        self.document, self.members, self.mesh, self.heads = document, members, mesh, heads
        self.source = {(v, into): (u, out) for u, out, v, into in document.edges}
        ends = [((u, out), v) for u, out, v, _ in document.edges]
        inside = set(members)
        self.arrives = sorted({tensor for tensor, v in ends if v in inside and tensor[0] not in inside})
        self.sends = sorted({tensor for tensor, v in ends if tensor[0] in inside and v not in inside})
        self.first, self.last = 0 in inside, not self.sends
        self.leaves = torch.nn.ParameterDict()
        for number in members:
            operator = document.operators[number]
            for layout, tensor in zip(operator.weights, weights.get(operator.name, ()), strict=True):
                local = distribute_tensor(tensor, mesh, placements_of(layout.stored)).to_local().clone()
                self.leaves[self.key(number, layout)] = torch.nn.Parameter(local)

    def key(self, number, layout):
        return f"{self.document.operators[number].name}/{layout.name}".replace(".", "|")

    def forms(self, tensor):
        """The placements in which a tensor travels between stages: as the next stage stores it."""
        v, into = next(
            (v, into) for (v, into), source in self.source.items() if source == tensor and self.away(v, tensor)
        )
        return placements_of(self.document.operators[v].inputs[into].stored)

    def away(self, reader, tensor):
        stage = self.document.stages.stage
        return stage[reader] != stage[tensor[0]]

    def shape(self, tensor, forms):
        """The local shape of a tensor of a micro-batch."""
        sizes = list(self.document.operators[tensor[0]].outputs[tensor[1]].shape)
        sizes[0] //= self.document.stages.micro_batches if self.document.stages else 1
        for form, count in zip(forms, self.mesh.shape, strict=True):
            if isinstance(form, Shard):
                sizes[form.dim] //= count
        return sizes

    def splits(self, operator):
        """(axes of the mesh,) whether devices along each do different work."""
        tensors = (*operator.inputs, *operator.weights, *operator.outputs)
        return [any(t.placements[axis] != "Replicate()" for t in tensors) for axis in range(self.mesh.ndim)]

    def wanted(self, value, layout, split):
        """A tensor as the operator uses it; where devices do different work, its gradient is a term of a sum."""
        forms = placements_of(layout.placements)
        gradient = [
            Partial() if isinstance(form, Replicate) and apart else Replicate() if isinstance(form, Partial) else form
            for form, apart in zip(forms, split, strict=True)
        ]
        return value.redistribute(placements=forms).to_local(grad_placements=gradient)

    def forward(self, *given):
        made = {}
        for tensor, value in zip(self.arrives, given, strict=False):
            made[tensor] = DTensor.from_local(value, self.mesh, self.forms(tensor), run_check=False)
        for number in self.members:
            operator = self.document.operators[number]
            if operator.kind == "cross_entropy":
                continue
            split, inputs = self.splits(operator), []
            for into, layout in enumerate(operator.inputs):
                if (number, into) in self.source:
                    inputs.append(self.wanted(made[self.source[number, into]], layout, split))
                else:
                    inputs.append(given[0])  # tokens, which are there as they are used
            weights = [self.weight(number, layout, split) for layout in operator.weights]
            answers = self.run(number, operator, inputs, weights)
            for out, (answer, layout) in enumerate(zip(answers, operator.outputs, strict=True)):
                forms = placements_of(layout.placements)
                made[number, out] = DTensor.from_local(answer, self.mesh, forms, run_check=False)
        if not self.sends:
            return self.last_output(made)
        sent = tuple(  # torch's runtime takes no views where it puts gradients of weights off
            made[tensor].redistribute(placements=self.forms(tensor)).to_local().clone() for tensor in self.sends
        )
        return sent if len(sent) > 1 else sent[0]

    def last_output(self, made):
        number = next(k for k in reversed(self.members) if self.document.operators[k].kind == "linear")
        return made[number, 0].to_local().clone()

    def weight(self, number, layout, split):
        leaf = self.leaves[self.key(number, layout)]
        if layout.stored == layout.placements:
            return leaf  # summed at the end of the batch
        stored = DTensor.from_local(leaf, self.mesh, placements_of(layout.stored), run_check=False)
        return self.wanted(stored, layout, split)

    def run(self, number, operator, inputs, weights):
        """The outputs of an operator."""
        kind = operator.kind
        if kind == "token_embedding":
            return [self.embedded(operator, *inputs, *weights)]
        if kind == "top_k":
            values, chosen = inputs[0].topk(operator.outputs[0].shape[-1])
            return [functional.softmax(values, -1), chosen]
        if kind == "view":
            forms = placements_of(operator.outputs[0].placements)
            return [inputs[0].reshape(self.shape((number, 0), forms))]
        if kind == "scaled_dot_product_attention":
            return [attention(*(in_heads(x, self.heads) for x in inputs)).reshape(inputs[0].shape)]
        if kind == "rotary":
            return [rotated(in_heads(inputs[0], self.heads)).reshape(inputs[0].shape)]
        functions = {
            "rms_norm": norm,
            "linear": functional.linear,
            "add": torch.add,
            "multiply": torch.mul,
            "silu": functional.silu,
            "expert_linear": lambda x, kernel: torch.einsum("necd,edh->nech", x, kernel),
            "dispatch": lambda x, chosen: dispatched(x, chosen, operator.outputs[0].shape),
            "combine": combined,
        }
        return [functions[kind](*inputs, *weights)]

    def embedded(self, operator, tokens, table):
        """Rows of a table, or zeros where another device has them."""
        first, sharded = 0, False
        for axis, form in enumerate(operator.weights[0].placements):
            if form == "Shard(0)":
                first, sharded = first * self.mesh.shape[axis] + self.mesh.get_local_rank(axis), True
        if not sharded:
            return functional.embedding(tokens, table)
        rows = tokens - first * len(table)
        mine = (rows >= 0) & (rows < len(table))
        return functional.embedding(rows.where(mine, 0), table) * mine[..., None]

    def add_up(self, replicas):
        """Sum gradients of weights over the devices that did different work with the same weight; take their mean."""
        for number in self.members:
            operator = self.document.operators[number]
            for layout in operator.weights:
                gradient = self.leaves[self.key(number, layout)].grad
                stored = layout.stored == layout.placements
                for axis, apart in enumerate(self.splits(operator)):
                    if stored and apart and layout.placements[axis] == "Replicate()":
                        distributed.all_reduce(gradient, group=self.mesh.get_group(axis))
                gradient.div_(replicas)

    def compared(self, gradients):
        """The largest difference from the gradients of the module by itself, and the shapes of local weights."""
        worst, shapes = 0.0, {}
        for number in self.members:
            operator = self.document.operators[number]
            for layout, theirs in zip(operator.weights, gradients.get(operator.name, ()), strict=True):
                leaf = self.leaves[self.key(number, layout)]
                ours = DTensor.from_local(
                    leaf.grad, self.mesh, placements_of(layout.stored), run_check=False
                ).full_tensor()
                worst = max(worst, float((ours - theirs).abs().max() / theirs.abs().max()))
                shapes[operator.name] = list(leaf.shape)
        return worst, shapes


def compare(text):
    """Run a plan; return what differs."""
    name, layers, files = text.split(":")
    plan, _, schedule = files.partition(",")
    sample = MODELS[name]
    sample.LAYERS = int(layers)
    document, ranks = read(plan), rank_of_devices()
    mine = {rank: device for device, rank in ranks.items()}[distributed.get_rank()]
    of_operator = document.stages.stage if document.stages else (0,) * len(document.operators)
    layouts = {stage: document.operators[of_operator.index(stage)].mesh for stage in sorted(set(of_operator))}
    meshes = {}
    for layout in layouts.values():
        if layout.devices not in meshes:
            grid = torch.tensor([ranks[device] for device in layout.devices]).reshape(layout.shape)
            meshes[layout.devices] = DeviceMesh("cpu", grid, mesh_dim_names=layout.dim_names)
    first = layouts[0]
    rows = list(meshes)
    groups = [
        distributed.new_group([ranks[row[place]] for row in rows], sort_ranks=False)
        for place in range(len(first.devices))
    ]
    device_rows = next(row for row in rows if mine in row)
    group = groups[device_rows.index(mine)]
    weights, gradients, expected = sample.by_operator()
    numbers = [stage for stage, layout in layouts.items() if layout.devices == device_rows]
    stages = {}
    for stage in numbers:
        members = [k for k, of in enumerate(of_operator) if of == stage]
        stages[stage] = Stage(document, members, meshes[device_rows], weights, sample.CHANNELS // sample.HEADS)
    mesh = meshes[device_rows]
    last = max(layouts)
    scores_of = document.operators[max(k for k, op in enumerate(document.operators) if op.kind == "linear")].outputs[0]
    replicated = [axis for axis, form in enumerate(scores_of.placements) if form != "Shard(0)"]
    replicas = math.prod(size for axis, size in enumerate(mesh.shape) if axis not in replicated)

    def loss(scores, targets):
        made = DTensor.from_local(scores, mesh, placements_of(scores_of.placements), run_check=False)
        forms = [Replicate() if axis in replicated else Shard(0) for axis in range(mesh.ndim)]
        return sample.loss(made.redistribute(placements=forms).to_local(), targets)

    tokens, targets = (share(value, mesh, replicated) for value in sample.data(document.batch_size))
    if schedule:
        losses = run_pipeline(document, stages, layouts, group, schedule, loss, (tokens, targets))
    else:
        value = loss(stages[0](tokens), targets)
        value.backward()
        losses = [value]
    worst, shapes = 0.0, {}
    for stage in stages.values():
        stage.add_up(replicas)
        difference, local = stage.compared(gradients)
        worst, shapes = max(worst, difference), {**shapes, **local}
    found = None
    if last in stages:
        mean = torch.stack([value.detach() for value in losses]).mean()
        for axis in range(mesh.ndim):
            if axis not in replicated:
                distributed.all_reduce(mean, group=mesh.get_group(axis))
        found = abs(float(mean) / replicas - expected) / expected
    return {"loss": found, "gradients": worst, "local": shapes, "stages": numbers}


def share(value, mesh, replicated):
    """This process's samples of a batch."""
    for axis, size in enumerate(mesh.shape):
        if axis not in replicated:
            value = value.chunk(size)[mesh.get_local_rank(axis)]
    return value


def run_pipeline(document, stages, layouts, group, schedule, loss, data):
    """Run a batch in the order of the CSV; return the losses of this process's micro-batches."""
    tokens, targets = data
    count = document.stages.micro_batches
    parts = []
    for number, stage in stages.items():
        given, sent = (
            [torch.zeros(stage.shape(t, stage.forms(t)), dtype=torch.float64, requires_grad=True) for t in tensors]
            for tensors in (stage.arrives, stage.sends)
        )
        if stage.first:
            given = [tokens[: len(tokens) // count]]
        if stage.last:
            sent = [stage(*given).detach().requires_grad_()]
        more = {"input_args": tuple(given), "output_args": tuple(sent), "group": group}
        parts.append(PipelineStage(stage, number, len(layouts), torch.device("cpu"), **more))
    runtime = _PipelineScheduleRuntime(parts, n_microbatches=count, loss_fn=loss, scale_grads=True)
    runtime._load_csv(schedule)
    losses = []
    last = max(layouts) in stages
    runtime.step(*([tokens] if 0 in stages else []), **({"target": targets, "losses": losses} if last else {}))
    return losses


def main():
    """Join the other processes and compare."""
    folder, *plans = sys.argv[1:]
    distributed.init_process_group("gloo")
    found = [compare(plan) for plan in plans]
    Path(folder, f"{distributed.get_rank()}.json").write_text(json.dumps(found))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
