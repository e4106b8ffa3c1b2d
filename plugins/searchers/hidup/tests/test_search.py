"""The searcher: what it reports of its plan."""

from __future__ import annotations

import math

import pytest

from topoplan import Cluster, CostFunction, PartCosts, Problem
from topoplan_engine.search.space import Space
from topoplan_operators import GraphBuilder, losses
from topoplan_reference.hidup import search
from topoplan_searcher_hidup import Hidup
from topoplan_searcher_hidup.search import HidupSearch
from topoplan_spmd_planning.prices import Prices
from topoplan_spmd_planning.program import write_down
from topoplan_spmd_planning.released import released


class Costs(CostFunction):
    """A second for every operator; collectives are rings."""

    def supports(self, op, degrees):
        return True

    def price(self, op, degrees, devices):
        return PartCosts(forward=[1.0 / math.prod(degrees)], backward=[2.0], memory=[1.0])


def problem_of(width=8, layers=2, batch=16):
    b = GraphBuilder("small", batch)
    x = b.input((width,))
    for _ in range(layers):
        x = b.linear(x, width, bias=False)
    b.append(losses.total(x), [x], "loss")
    graph, cluster = b.build(), Cluster.uniform(n_hosts=4, latency=0.0)
    return Problem(
        graph=graph, cluster=cluster, costs=Costs(), space=Space(graph, cluster, Costs()), topology="none",
        build_fabric=lambda demand, rng: None, reconfigurable=False,
    )  # fmt: skip


def test_work_is_shared_and_the_loss_is_in_partial_sums():
    problem = problem_of()
    found = HidupSearch(Hidup(), problem).report(None)
    program = write_down(problem.graph, released)
    assert found["objective"] == search(program, Prices(problem)).objective
    operators = {c["operator"]: c for stage in found["program"] for c in stage["computations"]}
    assert all("gather" in form for name in ("linear1", "linear2") for form in operators[name]["outputs"])
    assert operators["loss"]["outputs"] == ["reduce"]
    # three operators of a second each, shared by four devices
    assert found["forward_compute_s"] == pytest.approx(3 / 4)
