"""The programs themselves read what is written for them, where they are installed: DeepSpeed, Megatron, torchtitan.

None of them is a dependency.  ``pip install --no-deps deepspeed megatron-core torchtitan`` beside torch, and what they
import, is enough.  TOPOPLAN_MEGATRON names a checkout of Megatron-LM, whose parser of arguments no package has, and
TOPOPLAN_TORCHTITAN_TOML one of torchtitan 4a950ea, the last version that reads TOML.  Each runs in a process of its
own, since they set up much when they are imported.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re

import attrs
import pytest

from topoplan_exporter_launch import DeepSpeed, Megatron, Torchtitan, TorchtitanToml
from topoplan_exporter_launch.grid import grid_of
from topoplan_exporter_launch.megatron import TARGET, write
from topoplan_operators import GraphBuilder
from topoplan_operators.losses import total
from topoplan_operators.products import einsum
from topoplan_samples import stated_plans
from topoplan_samples.layered import data_parallel, layered, megatron, pipeline, planned, program, samples, stages_of
from topoplan_samples.trainer_parsers import DEEPSPEED, MEGATRON_ARGUMENTS, TORCHTITAN, TORCHTITAN_TOML, answer, started
from topoplan_samples.trainers import searched


def needs(*modules):
    missing = [name for name in ("torch", *modules) if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} not installed")


@needs("deepspeed")
@pytest.mark.slow
def test_deepspeed_reads_its_configurations():
    graph = layered()

    def whole_tables(op):
        return None if op.name == "tok_embeddings" else megatron(op)

    plans = {
        name: plan
        for name, (plan, _) in plans_for_trainers().items()
        if name in ("data", "states", "all", "experts", "experts and slices", "bf16", "fp16")
    }
    for name, sliced in (("tensor", False), ("states and tensor", True)):
        plans[name] = planned(graph, program(graph, (2, 2), [samples, whole_tables], sharded_state=sliced))
    given, expected = {}, {}
    for name, plan in plans.items():
        grid, document = grid_of(plan, TARGET), json.loads(DeepSpeed().write(plan))
        given[name] = document, grid.data
        written = document.get("tensor_parallel", {"partition_config": {"layer_specs": []}})
        expected[name] = {
            "batch": [grid.samples * grid.micro_batches * grid.data, grid.samples, grid.micro_batches],
            "stage": {"states": 2, "states and tensor": 2, "all": 3, "experts and slices": 3}.get(name, 0),
            "degrees": [grid.tensor, grid.experts],
            "cuts": {
                layer["partition_type"]: layer["patterns"] for layer in written["partition_config"]["layer_specs"]
            },
            "half": [name == "fp16", name == "bf16"],
        }
        assert bool(expected[name]["cuts"]) == (grid.tensor > 1)
    assert answer(DEEPSPEED, json.dumps(given)) == expected


#: Models of two layers, and devices.
SEARCHED = [("llama-3-8b", 16), ("mixtral-8x7b", 16)]


@needs("deepspeed")
@pytest.mark.slow
@pytest.mark.parametrize(("model", "devices"), SEARCHED)
def test_deepspeed_reads_plans_that_are_searched_for_it(tmp_path, model, devices):
    plan = searched(tmp_path, model, devices, "deepspeed", layers=2).plan
    grid, document = grid_of(plan, TARGET), json.loads(DeepSpeed().write(plan))
    read = answer(DEEPSPEED, json.dumps({"plan": [document, grid.data]}))["plan"]
    assert read["batch"] == [devices, grid.samples, 1]
    assert read["degrees"] == [grid.tensor, grid.experts]
    assert read["half"] == [False, True]
    assert bool(read["cuts"]) == (grid.tensor > 1)
    assert read["stage"] == document["zero_optimization"]["stage"]


MEGATRON = """
import json, sys
from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

