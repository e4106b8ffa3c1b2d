"""Drawn pipelines of all schedules, with cuts of any dimension, and prices that tell all their parts apart."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from topoplan import Cluster, CostFunction, PartCosts
from topoplan.model.placement import Placement
from topoplan.model.recording import MemoryKind
from topoplan_engine.pass_orders import ORDERS
from topoplan_engine.pipelines import pipeline_strategy
from topoplan_operators import GraphBuilder

__all__ = ["KINDS", "Numbered", "Profiled", "branching", "peaks_over_time", "pipelines", "rescheduled"]

KINDS = list(ORDERS)


class Numbered(CostFunction):
    """Costs that differ for every operator and part, so that a mix-up shows."""

    def supports(self, op, degrees):
        return True

    def price(self, op, degrees, devices):
        parts = np.arange(len(devices))
        outputs = 1000.0 * (op + 1) / len(devices)
        return PartCosts(
            forward=1e-3 * (op + 1) / len(devices) + 1e-6 * parts,
            backward=2e-3 * (op + 1) / len(devices) + 1e-6 * parts,
            memory=np.full(len(devices), outputs + 10.0),
            kept=np.full(len(devices), 10.0),
        )


class Profiled(Numbered):
    """The same, of which a micro-batch takes its share, as of profiles of layers."""

    linear_in_samples = True


def branching(batch):
    """Ten operators with a branch, and an edge that jumps over stages."""
    b = GraphBuilder("branching", batch)
    first = x = b.linear(b.input((6,)), 6)
    for _ in range(2):
        x = b.add(b.linear(x, 6), b.relu(b.linear(x, 6)))
    b.linear(b.add(x, first), 4)
    return b.build()


def rescheduled(strategy, **changes):
    """Return a pipeline of placed operators under another schedule."""
    now = {
        "stage_of": strategy.stage_of,
        "schedule": strategy.order_name,
        "micro_batches": strategy.micro_batches,
        "recompute": strategy.recomputes,
    }
    return pipeline_strategy(strategy.placements, **{**now, **changes})


@st.composite
def pipelines(draw, kinds=tuple(KINDS), recompute=True):
    """Draw a graph, a cluster, and a strategy with a schedule that fits."""
    kind = draw(st.sampled_from(kinds))
    depth = draw(st.integers(1, 3))
    rounds = draw(st.integers(1, 3)) if kind == "interleaved" else 1
    count = draw(st.integers(1, 3)) * depth if kind == "interleaved" else draw(st.integers(1, 7))
    graph = branching(count * draw(st.integers(2, 5)))
    n_ops, stages = len(graph.operators), depth * rounds
    cuts = sorted(draw(st.lists(st.integers(1, n_ops - 1), min_size=stages - 1, max_size=stages - 1, unique=True)))
    stage = np.repeat(np.arange(stages), np.diff([0, *cuts, n_ops]))
    own = [draw(st.integers(1, 3)) for _ in range(depth)]
    names = draw(st.permutations(range(sum(own))))
    groups = [names[sum(own[:s]) : sum(own[: s + 1])] for s in range(depth)]
    placements = []
    for op, operator in enumerate(graph.operators):
        devices = groups[stage[op] % depth]
        degrees = [1] * len(operator.dims)
        cut = draw(st.sampled_from([d for d, dim in enumerate(operator.dims) if dim.role is not None]))
        room = operator.dims[cut].size // (count if cut == operator.sample_dim else 1)
        degrees[cut] = draw(st.integers(1, min(room, 3)))
        some = draw(st.lists(st.sampled_from(devices), min_size=degrees[cut], max_size=degrees[cut]))
        if op == 0 or stage[op] != stage[op - 1]:
            some[0] = devices[0]  # so that chunks of one group share a device
        placements.append(Placement(degrees, some))
    flags = draw(st.lists(st.booleans(), min_size=stages, max_size=stages)) if recompute and draw(st.booleans()) else ()
    cluster = Cluster.uniform(n_hosts=sum(own) + 1)  # one device has nothing to do
    return graph, cluster, pipeline_strategy(placements, stage, kind, count, flags)


def peaks_over_time(levels, devices):
    """(D,) the most whole bytes that each device has at a time: what stays, and the most activations."""
    stays, most = np.zeros(devices), np.zeros(devices)
    activations = levels.kind == MemoryKind.ACTIVATIONS
    np.add.at(stays, levels.device[~activations], levels.nbytes[~activations])
    np.maximum.at(most, levels.device[activations], levels.nbytes[activations])
    return stays + most
