"""An exported plan is read as it was written, and a small Llama under it has the loss and gradients of the module."""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topoplan import TopoplanError
from topoplan.model.sharding import PARTIAL
from topoplan_engine import ClusterOptions, Experiment, RunOptions, optimize
from topoplan_engine.experiment import Choice
from topoplan_engine.program_strategies import program_strategy
from topoplan_engine.sharding.signatures import signatures
from topoplan_exporter_dtensor import DTensor
from topoplan_exporter_dtensor.matching import aligned, match_modules
from topoplan_exporter_dtensor.reader import parse
from topoplan_exporter_launch import Torchrun, TorchSchedule
from topoplan_samples import llama
from topoplan_samples.layered import layered, megatron, pipeline, planned, program, samples, stages_of

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
GRAPH = llama.graph()
PROGRAM = planned(GRAPH, program(GRAPH, (2, 2), [samples, llama.megatron]))


def document(plan=PROGRAM):
    """What the exporter writes, as values."""
    return json.loads(DTensor().write(plan))


# Reading


def test_what_is_written_is_read():
    values = document()
    read = parse(DTensor().write(PROGRAM), "plan.dtensor")
    assert [operator.name for operator in read.operators] == [op.name for op in GRAPH.operators]
    assert read.operators[0].mesh.shape == (2, 2)
    assert read.operators[0].mesh.devices == (0, 1, 2, 3)
    assert [list(edge) for edge in read.edges] == values["edges"]
    for operator, row in zip(read.operators, values["operators"], strict=True):
        for tensors, key in ((operator.inputs, "inputs"), (operator.weights, "weights"), (operator.outputs, "outputs")):
            assert [list(tensor.shape) for tensor in tensors] == [entry["shape"] for entry in row[key]]
            assert [list(tensor.placements) for tensor in tensors] == [entry["placements"] for entry in row[key]]
    assert read.stages is None


def test_stages_and_storage_are_read():
    graph = layered()
    plan = planned(graph, pipeline(graph, stages_of(graph, [0, 0, 1, 1]), [[0, 1], [2, 3]]))
    stages = parse(DTensor().write(plan), "p").stages
    assert (stages.kind, stages.micro_batches) == ("1f1b", 4)
    assert list(stages.stage) == stages_of(graph, [0, 0, 1, 1])
    sliced = parse(DTensor().write(planned(graph, program(graph, (4,), [samples], stored={0: 0}))), "p")
    assert sliced.operators[0].weights[0].stored == ("Shard(0)",)
    assert sliced.operators[0].weights[0].placements == ("Replicate()",)


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (("format",), "x", "format is 'x' (must be 'topoplan-dtensor')"),
        (("version",), 2, "version is 2 (must be 1)"),
        (("world_size",), 3, "meshes.mesh0.devices is 3 (must be a whole number from 0 to 2)"),
        (("meshes", "mesh0", "devices"), [[0, 1], [2]], "meshes.mesh0.devices is [1, 2] (must be rows of one length"),
        (("meshes", "mesh0", "devices"), [[0, 1], [2, 2]], "(must be devices that differ, along at least one axis)"),
        (("operators", 0, "mesh"), "m", "operators[0].mesh is 'm' (must be one of mesh0)"),
        (
            ("operators", 0, "outputs", 0, "placements"),
            ["Shard(3)", "Partial()"],
            "is 'Shard(3)' (must be Shard(0) to Shard(2)",
        ),
        (
            ("operators", 0, "weights", 0, "placements"),
            ["Partial()"],
            "(must be 2 placements, one for each axis of the mesh)",
        ),
        (("operators", 0, "weights", 0, "shape"), [True, 1], "shape is True (must be a whole number from 0"),
        (("edges", 0), [0, 0, 900, 0], "edges[0] is 900 (must be a whole number from 0 to"),
        (("operators",), [], "operators is [] (must be a list of at least one operator)"),
    ],
)
def test_what_is_wrong_is_named(keys, value, message):
    changed = place = copy.deepcopy(document())
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    with pytest.raises(TopoplanError) as refused:
        parse(json.dumps(changed).encode(), "plan.dtensor")
    assert str(refused.value).startswith("plan.dtensor: ")
    assert message in str(refused.value)


def refusal(text):
    """What the reader says of a file; nothing if it takes it."""
    try:
        parse(text.encode(), "damaged")
    except TopoplanError as error:
        return str(error)
    return ""


@given(st.data())
def test_any_damage_is_one_line(data):
    values = document()
    for _ in range(data.draw(st.integers(1, 3))):
        place, key = values, None
        while isinstance(place, dict | list) and place and (key is None or data.draw(st.booleans())):
            parent, key = (
                place,
                data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place)))),
            )
            place = parent[key]
        if data.draw(st.booleans()):
            del parent[key]
        else:
            parent[key] = data.draw(
                st.sampled_from([None, True, -1, 2**70, 0.5, "", "Shard(9)", [], {}, [[]], [0], {"a": 1}, "Partial()"])
            )
    for text in (json.dumps(values), json.dumps(values)[: data.draw(st.integers(0, 200))]):
        said = refusal(text)
        assert said == "" or said.startswith("damaged: ")
        assert "\n" not in said


