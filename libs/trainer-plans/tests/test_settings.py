"""Plans that flags of Megatron-LM and configurations of torchtitan say."""

import pytest

from topoplan import TopoplanError
from topoplan_trainer_plans.settings import trainer_settings

#: The flags of Megatron-LM's example for a mixture of experts, in the form of its script.
SCRIPT = """#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-"4"}
WORLD_SIZE=$(($GPUS_PER_NODE*$NNODES))
TP=2
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes 4   # hosts
)
MODEL_PARALLEL_ARGS=(
    --tensor-model-parallel-size ${TP}
    --pipeline-model-parallel-size=4 --num-layers-per-virtual-pipeline-stage 4
    # --context-parallel-size 8
    --expert-model-parallel-size 8
    --use-distributed-optimizer
    --sequence-parallel
)
DTYPE_ARGS+=("--fp8-format hybrid" "--recompute-activations")
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py ${MODEL_PARALLEL_ARGS[@]} \\
    --num-layers 32 --seq-length 4096 --micro-batch-size 1 --global-batch-size 256 --tp-comm-overlap
"""

TITAN = """
[training]
local_batch_size = 16
seq_len = 8192

[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = 4
tensor_parallel_degree = 8
enable_async_tensor_parallel = true
pipeline_parallel_degree = 4
pipeline_parallel_schedule = "Interleaved1F1B"
expert_parallel_degree = 2

[activation_checkpoint]
mode = "selective"
selective_ac_option = "2"
"""


def test_a_script_of_megatron():
    found = trainer_settings(SCRIPT, "train.sh")
    assert found.text == (
        "tp=2,pp=4,cp=1,ep=8,sp=yes,async-tp=yes,zero=1,micro-batch=1,schedule=interleaved:2,recompute=selective,clip=yes,"
        "layout=tp-cp-ep-dp-pp"
    )
    assert (found.devices, found.batch_size, found.sequence) == (32, 256, 4096)
    assert found.unread == ("--fp8-format",)


def test_a_yaml_file_of_megatron():
    text = "MODEL_ARGS:\n  --tensor-model-parallel-size: 4\n  --sequence-parallel: true\n  --global-batch-size: 128\n"
    text += "  --use-tp-pp-dp-mapping: true\n  --recompute-granularity: full\n  --context-parallel-size: 2\n"
    assert trainer_settings(text, "model_config.yaml").text == (
        "tp=4,pp=1,cp=2,ep=1,sp=yes,zero=0,micro-batch=1,schedule=1f1b,recompute=full,cp-comm=ring,clip=yes,"
        "layout=tp-cp-ep-pp-dp"
    )


@pytest.mark.parametrize(
    ("flags", "zero"),
    [
        ("--use-torch-fsdp2", "3"),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params", "3"),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", "2"),
        ("--use-megatron-fsdp", "0"),
        ("--use-distributed-optimizer", "1"),
        ("", "0"),
    ],
)
def test_what_megatron_shares(flags, zero):
    assert trainer_settings(f"--tensor-model-parallel-size 1 {flags}", "run.txt").plan["zero"] == zero


def test_a_configuration_of_torchtitan():
    found = trainer_settings(TITAN, "llama.toml")
    assert found.text == (
        "tp=8,pp=4,cp=1,ep=2,etp=1,dp=4,sp=yes,async-tp=yes,zero=3,grads=fp32,reshard=no,clip=yes,micro-batch=1,schedule=interleaved:2,"
        "recompute=every:2,layout=tp-cp-ep-dp-pp"
    )
    assert (found.batch_size, found.sequence, found.unread) == (64, 8192, ())


