"""FlexFlow's flags and programs (``FFConfig::parse_args``, README and ``examples/cpp`` of FlexFlow, 2019 to 2022)."""

from __future__ import annotations

from topoplan_command_flexnet.flags import Flag
from topoplan_command_flexnet.programs import PROGRAMS as SIMULATED
from topoplan_command_flexnet.programs import Program
from topoplan_command_flexnet.values import number, text, whole

__all__ = ["FLAGS", "PROGRAMS", "RUNTIME"]

#: Why flags of Legion and Realm do nothing.
RUNTIME = "out of scope: for Legion, which maps and runs tasks"

_TRAINING = "for training runs; nothing is trained here"
_GRAPH = "for FlexFlow's search over graph substitutions"
_SERVING = "for serving language models"


def _sets(key: str, *names: str, minimum: int = 0) -> Flag:
    return Flag(names=names, key=key, read=whole(minimum))


def _file(key: str, *names: str) -> Flag:
    return Flag(names=names, key=key, read=text)


def _switch(key: str, *names: str) -> Flag:
    return Flag(names=names, key=key)


def _idle(why: str, *names: str, switch: bool = False) -> Flag:
    return Flag(names=names, read=None if switch else text, why=why)


FLAGS = (
    _sets("gpus", "-ll:gpu", minimum=1),
    _sets("servers", "--nodes", minimum=1),
    _sets("memory", "-ll:fsize", minimum=1),
    _sets("batch-size", "-b", "--batch-size", minimum=1),
    _file("strategy", "-s", "--strategy", "--import", "--import-strategy"),
    _file("export", "--export", "--export-strategy"),
    _file("taskgraph", "--taskgraph"),
    _sets("budget", "--budget", "--search-budget"),
    Flag(names=("--alpha", "--search-alpha"), key="alpha", read=number),
    _switch("propagation", "--enable-propagation"),
    _switch("overlap", "--overlap"),
    _switch("only-data-parallel", "--only-data-parallel"),
    _idle(_TRAINING, "-e", "--epochs"),
    _idle(_TRAINING, "-i", "--iterations"),
    _idle(_TRAINING, "--lr", "--learning-rate"),
    _idle(_TRAINING, "--wd", "--weight-decay"),
    _idle(_TRAINING, "-p", "--print-freq"),
    _idle(_TRAINING, "-d", "--dataset"),
    _idle(_TRAINING, "--profiling", switch=True),
    _idle(_TRAINING, "--inference-debugging", switch=True),
    _idle(_TRAINING, "--allow-tensor-op-math-conversion", switch=True),
    _idle(_TRAINING, "--python-data-loader-type"),
    _idle("operators are not fused", "--fusion", switch=True),
    _idle("operators are not made to share memory", "--enable-inplace-optimizations", switch=True),
    _idle("the search cuts channels anyway", "--enable-parameter-parallel", switch=True),
    _idle("the search cuts positions anyway", "--enable-attribute-parallel", switch=True),
    _idle("memory for measuring on a GPU; -e roofline computes times", "--simulator-workspace-size"),
    _idle("flows share links here; none is cut into segments", "--simulator-segment-size"),
    _idle("flows share links here; none is cut into segments", "--simulator-max-num-segments"),
    _idle(
        "describe the machine with options of `topoplan optimize`, as in the line below",
        "--machine-model-version",
    ),
    _idle(
        "is not read: sockets, memory buses, PCIe and NVLink pairs are one bandwidth here "
        "(--inter-gpu-bandwidth-gbps), NICs are --degree, --interface-bandwidth-gbps and --latency-us",
        "--machine-model-file",
    ),
    _idle("--nodes and -ll:gpu name the machine of the search, too", "--search-num-nodes"),
    _idle("--nodes and -ll:gpu name the machine of the search, too", "--search-num-workers"),
    _idle(_GRAPH, "--substitution-json"),
    _idle(_GRAPH, "--base-optimize-threshold"),
    _idle("memory always counts, as a penalty", "--memory-search", switch=True),
    _idle("-x dot=FILE, behind the line below, writes the task graph", "--compgraph"),
    _idle("-x dot=FILE, behind the line below, writes the task graph", "--include-costs-dot-graph", switch=True),
    _idle(_SERVING, "-offload", "--4bit-quantization", "--8bit-quantization", switch=True),
    _idle(_SERVING, "-offload-reserve-space-size"),
    _idle(_SERVING, "-data-parallelism-degree"),
    _idle(_SERVING, "-tensor-parallelism-degree"),
    _idle(_SERVING, "-pipeline-parallelism-degree"),
    _idle(RUNTIME, "--control-replication", "--disable-control-replication", switch=True),
)

_OPTIONS = {program.frontend: program.flags for program in SIMULATED}


def _program(frontend: str, *names: str) -> Program:
    simulated = next(program.names for program in SIMULATED if program.frontend == frontend)
    spelled = [*names, *(f"{name}.py" for name in names), *simulated]
    return Program(names=tuple(spelled), frontend=frontend, flags=_OPTIONS[frontend])


#: Names of programs in C++ and, with ``.py``, in Python; FlexNet's names of the same models are understood, too.
PROGRAMS = (
    _program("alexnet", "alexnet"),
    _program("candle-uno", "candle_uno"),
    _program("dlrm", "dlrm"),
    _program("inception-v3", "inception", "inceptionv3"),
    _program("moe", "moe", "mixture_of_experts"),
    _program("resnet50", "resnet"),
    _program("transformer", "transformer"),
    _program("vgg16", "vgg", "vgg16"),
)
