"""What trainers are flagged equals the plan, and what they cannot run is refused with the name of an operator."""

from __future__ import annotations

import ast
import csv
import importlib.util
import io
import json
import re
from types import SimpleNamespace

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topoplan import DeviceMesh, Placement, StagedStrategy, TopoplanError
from topoplan.model.graph import Checkpoint
from topoplan.model.sharding import PENDING_GRADIENT
from topoplan.testing import parametrize_with_checks, reference
from topoplan_engine.pass_orders import ORDERS
from topoplan_engine.program_strategies import overlapped_strategy, program_strategy
from topoplan_exporter_launch import DeepSpeed, Megatron, Torchrun, TorchSchedule, Torchtitan, TorchtitanToml
from topoplan_exporter_launch.grid import grid_of
from topoplan_exporter_launch.schedules import TARGET, actions_of
from topoplan_operators import GraphBuilder
from topoplan_operators.losses import total
from topoplan_operators.products import einsum
from topoplan_samples import llama
from topoplan_samples.layered import data_parallel, layered, megatron, pipeline, planned, program, samples, stages_of

ALL = (DeepSpeed, Megatron, TorchSchedule, Torchrun, Torchtitan)
TRAINERS = (DeepSpeed, Megatron, Torchtitan)
HAS_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")


class TestConformance:
    """The promises of every exporter."""

    @parametrize_with_checks(DeepSpeed)
    def test_deepspeed(self, check):
        check()

    @parametrize_with_checks(Megatron)
    def test_megatron(self, check):
        check()

    @parametrize_with_checks(TorchSchedule)
    def test_torch_schedule(self, check):
        check()

    @parametrize_with_checks(Torchrun)
    def test_torchrun(self, check):
        check()

    @parametrize_with_checks(Torchtitan)
    def test_torchtitan(self, check):
        check()

    @parametrize_with_checks(TorchtitanToml)
    def test_torchtitan_toml(self, check):
        check()


def flags(plan):
    """The flags in Megatron-LM's script, as a dictionary."""
    text = Megatron().write(plan).decode()
    words = text.partition("flags=(\n")[2].partition("\n)\n")[0].split()
    found = {}
    for word in words:
        if word.startswith("--"):
            found[last := word] = True
        else:
            found[last] = word.strip("'")
    return found


def recipe(plan, layers=4, lengths="max_context_length"):
    """Run torchtitan's recipe on a configuration without torchtitan, and return it."""
    text = Torchtitan().write(plan).decode()
    tree = ast.parse(text)
    tree.body = [node for node in tree.body if not (isinstance(node, ast.ImportFrom) and "torchtitan" in node.module)]
    model = SimpleNamespace() if layers is None else SimpleNamespace(layers=[None] * layers)
    config = SimpleNamespace(
        model_spec=SimpleNamespace(model=model),
        parallelism=SimpleNamespace(),
        training=SimpleNamespace(**{lengths: 8}),
    )
    names = {
        "__file__": "/recipes/plan.py",
        "Trainer": SimpleNamespace(Config=object),
        "FullAC": SimpleNamespace(Config=dict),
    }
    exec(compile(tree, "recipe", "exec"), names)
    return names["parallelize"](config)


# Tensor and data parallelism


def whole_tables(cut):
    """The same cut, but for embeddings, which are whole."""
    return lambda op: None if op.name == "tok_embeddings" else cut(op)


def test_megatrons_cut_is_written_to_all_trainers():
    graph = layered()
    plan = planned(graph, program(graph, (2, 2), [samples, megatron]), hosts=2)
    flagged = flags(plan)
    assert flagged == {
        "--tensor-model-parallel-size": "2",
        "--pipeline-model-parallel-size": "1",
        "--micro-batch-size": "8",
        "--global-batch-size": "16",
    }
    parallelism = recipe(plan).parallelism
    assert (parallelism.data_parallel_replicate_degree, parallelism.tensor_parallel_degree) == (2, 2)
    assert parallelism.data_parallel_shard_degree == 1
    assert recipe(plan).training.num_tokens_per_train_step == 16 * 8
    released = recipe(plan, lengths="seq_len").training
    assert (released.local_batch_size, released.global_batch_size) == (8, 16)
    with pytest.raises(TopoplanError, match=r"^deepspeed: operator 'tok_embeddings' cuts the table of an embedding"):
        DeepSpeed().write(plan)
    document = json.loads(DeepSpeed().write(planned(graph, program(graph, (2, 2), [samples, whole_tables(megatron)]))))
    assert document["train_batch_size"] == 16
    assert document["train_micro_batch_size_per_gpu"] == 8
    assert document["tensor_parallel"]["autotp_size"] == 2


