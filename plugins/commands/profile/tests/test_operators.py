"""Times of operators: distinct parts, tables that a run continues, layer profiles; torch itself where it is there."""

from __future__ import annotations

import importlib.util
import json
import weakref

import pytest

from topoplan import Cluster, Host, TopoplanError
from topoplan.cli import main
from topoplan.plugin.components import Frontend
from topoplan_command_profile import iteration, operators_command
from topoplan_command_profile.kernels import KERNELS
from topoplan_command_profile.profiling import all_cuts, flexnet_entries, load, parts_of, time_parts
from topoplan_command_profile.torch_timer import Runs, check_kinds
from topoplan_operator_times.parts import gradients_of, part_shape
from topoplan_operator_times.table import Bench, Table, read
from topoplan_operators import GraphBuilder

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
BENCH = Bench("some processor", "2.9", 2, "fp32")
CLUSTER = Cluster.uniform(n_hosts=4)


class FakeTimer:
    """Takes as many microseconds as a part has elements of output, and remembers the parts."""

    bench = BENCH

    def __init__(self, *options, stop_after=None):
        self.options = options
        self.parts = []
        self.stop_after = stop_after

    def __call__(self, part):
        if len(self.parts) == self.stop_after:
            raise KeyboardInterrupt
        self.parts.append(part)
        seconds = part.outputs[0].nbytes * 1e-6
        return Runs([seconds, 2 * seconds, 3 * seconds], [4 * seconds] * 3 if any(part.gradients) else [0.0] * 3)


def small_graph(dialect="standard"):
    builder = GraphBuilder("small", 8, dialect)
    x = builder.input((64,))
    for _ in range(4):
        x = builder.linear(x, 64)
    builder.softmax(builder.relu(x))
    return builder.build()


def test_every_cut_of_the_search_space_and_every_shape_once(tmp_path):
    graph = small_graph()
    parts = parts_of(graph, all_cuts(graph, CLUSTER))
    timer, table = FakeTimer(), Table(BENCH, {})
    assert time_parts(graph, parts, table, tmp_path / "t.json", timer) == len(timer.parts)
    assert len(timer.parts) == len(set(timer.parts)) == len(table.rows)
    assert {part.shape for part in parts} == set(timer.parts)
    assert (len(parts), len(timer.parts)) == (49, 29), "three linear layers of ten cuts are alike"
    for op in range(len(graph.operators)):
        assert {part.degrees for part in parts if part.op == op} == set(all_cuts(graph, CLUSTER)(op))
    assert any(part.degrees[2] > 1 for part in parts if graph.operators[part.op].kind == "linear")


def test_a_row_has_quartiles_and_work(tmp_path):
    graph = small_graph()
    table = Table(BENCH, {})
    parts = parts_of(graph, lambda op: [(1,) * len(graph.operators[op].dims)])
    time_parts(graph, parts, table, tmp_path / "t.json", FakeTimer())
    row = table.rows[parts[1].shape]
    assert row.operator == "small/linear2"
    unit = 8 * 64 * 4 * 1e-6
    assert (row.forward.low, row.forward.median, row.forward.high) == pytest.approx((1.5 * unit, 2 * unit, 2.5 * unit))
    assert row.work.flops == 2 * 8 * 64 * 64 + 8 * 64
    assert row.work.backward == (2, 2, 2)
    assert read(tmp_path / "t.json").rows[parts[1].shape].repeats == 3


def test_an_interrupted_run_keeps_what_it_timed_and_the_next_one_goes_on(tmp_path):
    graph, path = small_graph(), tmp_path / "t.json"
    parts = parts_of(graph, all_cuts(graph, CLUSTER))
    first = FakeTimer(stop_after=5)
    with pytest.raises(KeyboardInterrupt):
        time_parts(graph, parts, load(path, BENCH), path, first)
    assert set(read(path).rows) == set(first.parts)
    second = FakeTimer()
    time_parts(graph, parts, load(path, BENCH), path, second)
    assert not set(first.parts) & set(second.parts)
    assert set(read(path).rows) == {part.shape for part in parts}


