"""What devices do in an iteration: worked by hand, and what holds of every simulated task graph."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from topoplan import Bounds, Cluster, Collective, Timeline
from topoplan_engine.simulation.breakdown import time_breakdown
from topoplan_samples.fabrics import star
from topoplan_samples.tasks import collective, compute, task_graph, transfer
from topoplan_simulator_flexnet import Flexnet
from topoplan_simulator_fluid import Fluid

SIMULATORS = {"coupled": Fluid().build(), "stepped": Fluid(level="stepped").build(), "flexnet": Flexnet().build()}


def by_hand(intervals, device_busy):
    """Return a timeline of tasks that run in these intervals."""
    start, finish = zip(*intervals, strict=True)
    bounds = Bounds(device=0.0, link=0.0, chain=0.0)
    return Timeline(
        start=start,
        finish=finish,
        makespan=max(finish),
        device_busy=device_busy,
        link_bytes=[],
        link_busy=[],
        bounds=bounds,
        events=0,
    )


@pytest.fixture
def worked():
    """Device 0: computes in [0, 4] and [6, 9]; sends in [3, 6], all-reduces in [5, 8] and [9, 10].

    What device 1 alone does, and the join, are not its communication.
    """
    tasks = [
        (compute(0, 4.0), (0, 4)),
        (compute(0, 3.0), (6, 9)),
        (compute(1, 2.0), (0, 2)),
        (transfer(0, 1, 100), (3, 6)),
        (transfer(1, 2, 100), (0, 12)),
        (collective((0, 1, 2), 100), (5, 8)),
        (collective((1, 0), 100), (9, 10)),
        (collective((1, 2), 100), (0, 12)),
        (collective((0,), 0, kind=Collective.JOIN), (0, 12)),
    ]
    rows, intervals = zip(*tasks, strict=True)
    return task_graph(rows), by_hand(intervals, [7.0, 2.0, 0.0, 0.0])


def test_a_device_by_hand(worked):
    breakdown = time_breakdown(*worked)
    assert breakdown.device == 0
    assert (breakdown.wall, breakdown.computation, breakdown.communication) == (12.0, 7.0, 6.0)
    assert breakdown.overlapped == 3.0  # [3, 4] and [6, 8]
    assert breakdown.idle == 2.0
    assert breakdown.overlap_ratio == 0.5


def test_another_device_by_hand(worked):
    breakdown = time_breakdown(*worked, device=1)
    assert (breakdown.computation, breakdown.communication, breakdown.overlapped, breakdown.idle) == (
        2.0,
        12.0,
        2.0,
        0.0,
    )
    assert breakdown.overlap_ratio == 1.0
    assert time_breakdown(*worked, device=3).idle == 12.0


@pytest.mark.parametrize(
    ("wall", "computation", "communication", "printed"),
    [(0.2972, 0.2948, 0.0297, 0.9192), (0.3985, 0.3088, 0.1523, 0.4110), (0.6657, 0.3021, 0.4432, 0.2635)],
)
def test_hidups_printed_overlap(wall, computation, communication, printed):
    """Table 4 of HiDup (SoCC 2022): computation first, communication up to the end of the iteration."""
    tasks = task_graph([compute(0, computation), collective((0, 1), 100)])
    timeline = by_hand([(0, computation), (wall - communication, wall)], [computation, 0.0, 0.0, 0.0])
    assert time_breakdown(tasks, timeline).overlap_ratio == pytest.approx(printed, abs=2e-3)


@st.composite
def work(draw, devices):
    """A random task graph; every task may wait for earlier ones."""
    device, tasks = st.integers(0, devices - 1), []
    for _ in range(draw(st.integers(1, 12))):
        kind = draw(st.sampled_from(["compute", "transfer", "collective"]))
        if kind == "compute":
            tasks.append(compute(draw(device), draw(st.sampled_from([0.0, 1e-4, 1e-3]))))
        elif kind == "transfer":
            tasks.append(transfer(draw(device), draw(device), draw(st.integers(1, 5_000_000))))
        else:
            tasks.append(collective(sorted(draw(st.sets(device, min_size=1))), draw(st.integers(1, 5_000_000))))
    edges = [(s, t) for t in range(1, len(tasks)) for s in draw(st.sets(st.integers(0, t - 1), max_size=2))]
    return task_graph(tasks, edges, devices)


@pytest.mark.parametrize("simulate", SIMULATORS.values(), ids=SIMULATORS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(2, 5), st.data())
def test_times_of_every_device_add_up(simulate, hosts, data):
    tasks, cluster = data.draw(work(hosts)), Cluster.uniform(n_hosts=hosts)
    timeline = simulate(tasks, star(hosts, 1.25e9), cluster)
    for device in range(hosts):
        breakdown = time_breakdown(tasks, timeline, device)
        assert breakdown.computation == pytest.approx(timeline.device_busy[device], abs=1e-12)
        assert breakdown.wall + breakdown.overlapped == pytest.approx(
            breakdown.computation + breakdown.communication + breakdown.idle, abs=1e-12
        )
        assert 0 <= breakdown.overlap_ratio <= 1
        assert min(breakdown.overlapped, breakdown.idle) >= 0
        assert breakdown.wall <= breakdown.computation + breakdown.communication + breakdown.idle + 1e-12
    longest = time_breakdown(tasks, timeline)
    assert longest.computation == pytest.approx(np.max(timeline.device_busy), abs=1e-12)