def test_ranks_of_a_program_have_the_devices_of_its_mesh():
    graph = layered()
    strategy = program(graph, (2, 2), [samples, megatron])
    mesh = DeviceMesh(axes=("dp", "tp"), sizes=(2, 2), devices=[3, 1, 0, 2])
    stages = [attrs.evolve(stage, mesh=mesh) for stage in strategy.stages]
    moved = StagedStrategy.of(graph, stages, strategy.order, 1, False, False, True)
    assert "3,1,0,2" in Megatron().write(planned(graph, moved, hosts=2)).decode()


def test_deepspeeds_patterns_name_each_matrix_once_and_its_cut():
    graph = layered()
    plan = planned(graph, program(graph, (2, 2), [samples, whole_tables(megatron)]))
    document = json.loads(DeepSpeed().write(plan))
    specs = document["tensor_parallel"]["partition_config"]["layer_specs"]
    expected = {"tok_embeddings": "skip", "lm_head": "column"}
    expected |= {f"layers.{k}.{name}": cut for k in range(4) for name, cut in (("up", "column"), ("down", "row"))}
    for name, cut in expected.items():
        for prefix in ("", "model."):
            kinds = [
                spec["partition_type"]
                for spec in specs
                if any(re.match(pattern, f"{prefix}{name}.weight") for pattern in spec["patterns"])
            ]
            assert kinds == [cut], name


def test_numbers_other_than_the_layers_stay_in_patterns():
    graph = llama.graph()
    plan = planned(graph, program(graph, (2, 2), [samples, whole_tables(llama.megatron)]))
    document = json.loads(DeepSpeed().write(plan))
    column, row, _ = document["tensor_parallel"]["partition_config"]["layer_specs"]
    ends = [pattern.rpartition(r"[0-9]+\.")[2] for pattern in (*column["patterns"], *row["patterns"])]
    assert [end for end in ends if "feed_forward" in end] == [
        r"feed_forward\.w1\.weight$",
        r"feed_forward\.w3\.weight$",
        r"feed_forward\.w2\.weight$",
    ]


@pytest.mark.parametrize(("mesh", "cuts"), [((2, 2), [samples, megatron]), ((2, 2), [megatron, samples])])
def test_ranks_have_tensors_fastest(mesh, cuts):
    graph = layered()
    plan = planned(graph, program(graph, mesh, cuts))
    grid = grid_of(plan, TARGET)
    assert grid.devices.shape == (1, 2, 2)
    expected = [[0, 1], [2, 3]] if cuts[0] is samples else [[0, 2], [1, 3]]
    assert grid.devices[0].tolist() == expected


def test_slices_of_state_and_of_parameters_are_zero():
    graph = layered()
    state = planned(graph, program(graph, (4,), [samples], sharded_state=True))
    full = planned(graph, program(graph, (4,), [samples], stored={0: 0}))
    for plan, stage, strategy in ((state, 2, "optim_grads"), (full, 3, "optim_grads_params")):
        assert json.loads(DeepSpeed().write(plan))["zero_optimization"] == {"stage": stage}
        assert flags(plan)["--data-parallel-sharding-strategy"] == strategy
    assert recipe(full).parallelism.data_parallel_shard_degree == 4
    with pytest.raises(TopoplanError, match=r"^torchtitan: operator 'tok_embeddings' keeps its weights whole and a "):
        Torchtitan().write(state)


