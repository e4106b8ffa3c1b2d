"""What stands in the page: the plan's own numbers, names as text, and nothing that loads anything."""

from __future__ import annotations

import base64
import hashlib
import re

import attrs
import numpy as np
import pytest

from topoplan import TaskKind, TopoplanError, export, optimize
from topoplan.model.placement import Placement
from topoplan.model.strategy import PlacedStrategy
from topoplan.testing import reference
from topoplan_html_report import NamedPlan, report
from topoplan_samples.pages import column, data_of

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


def page_of(host, *plans):
    return report([NamedPlan(f"plan {number}", plan) for number, plan in enumerate(plans)], host).decode()


@pytest.fixture(scope="module")
def page(host, alexnet):
    return page_of(host, alexnet)


@pytest.fixture(scope="module")
def data(page):
    (plan,) = data_of(page)["plans"]
    return plan


def test_slices_have_all_the_time_that_devices_compute(alexnet, data):
    iteration = data["iteration"]
    seconds = column(iteration["finish"]) - column(iteration["start"])
    computes = column(iteration["kind"]) <= TaskKind.BARRIER
    times = column(iteration["count"])  # a row stands for so many devices
    assert (seconds * times)[computes].sum() == pytest.approx(alexnet.timeline.device_busy.sum())
    assert iteration["seconds"] == alexnet.timeline.makespan


def test_devices_that_do_the_same_are_one_row(data):
    rows = [row["label"] for row in data["iteration"]["rows"] if row["sort"] == "compute"]
    assert rows == ["devices 0-7 (8 equal)"]


def test_slices_of_a_lane_do_not_overlap(data):
    iteration, first = data["iteration"], 0
    starts, finishes, lanes = (column(iteration[name]) for name in ("start", "finish", "lane"))
    for row in iteration["rows"]:
        own = slice(first, first := first + row["slices"])
        for lane in range(row["lanes"] - (row["lanes"] in (4, 24))):
            chosen = lanes[own] == lane
            assert (starts[own][chosen][1:] >= finishes[own][chosen][:-1] - 1e-12).all()
    assert first == len(starts)


def test_links_have_the_load_of_the_timeline(alexnet, data):
    load = alexnet.timeline.link_busy / alexnet.timeline.makespan
    assert column(data["fabric"]["load"]).max() == pytest.approx(load.max(), rel=1e-6)
    assert data["fabric"]["loads"]["mean"] == pytest.approx(load.mean())


def test_traffic_is_what_tasks_send(alexnet, data):
    """Every host sends 2 (n - 1) / n of each gradient, over all rings together."""
    tasks = alexnet.taskgraph
    sizes = tasks.size[tasks.kind == TaskKind.COLLECTIVE].sum()
    traffic = data["traffic"]
    total = column(traffic["bytes"])
    assert total.sum() == pytest.approx(8 * sizes * 2 * 7 / 8)
    assert (column(traffic["from"]) != column(traffic["to"])).all()
    # Where each host is wired to those that it sends to, links carry this and no more.
    assert total.sum() <= alexnet.timeline.link_bytes.sum() * (1 + 1e-3)


def test_changes_are_simulated(alexnet, data):
    bandwidth, compute, interface = data["headline"]["changes"]
    seconds = alexnet.timeline.makespan
    assert seconds / 1.1 <= bandwidth["seconds"] < seconds  # no more than all of it can be network
    assert seconds / 1.1 <= compute["seconds"] <= seconds
    assert interface["seconds"] <= seconds
    assert interface["remark"] == "wired by topoopt for this plan"
    assert "10% more bandwidth" in data["headline"]["sentence"]


def test_the_summary_explains_its_rows(data):
    assert [row["label"] for row in data["summary"] if not row["meaning"]] == []


def test_equal_plans_give_equal_bytes(host, alexnet, page):
    assert page_of(host, attrs.evolve(alexnet)) == page


