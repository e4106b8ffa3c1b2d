"""Properties of small networks on 10 and 1,000 times as many hosts: bytes are conserved, a link more slows nothing.

Property tests draw networks of 2 to 6 hosts (`engine/tests/test_simulate_properties.py`), and plans that are folded are
beside their whole iterations on up to 512 devices (`tests/test_folded_plans.py`).
"""

from __future__ import annotations

import json

import attrs
import numpy as np
import pytest

from topoplan import Cluster, Host, State
from topoplan_engine import ClusterOptions, problem_on
from topoplan_engine.experiment import build_cluster
from topoplan_engine.search.evaluator import Evaluator
from topoplan_samples.fabrics import star
from topoplan_samples.tasks import collective, task_graph, transfer
from topoplan_searcher_stated.construct import strategy_of
from topoplan_searcher_stated.settings import Settings
from topoplan_simulator_flexnet import Flexnet
from topoplan_simulator_fluid import Fluid

CONFIG = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "intermediate_size": 1024,
    "vocab_size": 1024,
    "max_position_embeddings": 128,
    "hidden_act": "silu",
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
SIMULATORS = {"coupled": Fluid(), "stepped": Fluid(level="stepped"), "flexnet": Flexnet()}
ALMOST = 1 + 1e-9


def faster_links(fabric, host):
    """Return a fabric in which a host has another cable beside each one."""
    own = (fabric.link_src == host) | (fabric.link_dst == host)
    return attrs.evolve(
        fabric,
        link_count=np.where(own, 2 * fabric.link_count, fabric.link_count),
        link_bandwidth=np.where(own, 2 * fabric.link_bandwidth, fabric.link_bandwidth),
    )


class Planned:
    """A plan of experts in four stages on a network, and what it takes there and on others."""

    def __init__(self, topology, servers, folder, machine=""):
        path, host = folder / "config.json", Host.discover()
        path.write_text(json.dumps(CONFIG))
        frontend = host.make("frontend", "huggingface", {"config": str(path), "sequence_length": 128})
        graph = frontend.build(servers // 4 * 64)
        inside = {"machine": machine} if machine else {"gpus_per_server": 8, "degree": 1, "device": "h100"}
        cluster = build_cluster(ClusterOptions(servers=servers, **inside), host)
        costs = host.make("estimator", "roofline").build(graph, cluster)
        name, _, options = topology.partition(":")
        words = dict(word.split("=") for word in options.split(",") if word)
        self.problem = problem_on(graph, cluster, costs, host.make("topology", name, words))
        self.fabric = self.problem.build_fabric(None, np.random.default_rng(0))
        settings = Settings(tp=8, ep=8, pp=4, zero=1, micro_batch=1)
        self.strategy, _ = strategy_of(settings, graph, cluster.n_devices)
        self.simulator = host.make("simulator", "fluid").build()

    def timeline(self, fabric):
        return Evaluator(self.problem, self.simulator, "ignore").plan(State(self.strategy, fabric), {}).timeline


@pytest.mark.parametrize(
    ("topology", "machine", "servers"),
    [
        ("bigswitch", "", 128),
        ("fattree", "dgx-h100", 128),
        ("rail-optimized:ports=32", "dgx-h100", 128),
        ("rail-only", "dgx-h100", 128),
        ("bigswitch", "", 6_144),
        pytest.param("fattree", "dgx-h100", 12_288, marks=pytest.mark.slow),  # 1.5 GB
        pytest.param("rail-optimized:ports=128", "dgx-h100", 12_288, marks=pytest.mark.slow),  # 1.5 GB
    ],
)
def test_switches_pass_on_what_they_get_and_hosts_get_what_hosts_send(topology, machine, servers, tmp_path):
    plan = Planned(topology, servers, tmp_path, machine)
    fabric, link_bytes = plan.fabric, plan.timeline(plan.fabric).link_bytes[: plan.fabric.n_links]
    sent, got = (np.bincount(ends, link_bytes, fabric.n_nodes) for ends in (fabric.link_src, fabric.link_dst))
    assert sent[: fabric.n_hosts].min() > 0
    np.testing.assert_allclose(sent[fabric.n_hosts :], got[fabric.n_hosts :], rtol=1e-9)
    assert sent[: fabric.n_hosts].sum() == pytest.approx(got[: fabric.n_hosts].sum(), rel=1e-9)


@pytest.mark.parametrize("servers", [128, 4_096])
def test_another_cable_of_a_host_slows_no_plan_on_a_switch(servers, tmp_path):
    plan = Planned("bigswitch", servers, tmp_path)
    before, after = (plan.timeline(fabric) for fabric in (plan.fabric, faster_links(plan.fabric, 5)))
    assert after.makespan <= before.makespan * ALMOST
    np.testing.assert_allclose(after.link_bytes, before.link_bytes, rtol=1e-9)


@pytest.mark.parametrize("name", SIMULATORS)
@pytest.mark.parametrize("hosts", [40, 4_000])
def test_another_host_or_cable_slows_no_message_that_meets_no_other(name, hosts):
    """Hosts in pairs send to each other, and four of them sum."""
    draw, half, simulate = np.random.default_rng(hosts), hosts // 2, SIMULATORS[name].build()
    tasks = [transfer(host, host + half, int(size)) for host, size in enumerate(draw.integers(1, 1 << 22, half - 4))]
    tasks.append(collective(range(half - 4, half), 1 << 20))
    finish = []
    for more, fabric in enumerate((star(hosts, 1.25e9), star(hosts + 1, 1.25e9), faster_links(star(hosts, 1.25e9), 3))):
        cluster = Cluster.uniform(n_hosts=hosts + (more == 1))
        finish.append(simulate(task_graph(tasks, [], cluster.n_devices), fabric, cluster).finish)
    np.testing.assert_array_equal(finish[1], finish[0])
    assert (finish[2] <= finish[0] * ALMOST).all()
    assert finish[0][0] > 0