read = PipelineParallelLayerLayout.from_str(sys.argv[1], int(sys.argv[2]))
print(json.dumps([[[layer.name for layer in stage] for stage in chunks] for chunks in read.layout]))
"""


@needs("megatron")
@pytest.mark.slow
def test_megatron_reads_the_layout_of_stages():
    graph = layered()
    plan = planned(graph, pipeline(graph, stages_of(graph, [0, 1, 1, 1]), [[0, 1], [2, 3]]), hosts=2)
    (layout,) = re.findall(r"--pipeline-model-parallel-layout '?([^'\s]+)", Megatron().write(plan).decode())
    stages = answer(MEGATRON, layout, "2")
    assert [[stage.count("decoder") for stage in chunks] for chunks in stages] == [[1], [3]]
    assert stages[0][0][0] == "embedding"
    assert stages[-1][-1][-1] == "loss"


MEGATRON_LM = os.environ.get("TOPOPLAN_MEGATRON", "")
#: A model for the flags: 4 layers, as `layered` has.
MODEL = (
    "--num-layers 4 --hidden-size 16 --num-attention-heads 4 --seq-length 8 --max-position-embeddings 8 "
    "--vocab-size 32 --tokenizer-type NullTokenizer --train-iters 1 --lr 1e-3"
)


#: What Megatron-LM reads where flags say nothing else.
USUAL = {
    "decoders": None,
    "sharding": "no_shard",
    "sequence": False,
    "recompute": None,
    "modules": None,
    "optimizer": False,
    "mapping": False,
    "dtype": "torch.float32",
}


def numbers_of(grid):
    """Degrees and batch sizes that Megatron-LM reads of a plan."""
    degrees = [grid.pipeline, grid.chunks, grid.data, grid.tensor, grid.experts, grid.context, grid.expert_tensor]
    return {"degrees": degrees, "batch": [grid.samples, grid.samples * grid.micro_batches * grid.data]}


def by_positions():
    """A program that cuts tokens by their positions between matrices."""
    b = GraphBuilder("positions", 16)
    x = b.linear(b.input((8, 16)), 16, name="layers.0.norm", bias=False)
    x = b.linear(x, 16, name="layers.0.up", bias=False)
    x = b.linear(x, 16, name="layers.0.down", bias=False)
    b.append(total(x), [x], "loss")
    graph = b.build()
    cuts = {"layers.0.norm": "t0", "layers.0.up": "o", "layers.0.down": "i", "loss": "a1"}
    return planned(graph, program(graph, (2,), [lambda op: cuts[op.name]]))


def by_experts(**kept):
    """A program on four devices, two of which share four experts."""
    b = GraphBuilder("experts", 16)
    x = b.linear(b.input((4, 8, 8)), 8, name="layers.0.dense", bias=False)
    kernel = attrs.evolve(x, shape=(4, 8, 8))
    (x,) = b.append(einsum("becd,edh->bech", [x], [kernel]), [x], "layers.0.experts")
    b.append(total(x), [x], "loss")
    graph = b.build()
    cuts = {"layers.0.experts": "e"}
    return planned(graph, program(graph, (2, 2), [samples, lambda op: cuts.get(op.name, op.sample_dim)], **kept))


def plans_for_trainers():
    """Plans, and what Megatron-LM reads of each beside degrees and batch sizes."""
    graph = layered()

    def stages(*layers_of):
        return stages_of(graph, layers_of)

    low = {precision: attrs.evolve(graph, precision=precision) for precision in ("bf16", "fp16")}
    chunks = pipeline(graph, stages(0, 1, 2, 3), [[0, 2], [1, 3]] * 2, "interleaved")
    recompute = pipeline(graph, stages(0, 0, 1, 1), [[0], [1]], recompute=(True, True))
    tensor = [samples, megatron]
    return {
        "data": (planned(graph, data_parallel(graph, [0, 1])), {}),
        "tensor": (planned(graph, program(graph, (2, 2), tensor), hosts=2), {}),
        "states": (planned(graph, program(graph, (4,), [samples], sharded_state=True)), {"sharding": "optim_grads"}),
        "all": (planned(graph, program(graph, (4,), [samples], stored={0: 0})), {"sharding": "optim_grads_params"}),
        "states and tensor": (
            planned(graph, program(graph, (2, 2), tensor, sharded_state=True)),
            {"sharding": "optim_grads"},
        ),
        "sequence": (by_positions(), {"sequence": True}),
        "experts": (by_experts(), {}),
        "experts and slices": (by_experts(stored={0: 1}), {"sharding": "optim_grads_params"}),
        "pipeline": (
            planned(graph, pipeline(graph, stages(0, 1, 1, 1), [[0, 1], [2, 3]]), hosts=2),
            {"decoders": [[1], [3]]},
        ),
        "chunks": (planned(graph, chunks), {"decoders": [[1, 1], [1, 1]], "mapping": True}),
        "recompute": (planned(graph, recompute), {"decoders": [[2], [2]], "recompute": "full"}),
        "bf16": (planned(low["bf16"], data_parallel(low["bf16"], [0, 1])), {"dtype": "torch.bfloat16"}),
        "fp16": (planned(low["fp16"], data_parallel(low["fp16"], [0, 1])), {"dtype": "torch.float16"}),
    }


def flags(plan):
    return started(Megatron().write(plan).decode(), grid_of(plan, TARGET).devices.size)


def test_megatron_gets_one_connection_where_it_cuts_tensors_and_not_where_it_slices_weights():
    variables = {name: flags(plan)[1] for name, (plan, _) in plans_for_trainers().items()}
    connected = {name for name, given in variables.items() if given["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"}
    assert connected == {"tensor", "sequence"}


def test_megatron_script_says_what_the_price_of_a_plan_has_not():
    """Megatron-LM's arguments: bf16 sets accumulate_allreduce_grads_in_fp32, and clip_grad is 1.0 by default."""
    said = {name for name, (plan, _) in plans_for_trainers().items() if b"summed in fp32 and clipped" in write(plan)}
    assert said == {"bf16"}


