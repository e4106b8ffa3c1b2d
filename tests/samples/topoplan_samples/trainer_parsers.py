"""What trainers' own parsers read of a file: scripts for processes of their own, which print JSON in their last line.

None of the trainers is a dependency; `answer` runs a script with an interpreter that has them.
"""

from __future__ import annotations

import json
import subprocess
import sys

__all__ = ["DEEPSPEED", "MEGATRON_ARGUMENTS", "TORCHTITAN", "TORCHTITAN_TOML", "TORCH_SCHEDULE", "answer", "started"]

DEEPSPEED = """
import json, sys
from deepspeed.module_inject.auto_ep_config import validate_autoep_config
from deepspeed.module_inject.autotp_config import AutoTPConfig
from deepspeed.runtime import config

config.dist.get_rank = lambda *group: 0  # no process was started

def read(document, replicas):
    class Ranks:
        def get_data_parallel_world_size(self):
            return replicas

    read = config.DeepSpeedConfig(document, mpu=Ranks())
    tensor, experts, stage = read.tensor_parallel_config, read.expert_parallel_config, read.zero_config.stage
    ranks = replicas * max(tensor.autotp_size, 1)
    validate_autoep_config(experts, ranks, 1, tensor.autotp_size, 1, zero_stage=stage)
    layers = AutoTPConfig.from_dict(tensor.partition_config).layer_specs if tensor.partition_config else []
    return {
        "batch": [read.train_batch_size, read.train_micro_batch_size_per_gpu, read.gradient_accumulation_steps],
        "stage": stage,
        "degrees": [max(tensor.autotp_size, 1), experts.autoep_size],
        "cuts": {layer.partition_type.value: layer.patterns for layer in layers},
        "half": [read.float16_config.enabled, read.bfloat16_config.enabled],
    }

print(json.dumps({name: read(*started) for name, started in json.loads(sys.argv[1]).items()}))
"""

MEGATRON_ARGUMENTS = """
import json, os, sys, types, typing
import torch, typing_extensions

typing.override = typing_extensions.override  # Python 3.11 has none
torch.cuda.get_device_properties = lambda device: types.SimpleNamespace(major=9, minor=0)  # an H100
sys.path.insert(0, sys.argv[1])
from megatron.training.arguments import core_transformer_config_from_args, parse_args, validate_args

def read(words, variables):
    sys.argv[1:] = words
    os.environ.update(variables)
    found = validate_args(parse_args())
    config = core_transformer_config_from_args(found)
    layout = config.pipeline_model_parallel_layout
    return {
        "degrees": [
            found.pipeline_model_parallel_size,
            found.virtual_pipeline_model_parallel_size or 1,
            found.data_parallel_size,
            config.tensor_model_parallel_size,
            config.expert_model_parallel_size,
            config.context_parallel_size,
            found.expert_tensor_parallel_size,
        ],
        "batch": [found.micro_batch_size, found.global_batch_size],
        "decoders": layout and [[sum(x.name == "decoder" for x in s) for s in c] for c in layout.layout],
        "sharding": found.data_parallel_sharding_strategy if found.use_megatron_fsdp else "no_shard",
        "sequence": config.sequence_parallel,
        "recompute": config.recompute_granularity,
        "modules": config.recompute_modules if config.recompute_granularity == "selective" else None,
        "optimizer": found.use_distributed_optimizer and not found.use_megatron_fsdp,
        "mapping": found.use_tp_pp_dp_mapping,
        "dtype": str(found.params_dtype),
    }

found = {}
for name, started in json.loads(sys.argv[2]).items():
    try:
        found[name] = read(*started)
    except (Exception, SystemExit) as error:
        found[name] = repr(error)
print(json.dumps(found))
"""

TORCHTITAN_TOML = """
import dataclasses, json, sys

sys.path.insert(0, sys.argv[1])
from torchtitan.config import ConfigManager

found = {}
for path in sys.argv[2:]:
    try:
        config = ConfigManager().parse_args(["--job.config_file", path])
        sections = config.parallelism, config.training, config.activation_checkpoint
        found[path] = [dataclasses.asdict(section) for section in sections]
    except (Exception, SystemExit) as error:
        found[path] = repr(error)
print(json.dumps(found))
"""

TORCHTITAN = """
import dataclasses, json, os, sys

sys.path.insert(0, sys.argv[1])
from torchtitan.config.manager import ConfigManager
from torchtitan.models.deepseek_v3.config_registry import deepseek_v3_debugmodel as with_experts
from torchtitan.models.llama3.config_registry import llama3_debugmodel

def dense():
    config = llama3_debugmodel()
    config.model_spec.model.layers = config.model_spec.model.layers[:4]
    return config

found = {}
for words in sys.argv[2:]:
    name, _, os.environ["BASE"] = words.partition("=")
    try:
        config = ConfigManager().parse_args(["--module", name, "--config", "plan"])
        sections = dataclasses.asdict(config.parallelism) | dataclasses.asdict(config.training)
        found[name] = sections | {"activation": type(config.activation_checkpoint).__qualname__}
    except (Exception, SystemExit) as error:
        found[name] = repr(error)
print(json.dumps(found))
"""

TORCH_SCHEDULE = """
import csv, json, sys
from torch.distributed.pipelining import schedules

def read(path, ranks, stages, micro_batches):
    runtime = object.__new__(schedules._PipelineScheduleRuntime)  # its ranks are in no process group
    runtime.pp_group_size, runtime._num_stages, runtime._n_microbatches = ranks, stages, micro_batches
    runtime._stages, runtime.pipeline_order, runtime._defer_pp_recv = [], {}, False
    runtime._load_csv(path)
    messages = {"UNSHARD", "RESHARD", "REDUCE_GRAD"}
    lowered = {
        rank: [action for action in actions if action.computation_type.name not in messages]
        for rank, actions in runtime.pipeline_order_with_comms.items()
    }
    schedules._simulate_comms_compute(lowered, lambda stage: runtime.stage_index_to_group_rank[stage], stages)
    return sum(action is not None for actions in runtime.pipeline_order.values() for action in actions)

print(json.dumps(read(sys.argv[1], *map(int, sys.argv[2:]))))
"""


def answer(script, *arguments, python=sys.executable):
    """Run a script with these arguments; return the JSON of its last line."""
    words = [python, "-W", "ignore", "-c", script, *arguments]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def started(text, ranks):
    """The arguments that a script for Megatron-LM gives to its program, and the variables that it sets."""
    setting = "".join(line + "\n" for line in text.splitlines() if line.startswith("export CUDA_DEVICE_MAX"))
    flags = text[text.index("flags=(") : text.index("\n)\n")] + "\n)\n"
    show = setting + flags + 'printf "%s\\n" "${CUDA_DEVICE_MAX_CONNECTIONS:-}" "${flags[@]}"'
    found = subprocess.run(["bash", "-c", show], env={}, capture_output=True, text=True, check=True)
    connections, *words = found.stdout.splitlines()
    return words, {"CUDA_DEVICE_MAX_CONNECTIONS": connections, "RANK": "0", "WORLD_SIZE": str(ranks)}