@pytest.mark.parametrize(("ranks", "whole", "rounds"), [(2, 32, 2), (2, 16, 0), (1, 32, 0), (2, -1, 0)])
def test_rounds_of_a_pipeline_of_torchtitan_are_named(ranks, whole, rounds):
    """A pipeline drains after each local batch; without one, rounds are micro-batches like others."""
    text = f"[parallelism]\ndata_parallel_shard_degree = 4\npipeline_parallel_degree = {ranks}\n"
    found = trainer_settings(text + f"[training]\nlocal_batch_size = 4\nglobal_batch_size = {whole}\n", "a.toml")
    assert len(found.unread) == (rounds > 0)
    assert all(f"each of {rounds} rounds of 16 samples" in line for line in found.unread)


def test_degrees_of_an_older_configuration():
    text = "[training]\nbatch_size = 2\ntensor_parallel_degree = 8\n[experimental]\npipeline_parallel_degree = 2\n"
    found = trainer_settings(text + "[activation_checkpoint]\nmode = 'full'\n", "old.toml")
    assert found.plan["pp"] == "2"
    assert found.plan["recompute"] == "full"
    assert "dp" not in found.plan  # the rest of the devices


def test_gradients_of_megatron():
    degrees = "--tensor-model-parallel-size 2 --use-distributed-optimizer"
    assert trainer_settings(f"{degrees} --bf16 --clip-grad 0.0", "run.sh").plan.get("grads") == "fp32"
    assert "clip" not in trainer_settings(f"{degrees} --clip-grad 0.0", "run.sh").plan
    for shared, ahead in (("--use-distributed-optimizer", "yes"), ("", None)):
        text = f"--tensor-model-parallel-size 2 {shared} --overlap-grad-reduce --overlap-param-gather"
        assert trainer_settings(text, "run.sh").plan.get("overlap-gather") == ahead
    several = f"{degrees} --num-distributed-optimizer-instances 4 --nnodes 4 --nproc-per-node 8"
    assert trainer_settings(several, "run.sh").plan["shard"] == "4"
    with pytest.raises(TopoplanError, match=r"instances 4 needs numbers of devices .* a multiple of 8"):
        trainer_settings(f"{degrees} --num-distributed-optimizer-instances 4", "run.sh")


def test_hybrid_sharding_of_torchtitan():
    text = "[parallelism]\ndata_parallel_replicate_degree = 2\ndata_parallel_shard_degree = 4\n"
    plan = trainer_settings(text + "[training]\nmixed_precision_reduce = 'bfloat16'\nmax_norm = 0\n", "a.toml").plan
    assert {key: plan.get(key) for key in ("dp", "shard", "zero", "grads", "clip", "reshard")} == {
        "dp": "8",
        "shard": "4",
        "zero": "3",
        "grads": None,
        "clip": None,
        "reshard": None,
    }


def test_how_attention_gets_all_positions():
    flags = "--context-parallel-size 2"
    for way, word in (("", "ring"), ("--cp-comm-type a2a", "ulysses"), ("--cp-comm-type all_gather", "gather")):
        assert trainer_settings(f"{flags} {way}", "run.sh").plan["cp-comm"] == word
    titan = "[parallelism]\ncontext_parallel_degree = 2\n"
    assert trainer_settings(titan, "a.toml").plan["cp-comm"] == "gather"
    for text, name in (
        (f"{flags} --cp-comm-type a2a+p2p", "run.sh"),
        (titan + "context_parallel_rotate_method = 'x'", "a.toml"),
    ):
        with pytest.raises(TopoplanError, match=r"cp-comm-type is 'a2a\+p2p'|rotate_method = 'x'"):
            trainer_settings(text, name)


