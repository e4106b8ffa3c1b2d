"""Measured collectives in place of HiDup's: read from a file, with messages that name what is wrong."""

from __future__ import annotations

import json

import pytest

from topoplan import TopoplanError
from topoplan.model.taskgraph import Collective
from topoplan.testing import reference
from topoplan_estimator_hidup import Hidup

#: Bytes/s and seconds of each collective.
LINES = {"all_gather": (1e9, 1e-4), "all_reduce": (5e8, 2e-4), "reduce_scatter": (2e9, 0.0), "all_to_all": (1e10, 1e-5)}


def content(**changes):
    """A file for the four devices of the reference cluster."""
    table = {
        name: {"bandwidth_bytes_per_s": bandwidth, "latency_s": latency, "samples": []}
        for name, (bandwidth, latency) in LINES.items()
    }
    return {"format": "topoplan-collectives", "version": 1, "world_size": 4, "collectives": table, **changes}


def costs(path, **given):
    return Hidup(file=str(path), **given).build(reference.graph(), reference.cluster())


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "c.json"
    path.write_text(json.dumps(content()))
    return path


def test_collectives_take_what_was_measured(file):
    priced = costs(file)
    for name, (bandwidth, latency) in LINES.items():
        assert priced.collective(Collective[name.upper()], 10**6) == 10**6 / bandwidth + latency


def test_noise_is_that_of_the_seed(file):
    one, two = (costs(file, noise=0.2, noise_seed=seed) for seed in (1, 2))
    assert one.collective(Collective.ALL_REDUCE, 10**9) != two.collective(Collective.ALL_REDUCE, 10**9)
    assert 0.8 <= 2.0 / (one.collective(Collective.ALL_REDUCE, 10**9) - 2e-4) <= 1.2 + 1e-6


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ([], "format: holds no collectives"),
        (content(format="other"), "format: holds no collectives"),
        (content(version=2), "version: 2 cannot be read"),
        (content(world_size=8), "world_size: measured with 8 devices, the cluster has 4"),
        (content(collectives=1), "collectives: missing"),
        (content(collectives={}), "collectives.all_gather: missing"),
        (
            content(collectives={"all_gather": {"latency_s": -1, "bandwidth_bytes_per_s": 1}}),
            "collectives.all_gather.latency_s: -1",
        ),
        (
            content(collectives={"all_gather": {"latency_s": 0, "bandwidth_bytes_per_s": "fast"}}),
            "collectives.all_gather.bandwidth_bytes_per_s: 'fast'",
        ),
        (
            content(collectives={"all_gather": {"latency_s": 0, "bandwidth_bytes_per_s": float("inf")}}),
            "collectives.all_gather.bandwidth_bytes_per_s: inf",
        ),
    ],
)
def test_what_is_wrong_is_named(tmp_path, document, told):
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(document))
    with pytest.raises(TopoplanError) as refused:
        costs(path)
    assert str(refused.value).startswith(f"{path}: {told}")


def test_no_json_and_no_file(tmp_path):
    path = tmp_path / "bad.json"
    path.write_bytes(b"\xff{")
    with pytest.raises(TopoplanError, match="is not JSON"):
        costs(path)
    with pytest.raises(TopoplanError, match="cannot be read"):
        costs(tmp_path / "none.json")
