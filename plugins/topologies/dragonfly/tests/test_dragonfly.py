"""Dragonfly: counts, distances and cuts of the definition, by networkx and by hand."""

import numpy as np
import pytest

from topoplan import TopoplanError
from topoplan_samples.graph_fabrics import counts, made
from topoplan_topology_dragonfly import Dragonfly


@pytest.mark.parametrize(
    ("options", "row"),
    [
        ({"hosts": 1, "routers": 2, "links": 1}, (6, 6, 12, 6, 5, 3, 3.8)),
        ({"hosts": 2, "routers": 4, "links": 2}, (72, 36, 162, 90, 5, 3, 4.309859)),
        pytest.param(
            {"hosts": 4, "routers": 8, "links": 4},
            (1056, 264, 2508, 1452, 5, 3, 4.678673),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_counts(options, row):
    assert counts(made(Dragonfly, row[0], **options)) == row
    assert counts(made(Dragonfly, row[0])) == row  # balanced, so no option is needed


def test_a_router_uses_all_of_its_links():
    fabric = made(Dragonfly, 1056)
    degree = np.bincount(fabric.link_src, minlength=fabric.n_nodes)[1056:]
    assert set(degree) == {4 + 7 + 4}


@pytest.mark.parametrize(("hosts", "groups"), [(16, 2), (40, 5), (100, 6), (8, 1)])
def test_fewer_groups_have_more_links_between_two(hosts, groups):
    fabric = made(Dragonfly, hosts, 1)
    a, h = {True: (4, 2), False: (6, 3)}[hosts < 72]
    assert fabric.n_switches == groups * a
    between = (fabric.link_src >= hosts) & (fabric.link_dst >= hosts)
    outer = int(fabric.link_count[between].sum()) - groups * a * (a - 1)
    assert outer == groups * (groups - 1) * (a * h // max(groups - 1, 1))


def test_errors_name_what_would_be_right():
    with pytest.raises(TopoplanError, match=r"need more than the 9 groups .* use routers=6"):
        made(Dragonfly, 73, routers=4)
    with pytest.raises(TopoplanError, match=r"room for 16, not 17 \(use groups=3\)"):
        made(Dragonfly, 17, groups=2, routers=4)


def test_a_hundred_times_the_size():
    assert made(Dragonfly, 100_000).n_nodes > 100_000
