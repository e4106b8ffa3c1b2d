"""An experiment: everything that one run needs, as a frozen value that a TOML file or the command line fills.

Units carry their names here (``interface_bandwidth_gbps``), because this is the edge: `build_cluster`
converts them to seconds and bytes/s.  `topoplan.optimize` runs an experiment.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import attrs
import numpy as np

from topoplan.cluster import Cluster
from topoplan.devices import device_preset
from topoplan.distortion import Distortion
from topoplan.errors import TopoplanError, nearest
from topoplan.options import option, parse_component, structure

__all__ = [
    "Choice",
    "ClusterOptions",
    "Experiment",
    "HostGroup",
    "RunOptions",
    "build_cluster",
    "choice_from",
    "experiment_from_toml",
    "read_toml",
]

_BYTES_PER_SECOND_PER_GBPS = 1e9 / 8


@attrs.frozen
class Choice:
    """A component, chosen by name, and the options given for it."""

    name: str
    options: Mapping[str, Any] = attrs.field(factory=dict)

    @classmethod
    def parse(cls, text: str, where: str) -> Choice:
        """Read ``name`` or ``name:key=value,key=value``."""
        return cls(*parse_component(text, where))


def _choice_of(given: Choice | str) -> Choice:
    return Choice.parse(given, "component") if isinstance(given, str) else given


def _choices_of(given: Sequence[Choice | str] | str) -> tuple[Choice, ...]:
    return tuple(_choice_of(one) for one in ([given] if isinstance(given, str) else given))


@attrs.frozen(kw_only=True)
class HostGroup:
    """Some equal hosts of a cluster whose hosts differ; what is unset is as in `ClusterOptions`."""

    servers: int = option(1, help="how many hosts", minimum=1)
    gpus_per_server: int | None = option(None, help="devices of each host", minimum=1)
    degree: int | None = option(None, help="network interfaces of each host", minimum=1)
    interface_bandwidth_gbps: float | None = option(None, help="of one interface", unit="Gbps", above=0)
    inter_gpu_bandwidth_gbps: float | None = option(None, help="inside a host", unit="Gbps", above=0)
    device: str | None = option(None, help="kind of device")
    speed: float = option(1.0, help="factor on the speed of its kind", above=0)
    memory_gb: float | None = option(None, help="memory of a device", unit="GB", above=0)


@attrs.frozen(kw_only=True)
class ClusterOptions:
    """The cluster, in users' units."""

    servers: int = option(16, help="number of hosts", minimum=1)
    gpus_per_server: int = option(1, help="devices of each host, modelled one by one", minimum=1)
    big_gpu: int = option(1, help="real GPUs that one device stands for, with an all-reduce among them", minimum=1)
    inter_gpu_bandwidth_gbps: float = option(2400.0, help="between two GPUs of one host", unit="Gbps", above=0)
    interface_bandwidth_gbps: float = option(100.0, help="of one network interface", unit="Gbps", above=0)
    degree: int = option(4, help="network interfaces of each host", minimum=1)
    latency_us: float = option(1.0, help="of one network link, one way", unit="us", minimum=0)
    device: str = option("A100-40", help="kind of device: V100, A100-40, A100-80, H100, H200, B200")
    memory_gb: float | None = option(None, help="memory of a device; unset: as its kind has", unit="GB", above=0)
    devices: tuple[int, ...] = option((), help="where each host's devices end (8, 16: two of eight); sets the hosts")
    hosts: tuple[HostGroup, ...] = attrs.field(default=(), metadata={"help": "groups of hosts that differ"})


@attrs.frozen(kw_only=True)
class RunOptions:
    """How long to search, and from where."""

    batch_size: int | None = option(None, help="samples per iteration over all devices", minimum=1)
    budget: int = option(1000, help="candidates to price; 0 prices the initial strategy only", minimum=0)
    seed: int = option(0, help="of all randomness", minimum=0)
    strategy: str | None = option(None, help="FILE, or EXPORTER=FILE, with the strategy to start from")
    patience: float | None = option(
        None, help="share of the budget after which to stop if nothing was better", above=0, maximum=1
    )
    chains: int = option(1, help="searches that share the budget and pass on what they reach", minimum=1)
    workers: int = option(1, help="processes for the chains; the result does not depend on it", minimum=1)
    precision: Literal["fp32", "fp16", "bf16"] = option("fp32", help="of the model; the last two are mixed precision")
    precision_speedup: float | None = option(
        None, help="how much faster it computes than fp32, for estimators that know times in fp32 only", above=0
    )
    optimizer: Literal["adam", "momentum", "sgd"] | None = option(
        None,
        help="what memory holds beside weights and gradients: adam 2 numbers for each weight, momentum 1, sgd 0; "
        "unset: adam, and momentum in the flexnet dialect",
    )


