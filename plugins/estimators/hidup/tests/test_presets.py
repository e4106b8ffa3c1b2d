"""What the cost model takes from the cluster, and what from HiDup's released profile."""

from __future__ import annotations

import numpy as np
import pytest

from topoplan import Cluster, TopoplanError
from topoplan.model.taskgraph import Collective
from topoplan.testing import reference
from topoplan_engine import ClusterOptions, build_cluster
from topoplan_engine.precision import PrecisionSpeedups, in_precision
from topoplan_estimator_hidup import Hidup
from topoplan_estimator_hidup.bandwidths import FASTEST, bandwidths_of
from topoplan_estimator_hidup.cost import RELEASED

KINDS = list(RELEASED)
GATHER, REDUCE, SCATTER, EXCHANGE = KINDS


def cluster(hosts, each, *, out=1.25e9, inside=1e11, interfaces=1):
    return Cluster.uniform(
        n_hosts=hosts,
        devices_per_host=each,
        interfaces=interfaces,
        interface_bandwidth=out,
        inside_bandwidth=inside,
    )


def test_the_testbed_of_hidup_gives_the_bandwidths_that_it_measured():
    """Eight hosts over 9.71 Gbps (readme of HiDup): rings lose 12 to 19 % of them in practice, exchanges 4 %."""
    shares = {kind: RELEASED[kind] / value for kind, value in bandwidths_of(cluster(8, 1, out=9.71e9 / 8)).items()}
    assert shares == {
        GATHER: pytest.approx(0.883, abs=0.001),
        REDUCE: pytest.approx(0.882, abs=0.001),
        SCATTER: pytest.approx(0.815, abs=0.001),
        EXCHANGE: pytest.approx(0.964, abs=0.001),
    }


def test_bandwidths_by_hand():
    # The ring of 2 x 4 devices crosses both interfaces; a host sends 4 x 4 of 64 shares in an exchange.
    two = bandwidths_of(cluster(2, 4, out=4e9))
    assert two == {
        GATHER: round(4e9 * 8 / 7),
        REDUCE: round(4e9 * 8 / 14),
        SCATTER: round(4e9 * 8 / 7),
        EXCHANGE: 16e9,
    }
    assert bandwidths_of(cluster(2, 4, out=1e9, interfaces=4)) == two
    # One host: everything stays inside.
    assert bandwidths_of(cluster(1, 4, inside=3e9))[GATHER] == 4e9
    assert bandwidths_of(cluster(1, 4, inside=3e9))[EXCHANGE] == 16e9
    # Slow devices inside of fast hosts are what the ring waits for.
    assert bandwidths_of(cluster(2, 4, out=1e11, inside=1e9))[GATHER] == round(1e9 * 8 / 7)
    assert set(bandwidths_of(cluster(1, 1)).values()) == {FASTEST}


@pytest.mark.parametrize("kind", KINDS)
def test_collectives_follow_the_cluster_unless_given(kind):
    def seconds(gbps, **given):
        costs = Hidup(latency_us=0.0, **given).build(reference.graph(), cluster(2, 4, out=gbps * 1e9 / 8))
        return costs.collective(kind, 10**9)

    assert seconds(10) == pytest.approx(2 * seconds(20), rel=1e-6)
    assert seconds(10, preset="released") == seconds(20, preset="released") == 10**9 / RELEASED[kind]
    assert seconds(10, **{f"{kind.name.lower()}_bytes_per_s": 10**8}) == 10.0


def test_the_released_rate_takes_three_times_as_long():
    def forward(**given):
        return Hidup(**given).build(reference.graph(), reference.cluster()).price(0, (1, 1, 1), np.zeros(1, np.int32))

    default, released = forward(), forward(preset="released")
    assert released.forward[0] == pytest.approx(3 * default.forward[0])
    # The rate is of a whole iteration.  The released preset takes it for the forward pass alone.
    assert released.forward[0] == pytest.approx(default.forward[0] + default.backward[0])


def test_what_is_assumed_is_said():
    def notes(**given):
        return Hidup(**given).build(reference.graph(), reference.cluster()).assumptions["notes"]

    rate = "4.14 TFLOP/s of forward FLOPs over the time of an iteration, as HiDup measured on V100"
    assert notes()["rate of a device"] == rate
    assert notes(preset="released")["rate of a device"].startswith(rate + "; taken for the forward pass alone, so that")
    assert "3 times those that were measured" in notes(preset="released")["rate of a device"]
    assert notes(device_flops=10**13)["rate of a device"].endswith("over the time of an iteration, as given")
    assert notes()["bandwidths of collectives"] == "rings and exchanges over the links of the cluster"
    assert notes(all_gather_bytes_per_s=1)["bandwidths of collectives"].startswith("as given; others: rings")
    four = {f"{kind.name.lower()}_bytes_per_s": 1 for kind in Collective if kind in RELEASED}
    assert notes(**four)["bandwidths of collectives"] == "as given"


def test_mixed_precision_is_as_fast_as_the_published_peaks():
    graph, v100 = in_precision(reference.graph(), "fp16"), build_cluster(ClusterOptions(servers=1, device="V100"))
    costs = Hidup().build(graph, v100)
    assert isinstance(costs, PrecisionSpeedups)
    factors, note = costs.speedups()
    assert set(factors.round(6).tolist()) <= {round(125 / 15.7, 6), 2.0}
    assert "matrix products 8.0 times as fast as in fp32 (ratio of the published peaks of V100" in note
    assert Hidup().build(graph, Cluster.uniform(n_hosts=1)).speedups() is None  # of a cluster without machines
    with pytest.raises(TopoplanError, match=r"V100 has no bf16 \(it has fp32, fp16\)"):
        Hidup().build(in_precision(reference.graph(), "bf16"), v100).speedups()
