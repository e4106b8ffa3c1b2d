"""How a trainer's own files say a plan: flags of Megatron-LM, and configurations of torchtitan.

A file is read for the settings that decide how a model is cut over devices, in the words of ``--plan``: ``tp``,
``pp``, ``cp``, ``ep``, ``etp``, ``dp``, ``sp``, ``zero``, ``micro-batch``, ``schedule``, ``recompute``, ``layers``,
``layout``, ``cp-comm``, ``async-tp``, ``grads``, ``clip``, ``shard``, ``reshard``, ``overlap``.  What a file leaves out
has the trainer's own default.  A setting that changes the plan and has no word here is refused by name; what only
changes how kernels or messages run is named in ``unread``.

Sources: NVIDIA/Megatron-LM@d98e8a64 (megatron/training/arguments.py), pytorch/torchtitan@76d5c72e^ (the last version
whose configurations are TOML: torchtitan/config/job_config.py).
"""

from __future__ import annotations

import itertools
import math
import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from topoplan import TopoplanError
from topoplan.errors import shown

__all__ = ["TrainerSettings", "layout_of_ranks", "trainer_settings"]


@attrs.frozen(kw_only=True)
class TrainerSettings:
    """What a file of a trainer says of a plan.

    Attributes:
        trainer: ``megatron`` or ``torchtitan``.
        plan: key -> value, as ``--plan`` takes them.
        devices, batch_size, sequence: as far as the file says them; None otherwise.
        unread: settings that have an effect on time which is not read.
    """

    trainer: str
    plan: Mapping[str, str]
    devices: int | None = None
    batch_size: int | None = None
    sequence: int | None = None
    unread: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The plan as one text for ``--plan``."""
        return ",".join(f"{key}={value}" for key, value in self.plan.items())


def trainer_settings(text: str, name: str) -> TrainerSettings:
    """Read a file of a trainer.

    Args:
        text: of the file: a shell script, a list or a YAML file with flags of Megatron-LM, or torchtitan's TOML.
        name: of the file; one that ends with ``.toml`` is torchtitan's.

    Raises:
        TopoplanError: it is neither, a value is none, or a setting has no place in a plan.

    >>> trainer_settings("--tensor-model-parallel-size 8 --sequence-parallel --micro-batch-size 1", "run.sh").text
    'tp=8,pp=1,cp=1,ep=1,sp=yes,zero=0,micro-batch=1,schedule=1f1b,recompute=none,clip=yes,layout=tp-cp-ep-dp-pp'
    """
    if name.lower().endswith(".toml"):
        return _torchtitan(text, name)
    return _Megatron(*_flags(text, name), name).settings()


def _flags(text: str, name: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return flags of a script or YAML file with their values, ``true`` for one without, and the script's variables."""
    variables: dict[str, str] = {}
    words: list[str] = []
    for line in text.replace("\\\n", " ").split("\n"):
        if assigned := re.match(r"\s*(?:export\s+)?(\w+)=([^\s(]*)\s*(?:#.*)?$", line):
            variables[assigned[1]] = _expanded(assigned[2].strip("\"'"), variables)
            continue
        if in_yaml := re.match(r"\s*(--[\w-]+):\s*(.*)$", line):
            line = f"{in_yaml[1]} {in_yaml[2]}"
        try:
            parts = shlex.split(line, comments=True)
        except ValueError:  # a quote that ends on a later line, as of an embedded program or of a list of flags
            parts = re.sub("[\"']", " ", line).split() if "--" in line else []
        words += [_out_of_list(word) for part in parts for word in re.sub(r"^\w+\+?=\(", "(", part).split()]
    flags: dict[str, str] = {}
    for place, word in enumerate(words):
        if word.startswith("--"):
            flag, _, value = word[2:].partition("=")
            end = next((k for k in range(place + 1, len(words)) if words[k].startswith("--")), len(words))
            several = words[place + 1 : end if flag.replace("_", "-") in _SEVERAL else place + 2]
            value = value or " ".join(each for each in several if not each.startswith("--")) or "true"
            flags[flag.replace("_", "-")] = _expanded(value, variables)
    if not any(flag in flags for flag in _DEGREES):
        expected = ", ".join(f"--{flag}" for flag in list(_DEGREES)[:3])
        raise TopoplanError(f"{name}: has no flags of Megatron-LM that say a plan (such as {expected})")
    return flags, variables


