"""HPCC's ns-3 simulator reads what is written for it, where TOPOPLAN_HPCC names its folder ``simulation``, built.

A flow of one packet between two hosts shows the delays and rates on the path: the simulator writes the time that the
flow would take alone, from what it read, and the time that it took.
"""

from __future__ import annotations

import itertools
import os
import struct
import subprocess
from collections import Counter
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

from topoplan import Cluster, Fabric, Host, TopologyContext
from topoplan_network_files.links import write_ns3

FOLDER = os.environ.get("TOPOPLAN_HPCC", "")
PAYLOAD, HEADERS, ACKNOWLEDGEMENT = 1000, 48, 60  # bytes
FILES = {"TOPOLOGY": "net", "FLOW": "flows", "TRACE": "nodes", "TRACE_OUTPUT": "rates", "FCT_OUTPUT": "times"}
CONFIG = """
ENABLE_QCN 0
USE_DYNAMIC_PFC_THRESHOLD 1
PACKET_PAYLOAD_SIZE {payload}
PFC_OUTPUT_FILE pauses
QLEN_MON_FILE queues
QLEN_MON_START 0
QLEN_MON_END 0
SIMULATOR_STOP_TIME 20
CC_MODE 0
RATE_AI 50Mb/s
RATE_HAI 100Mb/s
MIN_RATE 100Mb/s
DCTCP_RATE_AI 1000Mb/s
L2_CHUNK_SIZE 4000
L2_ACK_INTERVAL 1
ACK_HIGH_PRIO 1
HAS_WIN 0
ENABLE_TRACE 0
BUFFER_SIZE 32
"""


def built(topology, n_hosts, interfaces):
    cluster = Cluster.uniform(n_hosts=n_hosts, interfaces=interfaces, interface_bandwidth=12.5e9, latency=1e-6)
    context = TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0))
    return Host.discover().make("topology", topology).build(context)


def unequal():
    """Two switches, and links of many rates and delays, some of which are no whole nanoseconds."""
    ends = [(0, 4), (1, 4), (1, 4), (2, 5), (3, 5), (4, 5), (4, 5), (4, 5)]
    rates = [1.25e9, 12.5e9, 12.5e9, 5e10, 3.125e9, 5e10, 5e10, 5e10]
    delays = [1e-6, 2.5e-7, 2.5e-7, 1.9996e-6, 1e-5, 3.3e-9, 3.3e-9, 3.3e-9]
    return Fabric.from_links(
        name="unequal",
        n_hosts=4,
        n_switches=2,
        links=[pair for first, second in ends for pair in ((first, second), (second, first))],
        bandwidth=np.repeat(rates, 2),
        latency=np.repeat(delays, 2),
    )


def ran(fabric, flows, folder):
    """Run flows of (source, target, bytes), one after the other.

    Return bit/s of the interfaces, as a count for each (node, rate), and nanoseconds of each flow: alone, as the
    simulator computes it, and as simulated.
    """
    (folder / FILES["TOPOLOGY"]).write_bytes(write_ns3(fabric))
    (folder / FILES["TRACE"]).write_text("0\n")
    lines = [f"{first} {second} 3 100 {size} {2 + row / 100}\n" for row, (first, second, size) in enumerate(flows)]
    (folder / FILES["FLOW"]).write_text("".join([f"{len(flows)}\n", *lines]))
    rates = sorted(set(np.rint(fabric.link_bandwidth * 8).astype(int).tolist()))
    config = CONFIG.format(payload=PAYLOAD) + "".join(f"{name}_FILE {path}\n" for name, path in FILES.items())
    for name, value in (("KMAX", 400), ("KMIN", 100), ("PMAX", 0.2)):
        config += f"{name}_MAP {len(rates)} " + " ".join(f"{rate} {value}" for rate in rates) + "\n"
    (folder / "config").write_text(config)
    build = Path(FOLDER).absolute() / "build"
    command, libraries = [str(build / "scratch" / "third"), "config"], {"LD_LIBRARY_PATH": str(build)}
    done = subprocess.run(command, cwd=folder, env=libraries, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-1000:]
    reported = (folder / FILES["TRACE_OUTPUT"]).read_bytes()
    (count,) = struct.unpack_from("<I", reported)
    interfaces = Counter((node, rate) for node, _, rate in struct.iter_unpack("<HBQ", reported[4 : 4 + 11 * count]))
    times = {}
    for line in (folder / FILES["FCT_OUTPUT"]).read_text().splitlines():
        source, target, *_, took, alone = line.split()
        times[int(source, 16) >> 8 & 0xFFFF, int(target, 16) >> 8 & 0xFFFF] = int(alone), int(took)
    return interfaces, times


def alone(links):
    """Nanoseconds of a packet by the simulator's own formula: a round trip, then all bytes over the slowest link."""
    trip = sum(2 * link["delay"] + PAYLOAD * 8 * 10**9 // link["rate"] for link in links)
    return trip + (PAYLOAD + HEADERS) * 8 * 10**9 // min(link["rate"] for link in links)


def both_ways(links):
    """Nanoseconds until the acknowledgement of a packet is back; it and the packet are stored at every switch."""
    return sum(2 * link["delay"] + (PAYLOAD + HEADERS + ACKNOWLEDGEMENT) * 8e9 / link["rate"] for link in links)


@pytest.mark.skipif(not FOLDER, reason="TOPOPLAN_HPCC names no built folder of HPCC's simulator")
@pytest.mark.parametrize(
    "fabric",
    [
        lambda: built("bigswitch", 4, 4),
        lambda: built("fattree", 16, 1),
        lambda: built("fully-connected", 5, 4),
        unequal,
    ],
    ids=["bigswitch", "fattree", "fully-connected", "unequal"],
)
def test_the_simulator_has_the_links_rates_and_delays_of_the_fabric(tmp_path, fabric):
    fabric = fabric()
    graph = nx.Graph()
    expected = Counter()
    columns = (fabric.link_src, fabric.link_dst, fabric.link_bandwidth, fabric.link_latency)
    for source, target, bandwidth, latency in zip(*(column.tolist() for column in columns), strict=True):
        graph.add_edge(source, target, rate=round(bandwidth * 8), delay=round(latency * 1e9))
        expected[source, round(bandwidth * 8)] += 1
    flows = [(*pair, PAYLOAD) for pair in itertools.permutations(range(fabric.n_hosts), 2)]
    interfaces, times = ran(fabric, flows, tmp_path)
    assert interfaces == expected
    assert set(times) == {pair[:2] for pair in flows}
    for pair, (reported, took) in times.items():
        links = [graph.edges[ends] for ends in itertools.pairwise(nx.shortest_path(graph, *pair))]
        assert reported == alone(links)
        assert 0 <= both_ways(links) - took <= 2 * len(links)  # each sending is cut off to whole nanoseconds


@pytest.mark.skipif(not FOLDER, reason="TOPOPLAN_HPCC names no built folder of HPCC's simulator")
def test_parallel_cables_carry_their_rates_together(tmp_path):
    packets = 100_000
    _, times = ran(built("bigswitch", 2, 4), [(0, 1, packets * PAYLOAD)], tmp_path)
    nanoseconds = (PAYLOAD + HEADERS) * 8 // 400  # of a packet at 400 Gbit/s
    assert times[0, 1][1] == pytest.approx(packets * nanoseconds, rel=5e-3)