# Modules


class Fake:
    """A module without torch: its parameters' shapes, and what is in it."""

    def __init__(self, shapes=(), **children):
        self.own = [(f"p{k}", SimpleNamespace(shape=shape)) for k, shape in enumerate(shapes)]
        self.children = children

    def named_parameters(self, recurse):
        assert recurse is False
        return self.own

    def named_modules(self):
        yield "", self
        yield from self.children.items()


def matched(names=None, **children):
    graph = layered(1)
    read = parse(DTensor().write(planned(graph, program(graph, (2, 2), [samples, megatron]))), "p")
    return match_modules(
        Fake(**{name.replace("__", "."): child for name, child in children.items()}), read, names or {}
    )


def test_modules_are_found_by_name():
    found = matched(lm_head=Fake([(32, 16)]), layers__0__up=Fake([(32, 16)]), other=Fake())
    assert [(match.name, match.operator.name) for match in found] == [
        ("layers.0.up", "layers.0.up"),
        ("lm_head", "lm_head"),
    ]
    (found,) = matched({"head": "lm_head"}, head=Fake([(32, 16)]))
    assert found.operator.name == "lm_head"


@pytest.mark.parametrize(
    ("placements", "operator", "module", "expected"),
    [
        (("Shard(0)", "Shard(2)"), (8, 8, 16), (8, 8, 4, 4), ("Shard(0)", "Shard(2)")),
        (("Shard(2)", "Partial()"), (8, 8, 4, 4), (8, 8, 16), ("Shard(2)", "Partial()")),
        (("Shard(1)",), (8, 16), (2, 4, 16), ("Shard(2)",)),
        (("Shard(3)",), (8, 8, 4, 4), (8, 8, 16), None),
        (("Replicate()",), (8, 8), (8, 9), None),
        (("Replicate()",), (8, 8), (8, 8, 2), None),
        (("Replicate()",), (), (), ("Replicate()",)),
    ],
)
def test_a_cut_goes_along_with_a_view(placements, operator, module, expected):
    assert aligned(placements, operator, module) == expected


@pytest.mark.parametrize(
    ("names", "children", "message"),
    [
        (
            {},
            {"head": Fake([(32, 16)])},
            r"^module 'head': its parameter 'p0' belongs to no operator of the plan ",
        ),
        (
            {},
            {"lm_head": Fake([(16, 32)])},
            r"^module 'lm_head': has parameters 16 x 32, operator 'lm_head' has weights",
        ),
        ({}, {"lm_head": Fake()}, r"^module 'lm_head': has parameters none, operator 'lm_head' has weights 32 x 16$"),
        ({"x": "lm_head"}, {}, r"^names: the model has no module 'x'$"),
        ({"head": "y"}, {"head": Fake()}, r"^names: the plan has no operator 'y' \(for module 'head'\)$"),
    ],
)
def test_modules_that_do_not_fit_are_named(names, children, message):
    with pytest.raises(TopoplanError, match=message):
        matched(names, **children)


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed")
@pytest.mark.parametrize("module", ["modules", "pipelines"])
def test_without_torch_one_line_says_so(module):
    with pytest.raises(TopoplanError, match=r"^dtensor: .* needs PyTorch \(pip install torch\)$"):
        importlib.import_module(f"topoplan_exporter_dtensor.{module}")


# Running


def with_sums(strategy):
    """The program whose additions take sums that are not added up yet."""
    rules = list(strategy.program.rules)
    for index, op in enumerate(GRAPH.operators):
        if op.kind == "add":
            sums = next(r for r in signatures(op) if all(form == PARTIAL for form in (*r.inputs, *r.outputs)))
            rules[index] = (rules[index][0], sums)
    return program_strategy(attrs.evolve(strategy.program, rules=tuple(rules)), GRAPH)


def pipelined(first, devices, kind):
    """A pipeline of two stages; the second begins with an operator."""
    cut = [op.name for op in GRAPH.operators].index(first)
    stage = [int(index >= cut) for index in range(len(GRAPH.operators))]
    return planned(GRAPH, pipeline(GRAPH, stage, devices, kind, micro_batches=2), hosts=2, each=2)