def _out_of_list(word: str) -> str:
    """Return a word without the parenthesis that begins or ends a list of the shell."""
    lists = word.startswith(("(-", "($")) or word.count("(") != word.count(")")
    return word.strip("()") if lists else word


def _expanded(text: str, variables: Mapping[str, str]) -> str:
    """Return a word with the variables that are known in place of their names, and defaults of the others."""

    def value(match: re.Match[str]) -> str:
        content = variables.get(match[1] or match[3])
        return content if content else (match[2] or match[0])

    return re.sub(r"\$\{(\w+)(?::-([^}]*))?\}|\$(\w+)", value, text).strip("\"'")


#: Flag of Megatron-LM -> key of a plan; degrees that are 1 if left out.
_DEGREES = {
    "tensor-model-parallel-size": "tp",
    "pipeline-model-parallel-size": "pp",
    "context-parallel-size": "cp",
    "expert-model-parallel-size": "ep",
}
#: Flags that choose stages or devices in a way that no key says.
_REFUSED = {
    "hierarchical-context-parallel-sizes": "context parallelism in levels",
}
_UNREAD = (
    "fp8-format",
    "delay-wgrad-compute",
    "defer-embedding-wgrad-compute",
)
#: Flags that take several values.
_SEVERAL = ("recompute-modules",)
#: Ways in which keys and values travel, of Megatron-LM and of torchtitan, in the words of a plan.
_CONTEXT = {"p2p": "ring", "a2a": "ulysses", "allgather": "gather"}
_ROTATION = {"allgather": "gather", "alltoall": "ring"}
_SHARDING = {"no_shard": "0", "optim": "1", "optim_grads": "2", "optim_grads_params": "3"}