@pytest.mark.parametrize(
    ("flags", "layers", "schedule"),
    [
        ("--pipeline-model-parallel-layout 'Et|t*2|tL|'", None, None),
        (
            "--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout 'Et|(tt|)*6,tL'",
            "1+2*6+1",
            "interleaved:2",
        ),
        ("--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout 'E|t*3|t*3|t*2,L'", "0+3*2+2", "1f1b"),
        ("--pipeline-model-parallel-size 4 --account-for-loss-in-pipeline-split", "head", "1f1b"),
        (
            "--pipeline-model-parallel-size 8 --num-layers 126 --num-virtual-stages-per-pipeline-rank 8 "
            "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split",
            "embedding+head",
            "interleaved:8",
        ),
        ("--pipeline-model-parallel-size 4 --num-layers 30 --decoder-first-pipeline-num-layers 6", "6+8*3", "1f1b"),
        (
            "--pipeline-model-parallel-size 4 --num-layers 62 --decoder-first-pipeline-num-layers 15 "
            "--decoder-last-pipeline-num-layers 15",
            "15+16*2+15",
            "1f1b",
        ),
    ],
)
def test_stages_of_different_depth(flags, layers, schedule):
    if layers is None:
        with pytest.raises(TopoplanError, match="L in the last one"):
            trainer_settings(f"--tensor-model-parallel-size 1 {flags}", "run.sh")
        return
    plan = trainer_settings(flags, "run.sh").plan
    assert (plan["layers"], plan["schedule"]) == (layers, schedule)


def test_flags_in_a_text_of_several_lines():
    text = 'OPTIONS=" \\\n  --tensor-model-parallel-size 8 \\\n  --bf16\n\n  --micro-batch-size 2"\nexec "$OPTIONS"\n'
    found = trainer_settings(text, "run.sh").plan
    assert (found["tp"], found["micro-batch"], found["grads"]) == ("8", "2", "fp32")


def test_modules_that_run_again():
    text = "--tensor-model-parallel-size 2 --recompute-granularity selective --recompute-modules core_attn moe_act \\\n"
    text += "  --seq-length 4096"
    found = trainer_settings(text, "run.sh")
    assert found.plan["recompute"] == "modules:core_attn+moe_act"
    assert found.sequence == 4096


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("echo hello", "run.sh", r"run.sh: has no flags of Megatron-LM .*--tensor-model-parallel-size"),
        ("--tensor-model-parallel-size $TP", "run.sh", r"is '\$TP' \(a variable that the file does not set\)"),
        ("--tensor-model-parallel-size 0", "run.sh", "--tensor-model-parallel-size is '0', must be a positive number"),
        ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'E|t*3'", "a.sh", "L in the last one"),
        ("--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout 'E|t*3L'", "a.sh", "2 stages for 4 ranks"),
        ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et|tmL'", "a.sh", "'m' has no place"),
        ("--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 3", "a.sh", "rest divides, not None"),
        (
            "--pipeline-model-parallel-size 4 --num-layers 32 --decoder-first-pipeline-num-layers 4",
            "a.sh",
            "4 layers on the first and equally many on the last of 4 ranks",
        ),
        (
            "--pipeline-model-parallel-size 4 --num-layers 30 --num-layers-per-virtual-pipeline-stage 2",
            "a.sh",
            "a multiple of 8, not 30",
        ),
        ("--context-parallel-size 2 --recompute-granularity some", "a.sh", "is 'some' \\(must be selective or full"),
        (
            "--context-parallel-size 2 --recompute-granularity full --recompute-method block --recompute-num-layers 4",
            "a.sh",
            "repeats each layer by itself",
        ),
        ("[a", "a.toml", "a.toml: is no TOML"),
        ("[model]\nname = 'llama'", "a.toml", "no \\[parallelism\\] with degrees"),
        ("[parallelism]\ntensor_parallel_degree = true", "a.toml", "tensor_parallel_degree = True"),
        ("[parallelism]\ndata_parallel_replicate_degree = 2", "a.toml", "needs a data_parallel_shard"),
        (
            "[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = 'DualPipeV'",
            "a.toml",
            "'DualPipeV' has no schedule here",
        ),
        (
            "[parallelism]\ntensor_parallel_degree = 1\n[activation_checkpoint]\nselective_ac_option = 'first'",
            "a.toml",
            "every n-th layer",
        ),
    ],
)
def test_what_a_plan_cannot_say_is_refused_by_name(text, name, message):
    with pytest.raises(TopoplanError, match=message):
        trainer_settings(text, name)