def launched(folder, plans, hosts, names=()):
    """Start the script of the first plan on every host, all on this machine; return what every rank found.

    Plans are for the small Llama, or for the modules of `topoplan_samples.gpt` that ``names`` has.
    """
    modules = names
    arguments = []
    for number, plan in enumerate(plans):
        names = [f"{number}.dtensor"]
        (folder / names[0]).write_bytes(DTensor().write(plan))
        if not (plan.strategy.program is not None):
            names.append(f"{number}.csv")
            (folder / names[1]).write_bytes(TorchSchedule().write(plan))
        of = f"{modules[number]}:" if modules else ""
        arguments.append(of + ",".join(str(folder / name) for name in names))
    (folder / "launch.sh").write_bytes(Torchrun().write(plans[0]))
    script = Path(__file__).with_name("run_llama.py")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(llama.__file__).parents[1]),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "PORT": str(20000 + os.getpid() % 20000),
    }
    command = ["bash", str(folder / "launch.sh")]
    running = [
        subprocess.Popen(
            [*command, str(host), "localhost", str(script), str(folder), *arguments],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for host in range(hosts)
    ]
    errors = [process.communicate(timeout=600)[1] for process in running]
    assert [process.returncode for process in running] == [0] * hosts, "\n".join(errors)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(4)]


@needs_torch
@pytest.mark.slow
def test_a_llama_under_programs_has_the_modules_loss_and_gradients(tmp_path):
    """Tensor x data, with sums that wait, with parameters sliced over data, and with the axes the other way round."""
    plans = [
        PROGRAM,
        planned(GRAPH, with_sums(PROGRAM.strategy)),
        planned(GRAPH, program(GRAPH, (4,), [samples], stored={0: 0})),
        planned(GRAPH, program(GRAPH, (2, 2), [llama.megatron, samples], stored={1: 0})),
    ]
    for results in launched(tmp_path, plans, hosts=1):
        for result in results:
            assert result["loss"] < 1e-12
            assert result["gradients"] < 1e-12
            assert result["placed"], "a gradient has other placements than its parameter"
        assert results[0]["scores"] == ["S(0)", "S(2)"]
        assert results[0]["local"]["layers.0.attention.wq.weight"] == [8, 16]
        assert results[0]["local"]["layers.1.feed_forward.w2.weight"] == [16, 16]
        assert results[2]["local"]["layers.0.attention.wq.weight"] == [4, 16]
        assert results[3]["local"]["layers.0.attention.wq.weight"] == [4, 16]


@needs_torch
@pytest.mark.slow
def test_a_plan_that_was_searched_for_the_exported_module_runs(tmp_path):
    """The whole way: torch.export gives the model, the search a program, the exporters what runs the same module."""
    plan = optimize(
        Experiment(
            model=Choice("torch", {"module": "topoplan_samples.llama:module", "inputs": "8x8:int64"}, allow_code=True),
            cluster=ClusterOptions(servers=1, gpus_per_server=4),
            searchers=["spmd:schedule=whole-batch"],
            run=RunOptions(budget=100),
        )
    ).plan
    for ((result,),) in zip(launched(tmp_path, [plan], hosts=1), strict=True):
        assert result["loss"] < 1e-12
        assert result["gradients"] < 1e-12


@needs_torch
@pytest.mark.slow
def test_modules_as_people_write_them_run(tmp_path):
    """Attention as a function in the forward method, and as a child whose heads are in front of positions."""
    plans, names = [], ("functional", "with_child")
    for name in names:
        experiment = Experiment(
            model=Choice("torch", {"module": f"topoplan_samples.gpt:{name}", "inputs": "8x8:int64"}, allow_code=True),
            cluster=ClusterOptions(servers=1, gpus_per_server=4),
            searchers=["spmd"],
            run=RunOptions(budget=100, trainers=("torch",)),
        )
        plans.append(optimize(experiment).plan)
        attention = next(
            rules
            for op, rules in zip(plans[-1].graph.operators, plans[-1].strategy.program.rules, strict=True)
            if op.kind == "scaled_dot_product_attention"
        )
        assert [rule.dim >= 0 for rule in attention] == [True, True], "samples and heads are cut"
    for results in launched(tmp_path, plans, hosts=1, names=names):
        assert max(result["loss"] for result in results) < 1e-12
        assert max(result["gradients"] for result in results) < 1e-12


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "devices", "kind"),
    [
        ("layers.1.attention_norm", [[0, 1], [2, 3]], "1f1b"),
        ("layers.0.ffn_norm", [[2, 0], [3, 1]], "zero-bubble"),  # inside of a layer, replicas on different hosts
    ],
)
def test_a_llama_as_a_pipeline_has_the_modules_loss_and_gradients(tmp_path, first, devices, kind):
    """Two stages of two replicas on two hosts, in the order of the exported schedule."""
    results = [result for (result,) in launched(tmp_path, [pipelined(first, devices, kind)], hosts=2)]
    assert max(result["gradients"] for result in results) < 1e-12
    assert [result["loss"] is None for result in results] == [True, True, False, False]  # ranks go stage by stage
    assert max(result["loss"] for result in results[2:]) < 1e-12
    assert [result["replica"] for result in results] == [0, 1, 0, 1]
    everything = sorted(results[0]["names"] + results[2]["names"])
    assert everything == sorted(f"{op.name}.weight" for op in GRAPH.operators if op.weights)
    begins = [op.name for op in GRAPH.operators].index(first)
    assert results[2]["names"] == sorted(f"{op.name}.weight" for op in GRAPH.operators[begins:] if op.weights)