def test_files_say_whether_gathered_parameters_are_given_back():
    graph = layered()
    kept = planned(graph, program(graph, (4,), [samples], stored={0: 0}))
    strategy = program_strategy(attrs.evolve(kept.strategy.program, gathers_again=True), kept.graph)
    again = attrs.evolve(kept, strategy=strategy)
    assert recipe(kept).parallelism.fsdp_reshard_after_forward == "never"
    assert recipe(again).parallelism.fsdp_reshard_after_forward == "default"
    of_stage, elements = json.loads(DeepSpeed().write(again))["zero_optimization"], {}
    for op in graph.operators:
        layer = ".".join(op.name.split(".")[:2]) if op.name.startswith("layers.") else op.name
        elements[layer] = elements.get(layer, 0) + sum(tensor.elements for tensor in op.weights)
    pairs = zip(elements.values(), [*elements.values()][1:], strict=False)
    assert of_stage == {
        "stage": 3,
        "stage3_max_live_parameters": max(map(sum, pairs)),
        "stage3_max_reuse_distance": 0,
    }


def test_a_large_weight_that_stays_whole_among_slices_is_refused():
    b = GraphBuilder("wide", 8)
    x = b.linear(b.linear(b.input((320,)), 320, name="first"), 320, name="second")
    b.append(total(x), [x], "loss")
    graph = b.build()
    plan = planned(graph, program(graph, (2,), [samples], stored={0: 0}))
    assert json.loads(DeepSpeed().write(plan))["zero_optimization"] == {"stage": 3}
    stored = list(plan.strategy.program.stored)
    bias, kernel = stored[1][2], stored[1][1]
    for forms, whole in (
        ((*stored[1][:2], (PENDING_GRADIENT,)), False),
        ((stored[1][0], (PENDING_GRADIENT,), bias), True),
    ):
        assert kernel != (PENDING_GRADIENT,)
        stored[1] = forms
        changed = program_strategy(attrs.evolve(plan.strategy.program, stored=tuple(stored)), graph)
        if not whole:
            assert DeepSpeed().write(attrs.evolve(plan, strategy=changed)) == DeepSpeed().write(plan)
            continue
        with pytest.raises(TopoplanError, match=r"^deepspeed: operator 'second' keeps its weights whole, but 'first' "):
            DeepSpeed().write(attrs.evolve(plan, strategy=changed))


def test_operators_between_matrices_cut_by_positions_are_sequence_parallelism():
    graph = layered(2)

    def sequence(op):
        return 1 if op.kind == "add" else megatron(op)

    plan = planned(graph, program(graph, (2,), [sequence]))
    with pytest.raises(TopoplanError, match=r"^megatron: operator 'layers.0.add' wants input .* as slices of axis 1"):
        Megatron().write(plan)
    b = GraphBuilder("positions", 16)
    x = b.linear(b.input((8, 16)), 16, name="layers.0.norm", bias=False)
    x = b.linear(x, 16, name="layers.0.up", bias=False)
    x = b.linear(x, 16, name="layers.0.down", bias=False)
    b.append(total(x), [x], "loss")
    graph = b.build()
    cuts = {"layers.0.norm": "t0", "layers.0.up": "o", "layers.0.down": "i", "loss": "a1"}
    plan = planned(graph, program(graph, (2,), [lambda op: cuts[op.name]]))
    assert "--sequence-parallel" in flags(plan)
    assert recipe(plan).parallelism.enable_sequence_parallel is True
    with pytest.raises(TopoplanError, match=r"^deepspeed: operator 'layers.0.norm' is cut by positions \(a DeepSpeed"):
        DeepSpeed().write(plan)


