"""Rewiring 128 servers of degree 4, with routes for all pairs: what every network step of a search costs."""

import numpy as np
import pytest

from topoplan import Cluster, Demand
from topoplan_directconnect.construct import construct
from topoplan_engine.network.routing import full_routes

N = 128


def demand() -> Demand:
    matrix = np.random.default_rng(1).random((N, N)) * 1e6
    np.fill_diagonal(matrix, 0)
    return Demand(group_ptr=[0, N], group_members=range(N), group_bytes=[1e6], matrix=matrix)


@pytest.mark.parametrize("pairs", [1, 2])
def test_rebuild(benchmark, pairs):
    cluster, wanted = Cluster.uniform(n_hosts=N, interfaces=4), demand()

    def rebuild():
        fabric = construct(cluster, wanted, rules="paper", paths=4, rng=np.random.default_rng(0), pairs=pairs)
        return full_routes(fabric)

    rebuild()  # compiles
    routes = benchmark(rebuild)
    assert len(routes.pairs) == N * (N - 1)
    assert (np.diff(routes.pair_ptr) > 0).all()
