"""The programs themselves read what is written for them, where they are installed: DeepSpeed, Megatron, torchtitan.

None of them is a dependency.  ``pip install --no-deps deepspeed megatron-core torchtitan`` beside torch, and what they
import, is enough.  Each runs in a process of its own, since they set up much when they are imported.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys

import pytest

from topoplan_exporter_launch import DeepSpeed, Megatron, Torchtitan
from topoplan_samples.layered import data_parallel, layered, megatron, pipeline, planned, program, samples, stages_of


def needs(*modules):
    missing = [name for name in ("torch", *modules) if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} not installed")


def answer(script, *arguments):
    """Run a script with these arguments; return the JSON of its last line."""
    words = [sys.executable, "-W", "ignore", "-c", script, *arguments]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


DEEPSPEED = """
import json, sys
from deepspeed.runtime import config

config.dist.get_rank = lambda *group: 0  # no process was started

class Ranks:
    def get_data_parallel_world_size(self):
        return int(sys.argv[2])

read = config.DeepSpeedConfig(json.loads(sys.argv[1]), mpu=Ranks())
tensor = read.tensor_parallel_config
cuts = {}
if tensor.partition_config is not None:
    from deepspeed.module_inject.autotp_config import AutoTPConfig
    for layer in AutoTPConfig.from_dict(tensor.partition_config).layer_specs:
        cuts[layer.partition_type.value] = layer.patterns
print(json.dumps({
    "batch": [read.train_batch_size, read.train_micro_batch_size_per_gpu, read.gradient_accumulation_steps],
    "stage": read.zero_config.stage,
    "tensor": tensor.autotp_size,
    "cuts": cuts,
}))
"""


@needs("deepspeed")
@pytest.mark.slow
def test_deepspeed_reads_its_configuration():
    graph = layered()

    def whole_tables(op):
        return None if op.name == "tok_embeddings" else megatron(op)

    document = DeepSpeed().write(planned(graph, program(graph, (2, 2), [samples, whole_tables]))).decode()
    found = answer(DEEPSPEED, document, "2")
    assert found["batch"] == [16, 8, 1]
    assert (found["stage"], found["tensor"]) == (0, 2)
    written = json.loads(document)["tensor_parallel"]["partition_config"]["layer_specs"]
    assert found["cuts"] == {layer["partition_type"]: layer["patterns"] for layer in written}


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


TORCHTITAN = """
import dataclasses, json
from torchtitan.config.configs import ParallelismConfig

print(json.dumps([field.name for field in dataclasses.fields(ParallelismConfig)]))
"""


@needs("torchtitan")
@pytest.mark.slow
def test_torchtitan_has_the_fields_of_parallelism_that_a_recipe_sets():
    # Fields of training are those of a later commit than the release on PyPI (0.3.0), which has others.
    graph, fields = layered(), answer(TORCHTITAN)
    for strategy in (data_parallel(graph, [0, 1]), program(graph, (2, 2), [samples, megatron])):
        recipe = Torchtitan().write(planned(graph, strategy)).decode()
        names = re.findall(r"^ *parallelism\.(\w+) =", recipe, re.MULTILINE)
        assert len(names) > 2
        assert not set(names) - set(fields)
