"""Plans on an H100: what a part takes, how launches count, whose table comes first, and what is refused."""

from __future__ import annotations

import json

import attrs
import numpy as np
import pytest

from topoplan import Cluster, Host, TopoplanError
from topoplan.plugin.components import Frontend
from topoplan_engine.experiment import Choice, Experiment
from topoplan_engine.options import ClusterOptions
from topoplan_engine.precision import in_precision
from topoplan_engine.search.setup import chosen_components
from topoplan_estimator_kernels import KernelTimes
from topoplan_estimator_kernels.cost import KernelCosts
from topoplan_operator_times.parts import gradients_of, part_shape
from topoplan_operator_times.table import Bench, PartTimes, Table, Times, Work, write

HOST = Host.discover()
CLUSTER = Cluster.uniform(n_hosts=4, device_preset="H100")
ONE = np.zeros(1, np.int32)


def model(name, batch_size, precision="fp32"):
    """The model of a frontend."""
    return in_precision(HOST.make(Frontend, name, {}).build(batch_size), precision)


def costs(graph, **options):
    """The prices of a model."""
    return KernelTimes(**options).build(graph, CLUSTER)


def seconds(graph, **options):
    """Seconds of a whole iteration on one device: forward, backward, step."""
    prices = costs(graph, **options)
    total = 0.0
    for op, operator in enumerate(graph.operators):
        whole = (1,) * len(operator.dims)
        price = prices.price(op, whole, ONE)
        step = prices.optimizer_seconds(op, whole, ONE)
        total += price.forward.sum() + price.backward.sum() + (0 if step is None else step.sum())
    return total


# Measured as a CUDA graph on an H100, experiments/one_gpu/iterations.csv.
@pytest.mark.parametrize(
    ("name", "batch_size", "precision", "measured"),
    [("vgg16", 64, "bf16", 31.739e-3), ("candle-uno", 1024, "fp32", 46.504e-3), ("resnet50", 64, "fp32", 70.756e-3)],
)
def test_iterations_are_those_that_were_measured(name, batch_size, precision, measured):
    assert seconds(model(name, batch_size, precision)) == pytest.approx(measured, rel=0.25)


def test_precision_says_what_products_take():
    graph = model("candle-uno", 1024)
    fp32, tf32 = seconds(graph), seconds(graph, precision="tf32")
    assert tf32 < 0.5 * fp32
    assert costs(graph, precision="tf32").assumptions["precision"] == "tf32"
    with pytest.raises(TopoplanError, match="precision: bf16 is not that of the model, fp32"):
        costs(graph, precision="bf16")


def test_where_operators_are_small_python_counts():
    graph = model("moe", 256)
    stream, graphs, eager = (seconds(graph, launch=way, optimizer="none") for way in ("stream", "graphs", "eager"))
    assert graphs < stream < eager / 3
    large = model("candle-uno", 1024)
    assert seconds(large, launch="eager") == pytest.approx(seconds(large, launch="stream"), rel=1e-6)


def test_the_longer_of_device_and_host_counts_over_an_iteration():
    graph = model("transformer", 64, "bf16")
    launching = costs(graph, launch="eager").launching
    assert launching.host.sum() > launching.device.sum()
    total = seconds(graph, launch="eager", optimizer="none")
    assert total == pytest.approx(launching.host.sum(), rel=1e-3)


def test_parts_take_less_and_many_parts_no_less_than_a_launch():
    prices = costs(model("vgg16", 64))
    conv = prices.graph.operators[1]
    times = [
        prices.price(1, tuple(parts if k == conv.sample_dim else 1 for k in range(len(conv.dims))), np.arange(parts))
        for parts in (1, 2, 4)
    ]
    forward = [price.forward[0] for price in times]
    assert forward[0] > forward[1] > forward[2] > forward[0] / 8
    assert [len(price.forward) for price in times] == [1, 2, 4]


