"""Problems to search in, of a model, a machine and what its network can be.

Whoever has a graph, a cluster (`topoplan_engine.build_cluster` makes one that knows all installed machines) and costs
can search from Python, without an experiment:

    problem = problem_on(graph, cluster, costs, topology)
    result = run_searchers(problem, [searcher], simulator, budget=1000)

`search.setup` makes the problem of an experiment in the same way.
"""

from __future__ import annotations

import numpy as np

from topoplan.model.cluster import Cluster
from topoplan.model.costs import CostFunction
from topoplan.model.graph import OperatorGraph
from topoplan.model.problem import Demand, Problem
from topoplan.model.reconfigurable import AnyFabric
from topoplan.model.strategy import Strategy
from topoplan.plugin.components import Topology, TopologyContext
from topoplan_engine.lowering import Lowering
from topoplan_engine.network.building import build_fabric
from topoplan_engine.search.space import Space
from topoplan_engine.sharding.programs import check_strategy

__all__ = ["problem_on", "problem_on_fabric"]


def problem_on(graph: OperatorGraph, cluster: Cluster, costs: CostFunction, topology: Topology) -> Problem:
    """Return the problem of placing a model on a cluster whose hosts are joined as a topology says.

    Its `build_fabric` raises `TopoplanError` where the topology refuses, or its fabric is one that the cluster's hosts
    cannot have.  Whether a network searcher has something to decide is the topology's `follows_demand`.
    """

    def build(demand: Demand | None, rng: np.random.Generator) -> AnyFabric:
        return build_fabric(topology, TopologyContext(cluster=cluster, demand=demand, rng=rng))

    return Problem(
        graph=graph,
        cluster=cluster,
        costs=costs,
        space=Space(graph, cluster, costs),
        topology=topology.name,
        build_fabric=build,
        demand=_Demands(graph, cluster, costs),
        reconfigurable=topology.follows_demand,
    )


def problem_on_fabric(graph: OperatorGraph, cluster: Cluster, costs: CostFunction, fabric: AnyFabric) -> Problem:
    """Return the problem of placing a model on a cluster whose hosts a fabric joins already, for every demand.

    The fabric is taken as it is, though hosts have fewer interfaces than it uses.
    """
    return Problem(
        graph=graph,
        cluster=cluster,
        costs=costs,
        space=Space(graph, cluster, costs),
        topology=fabric.name,
        build_fabric=lambda demand, rng: fabric,
        demand=_Demands(graph, cluster, costs),
        reconfigurable=False,
    )


class _Demands:
    """Says what strategies ask of the network; it lowers nothing until it is asked."""

    def __init__(self, graph: OperatorGraph, cluster: Cluster, costs: CostFunction) -> None:
        self._problem = graph, cluster, costs
        self._lowering: Lowering | None = None

    def __call__(self, strategy: Strategy) -> Demand:
        """Return the demand of a strategy.

        Raises:
            TopoplanError: it does not fit the graph or the cluster.
        """
        graph, cluster, _ = self._problem
        check_strategy(strategy, graph, cluster.n_devices)
        self._lowering = self._lowering or Lowering(*self._problem)
        return self._lowering.demand(strategy)