@attrs.frozen(kw_only=True)
class Experiment:
    """One run: a model on a cluster with a topology, an estimator, a simulator and searchers.

    Components may be given as text, ``name`` or ``name:key=value,...``.

    Attributes:
        estimator: unset, the one that the model's frontend names: ``roofline`` for most.
        searchers: take turns in this order; a searcher of the network axis alone brings its partner.
        outputs: exporter (with options) -> path of the file that it writes.
        distortion: what the search is told wrongly; see `topoplan.sensitivity`.  The plan's times are then wrong, too.
    """

    model: Choice = attrs.field(converter=_choice_of)
    cluster: ClusterOptions = attrs.field(factory=ClusterOptions)
    topology: Choice = attrs.field(default=Choice("bigswitch"), converter=_choice_of)
    estimator: Choice | None = attrs.field(default=None, converter=attrs.converters.optional(_choice_of))
    simulator: Choice = attrs.field(default=Choice("fluid"), converter=_choice_of)
    searchers: tuple[Choice, ...] = attrs.field(default=(Choice("mcmc"),), converter=_choices_of)
    run: RunOptions = attrs.field(factory=RunOptions)
    outputs: tuple[tuple[Choice, str], ...] = ()
    distortion: Distortion | None = None


def build_cluster(options: ClusterOptions) -> Cluster:
    """Convert cluster options to columns in seconds, bytes and bytes/s.

    Raises:
        TopoplanError: an unknown device, ends of hosts that do not ascend, or hosts told twice.
    """
    groups = options.hosts or _groups(options.devices) or (HostGroup(servers=options.servers),)
    if options.hosts and options.devices:
        raise TopoplanError("cluster.devices: the hosts are told twice (leave out cluster.hosts or cluster.devices)")
    hosts: list[int] = []
    presets: list[str] = []
    speeds: list[float] = []
    memories: list[float] = []
    inside: list[float] = []
    degrees: list[int] = []
    bandwidths: list[float] = []
    for group in groups:
        preset = device_preset(group.device or options.device)
        gigabytes = group.memory_gb or options.memory_gb
        for _ in range(group.servers):
            devices = group.gpus_per_server or options.gpus_per_server
            hosts += [len(degrees)] * devices
            presets += [preset.name] * devices
            speeds += [group.speed] * devices
            memories += [gigabytes * 1e9 if gigabytes else preset.memory] * devices
            degrees.append(group.degree or options.degree)
            inside.append(group.inter_gpu_bandwidth_gbps or options.inter_gpu_bandwidth_gbps)
            bandwidths.append(group.interface_bandwidth_gbps or options.interface_bandwidth_gbps)
    return Cluster(
        device_host=hosts,
        device_preset=tuple(presets),
        device_speed=speeds,
        device_memory=memories,
        inside_bandwidth=np.array(inside) * _BYTES_PER_SECOND_PER_GBPS,
        interfaces=degrees,
        interface_bandwidth=np.array(bandwidths) * _BYTES_PER_SECOND_PER_GBPS,
        latency=options.latency_us * 1e-6,
        big_gpu=options.big_gpu,
    )


def _groups(ends: tuple[int, ...]) -> tuple[HostGroup, ...]:
    """Return hosts whose devices end at the numbers ``ends``."""
    groups = []
    for start, end in zip((0, *ends), ends, strict=False):
        if end <= start:
            raise TopoplanError(
                f"devices {','.join(map(str, ends))}: {end} does not come after {start} "
                "(where each host's devices end, ascending: 8,16 is two hosts of eight)"
            )
        groups.append(HostGroup(gpus_per_server=end - start))
    return tuple(groups)


