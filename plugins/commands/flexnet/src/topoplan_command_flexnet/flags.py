"""The flags that all of FlexNet's programs share (``FFConfig::parse_args`` in its ``model.cc``, and its examples).

A flag either sets something, named by its ``key`` (`topoplan_command_flexnet.translate` makes something of it), or does
nothing, and ``why`` says so.
"""

from __future__ import annotations

import attrs

from topoplan_command_flexnet.values import Reader, choice, number, text, whole

__all__ = ["FLAGS", "LEGION", "MISSPELT", "TOPOLOGIES", "Flag"]


@attrs.frozen(kw_only=True)
class Flag:
    """One flag.

    Attributes:
        names: its spellings.
        key: what it sets; empty where it sets nothing.
        read: reads the word behind it; None for a switch.
        why: why it sets nothing.
        lost: it does something in FlexNet, and nothing here.
    """

    names: tuple[str, ...]
    key: str = ""
    read: Reader | None = None
    why: str = ""
    lost: bool = False


def _sets(key: str, read: Reader | None, *names: str) -> Flag:
    return Flag(names=names, key=key, read=read)


def _idle(why: str, *names: str, switch: bool = False, lost: bool = False) -> Flag:
    return Flag(names=names, read=None if switch else text, why=why, lost=lost)


#: Value of ``--topology`` -> the topology here.
TOPOLOGIES = {"topoopt": "topoopt", "fattree": "bigswitch", "fc": "fully-connected", "random": "random"}

_UNUSED = "FlexNet reads it and never uses it"
_TRAINING = "for training runs; nothing is trained here"
_OTHER = "for FlexFlow's own simulator, which FlexNet's programs do not run"

FLAGS = (
    _sets("servers", whole(1), "--nsimnode"),
    _sets("gpus", whole(1), "-ll:gpu"),
    _sets("big-gpu", whole(0), "--big-gpu"),
    _sets("batch-size", whole(1), "-b", "--batch-size"),
    _sets("interface-bandwidth", whole(1), "--interface-bandwidth"),
    _sets("inter-gpu-bandwidth", whole(1), "--inter-gpu-bandwidth"),
    _sets("latency", whole(0), "--network-latency"),
    _sets("degree", whole(1), "--node-degree"),
    _sets("net-opt", whole(0), "--net-opt"),
    _sets("topology", choice(*TOPOLOGIES), "--topology"),
    _sets("mfile", text, "--mfile"),
    _sets("measure", None, "--measure"),
    _sets("taskgraph", text, "--taskgraph"),
    _sets("budget", whole(0), "--budget", "--search-budget"),
    _sets("alpha", number, "--alpha", "--search-alpha"),
    _sets("propagation", None, "--enable-propagation"),
    _sets("import", text, "--import", "--import-strategy"),
    _sets("export", text, "--export", "--export-strategy"),
    _idle("FlexNet has no such flag but --import; `topoplan flexflow` takes FlexFlow's", "-s", "--strategy"),
    _idle(_UNUSED, "--nsimgpu"),
    _idle("FlexNet's programs take --nsimnode instead", "--nodes"),
    _idle(_UNUSED, "--gpu-dram-bandwidth"),
    _idle(_UNUSED, "--topo-file"),
    _idle(_UNUSED, "--enable-attribute-parallel", switch=True),
    _idle(
        "FlexNet's dialect cuts samples only; `topoplan optimize` cuts linear layers by channels, too",
        "--enable-parameter-parallel",
        switch=True,
        lost=True,
    ),
    _idle("cuts are those that --mfile holds, or any that divides the batch", "--max-localsz", lost=True),
    _idle(_OTHER, "--overlap", switch=True),
    _idle(_OTHER, "--simulator-segment-size"),
    _idle(_OTHER, "--simulator-max-num-segments"),
    _idle(_OTHER, "--machine-model-version"),
    _idle(_OTHER, "--machine-model-file"),
    _idle("GPU memory for measuring; nothing is measured here", "--simulator-workspace-size"),
    _idle("nothing here needs a GPU", "--no-gpu", switch=True),
    _idle(_TRAINING, "-e", "--epochs"),
    _idle(_TRAINING, "--lr", "--learning-rate"),
    _idle(_TRAINING, "--wd", "--weight-decay"),
    _idle(_TRAINING, "-p", "--print-freq"),
    _idle(_TRAINING, "-d", "--dataset"),
    _idle(_TRAINING, "--profiling", switch=True),
    _idle(_TRAINING, "--allow-tensor-op-math-conversion", switch=True),
    _idle(_TRAINING, "--fusion", switch=True),
    _idle(_TRAINING, "--control-replication", switch=True),
    _idle(_TRAINING, "--python-data-loader-type"),
)

#: Flags of the runtime system below FlexNet begin so (``-ll:gpu`` alone means something here); they are idle.
LEGION = ("-ll:", "-lg:", "-dm:", "-realm:", "-gex:", "-cuda:", "-numa:", "-ucx:")

#: What FlexNet's documentation says -> what FlexNet reads.
MISSPELT = {"--degree": "--node-degree"}