def test_a_page_loads_nothing_and_allows_its_own_scripts_alone(page):
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page).group(1)
    assert policy.startswith("default-src 'none';")
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    for script in scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert policy.count("sha256-") == len(scripts)
    markup = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"<(link|img|iframe|script)|url\(|@import", markup)


def test_a_page_of_ten_thousand_slices_is_small(host, alexnet):
    tasks = alexnet.taskgraph
    copies = -(-10_000 // tasks.n_tasks)
    many = attrs.evolve(
        tasks,
        **{
            name: np.tile(getattr(tasks, name), copies)
            for name in ("kind", "device", "seconds", "size", "src", "dst", "group", "op", "collective")
        },
        succ_ptr=np.zeros(copies * tasks.n_tasks + 1),
        succ=[],
        micro_batch=None,
    )
    line = alexnet.timeline
    shift = np.repeat(np.arange(copies), tasks.n_tasks) * line.makespan
    # Devices a little apart, so that none is folded with another one.
    shift += np.where(many.device >= 0, many.device, 0) * 1e-6
    longer = attrs.evolve(
        line,
        start=np.tile(line.start, copies) + shift,
        finish=np.tile(line.finish, copies) + shift,
        makespan=line.makespan * copies + 1e-3,
    )
    page = page_of(host, attrs.evolve(alexnet, taskgraph=many, timeline=longer))
    (found,) = data_of(page)["plans"]
    assert sum(row["slices"] for row in found["iteration"]["rows"]) > 5_000
    assert len(page) < 3e6


def test_devices_that_compute_nothing_are_in_the_first_sentence(host, tmp_path):
    """All of AlexNet on the second of three hosts, so that nothing is sent, and the others have nothing to do."""
    whole = optimize("alexnet", host=host, servers=3, batch_size=64, budget=0).plan
    alone = [Placement(degrees=(1,) * len(op.dims), devices=(1,)) for op in whole.graph.operators]
    path = tmp_path / "alone.strategy"
    export(attrs.evolve(whole, strategy=PlacedStrategy(tuple(alone))), "strategy", path, host=host)
    plan = optimize("alexnet", host=host, servers=3, batch_size=64, budget=0, strategy=str(path)).plan
    (shown,) = data_of(page_of(host, plan))["plans"]
    first, second = shown["headline"]["sentence"].split(". ")[:2]
    assert re.fullmatch(r"An iteration takes [\d.]+ ms; 2 of 3 devices compute nothing", first)
    assert second == "The busiest device computes all the time"


def test_names_are_text(host):
    plan = reference.plan(names=(HOSTILE, "dense2"))
    plan = attrs.evolve(plan, provenance={HOSTILE: HOSTILE, "components": [{"kind": HOSTILE, "name": "x"}]})
    plan = attrs.evolve(plan, graph=attrs.evolve(plan.graph, name=HOSTILE))
    page = page_of(host, plan)
    assert page.count("<script>alert") == page.count("<img src=x") == 0
    assert HOSTILE in data_of(page)["plans"][0]["operators"]


def test_several_plans_stand_beside_each_other(host, alexnet):
    page = page_of(host, alexnet, reference.plan(), reference.pipelined())
    assert [plan["name"] for plan in data_of(page)["plans"]] == ["plan 0", "plan 1", "plan 2"]


def test_what_cannot_be_simulated_says_why(host):
    """The timeline of the reference plan is not of any simulator."""
    (plan,) = data_of(page_of(host, reference.plan()))["plans"]
    for change in plan["headline"]["changes"]:
        assert change["seconds"] is None
        assert "simulator fluid says" in change["remark"]


def test_a_plan_without_a_timeline_is_refused(host):
    with pytest.raises(TopoplanError, match=r"plan 0: this plan has no timeline; `topoplan simulate"):
        page_of(host, attrs.evolve(reference.plan(), timeline=None))


def test_no_plans_are_refused(host):
    with pytest.raises(TopoplanError, match="no plan"):
        report([], host)
