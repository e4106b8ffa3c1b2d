"""What the command line, TOML files and Python set: the cluster, the components and the length of a run.

Units carry their names here (``interface_bandwidth_gbps``), because this is the edge:
`topoplan_engine.experiment.build_cluster` converts them to seconds and bytes/s.
"""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any, Literal, TypeAlias

import attrs

from topoplan.errors import TopoplanError, shown
from topoplan.options import SEEDS, check, option

__all__ = [
    "EXECUTOR",
    "LARGEST_BATCH",
    "MOST_DEVICES",
    "MOST_HOSTS",
    "ClusterOptions",
    "ComponentOptions",
    "HostGroup",
    "Kernels",
    "RunOptions",
    "UnnamedBudget",
    "UnnamedPatience",
    "is_unnamed",
    "unnamed",
]

#: Larger clusters than anybody has: a stated plan takes a minute of a processor and 6 GB; what is beyond takes more.
MOST_HOSTS, MOST_DEVICES = 131_072, 1_048_576
_MOST_GPUS, _MOST_INTERFACES = 1024, 1024
#: Largest batch: counts of samples are 32-bit.
LARGEST_BATCH = 2**31 - 1
#: Of any bandwidth, latency or memory, in its unit.
_LARGEST = 10**9
#: Share of memory that plans leave free, in percent.
MEMORY_RESERVE_PERCENT = 8.0
#: Whose kernels run: `topoplan_engine.trainer_kernels.KERNELS`.
Kernels: TypeAlias = Literal[
    "megatron", "megatron-local", "torchtitan", "torchtitan-2024", "torchtitan-eager", "deepseek", "transformers"
]
_COMPONENT = "NAME[:KEY=VALUE,...]"


class UnnamedBudget(int):
    """A number of candidates that is a default, so that a search may end before it has priced them."""


class UnnamedPatience(float):
    """A share of a budget that is a default, in place of which a large problem has one in work."""


class _UnnamedInt(int):
    """A default, in place of which a machine may say its own number."""


class _UnnamedFloat(float):
    """A default, in place of which a machine may say its own number."""


class _UnnamedText(str):
    """A default, in place of which a machine may say its own name."""


def unnamed(value: int) -> int:
    """Return a number that is a default."""
    return _UnnamedInt(value)


def is_unnamed(value: Any) -> bool:
    """Say whether the value of an option is its default, and no user's."""
    return isinstance(value, _UnnamedInt | _UnnamedFloat | _UnnamedText)


#: Candidates that are priced at most where nobody says, and where only the time is limited.
_BUDGET, _NO_BUDGET = UnnamedBudget(1000), 10**9
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_MOST_SECONDS = 365 * 24 * 3600.0


#: What `topoplan_engine.executors` has, for the help of commands.
EXECUTOR = "where it runs: processes, or dask:address=tcp://HOST:8786; the result does not depend on it"


@attrs.frozen(kw_only=True)
class HostGroup:
    """Some equal hosts of a cluster whose hosts differ; what is unset is as in `ClusterOptions`."""

    servers: int = option(1, help="how many hosts", minimum=1, maximum=MOST_HOSTS)
    gpus_per_server: int | None = option(None, help="devices of each host", minimum=1, maximum=_MOST_GPUS)
    degree: int | None = option(None, help="network interfaces of each host", minimum=1, maximum=_MOST_INTERFACES)
    interface_bandwidth_gbps: float | None = option(
        None, help="of one interface", unit="Gbps", above=0, maximum=_LARGEST
    )
    inter_gpu_bandwidth_gbps: float | None = option(
        None, help="of one GPU's link inside its host", unit="Gbps", above=0, maximum=_LARGEST
    )
    device: str | None = option(None, help="kind of device, as in the cluster")
    speed: float = option(1.0, help="factor on the speed of its kind", minimum=1e-6, maximum=1e6)
    memory_gb: float | None = option(None, help="memory of a device", unit="GB", above=0, maximum=_LARGEST)

    def __attrs_post_init__(self) -> None:
        check(self, "cluster.hosts")


