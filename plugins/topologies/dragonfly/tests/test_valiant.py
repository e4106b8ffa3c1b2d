"""Valiant routes: over each third group, link by link, and what that does to the worst demand."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from topoplan import Fabric, TopoplanError
from topoplan_engine.interfaces import check_routes
from topoplan_samples.graph_fabrics import made
from topoplan_topology_dragonfly import Dragonfly

ROUTERS, HOSTS = 4, 72


def paths_of(fabric: Fabric, source: int, target: int) -> list[list[int]]:
    routes = fabric.routes
    pair = np.flatnonzero((routes.pairs == [source, target]).all(axis=1))[0]
    ends = routes.path_ptr[routes.pair_ptr[pair] : routes.pair_ptr[pair + 1] + 1]
    return [routes.links[a:b].tolist() for a, b in pairwise(ends)]


def test_each_pair_goes_over_every_third_group_once():
    fabric = made(Dragonfly, HOSTS, routers=ROUTERS, routing="valiant")
    check_routes(fabric)
    assert len(fabric.routes.pairs) == 72 * 64, "pairs in one group keep their shortest paths"
    for source, target in ((0, 8), (3, 71), (40, 16)):
        between = []
        for links in paths_of(fabric, source, target):
            groups = [(int(node) - HOSTS) // ROUTERS for node in fabric.link_dst[links][:-1]]
            between.append({*groups} - {source // 8, target // 8})
            assert len(links) <= 8
        assert sorted(map(min, between)) == sorted({*range(9)} - {source // 8, target // 8})
        assert all(len(each) == 1 for each in between)


def load_of_next_group(fabric: Fabric) -> float:
    """Flows that the most loaded link between groups carries where each host sends to the next group."""
    load = np.zeros(fabric.n_links)
    for source in range(HOSTS):
        for links in paths_of(fabric, source, (source + 8) % HOSTS):
            load[links] += 1 / 7
    group = [(end.astype(np.int64) - HOSTS) // ROUTERS for end in (fabric.link_src, fabric.link_dst)]
    outer = (fabric.link_src >= HOSTS) & (fabric.link_dst >= HOSTS) & (group[0] != group[1])
    return float(load[outer].max())


def test_the_worst_demand_is_spread():
    """All eight hosts of a group send to the next group: one link joins both, and seven third groups have two each."""
    fabric = made(Dragonfly, HOSTS, routers=ROUTERS, routing="valiant")
    assert load_of_next_group(fabric) == pytest.approx(2 * 8 / 7), "in place of 8 on the one link"


def test_fewer_paths_are_spread_over_third_groups():
    fabric = made(Dragonfly, HOSTS, routers=ROUTERS, routing="valiant", paths=2)
    assert np.diff(fabric.routes.pair_ptr).tolist() == [2] * (72 * 64)
    check_routes(fabric)


@pytest.mark.slow
def test_errors_name_what_would_be_right():
    with pytest.raises(TopoplanError, match=r"2 groups have no third one \(routing=minimal\)"):
        made(Dragonfly, 16, groups=2, routers=4, routing="valiant")
    with pytest.raises(TopoplanError, match=r"are too many to write down \(paths="):
        made(Dragonfly, 4096, routers=12, routing="valiant", paths=64)