def test_a_table_of_another_device_is_refused(tmp_path):
    graph, path = small_graph(), tmp_path / "t.json"
    time_parts(graph, parts_of(graph, all_cuts(graph, CLUSTER)), load(path, BENCH), path, FakeTimer())
    message = (
        r"was measured on some processor, 2 threads, fp32, torch 2.9; this is other, bf16, torch 2.9 \(name another"
    )
    with pytest.raises(TopoplanError, match=message):
        load(path, Bench("other", "2.9", 0, "bf16"))


def test_flexnets_file_has_the_first_operator_of_each_name(tmp_path):
    graph = small_graph("flexnet")
    parts, table = parts_of(graph, all_cuts(graph, CLUSTER)), Table(BENCH, {})
    time_parts(graph, parts, table, tmp_path / "t.json", FakeTimer())
    entries = flexnet_entries(graph, parts, table)
    assert [(entry.name, entry.cut) for entry in entries if entry.name == "Dense_64_64"] == [
        ("Dense_64_64", (1, 1)),
        ("Dense_64_64", (2, 1)),
        ("Dense_64_64", (4, 1)),
    ]
    assert {entry.name for entry in entries} == {"Dense_64_64", "ElementUnary_13", "Softmax"}
    assert entries[0].backward == 0, "the first layer has no gradient of its input here"


def test_a_kind_without_a_kernel_is_named():
    with pytest.raises(TopoplanError, match=r"operator 'odd': kind 'sort' cannot be timed with torch \(it can time"):
        check_kinds([("fine", "linear"), ("odd", "sort")])


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Run a command with a fake timer; return (exit status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(operators_command, "TorchTimer", FakeTimer)
    monkeypatch.setattr(operators_command, "check_torch", lambda word: None)

    def run(*args):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([*map(str, args)])
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    return run


ALEXNET = ("alexnet", "--batch-size", 8)


def test_operators_writes_a_table_and_flexnets_file(run, tmp_path):
    words = ("profile", "operators", *ALEXNET, "-o", "dialect=flexnet", "--servers", 4)
    status, out, err = run(*words)
    assert status == 0
    assert "39 cuts of 13 operators" in err
    assert (
        "to plan with them: topoplan optimize alexnet -o dialect=flexnet --batch-size 8 --servers 4 -e measured" in out
    )
    content = json.loads((tmp_path / "measure_8_4.json").read_text())
    assert (content["batch_size"], content["ngpus"]) == (8, 4)
    cuts = {f"{axes}-{parts}" for axes in ("4-1-1-1", "2-1") for parts in (1, 2, 4)}
    assert {entry["pc_str"] for entry in content["measurements"]} == cuts
    status, out, _ = run(*words, "--json", "--flexnet", "other.json")
    summary = json.loads(out)
    assert (summary["timed_now"], summary["flexnet"]) == (0, "other.json")
    assert json.loads((tmp_path / "other.json").read_text()) == content


def test_ctrl_c_ends_the_command_and_the_same_one_goes_on(run, monkeypatch, tmp_path):
    words = ("profile", "operators", *ALEXNET, "-o", "dialect=flexnet", "--servers", 4)
    monkeypatch.setattr(operators_command, "TorchTimer", lambda *options: FakeTimer(stop_after=7))
    status, out, _ = run(*words)
    assert (status, out) == (130, "")
    assert [path.name for path in tmp_path.iterdir()] == ["operators.json"]
    monkeypatch.setattr(operators_command, "TorchTimer", FakeTimer)
    status, out, err = run(*words)
    assert status == 0
    assert "7 of them in operators.json already" in err
    assert "39 parts, 32 of them timed now" in out


def test_a_model_that_flexnet_lacks_gets_a_table_alone(run, tmp_path):
    options = (f"-o{key}={value}" for key, value in Host.discover().get(Frontend, "bert-sgmoe").example.items())
    words = ("profile", "operators", "bert-sgmoe", *options, "--servers", 2)
    status, out, _ = run(*words)
    assert status == 0
    assert "no file of FlexNet" in out
    assert [path.name for path in tmp_path.iterdir()] == ["operators.json"]
    status, out, err = run(*words, "--flexnet", "f.json")
    assert (status, out) == (2, "")
    assert "--flexnet: FlexNet has no name for operator 'embedding' (token_embedding)" in err


def test_layers_writes_a_profile_with_its_batch_in_its_name(run, tmp_path):
    status, out, _ = run("profile", "layers", *ALEXNET)
    assert status == 0
    assert "topoplan optimize torchgraph -o file=alexnet-pbs-8.txt -s pipeline" in out
    first, *_, last = (tmp_path / "alexnet-pbs-8.txt").read_text().splitlines()
    assert first.startswith("node1 -- conv2d(conv1) -- forward_compute_time=")
    assert first.endswith(f"activation_size={8 * 64 * 55 * 55 * 4:.1f}, parameter_size={(64 * 3 * 121 + 64) * 4:.3f}")
    assert last == "\tnode12 -- node13"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--repeats", 0), "--repeats: 0 is too small"),
        (("--table", "t.json", "--flexnet", "t.json"), "both write to it"),
        (("--table", "missing/t.json"), "missing does not exist"),
        (("--batch-size", 8, "-o", "nonsense=1"), "nonsense"),
    ],
)
def test_bad_words_are_named_and_nothing_is_written(run, tmp_path, words, message):
    status, out, err = run("profile", "operators", "alexnet", *words)
    assert (status, out) == (2, "")
    assert message in err
    assert not list(tmp_path.iterdir())


