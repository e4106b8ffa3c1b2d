"""Problems that tests of several packages search: a model on hosts around one switch."""

from __future__ import annotations

import numpy as np

from topoplan import Cluster, State
from topoplan_engine import problem_on_fabric
from topoplan_samples.costs import SharedSecond
from topoplan_samples.fabrics import star
from topoplan_samples.graphs import linear_chain

__all__ = ["program_problem", "star_problem", "state_of"]


def star_problem(graph, cluster, costs, bandwidth=1e9, latency=0.0):
    """Return the problem of placing a model on hosts around one switch, with links of so many bytes/s and seconds."""
    return problem_on_fabric(graph, cluster, costs, star(cluster.n_hosts, bandwidth, latency))


def program_problem(width=8, layers=2, batch=16):
    """Return the problem of one program for four hosts: linear layers and a loss, a second for each operator."""
    graph = linear_chain(layers, width, batch, relu=False)
    return star_problem(graph, Cluster.uniform(n_hosts=4, latency=0.0), SharedSecond())


def state_of(problem, strategy=None):
    """Return a strategy, or the initial one, on the fabric that the problem's topology builds for no demand."""
    fabric = problem.build_fabric(None, np.random.default_rng(0))
    return State(strategy or problem.space.initial(), fabric)
