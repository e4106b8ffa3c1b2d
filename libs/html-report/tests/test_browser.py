"""The page in headless Chromium: scripts run under the page's policy, nothing is loaded, and names stay text.

Where the page tried to load anything, or a script failed, Chromium would say so on its console.
"""

from __future__ import annotations

import re
import shutil
import subprocess

import attrs
import pytest

from topoplan.testing import reference
from topoplan_html_report import NamedPlan, report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
HOSTILE = "</script><img src=x onerror=alert(2)>"
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --enable-logging=stderr --virtual-time-budget=3000 --dump-dom"
)

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


@pytest.mark.slow
def test_what_the_policy_forbids_is_on_the_console(host, alexnet, tmp_path):
    """The other test can fail: a page that loads something or runs another script is found out."""
    page = report([NamedPlan("alexnet", alexnet)], host)
    _, console = opened(page.replace(b"<footer>", b'<img src="http://127.0.0.1:9/x.png"><script>x</script>'), tmp_path)
    assert len(console) >= 2