def test_missing_torch_is_said_before_anything_is_written(run, monkeypatch, tmp_path):
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "torch" else find(name, *more))
    for words in (("operators", *ALEXNET), ("layers", *ALEXNET), ("device", *ALEXNET)):
        status, out, err = run("profile", *words)
        assert (status, out) == (2, "")
        assert f"profile {words[0]}: measures with PyTorch, which is not installed (pip install torch" in err
    assert not list(tmp_path.iterdir())


def test_a_model_with_an_opaque_operator_is_refused(run):
    status, out, err = run("profile", "operators", "torchgraph", "-o", "profile=bert-48")
    assert (status, out) == (2, "")
    assert "kind 'layer' cannot be timed with torch" in err


#: Small models that have every kind of operator between them.
SMALL = {
    "alexnet": {},
    "bert-sgmoe": None,
    "dlrm": {"arch-embedding-size": "50-50"},
    "moe": {},
    "moe:dialect=flexnet": {"dialect": "flexnet"},
    "ncf": {"unum-per-table": 50, "inum-per-table": 50},
    "transformer": {"num-layers": 1, "hidden-size": 16, "num-heads": 4, "sequence-length": 4},
    "vit-switch": None,
}
#: Small models of transformers, by their configurations.
_SIZES = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "vocab_size": 32,
}
CONFIGURATIONS = {
    "bert": _SIZES,
    "gpt2": {"n_embd": 16, "n_layer": 1, "n_head": 4, "vocab_size": 32},
    "mixtral": {**_SIZES, "num_key_value_heads": 2, "num_local_experts": 4},
    "qwen3": {**_SIZES, "num_key_value_heads": 2, "head_dim": 4, "tie_word_embeddings": True},
    "vit": {**_SIZES, "image_size": 16, "patch_size": 8},
}