def test_experts_are_neighbours_among_replicas():
    b = GraphBuilder("experts", 16)
    x = b.linear(b.input((4, 8, 8)), 8, name="layers.0.dense", bias=False)
    kernel = attrs.evolve(x, shape=(4, 8, 8))
    (x,) = b.append(einsum("becd,edh->bech", [x], [kernel]), [x], "layers.0.experts")
    b.append(total(x), [x], "loss")
    graph = b.build()

    def experts(op):
        return "e" if op.name == "layers.0.experts" else op.sample_dim

    plan = planned(graph, program(graph, (2, 2), [samples, experts]))
    grid = grid_of(plan, TARGET)
    assert (grid.data, grid.experts, grid.tensor) == (4, 2, 1)
    assert flags(plan)["--expert-model-parallel-size"] == "2"
    assert flags(plan)["--moe-token-dispatcher-type"] == "alltoall"
    assert json.loads(DeepSpeed().write(plan))["expert_parallel"] == {"enabled": True, "autoep_size": 2}


@pytest.mark.parametrize("exporter", TRAINERS)
def test_another_cut_than_megatrons_is_refused_by_name(exporter):
    graph = layered()
    columns = program(graph, (2, 2), [samples, lambda op: {"down": "o", "add": 2}.get(op.name[9:], megatron(op))])
    with pytest.raises(TopoplanError, match=rf"^{exporter.name}: operator 'layers.0.down' wants input 'x' as a whole "):
        exporter().write(planned(graph, columns))
    mixed = program(graph, (2, 2), [samples, lambda op: 0 if op.name == "lm_head" else megatron(op)])
    with pytest.raises(
        TopoplanError,
        match=rf"^{exporter.name}: operator 'tok_embeddings' is cut along 'r' on axis 1 of the mesh, where 'lm_head' ",
    ):
        exporter().write(planned(graph, mixed))


@pytest.mark.parametrize("exporter", [Megatron, Torchtitan])
def test_a_whole_matrix_among_cut_ones_is_refused(exporter):
    graph = layered()

    def whole_head(op):
        return None if op.name in ("lm_head", "loss") else megatron(op)

    plan = planned(graph, program(graph, (2, 2), [samples, whole_head]))
    with pytest.raises(TopoplanError, match=rf"^{exporter.name}: operator 'lm_head' is whole on 2 devices"):
        exporter().write(plan)
    plan = planned(graph, program(graph, (2, 2), [samples, whole_tables(whole_head)]))
    assert json.loads(DeepSpeed().write(plan))["tensor_parallel"]["partition_config"]["layer_specs"][-1] == {
        "patterns": [r"(.*\.)?tok_embeddings\.weight$", r"(.*\.)?lm_head\.weight$"],
        "partition_type": "skip",
    }


@pytest.mark.parametrize("exporter", TRAINERS)
def test_placements_that_are_not_data_parallel_are_refused_by_the_first_operator(exporter):
    graph = layered()
    strategy = data_parallel(graph, [0, 1, 2, 3])
    assert exporter().write(planned(graph, strategy))
    cut = strategy.with_changes({4: Placement((2, 2) + (1,) * (len(graph.operators[4].dims) - 2), [0, 1, 2, 3])})
    with pytest.raises(TopoplanError, match=rf"^{exporter.name}: operator '{graph.operators[4].name}' is cut along"):
        exporter().write(planned(graph, cut))
    moved = strategy.with_changes({3: Placement(graph.operators[3].sample_cut(2), [2, 3])})
    message = rf"^{exporter.name}: operator '{graph.operators[3].name}' runs on devices 2, 3, but 'tok_embeddings' on "
    with pytest.raises(TopoplanError, match=message):
        exporter().write(planned(graph, moved))


def test_a_task_graph_alone_and_devices_of_many_gpus_are_refused():
    for exporter in ALL:
        with pytest.raises(TopoplanError, match=rf"^{exporter.name}: the plan holds only a task graph"):
            exporter().write(attrs.evolve(reference.plan(), graph=None, strategy=None))
        plan = reference.plan()
        with pytest.raises(TopoplanError, match=rf"^{exporter.name}: a device of the plan stands for 4 GPUs"):
            exporter().write(attrs.evolve(plan, cluster=attrs.evolve(plan.cluster, gpus_per_device=4)))