@pytest.mark.parametrize(
    ("tp", "cp", "ep", "etp", "says"),
    [(2, 1, 2, 1, "1"), (2, 1, 2, 2, None), (2, 1, 2, None, None), (2, 2, 2, None, "2"), (4, 1, 1, 2, "2")],
)
def test_the_tensor_parallelism_of_experts_is_said_where_it_is_not_that_of_all_else(tp, cp, ep, etp, says):
    """Megatron-LM divides experts over slices of positions first, which ``etp`` says, and nothing else does."""
    flags = f"--tensor-model-parallel-size {tp} --context-parallel-size {cp} --expert-model-parallel-size {ep}"
    flags += f" --expert-tensor-parallel-size {etp}" if etp else ""
    assert trainer_settings(flags, "a.sh").plan.get("etp") == says


def test_layouts_that_repeat_without_end_are_refused():
    with pytest.raises(TopoplanError, match="repeats something 999999999 times"):
        trainer_settings("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et*999999999|L'", "a.sh")
    yaml = "  --pipeline-model-parallel-size: 2\n  --pipeline-model-parallel-layout: '(E|)*1tL'\n"
    assert trainer_settings(yaml, "a.yaml").plan["layers"] == "0+1"


def test_devices_of_ranks_are_a_layout():
    flags = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"
    for devices, layout in [
        ("0,1,2,3,4,5,6,7", "tp-cp-ep-dp-pp"),
        ("0,1,4,5,2,3,6,7", "tp-cp-ep-pp-dp"),
        ("0,4,1,5,2,6,3,7", "cp-ep-dp-pp-tp"),
    ]:
        found = trainer_settings(f"export TOPOPLAN_DEVICES={devices}\n{flags}", "run.sh")
        assert (found.plan["layout"], found.devices) == (layout, 8)
    inside = trainer_settings(f"TOPOPLAN_DEVICES=0,1,2,3,4,5,6,7\n{flags} --use-tp-pp-dp-mapping", "run.sh")
    assert inside.plan["layout"] == "tp-cp-ep-pp-dp"
    for devices in ("0,1,2,3,4,5,7,6", "0,1,2", "0,1,2,3,4,5,6,6"):
        with pytest.raises(TopoplanError, match="in an order that no layout of a stated plan has"):
            trainer_settings(f"TOPOPLAN_DEVICES={devices}\n{flags}", "run.sh")


def test_parts_of_torchtitan_are_chunks():
    head = '[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = "{}"\n'
    head += "module_fqns_per_model_part = {}\n"
    head += "[activation_checkpoint]\nmode = 'none'\n"
    one = '[["tok_embeddings", "layers.0"], ["layers.1", "norm", "output"]]'
    two = '[["tok_embeddings"], [], [], ["norm", "output"]]'
    uneven = '[["tok_embeddings"], ["layers.0", "layers.1", "norm", "output"]]'
    for schedule, parts, found in [
        ("GPipe", one, ("gpipe", "1*2")),
        ("Interleaved1F1B", two, ("interleaved:2", "0*4")),
        ("1F1B", uneven, ("1f1b", "0+2")),
    ]:
        plan = trainer_settings(head.format(schedule, parts), "a.toml").plan
        assert (plan["schedule"], plan["layers"]) == found
    for schedule, parts, why in [
        ("1F1B", two, "has 4 parts for 2 ranks and schedule 1f1b"),
        ("ZBVZeroBubble", one, "has 2 parts for 2 ranks and schedule zbv"),
        ("1F1B", '[["layers.1"], ["layers.0"]]', "'layers.1' is in no place"),
        ("Interleaved1F1B", '[[], ["norm"], [], []]', "'norm' is in no place"),
        ("1F1B", "3", "must be a list of lists of names"),
    ]:
        with pytest.raises(TopoplanError, match=why):
            trainer_settings(head.format(schedule, parts), "a.toml")
