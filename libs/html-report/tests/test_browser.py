"""The page in headless Chromium: scripts run under the page's policy, nothing is loaded, and names stay text.

Where the page tried to load anything, or a script failed, Chromium would say so on its console.
"""

from __future__ import annotations

import re
import shutil
import subprocess

import attrs
import numpy as np
import pytest

from topoplan import Topology, TopologyContext
from topoplan.testing import reference
from topoplan_engine import ClusterOptions, build_cluster
from topoplan_html_report import NamedPlan, report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
HOSTILE = "</script><img src=x onerror=alert(2)>"
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --enable-logging=stderr --virtual-time-budget=3000 --dump-dom"
)

#: Says of each picture how many labels it has, how many pairs of these overlap, and how many it cuts off.
LABELS = b"""<script>
const overlap = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
const inside = (a, b) => a.left >= b.left && a.right <= b.right && a.top >= b.top && a.bottom <= b.bottom;
for (const picture of document.querySelectorAll(".picture svg")) {
  const frame = picture.getBoundingClientRect();
  const boxes = [...picture.querySelectorAll("text")].map((text) => text.getBoundingClientRect());
  const pairs = boxes.flatMap((a, i) => boxes.slice(i + 1).filter((b) => overlap(a, b)));
  picture.dataset.labels = [boxes.length, pairs.length, boxes.filter((a) => !inside(a, frame)).length].join(" ");
}
</script>"""
#: A fabric of every layout, some with options of the cluster.
FABRICS = {
    "torus": {},
    "torus:sides=4-4-8,twisted=yes": {"degree": 6},
    "topoopt": {},
    "fattree": {},
    "jellyfish": {},
    "dragonfly": {},
    "bcube": {"degree": 4},
    "rail-optimized": {"machine": "dgx-h100"},
    "rail-only:ports=16,planes=2": {"machine": "dgx-h100"},
}

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")


def opened(page, folder):
    """Return the document after its scripts ran, and what stood on the console."""
    file = folder / "report.html"
    file.write_bytes(page)
    words = [CHROMIUM, *FLAGS.split(), f"--user-data-dir={folder / 'profile'}", file.as_uri()]
    shown = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    return shown.stdout, [line for line in shown.stderr.splitlines() if "CONSOLE" in line]


def test_a_page_of_two_plans_draws_everything_and_loads_nothing(host, alexnet, tmp_path):
    hostile = reference.plan(names=(HOSTILE, "dense2"))
    hostile = attrs.evolve(hostile, graph=attrs.evolve(hostile.graph, name=HOSTILE), provenance={HOSTILE: HOSTILE})
    document, console = opened(report([NamedPlan("alexnet", alexnet), NamedPlan(HOSTILE, hostile)], host), tmp_path)
    assert console == []
    assert 'data-ready="yes"' in document
    body = re.sub(r"<script.*?</script>", "", document, flags=re.DOTALL)
    assert "<img" not in body
    assert "&lt;img src=x onerror=alert(2)&gt;" in body
    for title in ("One iteration", "Fabric", "Traffic", "Strategy", "What bounds it", "Memory", "Provenance"):
        assert f"<h2>{title}</h2>" in body
    assert body.count('class="scroller"') == 2
    assert body.count("<canvas") >= 2 + 2 + 2 + 2  # timelines, traffic, bounds, memory
    lines = {
        tuple(sorted(pair))
        for pair in zip(alexnet.fabric.link_src.tolist(), alexnet.fabric.link_dst.tolist(), strict=True)
    }
    assert body.count("data-line=") >= len(lines)


def drawn(host, topology, name):
    """A plan on 128 hosts, whose fabric names them where a name is given."""
    cluster = build_cluster(ClusterOptions(servers=128, **FABRICS[topology]), host)
    context = TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0))
    fabric = host.make(Topology, topology).build(context)
    if name:
        names = [f"{name}{node:03}" if node < 128 else f"switch {node}" for node in range(fabric.n_nodes)]
        fabric = attrs.evolve(fabric, node_names=names)
    plan = reference.plan()
    idle = np.zeros(fabric.n_links)
    busy = np.zeros(cluster.n_devices)
    timeline = attrs.evolve(plan.timeline, link_bytes=idle, link_busy=idle, device_busy=busy)
    changed = {"cluster": cluster, "fabric": fabric, "timeline": timeline, "memory": None, "recording": None}
    return NamedPlan(f"{topology} {name}", attrs.evolve(plan, **changed))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["", "W", "rack-1-host-"])
@pytest.mark.parametrize("topologies", [[*FABRICS][i : i + 2] for i in range(0, len(FABRICS), 2)], ids=", ".join)
def test_labels_of_128_hosts_neither_overlap_nor_are_cut_off(host, tmp_path, topologies, name):
    """Measured in the browser, whose font decides; also those of hosts that have names of wide letters."""
    plans = [drawn(host, topology, name) for topology in topologies]
    page = re.sub(rb'<meta http-equiv="Content-Security-Policy"[^>]*>', b"", report(plans, host))
    document, console = opened(page[: page.rindex(b"</body>")] + LABELS + b"</body></html>", tmp_path)
    assert console == []
    found = [tuple(map(int, each.split())) for each in re.findall(r'data-labels="([^"]*)"', document)]
    assert len(found) == len(plans)
    for plan, (labels, overlapping, cut) in zip(plans, found, strict=True):
        assert (overlapping, cut) == (0, 0), plan.name
        assert labels >= 5, plan.name


@pytest.mark.slow
def test_what_the_policy_forbids_is_on_the_console(host, alexnet, tmp_path):
    """The other test can fail: a page that loads something or runs another script is found out."""
    page = report([NamedPlan("alexnet", alexnet)], host)
    _, console = opened(page.replace(b"<footer>", b'<img src="http://127.0.0.1:9/x.png"><script>x</script>'), tmp_path)
    assert len(console) >= 2