_SECTIONS = ("model", "cluster", "topology", "estimator", "simulator", "searcher", "run", "outputs")


def experiment_from_toml(path: Path, changes: Sequence[str] = ()) -> Experiment:
    """Read an experiment.

    Sections ``[model]``, ``[topology]``, ``[estimator]``, ``[simulator]`` and ``[[searcher]]`` name a
    component with ``use`` and hold its options; ``[cluster]``, ``[run]`` and ``[[cluster.hosts]]`` hold
    the options of those names; ``[outputs]`` maps exporters to paths.

    Args:
        path: the TOML file.
        changes: ``section.key=value`` texts that override it (``--set``).

    Raises:
        TopoplanError: the file cannot be read or something in it is wrong; the message names the key.
    """
    document = read_toml(path)
    for change in changes:
        _apply(document, change)
    return _experiment(document, str(path))


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file.

    Raises:
        TopoplanError: it cannot be read or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TopoplanError(f"{path}: cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TopoplanError(f"{path}: is not TOML ({error})") from None


def _apply(document: dict[str, Any], change: str) -> None:
    """Apply one ``section.key=value``; ``searcher.0.every=9`` reaches into a list."""
    key, equals, text = change.partition("=")
    *way, last = key.split(".")
    if not equals or not way:
        raise TopoplanError(f"--set {change!r}: expected section.key=value, e.g. cluster.degree=8")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    table: Any = document
    for step in way:
        if isinstance(table, list):
            if not step.isdigit() or int(step) >= len(table):
                raise TopoplanError(f"--set {change!r}: {step!r} is not one of {len(table)} tables")
            table = table[int(step)]
        else:
            table = table.setdefault(step, {})
    if isinstance(table, list) and len(table) == 1:
        table = table[0]
    if not isinstance(table, dict):
        raise TopoplanError(f"--set {change!r}: {'.'.join(way)} is not a table")
    table[last] = value


def _experiment(document: Mapping[str, Any], where: str) -> Experiment:
    for section in document:
        if section not in _SECTIONS:
            raise TopoplanError(f"{where}: no section {section!r}{nearest(section, _SECTIONS)}")
    if "model" not in document:
        raise TopoplanError(f'{where}: needs a section [model] with use = "..."')
    cluster = dict(_table(document, "cluster", where))
    groups = cluster.pop("hosts", [])
    if not isinstance(groups, list):
        raise TopoplanError(f"{where}: cluster.hosts: must be a list of tables [[cluster.hosts]]")
    hosts = tuple(structure(HostGroup, group, f"{where}: cluster.hosts[{i}]") for i, group in enumerate(groups))
    chosen: dict[str, Any] = {
        section: choice_from(document[section], f"{where}: {section}")
        for section in ("model", "topology", "estimator", "simulator")
        if section in document
    }
    if "searcher" in document:
        given = document["searcher"]
        tables = given if isinstance(given, list) else [given]
        chosen["searchers"] = tuple(choice_from(table, f"{where}: searcher[{i}]") for i, table in enumerate(tables))
    outputs = _table(document, "outputs", where)
    return Experiment(
        **chosen,
        cluster=attrs.evolve(structure(ClusterOptions, cluster, f"{where}: cluster"), hosts=hosts),
        run=structure(RunOptions, _table(document, "run", where), f"{where}: run"),
        outputs=tuple((Choice.parse(name, "exporter"), str(path)) for name, path in outputs.items()),
    )


def _table(document: Mapping[str, Any], section: str, where: str) -> Mapping[str, Any]:
    table = document.get(section, {})
    if not isinstance(table, dict):
        raise TopoplanError(f"{where}: {section}: must be a table [{section}]")
    return table


def choice_from(table: Any, where: str) -> Choice:
    """Read a component from TOML: text, or a table with ``use`` and its options.

    Raises:
        TopoplanError: it names no component.
    """
    if isinstance(table, str):
        return Choice.parse(table, where)
    if not isinstance(table, dict) or not isinstance(table.get("use"), str):
        raise TopoplanError(f'{where}: needs use = "name of a component"')
    name, options = parse_component(table["use"], where)
    return Choice(name, {**options, **{key: value for key, value in table.items() if key != "use"}})