@needs()
@pytest.mark.slow
@pytest.mark.skipif(not MEGATRON_LM, reason="TOPOPLAN_MEGATRON names no checkout of Megatron-LM")
def test_megatron_reads_and_validates_its_flags():
    expected, given = {}, {}
    for name, (plan, read) in plans_for_trainers().items():
        grid, (words, variables) = (
            grid_of(plan, TARGET),
            flags(plan),
        )
        experts = ["--num-experts", "4"] if grid.experts > 1 else []
        given[name] = [*words, *MODEL.split(), *experts], variables
        expected[name] = USUAL | read | numbers_of(grid)
    assert answer(MEGATRON_ARGUMENTS, MEGATRON_LM, json.dumps(given)) == expected


@needs()
@pytest.mark.slow
@pytest.mark.skipif(not MEGATRON_LM, reason="TOPOPLAN_MEGATRON names no checkout of Megatron-LM")
def test_megatron_reads_and_validates_flags_of_stated_plans(tmp_path):
    given, expected = {}, {}
    for text in [*stated_plans.SETTINGS, *stated_plans.OF_EXPERTS]:
        if any(words in text for words in stated_plans.NOT_MEGATRON):
            continue
        plan, options = stated_plans.of_text(tmp_path, text), stated_plans.options_of(text)
        grid, (words, variables) = (
            grid_of(plan, TARGET),
            flags(plan),
        )
        given[text] = (
            [*words, *stated_plans.MODEL.split(), *(stated_plans.EXPERTS.split() * ("ep" in options))],
            variables,
        )
        what, _, modules = options.get("recompute", "none").partition(":")
        zero, stages = options.get("zero", 0), grid.pipeline * grid.chunks
        layers = stated_plans.layers_of(options, stages)
        by_rank = [layers[rank :: grid.pipeline] for rank in range(grid.pipeline)]
        expected[text] = (
            USUAL
            | numbers_of(grid)
            | {
                "decoders": None if grid.pipeline == 1 else by_rank,
                "sharding": ["no_shard", "no_shard", "optim_grads", "optim_grads_params"][zero],
                "sequence": grid.tensor > 1 and options.get("sp", True),
                "recompute": {"none": None, "modules": "selective"}.get(what, what),
                "modules": {"modules": modules.split("+"), "selective": ["core_attn"]}.get(what),
                "optimizer": zero == 1,
                "mapping": options.get("layout") == "tp-cp-ep-pp-dp" and "ep" not in options,
                "dtype": "torch.bfloat16",
            }
        )
        assert expected[text]["batch"][1] == stated_plans.BATCH
    assert len(expected) > 30
    assert answer(MEGATRON_ARGUMENTS, MEGATRON_LM, json.dumps(given)) == expected


TITAN = os.environ.get("TOPOPLAN_TORCHTITAN_TOML", "")