def small_model(name, folder):
    host, frontend = Host.discover(), name.partition(":")[0]
    if name in CONFIGURATIONS:
        config = folder / "config.json"
        config.write_text(json.dumps({"model_type": name, **CONFIGURATIONS[name]}))
        options = {"config": str(config), **({} if name == "vit" else {"sequence-length": 8})}
        return host.make(Frontend, "huggingface", options).build(4)
    options = SMALL[name]
    cls = host.get(Frontend, frontend)
    return host.make(Frontend, frontend, dict(cls.example) if options is None else options).build(4)


@needs_torch
@pytest.mark.parametrize("name", [*SMALL, *CONFIGURATIONS])
def test_torch_makes_what_operators_say_and_times_every_cut(name, tmp_path):
    import torch

    from topoplan_command_profile.torch_timer import TorchTimer

    graph = small_model(name, tmp_path)
    timer = TorchTimer("cpu", "fp32", 0, 1)
    for op, gradients in zip(graph.operators, gradients_of(graph), strict=True):
        shape = part_shape(op, (1,) * len(op.dims), gradients)
        outcome = KERNELS[op.kind](torch, shape, *timer.tensors(shape))
        outputs = outcome if isinstance(outcome, tuple) else (outcome,)
        assert [tuple(y.shape) for y in outputs] == [y.shape for y in op.outputs], op.name
    if name != "alexnet":  # whose cuts take long
        for shape in dict.fromkeys(part.shape for part in parts_of(graph, all_cuts(graph, Cluster.uniform(n_hosts=2)))):
            runs = timer(shape)
            assert len(runs.forward) == len(runs.backward) == 1
            assert min(runs.forward) > 0


@needs_torch
def test_an_iteration_forgets_outputs_when_they_were_read(monkeypatch):
    import torch

    from topoplan_command_profile.torch_timer import TorchTimer

    builder = GraphBuilder("sums", 8)
    x = builder.linear(builder.input((64,)), 64)
    for _ in range(4):
        x = builder.add(x, x)
    references = []

    def add(*words):
        y = torch.add(*words[2])
        references.append(weakref.ref(y))
        return y

    monkeypatch.setattr(iteration, "KERNELS", {**KERNELS, "add": add})
    chain = iteration.Chain.of(torch, TorchTimer("cpu", "fp32", 0, 1), builder.build())
    loss = chain.loss()
    assert len(chain.data) == 1, "of all inputs, only the first is data"
    assert [reference() for reference in references] == [None] * 4, "a sum needs nothing for its backward pass"
    loss.backward()
    assert all(weight.grad is not None for weight in chain.weights[0])


@needs_torch
def test_a_part_that_does_not_fit_has_no_times(monkeypatch):
    from topoplan_command_profile.torch_timer import TorchTimer

    timer = TorchTimer("cpu", "fp32", 0, 2)
    (part, *_) = parts_of(small_graph(), lambda op: [(1,) * len(small_graph().operators[op].dims)])
    assert len(timer(part.shape).forward) == 2
    monkeypatch.setattr(TorchTimer, "free_bytes", lambda self: 1000.0)
    assert not timer(part.shape).forward


@needs_torch
def test_a_device_that_is_not_there_is_named():
    from topoplan_command_profile.torch_timer import TorchTimer

    with pytest.raises(TopoplanError, match="--on: nonsense: torch cannot use it"):
        TorchTimer("nonsense", "fp32", 0, 1)


@needs_torch
def test_device_prints_what_estimators_take(run):
    options = (f"-o{key}={value}" for key, value in Host.discover().get(Frontend, "bert-sgmoe").example.items())
    words = ("profile", "device", *options, "--batch-size", 2, "--warm-up", 0, "--repeats", 1)
    status, out, err = run(*words, "--json")
    assert status == 0, err
    result = json.loads(out)
    assert result["device_flops"] == int(result["forward_flops"] / result["iteration_s"]["median"])
    assert result["matmul_flops_per_s"] > 1e8
    assert result["memory_bytes_per_s"] > 1e7
    status, out, _ = run(*words)
    assert status == 0
    assert "-e hidup:device-flops=" in out
