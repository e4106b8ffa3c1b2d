"""What ``topoplan profile collectives`` writes is what the estimator ``hidup`` reads."""

from __future__ import annotations

import json

import pytest

from topoplan_command_profile.document import document
from topoplan_command_profile.worker import COLLECTIVES
from topoplan_engine import Choice, ClusterOptions, Experiment, RunOptions, optimize

#: Bytes/s of each collective, and a latency of a tenth of a millisecond.
BANDWIDTH = dict(zip(COLLECTIVES, (1e9, 2e9, 5e8, 1e10), strict=True))


@pytest.fixture
def file(tmp_path):
    """A file as if measured with two devices."""
    samples = {
        name: [(size, 1e-4 + size / bandwidth) for size in (10**5, 10**7)] for name, bandwidth in BANDWIDTH.items()
    }
    measured = {"samples": samples, "backend": "gloo", "device": "cpu", "world_size": 2, "torch": "2.9"}
    path = tmp_path / "measured.json"
    path.write_text(json.dumps(document(measured)))
    return path


def experiment(**options):
    return Experiment(
        model=Choice("bert-sgmoe", {"world-size": 2, "layers": 2}),
        cluster=ClusterOptions(devices=(2,)),
        estimator=Choice("hidup", options),
        searchers=["hidup"],
        run=RunOptions(budget=1),
    )


def test_measured_lines_price_as_the_same_options_do(file):
    by_hand = {f"{name}_bytes_per_s": int(bandwidth) for name, bandwidth in BANDWIDTH.items()}
    plans = [
        optimize(experiment(**options)).plan for options in ({"file": str(file)}, {**by_hand, "latency_us": 100.0})
    ]
    measured, typed = ((plan.provenance["reports"]["hidup"]["objective"], plan.timeline.makespan) for plan in plans)
    assert measured == pytest.approx(typed, rel=1e-6)
    assert list(plans[0].provenance["inputs"]) == ["measured.json"]


def test_another_number_of_devices_is_refused(file, run):
    status, _, err = run(
        "optimize", "alexnet", "--servers", "4", "-e", f"hidup:file={file}", "--batch-size", "64", "--budget", "0"
    )
    assert status == 2
    assert "measured with 2 devices, the cluster has 4" in err