@needs("tyro")
@pytest.mark.slow
@pytest.mark.skipif(not TITAN, reason="TOPOPLAN_TORCHTITAN_TOML names no checkout of torchtitan")
def test_torchtitan_reads_its_configurations_in_toml(tmp_path):
    plans = {}
    for number, text in enumerate(stated_plans.OF_TORCHTITAN):
        plan = stated_plans.of_text(tmp_path, text)
        (path := tmp_path / f"{number}.toml").write_bytes(TorchtitanToml().write(plan))
        plans[str(path)] = grid_of(plan, TARGET), stated_plans.options_of(text)
    found = answer(TORCHTITAN_TOML, TITAN, *plans)
    for path, (grid, options) in plans.items():
        assert isinstance(found[path], list), found[path]
        parallelism, training, checkpoint = found[path]
        degrees = [f"{word}_parallel_degree" for word in ("tensor", "context", "expert", "pipeline")]
        assert [parallelism[key] for key in degrees] == [grid.tensor, grid.context, grid.experts, grid.pipeline]
        replicas, shards = (parallelism[f"data_parallel_{word}_degree"] for word in ("replicate", "shard"))
        shared = options.get("shard", grid.data) if options.get("zero") else 1
        assert (replicas, shards) == (grid.data // shared, shared)
        assert training["global_batch_size"] == stated_plans.BATCH
        samples = (
            parallelism["pipeline_parallel_microbatch_size"] if grid.pipeline > 1 else training["local_batch_size"]
        )
        assert samples == options.get("micro_batch", 1)
        what, _, period = options.get("recompute", "none").partition(":")
        assert checkpoint["mode"] == {"every": "selective", "op": "selective"}.get(what, what)
        assert not period or checkpoint["selective_ac_option"] == period
        parts = parallelism["module_fqns_per_model_part"]
        assert len(parts or [0]) == grid.pipeline * grid.chunks


#: What torchtitan runs again where a plan says nothing: a program leaves what the base has, stages have none.
KEPT = ("SelectiveAC.Config", "NoneType")


@needs("torchtitan", "tyro")
@pytest.mark.slow
def test_torchtitan_reads_its_recipes(tmp_path):
    expected, batches = {}, {}
    for name, (plan, read) in plans_for_trainers().items():
        if name in ("states", "states and tensor", "experts", "fp16"):
            continue  # no plan for torchtitan
        grid, module = grid_of(plan, TARGET), name.replace(" ", "_")
        (tmp_path / f"{module}.py").write_bytes(Torchtitan().write(plan))
        sliced = read.get("sharding") == "optim_grads_params"
        expected[module] = {
            "data_parallel_replicate_degree": 1 if sliced else grid.data,
            "data_parallel_shard_degree": grid.data if sliced else 1,
            "tensor_parallel_degree": grid.tensor,
            "enable_sequence_parallel": read.get("sequence", False),
            "expert_parallel_degree": grid.experts,
            "disable_cuda_graphs": grid.pipeline > 1 or grid.experts > 1,
            "pipeline_parallel_degree": grid.pipeline,
            "mixed_precision_param": "bfloat16" if name == "bf16" else "float32",
            "activation": "FullAC.Config" if read.get("recompute") else KEPT[grid.pipeline > 1],
        }
        batches[module] = grid.samples, grid.samples * grid.micro_batches * grid.data
        if grid.pipeline > 1:
            expected[module]["pipeline_parallel_schedule"] = "Interleaved1F1B" if name == "chunks" else "1F1B"
    bases = ("dense", "with_experts")
    found = answer(TORCHTITAN, str(tmp_path), *(f"{name}=__main__:{bases['experts' in name]}" for name in expected))
    for module, values in expected.items():
        assert isinstance(found[module], dict), found[module]
        assert {key: found[module][key] for key in values} == values
        assert batch_of(found[module]) == batches[module]
    parts = found["pipeline"]["module_fqns_per_model_part"]
    assert parts == [["tok_embeddings", "layers.0"], ["layers.1", "layers.2", "layers.3", "norm", "lm_head"]]


@needs("torchtitan", "tyro")
@pytest.mark.slow
@pytest.mark.parametrize(("model", "devices"), SEARCHED)
def test_torchtitan_reads_plans_that_are_searched_for_it(tmp_path, model, devices):
    plan = searched(tmp_path, model, devices, "torchtitan", layers=2).plan
    grid = grid_of(plan, TARGET)
    (tmp_path / "recipe.py").write_bytes(Torchtitan().write(plan))
    base = "with_experts" if grid.experts > 1 else "dense"
    read = answer(TORCHTITAN, str(tmp_path), f"recipe=__main__:{base}")["recipe"]
    assert isinstance(read, dict), read
    assert read["data_parallel_replicate_degree"] * read["data_parallel_shard_degree"] == grid.data
    assert [read["tensor_parallel_degree"], read["expert_parallel_degree"]] == [grid.tensor, grid.experts]
    assert read["mixed_precision_param"] == "bfloat16"
    assert batch_of(read) == (grid.samples, devices)


def batch_of(read):
    """Samples of a micro-batch on a replica, and of a step, of a configuration that torchtitan read."""
    piped = read["pipeline_parallel_degree"] > 1
    if "seq_len" in read:  # torchtitan 0.3.0
        each = read["pipeline_parallel_microbatch_size"] if piped else read["local_batch_size"]
        return each, read["global_batch_size"]
    tokens = read["num_tokens_per_microbatch_per_dp_rank"], read["num_tokens_per_train_step"]
    return tuple(count // read["max_context_length"] for count in tokens)