def test_precision_is_written():
    graph = attrs.evolve(layered(), precision="bf16")
    plan = planned(graph, data_parallel(graph, [0, 1]))
    assert flags(plan)["--bf16"] is True
    assert json.loads(DeepSpeed().write(plan))["bf16"] == {"enabled": True}
    assert recipe(plan).training.mixed_precision_param == "bfloat16"
    graph = attrs.evolve(graph, precision="fp16")
    with pytest.raises(TopoplanError, match=r"torchtitan: model 'layered' is planned in fp16"):
        Torchtitan().write(planned(graph, data_parallel(graph, [0, 1])))


# Pipelines


def test_stages_become_layers():
    graph = layered()
    plan = planned(graph, pipeline(graph, stages_of(graph, [0, 1, 1, 1]), [[0, 1], [2, 3]]), hosts=2)
    flagged = flags(plan)
    assert flagged["--pipeline-model-parallel-size"] == "2"
    assert flagged["--pipeline-model-parallel-layout"] == "Et|t*3L"
    assert (flagged["--micro-batch-size"], flagged["--global-batch-size"]) == ("2", "16")
    parallelism = recipe(plan).parallelism
    assert parallelism.module_fqns_per_model_part == [
        ["tok_embeddings", "layers.0"],
        ["layers.1", "layers.2", "layers.3", "norm", "lm_head"],
    ]
    assert (parallelism.pipeline_parallel_schedule, parallelism.num_pp_microbatches) == ("1F1B", 4)
    with pytest.raises(ValueError, match="a model of 4 layers, the model of BASE has 32"):
        recipe(plan, layers=32)
    # Of models of transformers, torchtitan's pipeline_hf_transformers keeps in a stage what is named, and each rotates.
    of_transformers = recipe(plan, layers=None).parallelism.module_fqns_per_model_part
    assert of_transformers == [[*names, "rotary_emb"] for names in parallelism.module_fqns_per_model_part]
    with pytest.raises(
        TopoplanError, match=r"^deepspeed: operator 'layers.1.up' begins stage 1 of a pipeline \(a Deep"
    ):
        DeepSpeed().write(plan)


def test_chunks_of_an_interleaved_pipeline_share_devices():
    graph = layered()
    strategy = pipeline(graph, stages_of(graph, [0, 1, 2, 3]), [[0, 2], [1, 3]] * 2, "interleaved")
    plan = planned(graph, strategy)
    flagged = flags(plan)
    assert (flagged["--pipeline-model-parallel-size"], flagged["--pipeline-model-parallel-layout"]) == (
        "2",
        "Et|t|t|tL",
    )
    assert recipe(plan).parallelism.pipeline_parallel_schedule == "Interleaved1F1B"
    assert grid_of(plan, TARGET).devices.tolist() == [[[0], [2]], [[1], [3]]]


@pytest.mark.parametrize("exporter", [Megatron, Torchtitan])
def test_a_stage_inside_a_layer_is_refused_by_name(exporter):
    graph = layered()
    stage = stages_of(graph, [0, 0, 1, 1])
    names = [op.name for op in graph.operators]
    stage[names.index("layers.1.down")] = stage[names.index("layers.1.add")] = 1
    with pytest.raises(
        TopoplanError, match=rf"^{exporter.name}: operator 'layers.1.down' is in stage 1, but layer 1 begins in stage 0"
    ):
        exporter().write(planned(graph, pipeline(graph, stage, [[0], [1]])))
    renamed = attrs.evolve(
        graph, operators=tuple(attrs.evolve(op, name=f"op{k}") for k, op in enumerate(graph.operators))
    )
    with pytest.raises(TopoplanError, match=rf"^{exporter.name}: operator 'op0' is in no layer by its name"):
        exporter().write(planned(renamed, pipeline(renamed, stages_of(graph, [0, 0, 1, 1]), [[0], [1]])))


