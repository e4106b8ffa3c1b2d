"""What networks cost: parts of a fabric, price files, and the bandwidth that a sum of money buys."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from topoplan import Fabric, LinkKind, ReconfigurableFabric, TopoplanError
from topoplan_studies.prices import Basis, Item, affordable, bill, cost, default_prices, read_prices, scaled
from topoplan_studies.prices.book import PARTS
from topoplan_studies.prices.reach import reached_links

GBPS = 1e9 / 8
FILE = """
currency = "EUR"
[[nic]]
gbps = 10
price = 100
source = "assumption: round"
[[nic]]
gbps = 100
price = 550
source = "a list"
[[transceiver]]
price = 0
source = "copper"
[[switch-port]]
gbps = 10
price = 50
source = "a list"
[[patch-panel-port]]
price = 7
source = "a list"
[[fibre]]
price = 3
source = "a list"
[clos]
levels = 2
source = "assumption: leaves and spines"
"""


@pytest.fixture
def prices(tmp_path):
    path = tmp_path / "prices.toml"
    path.write_text(FILE)
    return read_prices(path)


def fabric(links, hosts, switches=0, gbps=10.0, both=True, switching=None):
    ends = [*links, *((b, a) for a, b in links)] if both else links
    speed = np.resize(np.asarray(gbps), len(links)) * GBPS
    speed = np.concatenate([speed, speed]) if both else speed
    return Fabric.from_links(
        name="x", n_hosts=hosts, n_switches=switches, links=ends, bandwidth=speed, latency=0, switching=switching
    )


def counts(items):
    return {(item.part, item.gbps): item.count for item in items}


def test_two_hosts_behind_a_switch():
    star = fabric([(0, 2), (1, 2)], hosts=2, switches=1)
    assert counts(bill(star)) == {
        ("nic", 10): 2,
        ("switch-port", 10): 2,
        ("transceiver", 10): 4,
        ("fibre", 10): 2,
    }
    # A panel stands between hosts only.
    assert bill(attrs.evolve(star, switching="patch-panel")) == bill(star)


@pytest.mark.parametrize(
    ("switching", "wanted"),
    [
        (None, {("fibre", 10): 3}),
        ("packet", {("fibre", 10): 3}),
        ("patch-panel", {("fibre", 10): 6, ("patch-panel-port", 10): 6}),
        ("ocs", {("fibre", 10): 6, ("ocs-port", 10): 6}),
    ],
)
def test_a_triangle_of_hosts(switching, wanted):
    triangle = fabric([(0, 1), (1, 2), (2, 0)], hosts=3, switching=switching)
    assert counts(bill(triangle)) == {("nic", 10): 6, ("transceiver", 10): 6, **wanted}


def test_parallel_links_count_each_and_speeds_stay_apart():
    items = counts(bill(fabric([(0, 1), (0, 1), (1, 2)], hosts=3, gbps=[10, 10, 40])))
    assert items == {
        ("nic", 10): 4,
        ("nic", 40): 2,
        ("transceiver", 10): 4,
        ("transceiver", 40): 2,
        ("fibre", 10): 2,
        ("fibre", 40): 1,
    }


def test_a_one_way_ring_uses_both_halves_of_each_port():
    ring = fabric([(0, 1), (1, 2), (2, 3), (3, 0)], hosts=4, both=False, switching="patch-panel")
    assert counts(bill(ring)) == {
        ("nic", 10): 4,
        ("transceiver", 10): 4,
        ("patch-panel-port", 10): 4,
        ("fibre", 10): 4,
    }


def test_an_ideal_switch_is_a_clos_network(prices):
    star = fabric([(0, 2), (1, 2)], hosts=2, switches=1, switching="ideal")
    items = bill(star)
    assert counts(items) == {("nic", 10): 2, ("ideal-switch-port", 10): 2, ("transceiver", 10): 2, ("fibre", 10): 2}
    # Two levels: three ports and a fibre inside for each port outside.
    assert cost(items, prices) == 2 * (100 + 3) + 2 * (3 * 50 + 3)


def test_a_fabric_in_phases_is_built_of_what_they_need_at_most():
    one, two = (fabric(links, hosts=3, switching="ocs") for links in ([(0, 1), (0, 1)], [(0, 1), (1, 2), (2, 0)]))
    rebuilt = ReconfigurableFabric(forward=one, backward=two, reduce=two, delay=0.01)
    assert bill(rebuilt) == bill(two)


def test_switches_that_no_host_reaches_are_not_bought():
    # Hosts 0 and 1 at switches 2 and 3, joined by 4; 5 and 6 are a longer way round.
    tree = [(0, 2), (1, 3), (2, 4), (4, 3)]
    idle = [(4, 5), (5, 6), (6, 3)]
    with_idle = fabric([*tree, *idle], hosts=2, switches=5)
    assert bill(with_idle) == bill(fabric(tree, hosts=2, switches=5))


def shortest(fabric):
    """(nodes, nodes) hops, by relaxing every link again and again; a plain reference."""
    hops = np.full((fabric.n_nodes, fabric.n_nodes), np.inf)
    np.fill_diagonal(hops, 0)
    for _ in range(fabric.n_nodes):
        for a, b in zip(fabric.link_src, fabric.link_dst, strict=True):
            hops[:, b] = np.minimum(hops[:, b], hops[:, a] + 1)
    return hops


@given(data=st.data(), hosts=st.integers(2, 4), switches=st.integers(2, 7))
def test_the_links_that_hosts_reach_are_those_on_shortest_paths(data, hosts, switches):
    pair = st.tuples(st.integers(0, switches - 1), st.integers(0, switches - 1)).filter(lambda ends: ends[0] != ends[1])
    trunks = data.draw(st.lists(pair, max_size=14))
    homes = data.draw(st.lists(st.integers(0, switches - 1), min_size=hosts, max_size=hosts))
    links = [(host, hosts + home) for host, home in enumerate(homes)] + [(hosts + a, hosts + b) for a, b in trunks]
    drawn = fabric(links, hosts, switches)
    hops = shortest(drawn)
    for a, b, reached in zip(drawn.link_src, drawn.link_dst, reached_links(drawn), strict=True):
        on_a_path = any(
            hops[one, other] < np.inf and hops[one, a] + 1 + hops[b, other] == hops[one, other]
            for one in range(hosts)
            for other in range(hosts)
            if one != other
        )
        assert reached == (on_a_path or a < hosts or b < hosts)


@pytest.mark.parametrize(
    ("gbps", "price"),
    [(1, 100), (10, 100), (55, 325), (100, 550), (250, 1375)],
    ids=["below the slowest", "at a line", "between", "at the fastest", "several of the fastest"],
)
def test_prices_between_and_beyond_lines(prices, gbps, price):
    assert prices.price("nic", gbps) == pytest.approx(price)


def test_a_price_without_bandwidth_holds_for_any(prices):
    assert prices.price("fibre", 1) == prices.price("fibre", 1000) == 3


def test_a_part_without_a_price_is_named(prices):
    with pytest.raises(TopoplanError, match=r"prices\.toml: no \[\[ocs-port\]\]"):
        cost([Item("ocs-port", 10, 1)], prices)


def test_every_price_that_ships_has_a_source():
    book = default_prices()
    assert book.assumed()
    assert set(PARTS) == set(book.lines)
    assert all(line.source for lines in book.lines.values() for line in lines)


BAD = [
    ("[[device]]\ndevice = 'h100'\nsource = 'x'", "device.0.: price: is missing"),
    ("[[device]]\nprice = 1\nsource = 'x'\n[[device]]\nprice = 2\nsource = 'x'", "any other device has two prices"),
    ("device = 3", "device: must be a list of tables \\[\\[device\\]\\]"),
    ("[[nic]]\nprice = 1\nsource = 'x'\n[[nic]]\ngbps = 1\nprice = 2\nsource = 'x'", "nic.0.: gbps: is missing"),
    ("[[nic]]\ngbps = 10\nsource = 'x'", "nic.0.: price: is missing"),
    ("[[nic]]\ngbps = 10\nprice = -1\nsource = 'x'", "nic.0.: price: -1.0 is too small"),
    ("[[nic]]\ngbps = 0\nprice = 1\nsource = 'x'", "nic.0.: gbps: 0.0 is too small"),
    ("[[nic]]\ngbps = 10\nprice = inf\nsource = 'x'", "nic.0.: price: expected number"),
    ("[[nic]]\ngbps = 10\nprice = 'cheap'\nsource = 'x'", "nic.0.: price: expected number, got 'cheap'"),
    ("[[nic]]\ngbps = 10\nprice = 1", "nic.0.: source: is missing"),
    ("[[nic]]\ngbps = 10\nprice = 1\nsource = ' '", "nic.0.: source: is missing"),
    ("[[nic]]\ngbps = 10\nprize = 1\nsource = 'x'", "no option 'prize'; did you mean 'price'"),
    ("[[nik]]\ngbps = 10\nprice = 1\nsource = 'x'", "no part 'nik'; did you mean 'nic'"),
    ("[nic]\ngbps = 10\nprice = 1\nsource = 'x'", "nic: must be a list of tables \\[\\[nic\\]\\]"),
    (
        "[[nic]]\ngbps = 10\nprice = 1\nsource = 'x'\n[[nic]]\ngbps = 10\nprice = 2\nsource = 'x'",
        "nic: 10 Gbps has two prices",
    ),
    (
        "[[nic]]\ngbps = 10\nprice = 3\nsource = 'x'\n[[nic]]\ngbps = 25\nprice = 2\nsource = 'x'",
        "nic: 25 Gbps costs 2, less than 10 Gbps at 3",
    ),
    ("currency = 3", "currency: expected text"),
    ("nic = 1", "nic: must be a list"),
    ("[[nic", "is not TOML"),
]


@pytest.mark.parametrize(("text", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_price_files_are_told_by_file_and_key(tmp_path, text, message):
    path = tmp_path / "prices.toml"
    path.write_text(text + ("" if text == "[[nic" else "\n[clos]\nlevels = 3\nsource = 'x'\n"))
    with pytest.raises(TopoplanError, match=message) as error:
        read_prices(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("clos", "message"),
    [("", "needs a table"), ("[clos]\nlevels = 0\nsource = 'x'", "too small"), ("[clos]\nlevels = 3", "source")],
)
def test_a_price_file_says_what_an_ideal_switch_is(tmp_path, clos, message):
    path = tmp_path / "prices.toml"
    path.write_text(clos)
    with pytest.raises(TopoplanError, match=message):
        read_prices(path)


def test_a_missing_price_file_is_told(tmp_path):
    with pytest.raises(TopoplanError, match="cannot be read"):
        read_prices(tmp_path / "absent.toml")


def test_what_a_price_rests_on(prices):
    said = [prices.basis("nic", gbps) for gbps in (5, 10, 10 * (1 + 1e-9), 50, 100, 101)]
    assert [one.name for one in said] == ["SLOWER", "LISTED", "LISTED", "BETWEEN", "LISTED", "BEYOND"]
    assert prices.basis("fibre", 77) is Basis.LISTED
    # A port of an ideal switch is a switch port, listed at 10 Gbps alone, and a transceiver, at any.
    assert prices.basis("ideal-switch-port", 10) is Basis.LISTED
    assert prices.basis("ideal-switch-port", 40) is Basis.BEYOND


@pytest.mark.parametrize(
    ("gbps", "price"), [(1, 100), (10, 100), (11, 550), (100, 550), (100 * (1 + 1e-9), 550), (101, 1100), (250, 1650)]
)
def test_a_catalogue_has_whole_parts(prices, gbps, price):
    assert prices.catalogue().price("nic", gbps) == price
    assert prices.catalogue().price("fibre", gbps) == 3


def test_what_ships_lists_400_and_800_gbps():
    book = default_prices()
    for part in ("nic", "transceiver", "switch-port"):
        assert book.bandwidths(part) == (10, 25, 40, 100, 200, 400, 800)
        for gbps in (400, 800):
            assert book.price(part, gbps) == book.price(part, 200) * gbps / 200


def test_links_inside_a_host_are_no_interfaces_and_do_not_become_faster():
    ends = [(0, 2), (1, 2), (2, 0), (2, 1), (0, 1), (1, 0)]
    made = Fabric.from_links(
        name="x",
        n_hosts=2,
        n_switches=1,
        links=ends,
        bandwidth=[3600 * GBPS] * 4 + [25 * GBPS] * 2,
        latency=0,
        kind=[LinkKind.INSIDE] * 4 + [LinkKind.NETWORK] * 2,
        switching="patch-panel",
    )
    items = bill(made)
    assert counts(items) == {
        ("inside-link", 3600): 2,
        ("nic", 25): 2,
        ("transceiver", 25): 2,
        ("fibre", 25): 2,
        ("patch-panel-port", 25): 2,
    }
    assert counts(scaled(items, 2))["inside-link", 3600] == 2
    assert counts(scaled(items, 2))["nic", 50] == 2


def test_hosts_cost_what_their_devices_do(tmp_path):
    """64 hosts of 8 H100 at 280,000 each, as people pay for them."""
    assert default_prices().hosts({"H100": 512}) == 64 * 280_000
    assert default_prices().device("something of your own") == 20_000
    path = tmp_path / "prices.toml"
    path.write_text(FILE)  # in another currency than the prices of devices that come along
    assert (read_prices(path).hosts({"H100": 512}), read_prices(path).devices_of) == (None, "")
    path.write_text(FILE.replace("EUR", "USD"))
    assert (read_prices(path).hosts({"H100": 1}), read_prices(path).devices_of) == (35_000, "of topoplan")
    path.write_text(FILE + "[[device]]\ndevice = 'h100'\nprice = 30000\nsource = 'an offer'\n")
    assert (read_prices(path).hosts({"H100": 2}), read_prices(path).hosts({"H100": 2, "B200": 1})) == (60_000, None)


# ── How fast a network may be for its money ─────────────────────────────────────────────────────────────


def test_the_affordable_bandwidth_follows_the_straight_line(prices):
    items = (Item("nic", 10.0, 2), Item("fibre", 10.0, 1))
    assert 10 * affordable(items, prices, 2 * 325 + 3) == pytest.approx(55)
    assert 10 * affordable(items, prices, 2 * 1100 + 3) == pytest.approx(200)


@example(steps=[(19.293093834811987, 0.0), (1.5, 106.0)], start=1.0, gbps=1.25, count=1, share=1.125)  # steep
@given(
    steps=st.lists(st.tuples(st.floats(1, 50), st.floats(0, 500)), min_size=1, max_size=5),
    start=st.floats(1, 50),
    gbps=st.floats(0.5, 500),
    count=st.integers(1, 1000),
    share=st.floats(1.001, 30),
)
def test_a_network_costs_what_it_may(tmp_path_factory, steps, start, gbps, count, share):
    path = tmp_path_factory.mktemp("prices") / "p.toml"
    speed, price, lines = 0.0, start, []
    for faster, dearer in steps:
        speed, price = speed + faster, price + dearer
        lines.append(f"[[nic]]\ngbps = {speed!r}\nprice = {price!r}\nsource = 'drawn'\n")
    path.write_text("".join(lines) + "[clos]\nlevels = 3\nsource = 'x'\n")
    book, items = read_prices(path), (Item("nic", gbps, count),)
    budget = share * count * book.price("nic", 0.0)  # above the floor
    factor = affordable(items, book, budget)
    assert cost(scaled(items, factor), book) == pytest.approx(budget, rel=1e-9)
    assert cost(scaled(items, factor * 1.0001), book) > budget


def test_a_sum_that_buys_no_network_at_all(prices):
    with pytest.raises(TopoplanError, match=r"costs 200 EUR however slow, more than the 150"):
        affordable((Item("nic", 10.0, 2),), prices, 150)


def test_a_network_whose_cost_knows_no_bandwidth(prices):
    with pytest.raises(TopoplanError, match=r"no more than 3 EUR however fast"):
        affordable((Item("fibre", 10.0, 1),), prices, 150)


# ── What topologies say ─────────────────────────────────────────────────────────────────────────────────


def test_a_fabric_cannot_invent_a_way_of_switching():
    with pytest.raises(TopoplanError, match=r"switching is 'magic' \(must be one of packet, patch-panel, ocs, ideal\)"):
        fabric([(0, 1)], hosts=2, switching="magic")


def test_what_links_pass_is_no_part_of_what_a_fabric_is():
    plain, panel = (fabric([(0, 1)], hosts=2, switching=switching) for switching in (None, "patch-panel"))
    assert plain == panel
    assert plain.key == panel.key