def test_a_table_of_this_machine_comes_first(tmp_path):
    graph = model("alexnet", 64)
    shape = part_shape(graph.operators[0], (1,) * len(graph.operators[0].dims), gradients_of(graph)[0])
    half = Times(0.5, 0.5, 0.5)
    row = PartTimes(
        operator="a/b",
        shape=shape,
        work=Work(flops=1, traffic=1, backward=(1, 1, 1)),
        repeats=1,
        forward=half,
        backward=half,
    )
    write(tmp_path / "table.json", Table(Bench("H100", "2.11", 0, "fp32"), {shape: row}))
    prices = costs(graph, table=str(tmp_path / "table.json"), launch="stream")
    whole = (1,) * len(graph.operators[0].dims)
    assert prices.price(0, whole, ONE).forward.tolist() == [0.5]
    assert prices.price(2, (1,) * len(graph.operators[2].dims), ONE).forward[0] < 0.01
    with pytest.raises(TopoplanError, match=r"table: .*table.json was measured in fp32, and the model is in bf16"):
        costs(model("alexnet", 64, "bf16"), table=str(tmp_path / "table.json"))


def test_the_optimizer_is_that_of_the_model():
    graph = model("candle-uno", 64)
    adam, sgd = (
        costs(attrs.evolve(graph, optimizer=name)).optimizer_seconds(0, (1,) * len(graph.operators[0].dims), ONE)
        for name in ("adam", "sgd")
    )
    assert adam[0, 0] > 2 * sgd[0, 0]
    assert costs(graph, optimizer="none").optimizer_seconds(0, (1,) * len(graph.operators[0].dims), ONE) is None


def llama(tmp_path, precision):
    """One layer of a Llama of 4096 channels."""
    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 1, "num_attention_heads": 32}
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "llama", "vocab_size": 32000, "num_key_value_heads": 8, **sizes}))
    graph = HOST.make(Frontend, "huggingface", {"config": str(config), "sequence-length": 4096}).build(2)
    return in_precision(graph, precision)


def test_products_with_weights_run_in_fp8(tmp_path):
    graph = llama(tmp_path, "bf16")
    plain, fast = (costs(graph, fp8=fp8) for fp8 in (False, True))
    gains = {}
    for op, operator in enumerate(graph.operators):
        whole = (1,) * len(operator.dims)
        before, after = (float(prices.price(op, whole, ONE).forward[0]) for prices in (plain, fast))
        if before:
            gains["head" if "lm_head" in operator.name else operator.kind] = before / after
    assert gains["scaled_dot_product_attention"] == gains["rms_norm"] == 1
    assert gains["head"] == 1  # a loss reads it
    assert 1.1 < gains["linear"] < 2
    assert fast.assumptions["fp8"] == "products of layers and experts with weights"
    with pytest.raises(TopoplanError, match="fp8: needs a device that has it and a model in bf16 or fp16"):
        costs(llama(tmp_path, "fp32"), fp8=True)


def test_flash_attention_2_takes_longer_on_hopper(tmp_path):
    graph = llama(tmp_path, "bf16")
    (op,) = (i for i, operator in enumerate(graph.operators) if operator.kind == "scaled_dot_product_attention")
    whole = (1,) * len(graph.operators[op].dims)
    fused, slower = (costs(graph, attention=word).price(op, whole, ONE) for word in ("fused", "flash2"))
    assert slower.forward[0] / fused.forward[0] == pytest.approx(1.75, rel=0.01)
    assert slower.backward[0] / fused.backward[0] == pytest.approx(1.625, rel=0.01)
    assert costs(graph, attention="flash2").assumptions["attention"] == "flash2"
    with pytest.raises(TopoplanError, match="attention flash2: is known beside others on h100, h200, h800 alone, not"):
        costs(graph, attention="flash2", device="b200")


@pytest.mark.parametrize(
    ("model_name", "machine", "estimator"),
    [
        ("huggingface", "dgx-a100", "kernels"),
        ("huggingface", "gb200-nvl72", "kernels"),
        ("huggingface", "v100", "roofline"),
        ("huggingface", None, "roofline"),
        ("transformer", "dgx-h100", "roofline"),
    ],
)
def test_language_models_on_machines_with_constants_are_priced_by_them(model_name, machine, estimator):
    options = HOST.get(Frontend, model_name).example
    experiment = Experiment(model=Choice(model_name, options), cluster=ClusterOptions(machine=machine))
    assert chosen_components(HOST, experiment).estimator.name == estimator


def test_devices_without_kernels_are_refused():
    graph = model("alexnet", 64)
    others = Cluster.uniform(n_hosts=1, device_preset="V100")
    with pytest.raises(TopoplanError, match=r"device: there are no constants of v100 \(have: h100, h200"):
        KernelTimes().build(graph, others)
    priced = KernelTimes(device="h100").build(graph, others)
    assert isinstance(priced, KernelCosts)
    assert priced.assumptions["device"] == "h100"