@pytest.mark.parametrize("exporter", [Megatron, Torchtitan, TorchSchedule])
def test_unequal_stages_and_single_recomputation_are_refused_by_name(exporter):
    graph = layered()
    stage = stages_of(graph, [0, 0, 1, 1])
    unequal = pipeline(graph, stage, [[0, 1], [2]])
    message = rf"^{exporter.name}: operator 'layers.2.up' begins stage 1 of 1 devices, but stage 0 has 2"
    with pytest.raises(TopoplanError, match=message):
        exporter().write(planned(graph, unequal))
    half = pipeline(graph, stage, [[0], [1]], recompute=(False, True))
    with pytest.raises(
        TopoplanError, match=rf"^{exporter.name}: operator 'layers.2.up' is in stage 1, which recomputes"
    ):
        exporter().write(planned(graph, half))


@pytest.mark.parametrize("stored", [None, {0: 0}])
def test_what_runs_once_is_not_checkpointed_by_the_base_of_a_recipe(stored):
    """torchtitan's own configurations checkpoint selectively; a plan without stages was run with that of its base."""
    graph = layered()
    assert recipe(planned(graph, program(graph, (4,), [samples], stored=stored))).activation_checkpoint is None
    regions = tuple(attrs.evolve(op, checkpoint=Checkpoint()) for op in graph.operators)
    again = attrs.evolve(graph, operators=regions)
    assert not hasattr(recipe(planned(again, program(again, (4,), [samples]))), "activation_checkpoint")


def test_recomputation_of_all_stages_is_written():
    graph = layered()
    plan = planned(graph, pipeline(graph, stages_of(graph, [0, 0, 1, 1]), [[0], [1]], recompute=(True, True)))
    assert flags(plan)["--recompute-granularity"] == "full"
    assert recipe(plan).activation_checkpoint == {}
    with pytest.raises(
        TopoplanError, match=r"^torch-schedule: operator 'tok_embeddings' is in stage 0, which recomputes"
    ):
        TorchSchedule().write(plan)


@pytest.mark.parametrize("kind", ["gpipe", "1f1b-deep", "zero-bubble"])
def test_megatron_has_no_other_schedules(kind):
    graph = layered()
    plan = planned(graph, pipeline(graph, stages_of(graph, [0, 0, 1, 1]), [[0], [1]], kind))
    with pytest.raises(TopoplanError, match=rf"^megatron: operator 'layers.2.up' begins stage 1 of .* schedule {kind}"):
        Megatron().write(plan)
    parallelism = recipe(plan).parallelism
    if kind == "gpipe":
        assert parallelism.pipeline_parallel_schedule == "GPipe"
    else:
        assert parallelism.pipeline_parallel_schedule_csv == "/recipes/schedule.csv"


# Schedules


def cells(plan):
    return list(csv.reader(io.StringIO(TorchSchedule().write(plan).decode())))


@given(st.sampled_from(ORDERS), st.integers(1, 4), st.integers(1, 3), st.data())
def test_every_pass_is_there_once_and_after_what_it_needs(kind, depth, rounds, data):
    rounds = rounds if kind == "interleaved" and depth > 1 else 1
    count = data.draw(st.integers(1, 4)) * (depth if kind == "interleaved" else 1)
    stages = depth * rounds
    graph = layered(stages, batch=count)
    strategy = pipeline(
        graph, stages_of(graph, [*range(stages)]), [[k % depth] for k in range(stages)], kind, micro_batches=count
    )
    rows = cells(planned(graph, strategy))
    assert len(rows) == depth
    assert len({len(row) for row in rows}) == 1
    at = {}
    for position, row in enumerate(rows):
        for column, cell in enumerate(row):
            if cell:  # torch takes a pass without a micro-batch as it is, so every cell must have one
                stage, letter, micro = re.fullmatch(r"(\d+)([FBIW])(\d+)", cell).groups()
                assert int(stage) % depth == position
                at[int(stage), letter, int(micro)] = column
    back = "I" if kind == "zero-bubble" else "B"
    letters = ("F", "I", "W") if back == "I" else ("F", "B")
    assert set(at) == {(s, letter, m) for s in range(stages) for letter in letters for m in range(count)}
    for (stage, letter, micro), column in at.items():
        if letter == "F" and stage:
            assert column > at[stage - 1, "F", micro]
        if letter == back:
            assert column > at[stage, "F", micro]
            assert stage == stages - 1 or column > at[stage + 1, back, micro]
        if letter == "W":
            assert column > at[stage, "I", micro]


