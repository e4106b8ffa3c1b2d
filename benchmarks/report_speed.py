"""Size of the HTML report, and how long its timeline takes to draw and to zoom in Chromium, by number of slices.

    .venv/bin/python benchmarks/report_speed.py [--chromium PATH]

Needs Chromium and the package playwright, which no package here requires.  The plan is AlexNet in data parallelism on
16 hosts, its tasks repeated one iteration after the other.  The page's ``performance.now()`` measures each drawing with
its pixels; zooms go on from the whole iteration, by a third each.  Milliseconds are wall time, of several drawings the
least and the median: nothing is compared with them but the targets of 300 and 50 ms.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

import attrs
import numpy as np

from topoplan import Host, Plan, optimize
from topoplan_engine.reporting.tables import markdown_row
from topoplan_html_report import NamedPlan, report

SLICES = (1_000, 10_000, 100_000)
REDRAWS, ZOOMS = 15, 5
#: What is timed, in names of the page's own scripts; reading a pixel waits until everything is drawn.
TIMED = """(zooms) => {
  const [line] = stretch.timelines;
  const began = performance.now();
  if (zooms) zoom(1 / 1.5); else line.draw();
  line.canvas.getContext("2d").getImageData(0, 0, 1, 1);
  return performance.now() - began;
}"""


def repeated(plan: Plan, tasks: int) -> Plan:
    """Return a plan with at least so many tasks: the iteration again and again, devices a little apart."""
    graph, line = plan.taskgraph, plan.timeline
    copies = -(-tasks // graph.n_tasks)
    names = ("kind", "device", "seconds", "size", "src", "dst", "group", "op", "collective")
    many = attrs.evolve(
        graph,
        **{name: np.tile(getattr(graph, name), copies) for name in names},
        succ_ptr=np.zeros(copies * graph.n_tasks + 1),
        succ=[],
        micro_batch=None,
    )
    # Apart, so that no device is folded with another one.
    shift = np.repeat(np.arange(copies), graph.n_tasks) * line.makespan + np.maximum(many.device, 0) * 1e-6
    longer = attrs.evolve(
        line,
        start=np.tile(line.start, copies) + shift,
        finish=np.tile(line.finish, copies) + shift,
        makespan=line.makespan * copies + 1e-3,
    )
    return attrs.evolve(plan, taskgraph=many, timeline=longer, recording=None, history=None)


def drawn(browser, page: Path) -> tuple[list[float], list[float]]:
    """Return milliseconds of drawing the whole timeline, and after each zoom."""
    tab = browser.new_context(offline=True).new_page()
    tab.goto(page.as_uri())
    tab.wait_for_selector('[data-ready="yes"]', state="attached", timeout=120_000)
    whole = [tab.evaluate(TIMED, False) for _ in range(REDRAWS)]
    zoomed = [tab.evaluate(TIMED, True) for _ in range(ZOOMS)]
    tab.context.close()
    return whole, zoomed


def main(chromium: str) -> None:
    """Print a row for each number of slices."""
    from playwright.sync_api import sync_playwright

    host = Host.discover()
    plan = optimize(
        "alexnet", host=host, topology="topoopt", servers=16, interface_bandwidth_gbps=25.0, batch_size=1024, budget=0
    ).plan
    print(markdown_row(["tasks", "page, MB", "whole, ms (least, median)", "zoomed, ms (least, median)"]))
    print(markdown_row(["---"] * 4))
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for slices in SLICES:
            longer, page = repeated(plan, slices), Path(folder, "report.html")
            page.write_bytes(report([NamedPlan("alexnet", longer)], host))
            times = [f"{min(times):.1f}, {np.median(times):.1f}" for times in drawn(browser, page)]
            print(markdown_row([f"{longer.taskgraph.n_tasks:,}", f"{page.stat().st_size / 1e6:.2f}", *times]))
        browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--chromium", default=shutil.which("chromium") or "chromium", help="executable")
    main(parser.parse_args().chromium)