@attrs.frozen(kw_only=True)
class ClusterOptions:
    """The cluster, in users' units."""

    machine: str | None = option(
        None,
        help="kind of host, which says its devices, NICs and the links inside, e.g. dgx-h100; what other options say "
        "holds; of several kinds dgx-h100*4+dgx-a100*2; unset: a host is one endpoint",
        short="-m",
        metavar=_COMPONENT,
    )
    servers: int = option(_UnnamedInt(16), help="number of hosts", minimum=1, maximum=MOST_HOSTS)
    gpus_per_server: int = option(
        _UnnamedInt(1), help="devices of each host, modelled one by one", minimum=1, maximum=_MOST_GPUS
    )
    gpus_per_device: int = option(
        1, help="real GPUs that one device stands for, with an all-reduce among them", minimum=1, maximum=_MOST_GPUS
    )
    inter_gpu_bandwidth_gbps: float = option(
        _UnnamedFloat(2400.0),
        help="of one GPU's link inside its host (NVSwitch), each way",
        unit="Gbps",
        above=0,
        maximum=_LARGEST,
    )
    interface_bandwidth_gbps: float = option(
        _UnnamedFloat(100.0), help="of one network interface", unit="Gbps", above=0, maximum=_LARGEST
    )
    degree: int | None = option(
        None,
        help="network interfaces of each host, all of them used; unset: 1 to a switch, 4 between hosts",
        minimum=1,
        maximum=_MOST_INTERFACES,
    )
    latency_us: float = option(1.0, help="of one network link, one way", unit="us", minimum=0, maximum=_LARGEST)
    device: str = option(
        _UnnamedText("A100-40"),
        help="kind of device: a machine that `topoplan plugins` lists; several, with commas between: one for each host",
    )
    memory_gb: float | None = option(
        None, help="memory of a device; unset: as its kind has", unit="GB", above=0, maximum=_LARGEST
    )
    memory_reserve_percent: float = option(
        MEMORY_RESERVE_PERCENT,
        help="of a device's memory that no plan fills: for context, communication buffers and fragmentation",
        unit="%",
        minimum=0,
        maximum=99,
    )
    devices: tuple[int, ...] = option(
        (),
        help="where each host's devices end (8,16: two hosts of eight), in place of servers and gpus-per-server",
        metavar="[END,...]",
    )
    hosts: tuple[HostGroup, ...] = attrs.field(default=(), metadata={"help": "groups of hosts that differ"})

    def __attrs_post_init__(self) -> None:
        check(self, "cluster")


@attrs.frozen(kw_only=True)
class ComponentOptions:
    """The components of a run, and what the model's own options are; `topoplan plugins` lists them all."""

    topology: str = option("bigswitch", help="network of the hosts", short="-t", metavar=_COMPONENT)
    searcher: tuple[str, ...] = option(
        ("auto",),
        help="what searches; several, with commas between or the option again, take turns",
        short="-s",
        metavar=_COMPONENT,
    )
    estimator: str | None = option(
        None,
        help="what says how long operators take; unset: what the model names, roofline for most",
        short="-e",
        metavar=_COMPONENT,
    )
    simulator: str = option("fluid", help="what simulates an iteration", metavar=_COMPONENT)
    collective: tuple[str, ...] = option(
        (),
        help="algorithm of a kind of collective, such as all-reduce=auto or all-to-all=pxn, or auto for all kinds; "
        "several, with commas between: the fastest for each group and size; ring is one ring, by one network interface "
        "of each host, multi-ring one for each of its devices; unset: rings of the network",
        metavar="COLLECTIVE=NAME,...",
    )
    protocol: Literal["inside", "none", "auto", "ll", "ll128", "simple"] | None = option(
        None,
        help="protocol of NCCL whose latencies collectives have; auto: the fastest; none: those of links alone; "
        "inside, or unset: NCCL's inside hosts of machines with NVSwitches, those of links elsewhere",
    )
    plan: str | None = option(
        None,
        help="price this plan in place of a search: options of the searcher stated, e.g. tp=8,pp=4,dp=16,zero=1",
        metavar="KEY=VALUE,...",
    )
    plan_from: Path | None = option(
        None,
        help="price the plan of a trainer's file: flags of Megatron-LM (a script, YAML) or torchtitan's TOML; what "
        "--plan says counts before it",
        metavar="FILE",
    )
    option: tuple[str, ...] = option(
        (), help="option of the model, e.g. preset=dlrm16", short="-o", metavar="KEY=VALUE"
    )


