"""What plans do that their users may not expect is said: devices without work, groups over hosts, copied heads."""

from __future__ import annotations

import json

import pytest

import topoplan
from topoplan import Host, Machine
from topoplan_engine import ClusterOptions, Experiment, RunOptions, build_cluster, optimize
from topoplan_engine.experiment import Choice
from topoplan_engine.host_models import at_machine, slow_link_of_interfaces
from topoplan_engine.reporting.cautions import caution_rows
from topoplan_engine.reporting.printing import spelled_time
from topoplan_frontend_huggingface import HuggingFace
from topoplan_studies import compare
from topoplan_studies.notes import notes


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ({"tp": 8}, {"caution: heads of keys and values": r"each of 4 is on 2 devices"}),
        ({"tp": 4, "dp": 4}, {}),
        (
            {"tp": 16},
            {
                "caution: tensor parallelism": "tp=16 lies over 2 hosts",
                "caution: heads of keys and values": "each of 4 is on 4 devices",
            },
        ),
    ],
)
def test_what_a_plan_does_to_heads_and_hosts_is_said(tmp_path, stated, said) -> None:
    path = tmp_path / "config.json"
    keys = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 16}
    path.write_text(json.dumps({**keys, "model_type": "llama", "num_key_value_heads": 4, "vocab_size": 4096}))
    experiment = Experiment(
        model=HuggingFace(config=str(path), sequence_length=64),
        cluster=ClusterOptions(servers=2, machine="dgx-h100"),
        searchers=[Choice("stated", stated)],
        run=RunOptions(batch_size=16, budget=1, precision="bf16"),
    )
    rows = dict(caution_rows(optimize(experiment).plan))
    assert set(rows) == set(said)
    assert all(rows[label].startswith(text) for label, text in said.items())


@pytest.mark.parametrize(
    ("rate", "said"),
    [
        (400.0, None),
        (504.0, None),
        (800.0, "each of 800 Gbps is behind a link of 504.1 Gbps inside its host, by which it sends no more"),
    ],
)
def test_interfaces_that_are_faster_than_what_is_behind_them_are_said(rate, said) -> None:
    """The NIC of a DGX H100 has 16 lanes of PCIe 5: 32 GT/s each, of which 128 bits of 130 are data."""
    cluster = ClusterOptions(servers=2, machine="dgx-h100", interface_bandwidth_gbps=rate)
    plan = optimize(Experiment(model="ncf", cluster=cluster, run=RunOptions(batch_size=64, budget=0))).plan
    assert dict(caution_rows(plan)).get("caution: interfaces") == said


def test_machines_as_they_are_sold_have_no_interface_that_is_too_fast() -> None:
    host = Host.discover()
    for machine in host.components(Machine):
        if machine.name == "flexflow":  # whatever its file says
            continue
        device = {"device": "a100-80"} if machine.name == "server" else {}
        options, model = at_machine(ClusterOptions(servers=2, machine=machine.name, **device), host)
        if model is not None:
            assert slow_link_of_interfaces(build_cluster(options, host)) is None, machine.name


def test_a_comparison_says_which_interfaces_wait_for_their_host() -> None:
    tables = [{"name": "rails", "use": "rail-optimized"}, {"name": "panel", "use": "topoopt", "costs-as": "rails"}]
    document = {
        "model": [{"use": "ncf", "batch-size": 64}],
        "network": tables,
        "searcher": ["mcmc"],
        "budget": 0,
        "cluster": {"servers": 4, "machine": "dgx-h100"},
    }
    report = compare(document)
    (line,) = [line for line in notes(report.results, report.prices) if "sends" in line]
    assert line == "panel: an interface of 1,087 Gbps sends 504.1 at most, as the link inside the host behind it"


@pytest.mark.parametrize(
    ("servers", "batch", "said"),
    [
        (6, 64, "4 of 6 have nothing to do: a batch of 64 does not divide over 6"),
        (8, 64, None),
        (3, 4, "2 of 3 have nothing to do: a batch of 4 does not divide over 3"),
    ],
)
def test_devices_without_work_are_said(servers, batch, said) -> None:
    """Six hosts have no power of two as a factor but 2, so that data parallelism has two parts of 64 samples."""
    experiment = Experiment(
        model="alexnet", cluster=ClusterOptions(servers=servers), run=RunOptions(batch_size=batch, budget=0)
    )
    assert dict(caution_rows(optimize(experiment).plan)).get("caution: devices") == said


@pytest.mark.parametrize("gbps", [300, 3600])
def test_gpus_of_a_device_that_sum_several_gradients_at_a_time(gbps):
    """On one link they take what eight devices of one GPU take, which sum one behind the other."""
    options = {"servers": 1, "inter_gpu_bandwidth_gbps": gbps, "device": "h100", "batch_size": 8, "budget": 0}
    plan = topoplan.optimize("alexnet", searchers=["mcmc"], gpus_per_device=8, **options).plan
    apart = topoplan.optimize("alexnet", searchers=["mcmc"], gpus_per_server=8, **options).plan
    assert plan.timeline.makespan < apart.timeline.makespan * 0.9
    said = dict(caution_rows(plan))["caution: GPUs of a device"]
    assert f"the iteration takes {spelled_time(apart.timeline.makespan)} at least" in said
    assert "caution: GPUs of a device" not in dict(caution_rows(apart))


def test_gpus_of_a_device_that_hide_what_they_sum():
    options = {"servers": 1, "device": "h100", "batch_size": 2048, "budget": 0, "gpus_per_device": 8}
    plan = topoplan.optimize("alexnet", searchers=["mcmc"], **options).plan
    assert "caution: GPUs of a device" not in dict(caution_rows(plan))