class _Megatron:
    """Turns flags of Megatron-LM into settings."""

    def __init__(self, flags: Mapping[str, str], variables: Mapping[str, str], name: str) -> None:
        self._flags, self._variables, self._name = flags, variables, name

    def settings(self) -> TrainerSettings:
        """Return them, in the order of ``--plan``'s documentation."""
        for flag, what in _REFUSED.items():
            if flag in self._flags and self._flags[flag] != "1":
                raise TopoplanError(f"{self._name}: --{flag} asks for {what}, which a stated plan cannot say")
        plan = {key: str(self._number(flag) or 1) for flag, key in _DEGREES.items()}
        plan |= _experts(plan, str(self._number("expert-tensor-parallel-size") or plan["tp"]))
        plan["sp"] = "yes" if self._has("sequence-parallel") and plan["tp"] != "1" else "no"
        plan |= {"async-tp": "yes"} if plan["sp"] == "yes" and self._has("tp-comm-overlap") else {}
        plan["zero"] = self._zero()
        plan["micro-batch"] = str(self._number("micro-batch-size") or 1)
        plan["schedule"] = self._schedule(int(plan["pp"]))
        plan["recompute"] = self._recompute()
        plan |= self._layers(int(plan["pp"]), plan)
        plan |= self._context() if plan["cp"] != "1" else {}
        degrees = {key: int(plan[key]) for key in _DEGREES.values()}
        plan |= {"overlap": "experts"} if plan["ep"] != "1" and self._has("overlap-moe-expert-parallel-comm") else {}
        layout, ranks = self._layout(degrees, degrees["tp"] // int(plan["etp"]) if "etp" in plan else 0)
        plan |= {**self._gradients(plan, ranks), "layout": layout}
        hosts, per_host = self._written("nnodes"), self._written("nproc-per-node")
        return TrainerSettings(
            trainer="megatron",
            plan=plan,
            devices=hosts * per_host if hosts and per_host else ranks,
            batch_size=self._number("global-batch-size"),
            sequence=self._number("seq-length"),
            unread=tuple(f"--{flag}" for flag in _UNREAD if self._has(flag)),
        )

    def _layout(self, degrees: Mapping[str, int], of_experts: int) -> tuple[str, int | None]:
        """Return the layout, and the number of ranks as far as a launch script names the device of each.

        Args:
            degrees: of the plan.
            of_experts: tensor parallel devices that experts are divided over first, then those with other positions; 0:
                those with other samples alone.
        """
        usual = "tp-cp-ep-pp-dp" if self._has("use-tp-pp-dp-mapping") else "tp-cp-ep-dp-pp"
        words = self._variables.get("TOPOPLAN_DEVICES", "").split(",")
        if not all(word.isdigit() for word in words):
            return usual, None
        devices = [int(word) for word in words]
        of_samples = (
            degrees["ep"] // math.gcd(degrees["ep"], of_experts * degrees["cp"]) if of_experts else degrees["ep"]
        )
        layout = layout_of_ranks(devices, usual, {**degrees, "ep": of_samples})
        if layout is None:
            raise TopoplanError(
                f"{self._name}: TOPOPLAN_DEVICES has {len(devices)} devices in an order that no layout of a stated "
                f"plan has ({', '.join(f'{key}={degree}' for key, degree in degrees.items())})"
            )
        return layout, len(devices)

    def _has(self, flag: str) -> bool:
        return self._flags.get(flag, "false").lower() not in ("false", "0", "none")

    def _written(self, flag: str) -> int | None:
        """Return a number that only launchers read, None where a script computes it."""
        value = self._flags.get(flag, "")
        return int(value) if value.isdigit() else None

    def _number(self, flag: str) -> int | None:
        """Return the number that a flag has, None if it is left out."""
        value = self._flags.get(flag)
        if value is None or value.lower() in ("none", "null"):
            return None
        if not value.isdigit() or not int(value):
            why = " (a variable that the file does not set)" if "$" in value else ""
            raise TopoplanError(f"{self._name}: --{flag} is {shown(value)}{why}, must be a positive number")
        return int(value)

    def _zero(self) -> str:
        if self._has("use-torch-fsdp2"):
            return "3"
        if self._has("use-megatron-fsdp") or self._has("use-custom-fsdp"):
            strategy = self._flags.get("data-parallel-sharding-strategy", "no_shard")
            if strategy not in _SHARDING:
                raise TopoplanError(
                    f"{self._name}: --data-parallel-sharding-strategy is {shown(strategy)} "
                    f"(must be {', '.join(_SHARDING)})"
                )
            return _SHARDING[strategy]
        return "1" if self._has("use-distributed-optimizer") else "0"

    def _schedule(self, ranks: int) -> str:
        chunks, depth = self._number("num-virtual-stages-per-pipeline-rank"), self._number(_PER_STAGE)
        if chunks is None and depth is not None:
            layers = self._number("num-layers")
            if layers is None or layers % (ranks * depth):
                raise TopoplanError(
                    f"{self._name}: --{_PER_STAGE} {depth} on {ranks} pipeline ranks needs a number of layers "
                    f"(--num-layers) that is a multiple of {ranks * depth}, not {layers}"
                )
            chunks = layers // (ranks * depth)
        return f"interleaved:{chunks}" if chunks and chunks > 1 and ranks > 1 else "1f1b"

    def _gradients(self, plan: Mapping[str, str], ranks: int | None) -> dict[str, str]:
        """Return in which bytes gradients are summed, whether their norm is waited for, and who shares state."""
        settings = {}
        if self._has("accumulate-allreduce-grads-in-fp32") or (self._has("bf16") and not self._has(_IN_BF16)):
            settings["grads"] = "fp32"
        clip = self._flags.get("clip-grad", "1.0")
        settings |= {"gather": "fp8"} if self._has("fp8-param-gather") and plan["zero"] != "0" else {}
        settings |= {"overlap-gather": "yes"} if self._has("overlap-param-gather") and plan["zero"] == "1" else {}
        settings |= {"clip": "yes"} if clip.lower() not in ("0", "0.0", "none") else {}
        instances = self._number("num-distributed-optimizer-instances") or 1
        if instances > 1 and plan["zero"] != "0":
            hosts, per_host = self._written("nnodes"), self._written("nproc-per-node")
            model = math.prod(int(plan[key]) for key in ("tp", "cp", "pp"))
            devices = hosts * per_host if hosts and per_host else ranks
            if not devices or devices % (model * instances):
                raise TopoplanError(
                    f"{self._name}: --num-distributed-optimizer-instances {instances} needs numbers of devices "
                    f"(--nnodes, --nproc-per-node) that are a multiple of {model * instances}"
                )
            settings["shard"] = str(devices // (model * instances))
        return settings

    def _context(self) -> dict[str, str]:
        """Return how attention gets all positions."""
        way = self._flags.get("cp-comm-type", "p2p").lower().replace("_", "")
        if way not in _CONTEXT:
            raise TopoplanError(
                f"{self._name}: --cp-comm-type is {shown(way)}, which a stated plan cannot say (p2p, a2a or all_gather)"
            )
        return {"cp-comm": _CONTEXT[way]}

    def _layers(self, ranks: int, plan: Mapping[str, str]) -> dict[str, str]:
        """Return the layers of stages where these are not equally many, and the schedule that has as many stages."""
        layout = self._flags.get(_LAYOUT)
        if layout is not None:
            counts = self._of_layout(layout, ranks)
            chunks = len(counts) // ranks
            schedule = {"schedule": f"interleaved:{chunks}"} if chunks > 1 else {}
            return {**schedule, "layers": _summed(counts)}
        ends = [end for flag, end in _ENDS.items() if self._has(flag)]
        if ends:
            return {"layers": "+".join(ends)}
        first, last = (self._number(f"decoder-{end}-pipeline-num-layers") for end in ("first", "last"))
        return {} if first is None and last is None else {"layers": self._of_ends(first, last, ranks, plan["schedule"])}

    def _of_layout(self, layout: str, ranks: int) -> list[int]:
        """Return the layers of each stage of a layout: E is the embedding, t a layer, L the loss, | ends a stage."""
        text = layout.replace(",", "")
        for pattern in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
            if sum(times := [int(number) for _, number in re.findall(pattern, text)]) > _MOST_LAYERS:
                raise TopoplanError(f"{self._name}: --{_LAYOUT} {shown(layout)} repeats something {max(times)} times")
            text = re.sub(pattern, lambda match: match[1] * int(match[2]), text)
        stages = text.split("|")
        strange = sorted(set(text) - set("EtL|"))
        why = None
        if strange:
            why = f"{strange[0]!r} has no place in a stated plan (E, t and L have)"
        elif "E" not in stages[0] or text.count("E") != 1 or "L" not in stages[-1] or text.count("L") != 1:
            why = "E must be in the first stage and L in the last one, once each"
        elif len(stages) % ranks:
            why = f"has {len(stages)} stages for {ranks} ranks (must be a multiple of {ranks})"
        if why is not None:
            raise TopoplanError(f"{self._name}: --{_LAYOUT} {shown(layout)}: {why}")
        return [stage.count("t") for stage in stages]

    def _of_ends(self, first: int | None, last: int | None, ranks: int, schedule: str) -> str:
        """Return the layers of stages whose first or last rank has layers of its own number."""
        layers, chunks = self._number("num-layers"), int(schedule.partition(":")[2] or 1)
        layers_of_ends = {0: first, ranks - 1: last}
        stated_layers = [each for each in layers_of_ends.values() if each is not None]
        n_others = ranks - len(stated_layers)
        remainder = -1 if layers is None else layers - sum(stated_layers)
        is_uneven = remainder % (n_others * chunks) if n_others else remainder
        if remainder < 0 or is_uneven or any(n % chunks for n in stated_layers):
            raise TopoplanError(
                f"{self._name}: {first or 'equally many'} layers on the first and {last or 'equally many'} on the last "
                f"of {ranks} ranks need a number of layers (--num-layers) whose rest divides, not {layers}"
            )
        at_ends = [layers_of_ends.get(rank) for rank in range(ranks)]
        shares = [remainder // (n_others * chunks) if each is None else each // chunks for each in at_ends]
        return _summed(shares * chunks)

    def _recompute(self) -> str:
        granularity = "selective" if self._has("recompute-activations") else "none"
        granularity = self._flags.get("recompute-granularity", granularity).lower()
        modules = self._flags.get("recompute-modules", "core_attn").split()
        if granularity == "selective" and modules != ["core_attn"]:
            return f"modules:{'+'.join(modules)}"
        if granularity == "full":
            method, count = self._flags.get("recompute-method", "uniform"), self._number("recompute-num-layers") or 1
            if method != "uniform" or count != 1:
                raise TopoplanError(
                    f"{self._name}: --recompute-method {method} --recompute-num-layers {count}: a stated plan repeats "
                    "each layer by itself (uniform, 1)"
                )
        if granularity not in ("none", "selective", "full"):
            raise TopoplanError(
                f"{self._name}: --recompute-granularity is {shown(granularity)} (must be selective or full)"
            )
        return granularity


def _summed(counts: Sequence[int]) -> str:
    """Return numbers of layers as a plan says them.

    >>> _summed([1, 2, 2, 2, 1])
    '1+2*3+1'
    """
    runs = [(count, len([*group])) for count, group in itertools.groupby(counts)]
    return "+".join(f"{count}*{times}" if times > 1 else str(count) for count, times in runs)


def layout_of_ranks(devices: Sequence[int], order: str, degrees: Mapping[str, int]) -> str | None:
    """Return the layout of a plan whose ranks have these devices; None if there is none.

    Args:
        devices: (ranks,) the device of each rank.
        order: that of ranks, the axis that changes fastest first; preferred if several layouts are the same.
        degrees: of all axes but ``dp``, which has the rest of the ranks.

    >>> layout_of_ranks([0, 2, 1, 3], "tp-cp-ep-dp-pp", {"tp": 2, "cp": 1, "ep": 1, "pp": 1})
    'cp-ep-dp-tp-pp'
    """
    axes = order.split("-")
    remainder = len(devices) // math.prod(degrees.values())
    sizes = [{**degrees, "dp": max(remainder, 1)}[axis] for axis in axes]
    if math.prod(sizes) != len(devices):
        return None
    for layout in itertools.permutations(range(len(axes))):
        stride, strides = 1, [0] * len(axes)
        for axis in layout:
            strides[axis], stride = stride, stride * sizes[axis]
        numbers = [0]
        for axis in range(len(axes)):
            numbers = [place * strides[axis] + number for place in range(sizes[axis]) for number in numbers]
        if numbers == list(devices):
            return "-".join(axes[axis] for axis in layout)
    return None


_LAYOUT = "pipeline-model-parallel-layout"
_ENDS = {"account-for-embedding-in-pipeline-split": "embedding", "account-for-loss-in-pipeline-split": "head"}
#: More layers than any model has.
_MOST_LAYERS = 100_000
_IN_BF16 = "grad-reduce-in-bf16"
_PER_STAGE = "num-layers-per-virtual-pipeline-stage"
#: Schedule of torchtitan, in lower case -> that of a plan.
_SCHEDULES = {"1f1b": "1f1b", "gpipe": "gpipe", "interleaved1f1b": "interleaved:2", "zbvzerobubble": "zbv"}


def _torchtitan(text: str, name: str) -> TrainerSettings:
    """Read a configuration; degrees stood in other sections in older versions."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TopoplanError(f"{name}: is no TOML ({error})") from None
    sections = [document.get(section, {}) for section in ("parallelism", "experimental", "training")]
    if not any(isinstance(each, dict) and any("degree" in key for key in each) for each in sections):
        raise TopoplanError(f"{name}: has no [parallelism] with degrees, as torchtitan's configurations do")
    config = _Torchtitan(document, sections, name)
    return config.settings()


def _experts(plan: Mapping[str, str], degree: str) -> dict[str, str]:
    """Return the tensor parallel degree of experts where it says more than the other degrees do.

    Trainers divide experts over neighbours: those of slices of positions before those of other samples.
    """
    says = degree != plan["tp"] or (plan["cp"] != "1" and plan["ep"] != "1")
    return {"etp": degree} if says else {}


def _rounds(batch: int, at_once: int) -> tuple[str, ...]:
    """Return what a plan does not say of a pipeline that is run several times for a batch, and drains in between."""
    if not 0 < at_once < batch:
        return ()
    return (f"draining the pipeline after each of {batch // at_once} rounds of {at_once} samples (global_batch_size)",)


class _Torchtitan:
    """Turns a configuration of torchtitan into settings."""

    def __init__(self, document: Mapping[str, Any], sections: list[Mapping[str, Any]], name: str) -> None:
        self._document, self._sections, self._name = document, sections, name

    def settings(self) -> TrainerSettings:
        """Return them; where a pipeline is deeper than one rank, weights stay gathered between its micro-batches."""
        degrees = {key: self._number(f"{word}_parallel_degree", 1) for key, word in _WORDS.items()}
        replicas, shards = self._number("data_parallel_replicate_degree", 1), self._number(_SHARDS, -1)
        of_experts = self._number("expert_tensor_parallel_degree", 1)
        if of_experts not in (1, degrees["tp"]):
            raise TopoplanError(f"{self._name}: expert_tensor_parallel_degree must be 1 or tensor_parallel_degree")
        plan = {key: str(degree) for key, degree in degrees.items()}
        plan |= _experts(plan, str(of_experts)) if degrees["ep"] > 1 else {}
        data = -1 if shards < 0 else replicas * shards
        if shards < 0 and replicas > 1:
            raise TopoplanError(
                f"{self._name}: data_parallel_replicate_degree = {replicas} needs a data_parallel_shard_degree"
            )
        plan |= {"dp": str(data)} if data > 0 else {}
        plan |= {"shard": str(shards)} if replicas > 1 and shards > 1 else {}
        plan["sp"] = "yes" if degrees["tp"] > 1 else "no"
        plan |= (
            {"async-tp": "yes"} if plan["sp"] == "yes" and self._value("enable_async_tensor_parallel", False) else {}
        )
        plan |= self._zero(shards if shards < 0 else shards * degrees["cp"], degrees["pp"])
        plan |= {"clip": "yes"} if self._clips() else {}
        local = self._number("local_batch_size", self._number("batch_size", 1))
        plan["micro-batch"] = str(self._number("pipeline_parallel_microbatch_size", 1) if degrees["pp"] > 1 else local)
        plan["schedule"] = self._schedule() if degrees["pp"] > 1 else "1f1b"
        plan |= self._layers(degrees["pp"], plan["schedule"])
        plan["recompute"] = self._recompute()
        plan["layout"] = "tp-cp-ep-dp-pp"
        rotation = str(self._value("context_parallel_rotate_method", "allgather"))
        if rotation not in _ROTATION:
            raise TopoplanError(
                f"{self._name}: context_parallel_rotate_method = {shown(rotation)} (must be {' or '.join(_ROTATION)})"
            )
        plan |= {"cp-comm": _ROTATION[rotation]} if degrees["cp"] > 1 else {}
        whole = self._number("global_batch_size", -1)
        whole = local * data if whole < 0 < data else whole
        return TrainerSettings(
            trainer="torchtitan",
            plan=plan,
            batch_size=whole if whole > 0 else None,
            sequence=self._number("seq_len", 0) or None,
            unread=_rounds(whole, local * data) if degrees["pp"] > 1 else (),
        )

    def _value(self, key: str, default: Any) -> Any:
        return next((section[key] for section in self._sections if key in section), default)

    def _number(self, key: str, default: int) -> int:
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or (value < 1 and value not in (default, -1)):
            raise TopoplanError(f"{self._name}: {key} = {shown(value)} (must be a positive number)")
        return value

    def _clips(self) -> bool:
        norm = self._document.get("training", {}).get("max_norm", 1.0)
        return bool(norm)

    def _zero(self, shards: int, ranks: int) -> dict[str, str]:
        """Return what is shared; with a pipeline weights stay gathered between its micro-batches unless it says so."""
        reduces = self._document.get("training", {}).get("mixed_precision_reduce", "float32")
        grads = {"grads": "fp32"} if reduces == "float32" else {}
        if shards == 1:
            return {"zero": "0", **grads}
        policy = self._value("fsdp_reshard_after_forward", "default")
        if policy not in ("default", "never", "always"):
            raise TopoplanError(
                f"{self._name}: fsdp_reshard_after_forward = {shown(policy)} (must be default, never or always)"
            )
        plan = {"zero": "3", **grads}
        return plan if policy == "always" or (policy == "default" and ranks == 1) else {**plan, "reshard": "no"}

    def _schedule(self) -> str:
        schedule = str(self._value("pipeline_parallel_schedule", "1F1B"))
        if schedule.lower() not in _SCHEDULES:
            raise TopoplanError(
                f"{self._name}: pipeline_parallel_schedule = {shown(schedule)} has no schedule here "
                "(have: 1F1B, GPipe, Interleaved1F1B, ZBVZeroBubble)"
            )
        return _SCHEDULES[schedule.lower()]

    def _layers(self, ranks: int, schedule: str) -> dict[str, str]:
        """Return the layers of stages where a file names the modules of each, and the schedule with as many chunks.

        Raises:
            TopoplanError: parts are no lists of names, have no layers in turn, or are not those of the schedule.
        """
        parts = self._value(_PARTS, None)
        if parts is None or ranks == 1:
            return {}
        if not isinstance(parts, list) or not all(
            isinstance(part, list) and all(isinstance(name, str) for name in part) for part in parts
        ):
            raise TopoplanError(f"{self._name}: {_PARTS} = {shown(parts)} (must be a list of lists of names)")
        layers = [[name for name in part if name.startswith("layers.")] for part in parts]
        outside = [name for part in parts[1:-1] for name in part if not name.startswith("layers.")]
        in_turn = [name for part in layers for name in part]
        if in_turn != [f"layers.{k}" for k in range(len(in_turn))] or outside:
            where = outside[0] if outside else in_turn[0]
            raise TopoplanError(
                f"{self._name}: {_PARTS}: {where!r} is in no place of a stated plan (layers from layers.0 on in turn, "
                "the embedding in the first part and the head in the last)"
            )
        chunks, remainder = divmod(len(parts), ranks)
        kind = schedule.partition(":")[0]
        if remainder or not chunks or (kind != "interleaved" and chunks != (1 if kind in ("1f1b", "gpipe") else 2)):
            raise TopoplanError(f"{self._name}: {_PARTS} has {len(parts)} parts for {ranks} ranks and schedule {kind}")
        named = {"schedule": f"interleaved:{chunks}"} if kind == "interleaved" else {}
        return {**named, "layers": _summed([len(part) for part in layers])}

    def _recompute(self) -> str:
        section = self._document.get("activation_checkpoint", {})
        mode, option = section.get("mode", "selective"), str(section.get("selective_ac_option", "2"))
        if mode in ("none", "full"):
            return str(mode)
        if mode == "selective" and option == "op":
            return "op"
        if mode == "selective" and option.isdigit() and int(option):
            return f"every:{option}" if option != "1" else "full"
        raise TopoplanError(
            f"{self._name}: activation_checkpoint: mode = {shown(mode)}, selective_ac_option = {shown(option)}: a "
            'stated plan says none, full, op, or every n-th layer (selective_ac_option = "2")'
        )


_WORDS = {"tp": "tensor", "pp": "pipeline", "cp": "context", "ep": "expert"}
_SHARDS = "data_parallel_shard_degree"
_PARTS = "module_fqns_per_model_part"
