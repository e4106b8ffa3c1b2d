"""Plans that tests of launchers share: a model of layers, its pipelines, and programs on meshes."""

from __future__ import annotations

import attrs
import numpy as np

from topoplan import Cluster, PlacedStrategy, Placement
from topoplan.model.graph import Checkpoint
from topoplan.model.sharding import PENDING_GRADIENT, REPLICATED, shard
from topoplan.model.spmd import SpmdProgram
from topoplan.testing import reference
from topoplan_engine.pipelines import pipeline_strategy
from topoplan_engine.program_strategies import program_strategy
from topoplan_engine.sharding.programs import why_invalid
from topoplan_engine.sharding.signatures import signatures
from topoplan_engine.training import frozen
from topoplan_operators import GraphBuilder
from topoplan_operators.dense import token_embedding
from topoplan_operators.losses import total

#: Which dimension every kind of operator cuts as Megatron-LM does.
MEGATRON = {"tok_embeddings": "r", "up": "o", "relu": 2, "down": "i", "add": None, "lm_head": "o", "loss": "a2"}


def layered(layers=4, batch=16):
    """An embedding of tokens, blocks of two linear layers beside a residual, and a head."""
    b = GraphBuilder("layered", batch)
    indices = b.input((8,), itemsize=8)
    (x,) = b.append(token_embedding(indices, 32, 16), [indices], "tok_embeddings")
    for k in range(layers):
        y = b.relu(b.linear(x, 32, name=f"layers.{k}.up", bias=False), name=f"layers.{k}.relu")
        x = b.add(x, b.linear(y, 16, name=f"layers.{k}.down", bias=False), name=f"layers.{k}.add")
    x = b.linear(x, 32, name="lm_head", bias=False)
    b.append(total(x), [x], "loss")
    return b.build()


def tied(layers=4, batch=16):
    """Return the layers, whose head has the table of the words."""
    graph = layered(layers, batch)
    *others, head, loss = graph.operators
    (kernel,) = head.weights
    head = attrs.evolve(head, inputs=(*head.inputs, kernel), weights=(), tags={**head.tags, "shared": kernel.name})
    return attrs.evolve(graph, operators=(*others, head, loss))


def half_frozen():
    """Return the layers, of which the words and the first two are not trained."""
    graph = layered()
    names = [op.name for op in graph.operators if op.name.startswith(("tok", "layers.0", "layers.1"))]
    return frozen(graph, names)


def checkpointed():
    """Return the layers, each of which is a region that runs again."""
    graph = layered()

    def marked(op):
        if not op.name.startswith("layers."):
            return op
        return attrs.evolve(op, checkpoint=Checkpoint(begins=op.name.endswith(".up"), reentrant=True))

    return attrs.evolve(graph, operators=tuple(map(marked, graph.operators)))


def planned(graph, strategy, *, hosts=1, each=None):
    """A plan of a strategy on hosts of equally many devices."""
    devices = 1 + max(int(placement.devices.max()) for placement in strategy.placements)
    cluster = Cluster.uniform(n_hosts=hosts, devices_per_host=each or devices // hosts)
    strategy.check(graph, cluster.n_devices)
    return attrs.evolve(reference.plan(), graph=graph, strategy=strategy, cluster=cluster)


def data_parallel(graph, devices):
    """Every operator cuts its samples over the same devices."""
    return PlacedStrategy(tuple(Placement(op.sample_cut(len(devices)), devices) for op in graph.operators))


def pipeline(graph, stage, devices, kind="1f1b", micro_batches=4, recompute=()):
    """A pipeline: the stage of each operator, and the devices of each stage."""
    placements = tuple(
        Placement(op.sample_cut(len(devices[of])), devices[of]) for op, of in zip(graph.operators, stage, strict=True)
    )
    return pipeline_strategy(placements, stage, kind, micro_batches, recompute)


def stages_of(graph, layers_of):
    """The stage of each operator, by the stage of each layer."""
    stage, current = [], 0
    for op in graph.operators:
        parts = op.name.split(".")
        current = layers_of[int(parts[1])] if parts[0] == "layers" else current
        stage.append(max(layers_of) if op.name in ("lm_head", "loss") else current)
    return stage


def program(graph, mesh, cuts, *, stored=None, sharded_state=False):
    """A program: for each axis of the mesh, the name of the dimension that an operator cuts (number, name or None).

    ``stored`` gives along each axis the axis of weights that is sliced in storage where use is whole.
    """
    rules = []
    for op in graph.operators:
        found = []
        for cut in cuts:
            name = cut(op)
            dim = -1 if name is None else name if isinstance(name, int) else [d.name for d in op.dims].index(name)
            rules_of_dim = [rule for rule in signatures(op) if rule.dim == dim]
            whole = [rule for rule in rules_of_dim if all(form == REPLICATED for form in rule.outputs)]
            found.append((whole if name is None else rules_of_dim)[0])
        rules.append(tuple(found))
    fed = {(v, into) for _, _, v, into in graph.edges.tolist()}
    forms = []
    for index, op in enumerate(graph.operators):
        row = []
        for k in range(len(op.inputs) + len(op.weights)):
            if (index, k) in fed:
                row.append(())
                continue
            held = [rule.inputs[k] for rule in rules[index]]
            if k >= len(op.inputs):
                for axis, form in enumerate(held):
                    if not form.sliced:
                        held[axis] = shard(stored[axis]) if stored and axis in stored else form
                        if rules[index][axis].dim >= 0 and held[axis] == form:
                            held[axis] = PENDING_GRADIENT
            row.append(tuple(held))
        forms.append(tuple(row))
    made = SpmdProgram(mesh=mesh, rules=tuple(rules), stored=tuple(forms), sharded_state=sharded_state)
    strategy = program_strategy(made, graph)
    assert why_invalid(strategy, graph, int(np.prod(mesh))) is None
    return strategy


def samples(op):
    """Cut the samples of every operator."""
    return op.sample_dim if op.sample_dim >= 0 else None


def megatron(op):
    """Cut matrices by columns and rows in turn."""
    return MEGATRON[op.name.rpartition(".")[2]]