@needs_torch
@pytest.mark.parametrize(
    ("kind", "rounds"), [("gpipe", 1), ("1f1b", 1), ("1f1b-deep", 1), ("zero-bubble", 1), ("interleaved", 2)]
)
def test_torch_reads_the_schedule_and_can_run_it(tmp_path, kind, rounds):
    from torch.distributed.pipelining import schedules

    depth, count = 4, 8
    stages = depth * rounds
    graph = layered(stages, batch=count)
    devices = [[k % depth] for k in range(stages)]
    plan = planned(graph, pipeline(graph, stages_of(graph, [*range(stages)]), devices, kind, micro_batches=count))
    (tmp_path / "plan.csv").write_bytes(TorchSchedule().write(plan))
    runtime = object.__new__(schedules._PipelineScheduleRuntime)
    runtime.pp_group_size, runtime._num_stages, runtime._n_microbatches = depth, stages, count
    runtime._stages, runtime.pipeline_order, runtime._defer_pp_recv = [], {}, False
    runtime._load_csv(str(tmp_path / "plan.csv"))
    assert runtime.stage_index_to_group_rank == {stage: stage % depth for stage in range(stages)}
    passes = {
        rank: [(a.stage_index, a.computation_type.value, a.microbatch_index) for a in actions if a is not None]
        for rank, actions in runtime.pipeline_order.items()
    }
    letters = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W"}
    assert passes == {
        rank: [(stage, letters.get(letter, letter), micro) for stage, letter, micro in row]
        for rank, row in enumerate(actions_of(grid_of(plan, TARGET)))
    }
    messages = {"UNSHARD", "RESHARD", "REDUCE_GRAD"}
    lowered = {
        rank: [action for action in actions if action.computation_type.name not in messages]
        for rank, actions in runtime.pipeline_order_with_comms.items()
    }
    # Torch's own dry run: an error where passes wait for each other.
    schedules._simulate_comms_compute(lowered, lambda stage: runtime.stage_index_to_group_rank[stage], stages)


@needs_torch
def test_the_interleaved_order_is_torchs():
    from torch.distributed.pipelining import schedules

    depth, rounds, count = 4, 2, 8
    graph = layered(depth * rounds, batch=count)
    devices = [[k % depth] for k in range(depth * rounds)]
    strategy = pipeline(graph, stages_of(graph, [*range(8)]), devices, "interleaved", micro_batches=count)
    theirs = object.__new__(schedules.ScheduleInterleaved1F1B)
    theirs.pp_group_size, theirs.n_local_stages, theirs._n_microbatches = depth, rounds, count
    theirs.number_of_rounds, theirs.microbatches_per_round = 2, depth
    for rank, ours in enumerate(actions_of(grid_of(planned(graph, strategy), TARGET))):
        order = theirs._calculate_single_rank_operations(rank)
        assert [str(action) for action in order if action is not None] == [
            f"{stage}{letter}{micro}" for stage, letter, micro in ours
        ]


def test_names_cannot_leave_comments():
    graph = attrs.evolve(layered(1, 4), name='x\nrm -rf "$HOME" """ \\')
    plan = planned(graph, data_parallel(graph, [0, 1]))
    for exporter in (Torchrun, Megatron):
        text = exporter().write(plan).decode()
        assert [line for line in text.splitlines() if "rm -rf" in line and not line.startswith("#")] == []
    tree = ast.parse(Torchtitan().write(plan).decode())
    assert "rm -rf" in ast.get_docstring(tree)


def test_a_schedule_of_a_program_is_refused():
    graph = layered()
    strategy = program(graph, (2,), [samples])
    count = len(graph.operators)
    overlapped = overlapped_strategy(strategy.program, graph, np.arange(count), 2)
    for exporter in TRAINERS:
        with pytest.raises(TopoplanError, match=rf"^{exporter.name}: the plan overlaps 2 micro-batches on all devices"):
            exporter().write(planned(graph, overlapped))