@attrs.frozen(kw_only=True)
class RunOptions:
    """How long to search, and from where."""

    time_limit: str | float | None = option(
        None,
        help="give the result after so much time (60s, 5m, 1h), without compilation and the writing of files; what it "
        "finds then depends on the machine",
        metavar="DURATION",
    )
    batch_size: int | None = option(
        None,
        help="samples per iteration over all devices; unset: the model's own",
        minimum=1,
        maximum=LARGEST_BATCH,
    )
    budget: int = option(
        attrs.Factory(lambda run: _BUDGET if run.time_limit is None else _NO_BUDGET, takes_self=True),
        help="candidates to price; 0 prices the initial strategy only, and is refused beside --plan and --plan-from; "
        "unset: 1000, or no limit beside --time-limit",
        minimum=0,
    )
    restarts: int = option(
        1,
        help="independent searches, one after the other, that share budget and time; the best is the result",
        minimum=1,
        maximum=1024,
    )
    seed: int = option(0, help="of all randomness", minimum=0, maximum=SEEDS)
    strategy: str | None = option(None, help="file with the strategy to start from", metavar="[EXPORTER=]FILE")
    strategy_rest: Literal["data-parallel"] | None = option(
        None, help="what operators are that the strategy's file does not name; unset: an error"
    )
    patience: float | None = option(
        None,
        help="share of the budget, or of the time if only that is limited, after which to stop if nothing was better; "
        "unset: 0.2 where neither budget nor time is limited and auto searches, else 1",
        above=0,
        maximum=1,
        metavar="SHARE",
    )
    keep: Literal["constructed", "fastest"] = option(
        "constructed",
        help="of searchers that construct a plan: the best that they constructed, or whatever simulates fastest",
    )
    draws: int = option(1, help="draws of equal paths whose mean a candidate costs", minimum=1, maximum=1000)
    chains: int = option(1, help="searches that share the budget and pass on what they reach", minimum=1, maximum=1024)
    workers: int = option(1, help="processes for the chains, 4 of a core at most; the result is the same", minimum=1)
    executor: str = option("processes", help=EXECUTOR, metavar=_COMPONENT, runs_code=True)
    precision: Literal["fp32", "fp16", "bf16", "fp8"] | None = option(
        None,
        help="of the model; all but the first are mixed precision, fp8 with products in fp8 and all else as in bf16; "
        "unset: what the model's file says, or else fp32",
    )
    precision_speedup: float | None = option(
        None, help="how much faster it computes than fp32, for estimators that know times in fp32 only", above=0
    )
    kernels: Kernels | None = option(
        None,
        help="whose kernels run, which decides what memory holds for backward passes, and what measured kernels take: "
        "Megatron core's with Transformer Engine or without, torchtitan's, with a loss that is compiled or (2024) not, "
        "or nothing compiled (eager), DeepSeek's, which keep in fp8 what products read, transformers' own code; unset: "
        "the trainer's of --for, or else PyTorch's own",
    )
    trainers: tuple[str, ...] = option(
        (),
        help="plan only what a trainer runs: megatron, torchtitan, deepspeed, torch, or that of another exporter; "
        "several, with commas between: what all of them run; unset: those whose files -x writes",
        metavar="TRAINER",
        flag="--for",
    )
    record: bool = option(
        False,
        help="write down which task kept each link busy, the critical path, memory over time, and the search, into "
        "plans that hold them (-x json)",
    )
    optimizer: Literal["adam", "adam-bf16", "momentum", "sgd"] | None = option(
        None,
        help="what memory holds beside weights and gradients: adam 2 numbers for each weight, "
        "adam-bf16 2 in bf16, momentum 1, sgd 0; "
        "unset: the model's, which is adam but in the flexnet dialect (momentum)",
    )

    def __attrs_post_init__(self) -> None:
        check(self, "run")
        if self.executor != "processes":
            executors = importlib.import_module("topoplan_engine.executors")  # which most runs do without
            executors.executor_from(self.executor, self.workers)
        _ = self.seconds

    @property
    def seconds(self) -> float:
        """The time limit in seconds of search; infinite if there is none."""
        return math.inf if self.time_limit is None else _seconds(self.time_limit, "run: time-limit")

    @property
    def ends_by_time_alone(self) -> bool:
        """Whether the time is limited, and the budget is not."""
        return self.time_limit is not None and self.budget == _NO_BUDGET


def _seconds(duration: str | float, where: str) -> float:
    """Return the seconds of a duration: a number of seconds, or text as 90, 60s, 5m or 1h."""
    text = str(duration).strip().lower()
    unit = text[-1:] if text[-1:] in ("s", "m", "h") else ""
    try:
        seconds = float(text.removesuffix(unit)) * _SECONDS[unit]
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= _MOST_SECONDS:
        raise TopoplanError(
            f"{where}: expected a duration such as 60s, 5m or 1h, at most a year, got {shown(duration)}"
        )
    return seconds
