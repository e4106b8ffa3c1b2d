"""A shared cluster, part by part: what a file may say, who is drawn, where jobs run, and what their times come to."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topoplan import Cluster, Fabric, PlacedStrategy, Simulate, TopoplanError
from topoplan.testing import reference
from topoplan_command_share.draw import Job, at_load, draw
from topoplan_command_share.hypotheses import load_tests
from topoplan_command_share.plans import JobPlan, NetworkPlan
from topoplan_command_share.plot import plot
from topoplan_command_share.results import JobTime, as_json, job_times, load_results
from topoplan_command_share.shared_cluster import shared_cluster_from
from topoplan_command_share.simulate import MOST_ITERATIONS, devices_of, iterations, job_seconds
from topoplan_command_share.table import share_table
from topoplan_engine.lowering import Lowering
from topoplan_engine.search.space import Space
from topoplan_samples.fabrics import star
from topoplan_simulator_fluid import Fluid
from topoplan_studies.study import Hypothesis

DOCUMENT = {
    "title": "test",
    "share": {"loads": [100, 50], "trials": 3, "seed": 5},
    "cluster": {"servers": 16},
    "model": [
        {"use": "dlrm", "servers": 4, "weight": 3},
        {"use": "ncf", "servers": 8, "batch-size": 64},
        {"name": "small", "use": "alexnet", "servers": 2},
    ],
    "network": [{"use": "topoopt"}, {"name": "tree", "use": "fattree"}],
}


def share_of(**changes):
    return shared_cluster_from({**DOCUMENT, **changes}, "test", "test.toml")


# ── Files ───────────────────────────────────────────────────────────────────────────────────────────────


def test_what_a_file_says():
    share = share_of()
    assert share.options.loads == (50, 100)
    assert [job.servers for job in share.jobs] == [4, 8, 2]
    assert [job.weight for job in share.jobs] == [3, 1, 1]
    assert [model.name for model in share.study.models] == ["dlrm", "ncf", "small"]
    assert share.study.models[1].batch_size == 64
    assert share.study.seeds == (5,)
    assert share_of(model="dlrm", cluster={"servers": 32}).jobs[0].servers == 16


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"share": {"loads": [0]}}, r"test\.toml: share: loads: 0 is too small"),
        ({"share": {"loads": [101]}}, r"share: loads: 101 is too large"),
        ({"share": {"loads": [50, 50]}}, "must be one or more different numbers"),
        ({"share": {"loads": []}}, "must be one or more different numbers"),
        ({"share": {"load": [50]}}, "no option 'load'.*loads"),
        ({"share": {"placement": "best"}}, "'best' is none of random, contiguous"),
        ({"share": 3}, r"must be a table \[share\]"),
        ({"share": {"loads": [25]}}, "model 'ncf': a job of 8 servers has no room at a load of 25 %, which is 4 of 16"),
        ({"model": [{"use": "dlrm", "servers": 0}]}, r"model\[0\]: servers: 0 is too small"),
        ({"model": [{"use": "dlrm", "weight": 0}]}, r"model\[0\]: weight: 0.* is too small"),
        ({"model": []}, "needs at least one"),
        ({"network": []}, "needs at least one"),
        ({"seeds": [1]}, r"seeds: has no place in a shared cluster \(seed stands in \[share\]\)"),
        ({"vary": {"degree": [1]}}, "vary: has no place"),
        ({"claim": [{"faster": "tree", "slower": "trees"}]}, "slower: no network 'trees'"),
        ({"networks": []}, "no section 'networks'"),
        ({"cluster": {"devices": [4, 8]}}, "servers must be equal"),
    ],
)
def test_bad_files(changes, message):
    with pytest.raises(TopoplanError, match=message):
        share_of(**changes)


# ── Draws ───────────────────────────────────────────────────────────────────────────────────────────────


@given(st.integers(0, 50), st.integers(0, 20), st.sampled_from(["random", "contiguous"]))
@settings(max_examples=40)
def test_draws_fill_the_cluster_with_jobs_apart(seed, trial, placement):
    share = share_of(share={"seed": seed, "placement": placement, "loads": [50]})
    jobs = draw(share, trial)
    assert jobs == draw(share, trial)
    hosts = np.concatenate([job.servers for job in jobs])
    assert sorted(hosts) == list(range(16))  # a job of two servers fits wherever any other left room
    for job in jobs:
        assert len(job.servers) == share.jobs[job.model].servers
        assert (np.diff(job.servers) > 0).all()
        assert 0 <= job.phase < 1
        if placement == "contiguous":
            assert (np.diff(job.servers) == 1).all()
    for load in (50, 75, 100):
        part = at_load(jobs, 16, load)
        assert part == jobs[: len(part)]
        assert sum(len(job.servers) for job in part) <= 16 * load / 100
        more = sum(len(job.servers) for job in jobs[: len(part) + 1])
        assert part == jobs or more > 16 * load // 100


def test_draws_differ_by_trial_and_follow_weights():
    share = share_of(model=[{"use": "ncf", "servers": 1, "weight": 9}, {"use": "dlrm", "servers": 1}])
    drawn = [job.model for trial in range(40) for job in draw(share, trial)]
    assert 0.05 < np.mean(drawn) < 0.16
    assert draw(share, 0) != draw(share, 1)


def test_a_job_that_does_not_fit_leaves_room_to_others():
    share = share_of(model=[{"use": "ncf", "servers": 8, "weight": 1e6}, {"use": "dlrm", "servers": 3}])
    sizes = [len(job.servers) for job in draw(share, 0)]
    assert sizes == [8, 8]
    share = share_of(model=[{"use": "ncf", "servers": 7, "weight": 1e6}, {"use": "dlrm", "servers": 2}])
    assert [len(job.servers) for job in draw(share, 0)] == [7, 7, 2]


# ── Jobs together ───────────────────────────────────────────────────────────────────────────────────────

GRAPH = reference.graph(("dense1", "dense2", "dense3"))
SIMULATE = Fluid().build()


def trunk(hosts):
    """Two switches with one slow link between them."""
    links = [(h, hosts + h % 2) for h in range(hosts)] + [(hosts, hosts + 1)]
    return Fabric.from_links(
        name="trunk",
        n_hosts=hosts,
        n_switches=2,
        links=links + [(b, a) for a, b in links],
        bandwidth=2 * [*[1e9] * hosts, 1e8],
        latency=1e-6,
    )


def job_plan(hosts, seed, slower=1.0):
    cluster = reference.cluster(hosts)
    space, rng = Space(GRAPH, cluster, reference.Costs()), np.random.default_rng(seed)
    strategy = PlacedStrategy(tuple(space.random_placement(op, rng) for op in range(3)))
    tasks = Lowering(GRAPH, cluster, reference.Costs()).lower(strategy)
    tasks = attrs.evolve(tasks, seconds=tasks.seconds * slower, size=tasks.size * 20)
    return JobPlan(taskgraph=tasks, alone=SIMULATE(tasks, star(hosts), cluster).makespan)


def network(fabric, hosts=16):
    jobs = (job_plan(4, 3), job_plan(8, 3, slower=5.0), job_plan(2, 3))
    return NetworkPlan(
        name="n",
        cluster=reference.cluster(hosts),
        fabric=fabric,
        jobs=jobs,
        simulate=SIMULATE,
        first_draw=0,
        target=None,
    )


class Fixed(Simulate):
    """A simulator under one draw of equal paths, whatever else is asked for."""

    def __init__(self, seed):
        self.simulate = SIMULATE.with_seed(seed)

    def __call__(self, taskgraph, fabric, cluster):
        return self.simulate(taskgraph, fabric, cluster)


JOBS = [Job(0, [0, 5, 6, 7], 0.25), Job(1, [1, 2, 3, 4, 8, 9, 10, 11], 0.5), Job(2, [12, 13], 0.0)]


def test_jobs_that_meet_nowhere_take_as_long_as_alone():
    plan = network(star(16))
    assert job_seconds(JOBS, plan) == pytest.approx([own.alone for own in plan.jobs], rel=1e-9)


def test_jobs_on_partitions_take_as_long_as_alone():
    plan = network(None)
    assert job_seconds(JOBS, plan) == [own.alone for own in plan.jobs]
    assert job_seconds([], network(star(16))) == []


def test_jobs_that_share_a_link_slow_each_other_down():
    plan = network(trunk(16))
    both = job_seconds(JOBS[:2], plan)
    for number in range(2):
        (own,) = job_seconds([JOBS[number]], plan)
        assert both[number] > own * 1.02


def test_times_are_means_over_fresh_draws_of_equal_paths():
    """Two switches above two: every message between these draws one of two equal paths."""
    links = [(h, 16 + h % 2) for h in range(16)] + [(16 + a, 18 + b) for a in range(2) for b in range(2)]
    twice = Fabric.from_links(
        name="two paths",
        n_hosts=16,
        n_switches=4,
        links=links + [(b, a) for a, b in links],
        bandwidth=2 * [*[1e9] * 16, *[1e8] * 4],
        latency=1e-6,
        max_paths=2,
    )
    single = [job_seconds(JOBS, attrs.evolve(network(twice), simulate=Fixed(seed))) for seed in range(2000, 2008)]
    assert (np.std(single, axis=0) > 0.01 * np.mean(single, axis=0)).any()
    assert job_seconds(JOBS, network(twice)) == pytest.approx(np.mean(single, axis=0), rel=1e-12)
    other = job_seconds(JOBS, attrs.evolve(network(twice), first_draw=8))
    assert other != pytest.approx(np.mean(single, axis=0), rel=1e-4)


@given(st.lists(st.floats(1e-4, 10), min_size=1, max_size=8))
def test_short_jobs_go_on_while_the_longest_one_runs(alone):
    times = iterations(alone)
    for own, count in zip(alone, times, strict=True):
        assert 1 <= count <= MOST_ITERATIONS
        assert count == MOST_ITERATIONS or count * own >= max(alone) * (1 - 1e-9)
        assert (count - 1) * own < max(alone)


def test_devices_of_hosts():
    cluster = Cluster.uniform(n_hosts=4, devices_per_host=3)
    assert devices_of(cluster, np.array([1, 3])).tolist() == [3, 4, 5, 9, 10, 11]


# ── Tables ──────────────────────────────────────────────────────────────────────────────────────────────


def test_means_and_tails():
    times = [
        JobTime(network="n", load=50, trial=0, model=model, seconds=seconds, alone=1.0)
        for model, seconds in (("a", 1.0), ("a", 2.0), ("b", 6.0))
    ]
    times.append(JobTime(network="n", load=100, trial=0, model="a", seconds=4.0, alone=2.0))
    half, full = load_results(times)
    assert (half.load, half.jobs, half.mean, half.most) == (50, 3, 3.0, 6.0)
    assert half.p99 == pytest.approx(np.percentile([1, 2, 6], 99))
    assert (half.slowdown, half.worst) == (3.0, 6.0)
    assert half.models == {"a": 1.5, "b": 6.0}
    assert (full.load, full.slowdown, full.mean) == (100, 2.0, 4.0)


def test_a_claim_is_judged_at_every_load():
    rows = load_results(
        [
            JobTime(network=network, load=load, trial=0, model="a", seconds=seconds, alone=1.0)
            for network, load, several in (("n", 50, [1, 3]), ("n", 100, [2, 2]), ("m", 50, [2, 4]), ("m", 100, [1, 3]))
            for seconds in several
        ]
    )
    (test,) = load_tests([Hypothesis(says="n before m", faster="n", slower="m")], rows)
    assert test.ratios[50] == (1.5, pytest.approx(3.98 / 2.98))
    assert test.ratios[100] == (1.0, pytest.approx(2.98 / 2))
    assert test.fails() == {}
    assert "holds or is equal within 1% at 2 of 2 loads" in str(test)
    (test,) = load_tests([Hypothesis(says="m before n", faster="m", slower="n")], rows)
    assert list(test.fails()) == [50, 100]
    assert "Fails at 50 % (mean 0.67, p99 0.75), 100 % (mean 1.00, p99 0.67)." in str(test)
    assert [place["load"] for place in test.as_json()["loads"]] == [50, 100]


def test_everything_that_is_written():
    share = share_of()
    plans = [attrs.evolve(network(star(16)), name="tree"), attrs.evolve(network(None), name="topoopt")]
    steps = []
    times = job_times(share, plans, steps.append)
    assert len(steps) == 2 * 2 * 3
    assert times == job_times(share, plans, steps.append)
    rows = load_results(times)
    assert [(row.network, row.load) for row in rows] == [(n, load) for n in ("tree", "topoopt") for load in (50, 100)]
    told = as_json(share, plans, times)
    assert [entry["shared"] for entry in told["networks"]] == [True, False]
    assert len(told["jobs"]) == sum(row["jobs"] for row in told["rows"])
    table = share_table(rows, plans)
    assert table.headers == ["network", "Gbps a host", "load", "jobs", "mean", "p99", "max", "slowdown", "worst"]
    assert table.cells(rows[0])[:4] == ["tree", "1 of 4 x 8", "50 %", str(rows[0].jobs)]


@pytest.mark.slow
def test_the_plot_has_means_and_dashed_tails_of_every_network():
    rows = load_results(job_times(share_of(), [attrs.evolve(network(None), name="topoopt")], lambda name: None))
    (axes,) = plot(rows).axes
    means, tails = axes.lines
    assert (means.get_label(), means.get_linestyle(), tails.get_linestyle()) == ("topoopt", "-", "--")
    assert means.get_xydata().tolist() == [[row.load, row.mean * 1e3] for row in rows]
    assert tails.get_xydata().tolist() == [[row.load, row.p99 * 1e3] for row in rows]
