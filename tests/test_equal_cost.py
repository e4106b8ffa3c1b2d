"""Networks of equal cost: links with a speed of their own, networks that do not scale, and parts from a catalogue."""

from __future__ import annotations

import json

import attrs
import pytest

from topoplan import Cluster, Fabric, Host, LinkKind, Topology, TopologyContext, TopoplanError
from topoplan_studies.notes import unequal
from topoplan_studies.prices import bill, cost, default_prices
from topoplan_studies.runspecs import run_specs
from topoplan_studies.study import study_from

GBPS = 1e9 / 8


def build_rail(self, context):
    """Every host is a GPU: four of a server share an NVSwitch, and the first, second, ... of all servers a switch."""
    cluster = context.cluster
    n, servers = cluster.n_hosts, cluster.n_hosts // 4
    inside = [(host, n + host // 4) for host in range(n)]
    rails = [(host, n + servers + host % 4) for host in range(n)]
    links = [*inside, *rails]
    links += [(b, a) for a, b in links]
    kind = ([LinkKind.INSIDE] * n + [LinkKind.NETWORK] * n) * 2
    speed = float((cluster.interfaces * cluster.interface_bandwidth).min())
    return Fabric.from_links(
        name="rail",
        n_hosts=n,
        n_switches=servers + 4,
        links=links,
        bandwidth=([3600 * GBPS] * n + [speed] * n) * 2,
        latency=cluster.latency,
        kind=kind,
    )


def build_star(self, context):
    """A tree of two switches whose trunk is as fast as it is, whatever the hosts have."""
    cluster = context.cluster
    n = cluster.n_hosts
    speed = float((cluster.interfaces * cluster.interface_bandwidth).min())
    links = [(host, n + host % 2) for host in range(n)] + [(n, n + 1)]
    bandwidth = [speed] * n + [800 * GBPS]
    return Fabric.from_links(
        name="star",
        n_hosts=n,
        n_switches=2,
        links=links + [(b, a) for a, b in links],
        bandwidth=bandwidth * 2,
        latency=cluster.latency,
    )


def build_dear(self, context):
    """A star whose trunk is worth more than all networks here."""
    star = build_star(self, context)
    trunk = (star.link_src >= star.n_hosts) & (star.link_dst >= star.n_hosts)
    count = star.link_count.copy()
    count[trunk] = 1000
    return attrs.evolve(star, link_count=count)


class Rail(Topology):
    """A test: a ring that is called so."""

    name = "rail"
    build = build_rail


class Star(Topology):
    """A test: two switches."""

    name = "star"
    switched = True
    build = build_star


class Dear(Star):
    """A test: two switches whose trunk costs more than all else."""

    name = "dear"
    build = build_dear


@pytest.fixture(scope="module")
def host():
    registry = Host.discover()
    registry.add([Rail, Star, Dear])
    return registry


def targets(host, prices, *networks, **cluster):
    """Return the cluster of each network, and what its cost stands beside, at the cost of the first one."""
    first, *others = networks
    tables = [{"name": first, "use": first}, *({"name": name, "use": name, "costs-as": first} for name in others)]
    document = {
        "model": [{"use": "dlrm"}],
        "network": tables,
        "searcher": ["mcmc"],
        "cluster": {"servers": 16, "degree": 4, "interface-bandwidth-gbps": 100, **cluster},
    }
    specs = run_specs(study_from(document, "f", "f"), host, prices, None)
    return {cell.network: (cell.experiment.cluster, cell.target) for cell in specs}


def rail_file(path):
    """Write a network of 16 hosts whose 4 interfaces of 100 Gbps lead to 4 rail switches; one link names no rate."""
    nodes = [{"id": f"h{host}", "kind": "host"} for host in range(16)]
    nodes += [{"id": f"rail{rail}", "kind": "switch"} for rail in range(4)]
    edges = [
        {"source": f"h{host}", "target": f"rail{rail}", **({"bandwidth": "100 Gbps"} if host + rail else {})}
        for host in range(16)
        for rail in range(4)
    ]
    path.write_text(json.dumps({"nodes": nodes, "edges": edges}))
    return str(path)


def spec_of_file(host, path, gbps, prices):
    """Return the run of a network from a file that is to cost as much as a fat-tree."""
    document = {
        "model": [{"use": "dlrm"}],
        "network": [
            {"name": "fattree", "use": "fattree"},
            {"name": "own", "use": "file", "path": path, "costs-as": "fattree"},
        ],
        "searcher": ["mcmc"],
        "cluster": {"servers": 16, "degree": 4, "interface-bandwidth-gbps": gbps},
    }
    return run_specs(study_from(document, "f", "f"), host, prices, None)[-1]


@pytest.mark.parametrize("whole", [False, True])
def test_a_network_from_a_file_is_scaled(host, tmp_path, whole):
    """Its rates are its own: they are multiplied, and interfaces with them."""
    book = default_prices().catalogue() if whole else default_prices()
    spec = spec_of_file(host, rail_file(tmp_path / "rail.json"), 100, book)
    cluster, target, network = spec.experiment.cluster, spec.target, spec.experiment.topology
    speed = network.options["speed"]
    assert cluster.interface_bandwidth_gbps == pytest.approx(100 * speed, rel=1e-7)
    built = host.make("topology", "file", network.options).build(
        TopologyContext(
            cluster=Cluster.uniform(
                n_hosts=16, interfaces=4, interface_bandwidth=cluster.interface_bandwidth_gbps * GBPS
            ),
            demand=None,
            rng=None,
        )
    )
    assert built.link_bandwidth == pytest.approx(100 * GBPS * speed, rel=1e-7)
    if whole:
        assert (speed, target.reason) == (2.0, "parts that are for sale come no closer without costing more")
    else:
        assert speed > 1
        assert target.planned == pytest.approx(target.cost, rel=1e-6)
        assert unequal([("own", target, target.planned)]) == []


@pytest.mark.parametrize("gbps", [25, 50, 400])
@pytest.mark.parametrize("uplinks", [1, 2])
def test_a_file_whose_links_fill_the_interfaces_of_hosts_is_scaled(host, tmp_path, gbps, uplinks):
    """Its rates and those of interfaces are rounded apart, and may not meet: a link is never the faster one."""
    path = tmp_path / "leaves.json"
    nodes = [{"id": f"h{number}", "kind": "host"} for number in range(16)]
    nodes += [{"id": f"{kind}{number}", "kind": "switch"} for kind in ("leaf", "spine") for number in range(4)]
    down, up = {"bandwidth": f"{4 * gbps} Gbps", "count": 4}, {"bandwidth": f"{uplinks * gbps} Gbps", "count": uplinks}
    edges = [{"source": f"h{number}", "target": f"leaf{number // 4}", **down} for number in range(16)]
    edges += [{"source": f"leaf{a}", "target": f"spine{b}", **up} for a in range(4) for b in range(4)]
    path.write_text(json.dumps({"nodes": nodes, "edges": edges}))
    target = spec_of_file(host, str(path), gbps, default_prices()).target
    assert target.planned == pytest.approx(target.cost, rel=1e-6), target.reason


def test_a_tree_of_counted_ports_keeps_its_interfaces(host):
    costs = targets(host, default_prices(), "topoopt", "fattree")
    assert costs["fattree"][0].degree == 1
    document = {
        "model": [{"use": "dlrm"}],
        "network": [
            {"name": "topoopt", "use": "topoopt"},
            {"name": "clos", "use": "fattree", "levels": 2, "radix": 32, "costs-as": "topoopt"},
        ],
        "searcher": ["mcmc"],
        "cluster": {"servers": 16, "degree": 4, "interface-bandwidth-gbps": 100},
    }
    spec = run_specs(study_from(document, "f", "f"), host, default_prices(), None)[-1]
    assert spec.experiment.cluster.degree == 4
    assert spec.target.planned == pytest.approx(spec.target.cost, rel=1e-6)


@pytest.mark.parametrize("machine", ["dgx-h100", "dgx-a100"])
@pytest.mark.parametrize("name", ["fattree", "rail-only", "dragonfly"])
@pytest.mark.parametrize("whole", [False, True])
def test_a_machine_keeps_its_interfaces(host, machine, name, whole):
    """One of them would be behind the PCIe link of one GPU, whatever it costs."""
    book = default_prices().catalogue() if whole else default_prices()
    hosts = {"servers": 8, "machine": machine, "degree": 8, "interface-bandwidth-gbps": 400}
    cluster, target = targets(host, book, "rail-optimized", name, **hosts)[name]
    assert cluster.degree == 8
    if not whole:
        assert target.planned == pytest.approx(target.cost, rel=1e-6)
    if (name, whole) == ("fattree", False):
        # Rails of leaves and spines: an interface, 3 ports, 4 transceivers and 2 fibres; a tree of three levels:
        # 1, 5, 6 and 3 for each.  Prices are those of 400 Gbps, in proportion; fibres have one.
        rails = 1630 + 3 * 748 + 4 * 396 + 2 * 150
        assert target.cost == pytest.approx(64 * rails)
        assert cluster.interface_bandwidth_gbps == pytest.approx(
            400 * (rails - 3 * 150) / (1630 + 5 * 748 + 6 * 396), rel=1e-6
        )


def test_links_inside_a_host_stay_as_they_are_and_the_rest_costs_the_same(host):
    cluster, target = targets(host, default_prices(), "topoopt", "rail")["rail"]
    assert target.planned == pytest.approx(target.cost, rel=1e-6)
    assert cluster.interface_bandwidth_gbps != 100
    assert unequal([("rail", target, target.planned)]) == []


def test_a_link_of_its_own_speed_is_paid_for_and_the_hosts_get_what_is_left(host):
    cluster, target = targets(host, default_prices(), "topoopt", "star")["star"]
    assert target.planned == pytest.approx(target.cost, rel=1e-4)
    assert cluster.degree == 1


def test_what_costs_more_at_any_bandwidth_says_so(host):
    cluster, target = targets(host, default_prices(), "topoopt", "dear")["dear"]
    assert (cluster.degree, cluster.interface_bandwidth_gbps) == (4, 100)
    (line,) = unequal([("dear", target, target.planned)])
    assert line.startswith(
        f"not of equal cost: dear costs {target.planned / target.cost:.2f} times as much as topoopt: "
    )
    assert "it keeps its bandwidth, as prices of topoplan: the network costs" in line


@pytest.mark.parametrize("whole", [False, True])
def test_an_ideal_switch_keeps_its_bandwidth_and_says_so_when_nothing_else_is_compared(host, whole):
    book = default_prices().catalogue() if whole else default_prices()
    cluster, target = targets(host, book, "topoopt", "bigswitch")["bigswitch"]
    assert (cluster.degree, cluster.interface_bandwidth_gbps) == (4, 100)
    (line,) = unequal([("bigswitch", target, target.planned)])
    assert line.endswith("times as much as topoopt: an ideal switch is not for sale, and keeps its bandwidth")


def test_a_catalogue_gives_the_most_that_is_listed_for_the_money(host):
    book = default_prices().catalogue()
    costs = targets(host, book, "topoopt", "fattree", "random")
    for name, interfaces in (("fattree", (1, 2, 3, 4)), ("random", (4,))):
        cluster, target = costs[name]
        assert cluster.interface_bandwidth_gbps in book.bandwidths("nic")
        assert cluster.degree in interfaces
        assert target.planned <= target.cost
        assert target.reason == "parts that are for sale come no closer without costing more"
    # No other offer of the tree is within the sum and faster.
    cluster, target = costs["fattree"]
    bandwidth = cluster.degree * cluster.interface_bandwidth_gbps
    component = host.make("topology", "fattree")
    for degree in (1, 2, 3, 4):
        for gbps in book.bandwidths("nic"):
            if degree * gbps > bandwidth:
                other = Cluster.uniform(n_hosts=16, interfaces=degree, interface_bandwidth=gbps * GBPS)
                fabric = component.build(TopologyContext(cluster=other, demand=None, rng=None))
                assert cost(bill(fabric), book) > target.cost


def test_a_catalogue_has_nothing_cheap_enough_for_some(host):
    _, target = targets(host, default_prices().catalogue(), "topoopt", "dear")["dear"]
    assert target.planned > target.cost
    assert target.reason == "nothing cheaper is for sale"


def test_a_catalogue_refuses_what_it_does_not_list(host):
    wrong = {"interface-bandwidth-gbps": 30}
    with pytest.raises(TopoplanError, match="network 'topoopt': --catalogue: interface-bandwidth-gbps 30: prices of"):
        targets(host, default_prices().catalogue(), "topoopt", **wrong)
