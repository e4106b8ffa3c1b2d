"""An experiment: everything that one run needs, as a frozen value that a TOML file or the command line fills.

`build_cluster` converts users' units to seconds and bytes/s.  `topoplan_engine.optimize` runs an experiment.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import attrs
import numpy as np

from topoplan.errors import TopoplanError, nearest, shown
from topoplan.model.cluster import Cluster
from topoplan.model.machine import HostModel
from topoplan.model.taskgraph import Collective
from topoplan.options import parse_component, structure
from topoplan.plugin.components import Component, Kind, Machine, Topology, unguarded
from topoplan.plugin.host import Host
from topoplan_engine.checked_values import build_machine
from topoplan_engine.host_models import at_machine
from topoplan_engine.located import locating
from topoplan_engine.options import (
    MOST_DEVICES,
    MOST_HOSTS,
    ClusterOptions,
    ComponentOptions,
    HostGroup,
    RunOptions,
    unnamed,
)
from topoplan_engine.tomlfiles import MOST_PARTS, read_toml, toml_value
from topoplan_engine.wordlists import listed_components, output_and_path, pairs

C = TypeVar("C", bound=Component)

__all__ = [
    "Choice",
    "Experiment",
    "build_cluster",
    "choice_from",
    "experiment_from_document",
    "experiment_from_options",
    "experiment_from_toml",
    "interfaces_unless_given",
    "named_searchers",
    "outputs_from",
    "with_collectives",
    "with_machines",
]

_BYTES_PER_SECOND_PER_GBPS = 1e9 / 8
#: Interfaces of a host where nobody says: one to a switch, several where hosts are wired to each other.
_ON_SWITCHES, _ON_HOSTS = 1, 4
_COMPONENTS = ComponentOptions()


@attrs.frozen
class Choice:
    """A component, chosen by name, and the options given for it.

    Attributes:
        component: its class, where it was given and is perhaps unknown to the host.
        allow_code: whether options may name code that is run.  What the user types may; what a file says may not,
            unless the user allows it.
        source: where a file names it, for messages.
        is_companion: whether another searcher brings it along.
    """

    name: str
    options: Mapping[str, Any] = attrs.field(factory=dict)
    component: type[Component] | None = attrs.field(default=None, repr=False)
    allow_code: bool = attrs.field(default=False, repr=False, eq=False, kw_only=True)
    source: str = attrs.field(default="", repr=False, eq=False, kw_only=True)
    is_companion: bool = attrs.field(default=False, repr=False, eq=False, kw_only=True)

    @classmethod
    def parse(cls, text: str, where: str, *, allow_code: bool = False, source: str = "") -> Choice:
        """Read ``name`` or ``name:key=value,key=value``."""
        return cls(*parse_component(text, where), allow_code=allow_code, source=source)

    @property
    def text(self) -> str:
        """What `parse` reads, e.g. ``fluid:level=stepped``."""
        options = ",".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.name}:{options}" if options else self.name

    def make(self, host: Host, kind: type[C] | Kind) -> C:
        """Make the component.

        Raises:
            CodeRefusedError: an option runs code, which a file named and the user did not allow.
            TopoplanError: the component or an option is unknown or wrong.
        """
        with locating(self.source):
            return host.make(kind, self.name, self.options, allow_code=self.allow_code)

    def find(self, host: Host, kind: type[C] | Kind) -> type[C]:
        """Return the class of the component.

        Raises:
            TopoplanError: it is unknown.
        """
        with locating(self.source):
            return host.get(kind, self.name)


def _choice_of(value: Any, kind: Kind) -> Choice:
    """Return the choice of a component of one kind, from a name, a choice, or the component itself."""
    if isinstance(value, str):
        return Choice.parse(value, kind.value, allow_code=True)
    if isinstance(value, Choice):
        return value
    cls = unguarded(value if isinstance(value, type) else type(value))
    if issubclass(cls, Component) and cls.kind is kind:
        return Choice(cls.name, _options_of(value), component=cls, allow_code=True)
    actual = f"{cls.kind.value} {cls.name!r}" if issubclass(cls, Component) else shown(value)
    raise TopoplanError(
        f"experiment: {kind.value}: expected a name, a Choice or a {kind.value.capitalize()}, got {actual}"
    )


def _options_of(component: Any) -> dict[str, Any]:
    """Return the options of a component that are not their defaults; none for a class."""
    fields = () if isinstance(component, type) else attrs.fields(type(component))
    return {field.name: value for field in fields if (value := getattr(component, field.name)) != field.default}


def _frontend_of(value: Any) -> Choice:
    return _choice_of(value, Kind.FRONTEND)


def _topology_of(value: Any) -> Choice:
    return _choice_of(value, Kind.TOPOLOGY)


def _estimator_of(value: Any) -> Choice | None:
    return None if value is None else _choice_of(value, Kind.ESTIMATOR)


def _simulator_of(value: Any) -> Choice:
    return _choice_of(value, Kind.SIMULATOR)


def _searchers_of(value: Any) -> tuple[Choice, ...]:
    several = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    return tuple(_choice_of(searcher, Kind.SEARCHER) for searcher in several)


def _instance_of(cls: type[Any]) -> Callable[[Any, Any, Any], None]:
    def check_type(experiment: object, attribute: Any, value: Any) -> None:
        if not isinstance(value, cls):
            raise TopoplanError(f"experiment: {attribute.name}: expected {cls.__name__}, got {shown(value)}")

    return check_type


@attrs.frozen(kw_only=True)
class Experiment:
    """One run: a model on a cluster with a topology, an estimator, a simulator and searchers.

    Components may be given as text, ``name`` or ``name:key=value,...``, or as the component itself, which the host
    need not know then.

    Attributes:
        estimator: unset, the one that the model's frontend names: ``roofline`` for most.
        searchers: take turns in this order; a searcher of the network axis alone brings its partner.
        outputs: exporter (with options) -> path of the file that it writes.
    """

    model: Choice = attrs.field(converter=_frontend_of)
    cluster: ClusterOptions = attrs.field(factory=ClusterOptions, validator=_instance_of(ClusterOptions))
    topology: Choice = attrs.field(default=Choice(_COMPONENTS.topology), converter=_topology_of)
    estimator: Choice | None = attrs.field(default=None, converter=_estimator_of)
    simulator: Choice = attrs.field(default=Choice(_COMPONENTS.simulator), converter=_simulator_of)
    searchers: tuple[Choice, ...] = attrs.field(default=_COMPONENTS.searcher, converter=_searchers_of)
    run: RunOptions = attrs.field(factory=RunOptions, validator=_instance_of(RunOptions))
    outputs: tuple[tuple[Choice, str], ...] = ()


def interfaces_unless_given(options: ClusterOptions, topologies: Iterable[Topology | type[Topology]]) -> ClusterOptions:
    """Return cluster options that say how many interfaces a host has.

    Where they do not, it is one if every one of the topologies is switched, and four if any is not: hosts that are
    wired to each other are of no use with one.  A machine that has NICs says it itself.
    """
    if options.degree is not None:
        return options
    switched = all(topology.switched for topology in topologies)
    return attrs.evolve(options, degree=unnamed(_ON_SWITCHES if switched else _ON_HOSTS))


def build_cluster(options: ClusterOptions, host: Host | None = None) -> Cluster:
    """Convert cluster options to columns in seconds, bytes and bytes/s.

    Options that do not say how many interfaces a host has get those of hosts that are wired to each other
    (`interfaces_unless_given`).

    Args:
        options: in users' units.
        host: knows the machines; unless given, one with all installed plugins.

    Raises:
        TopoplanError: an unknown device, ends of hosts that do not ascend, or hosts given twice.
    """
    host = host or Host.discover()
    options, model = at_machine(options, host)
    if options.hosts and options.devices:
        raise TopoplanError("cluster.devices: the hosts are given twice (leave out cluster.hosts or cluster.devices)")
    groups = options.hosts or _of_kinds(options.device, _groups(options.devices), options.servers)
    servers = np.array([group.servers for group in groups])
    per_host = np.array([group.gpus_per_server or options.gpus_per_server for group in groups])
    n_hosts, n_devices = int(servers.sum()), int((servers * per_host).sum())
    if n_hosts > MOST_HOSTS or n_devices > MOST_DEVICES:
        raise TopoplanError(
            f"cluster: {n_hosts} hosts with {n_devices} devices (at most {MOST_HOSTS} hosts and {MOST_DEVICES} devices)"
        )
    machines = _machines(host, {group.device or options.device for group in groups})
    presets: list[str] = []
    of_devices: list[tuple[float, float]] = []
    of_hosts: list[tuple[float, float, float]] = []
    for group, count in zip(groups, (servers * per_host).tolist(), strict=True):
        device = machines[(group.device or options.device).lower()].device
        assert device is not None
        gigabytes = group.memory_gb or options.memory_gb
        presets += [device.name] * count
        of_devices.append((group.speed, gigabytes * 1e9 if gigabytes else device.memory))
        degree = group.degree or options.degree or _ON_HOSTS
        inside = group.inter_gpu_bandwidth_gbps or options.inter_gpu_bandwidth_gbps
        of_hosts.append((degree, inside, group.interface_bandwidth_gbps or options.interface_bandwidth_gbps))
    speed, memory = np.repeat(np.array(of_devices).T, servers * per_host, axis=1)
    interfaces, inside_gbps, interface_gbps = np.repeat(np.array(of_hosts).T, servers, axis=1)
    return Cluster(
        device_host=np.repeat(np.arange(n_hosts), np.repeat(per_host, servers)),
        device_preset=tuple(presets),
        device_speed=speed,
        device_memory=memory,
        inside_bandwidth=inside_gbps * _BYTES_PER_SECOND_PER_GBPS,
        interfaces=interfaces,
        interface_bandwidth=interface_gbps * _BYTES_PER_SECOND_PER_GBPS,
        latency=options.latency_us * 1e-6,
        gpus_per_device=options.gpus_per_device,
        memory_reserve=options.memory_reserve_percent / 100,
        host=model,
        machines=machines,
    )


def with_machines(cluster: Cluster, host: Host) -> Cluster:
    """Return a cluster that knows its machines: one from a file knows none, and gets all of a host but broken ones."""
    return cluster if cluster.machines else attrs.evolve(cluster, machines=_machines(host, ()))


def _machines(host: Host, named: Iterable[str]) -> Mapping[str, HostModel]:
    """Return all machines of a host by name; one that is broken is left out, unless it is ``named``.

    Raises:
        TopoplanError: a name is not known, or of a broken one.
    """
    chosen = {name.lower(): name for name in named}
    installed = {machine.name for machine in host.components(Machine)}
    machines: dict[str, HostModel] = {}
    causes: dict[str, TopoplanError] = {}
    for name in sorted(installed):
        try:
            model = _built(host, name)
        except TopoplanError as error:
            causes[name] = error
            continue
        if model.device is not None:
            machines[name] = model
    for model in tuple(machines.values()):
        if model.device is not None:
            machines.setdefault(model.device.name.lower(), model)
    for name in sorted(chosen.keys() - machines.keys()):
        cause = causes.get(name) or _unknown_machine(host, chosen[name])
        raise TopoplanError(f"cluster.device: {cause}") from cause.__cause__
    return machines


#: What machines are without options: every cluster looks at all, and those of racks take milliseconds to build.
_BUILT: WeakKeyDictionary[type[Machine], HostModel] = WeakKeyDictionary()


def _built(host: Host, name: str) -> HostModel:
    """Return what a machine is without options.

    Raises:
        TopoplanError: it is broken, or is nothing without options.
    """
    machine = unguarded(host.get(Machine, name))
    if machine not in _BUILT:
        _BUILT[machine] = build_machine(host.make(Machine, name))
    return _BUILT[machine]


def _unknown_machine(host: Host, name: str) -> TopoplanError:
    """Return what is wrong with the name of a device: nothing has it, or it names a host that has any device."""
    try:
        host.get(Machine, name)
    except TopoplanError as unknown:
        return unknown
    return TopoplanError(f"machine {name!r} names no kind of device (say one that it is to have)")


def _groups(ends: tuple[int, ...]) -> tuple[HostGroup, ...]:
    """Return hosts whose devices end at the numbers ``ends``."""
    groups = []
    for start, end in zip((0, *ends), ends, strict=False):
        if end <= start:
            raise TopoplanError(
                f"devices {','.join(map(str, ends))}: {end} does not come after {start} "
                f"(these are where each host's devices end, ascending: {_as_ends(ends)})"
            )
        groups.append(_host_of(end - start))
    return tuple(groups)


@functools.cache
def _host_of(devices: int) -> HostGroup:
    """Return one host of so many devices; to check its options takes longer than to look it up."""
    return HostGroup(gpus_per_server=devices)


def _as_ends(counts: tuple[int, ...]) -> str:
    """Return an example of hosts' ends: those of hosts with so many devices, if these are numbers of devices."""
    if min(counts) < 1:
        return "[8,16] is two hosts of 8"
    hosts = str(counts[0]) if len(set(counts)) == 1 else ",".join(map(str, counts))
    return f"[{','.join(map(str, accumulate(counts)))}] is {len(counts)} hosts of {hosts}"


def _of_kinds(kinds: str, groups: tuple[HostGroup, ...], servers: int) -> tuple[HostGroup, ...]:
    """Return hosts whose devices are of the kinds with commas between: the same for all, or one for each host."""
    names = [name.strip() for name in kinds.split(",")]
    if len(names) == 1:
        return groups or (HostGroup(servers=servers),)
    hosts = groups or (HostGroup(),) * len(names)
    if len(names) != (len(groups) or servers):
        raise TopoplanError(
            f"cluster.device: {kinds}: {len(names)} kinds for {len(groups) or servers} hosts (one for all, or as many "
            "as hosts; --servers sets their number)"
        )
    return tuple(attrs.evolve(host, device=name) for host, name in zip(hosts, names, strict=True))


def experiment_from_options(
    model: str,
    components: ComponentOptions,
    cluster: ClusterOptions,
    run: RunOptions,
    outputs: Sequence[str] = (),
) -> Experiment:
    """Make the experiment that a command line describes; ``outputs`` are texts ``EXPORTER=PATH``.

    Raises:
        TopoplanError: a text is not what its option takes.
    """
    frontend = Choice.parse(model, "model")
    if run.budget == 0 and (components.plan is not None or components.plan_from is not None):
        raise TopoplanError("--budget 0 prices the initial strategy, and not the stated plan (leave it out)")
    return Experiment(
        model=Choice(frontend.name, {**frontend.options, **pairs(components.option, "-o")}, allow_code=True),
        cluster=cluster,
        topology=components.topology,
        estimator=components.estimator,
        simulator=with_collectives(_simulator_of(components.simulator), components.collective, components.protocol),
        searchers=named_searchers(components),
        run=run,
        outputs=outputs_from(outputs),
    )


#: The comma before the next kind of collective: those before algorithms of one kind have no such name behind them.
_NEXT_COLLECTIVE = (
    rf",\s*(?=(?:{'|'.join(each.label for each in Collective if each is not Collective.JOIN)})(?:@[^=,]*)?=)"
)


def with_collectives(simulator: Choice, collective: Sequence[str], protocol: str | None) -> Choice:
    """Return a simulator with algorithms of collectives, as ``--collective`` and ``--protocol`` say them.

    Raises:
        TopoplanError: both that and an option of the simulator say it, or a text names no collective.

    Example:
        >>> with_collectives(Choice("fluid"), ["all-reduce=ring,tree,all-to-all=pxn"], None).text
        'fluid:algorithms=all-reduce=ring+tree;all-to-all=pxn'
        >>> with_collectives(Choice("fluid"), ["auto"], None).text.split(";")[0]
        'fluid:algorithms=all-reduce=auto'
    """
    if tuple(collective) == ("auto",):
        collective = [f"{each.label}=auto" for each in Collective if each is not Collective.JOIN]
    several = [part for text in collective for part in re.split(_NEXT_COLLECTIVE, text)]
    named = pairs(several, "--collective", "COLLECTIVE=ALGORITHM,...")
    options: dict[str, Any] = {}
    if named:
        options["algorithms"] = ";".join(f"{label}={names.replace(',', '+')}" for label, names in named.items())
    if protocol is not None:
        options["protocol"] = protocol
    for name in options.keys() & simulator.options.keys():
        raise TopoplanError(f"--simulator {simulator.text}: {name} is given twice (leave one of them out)")
    return attrs.evolve(simulator, options={**simulator.options, **options}) if options else simulator


def named_searchers(components: ComponentOptions) -> list[str]:
    """Return the searchers that a command line names; a plan that it states is that of ``stated``."""
    if components.plan is None and components.plan_from is None:
        return listed_components(components.searcher, "-s")
    if components.searcher != _COMPONENTS.searcher:
        name = "--plan" if components.plan is not None else "--plan-from"
        raise TopoplanError(f"{name} beside -s: a stated plan is priced, not searched (give one of them)")
    settings = [components.plan] if components.plan else []
    if components.plan_from is not None:
        settings.append(f"file={components.plan_from}")
    return [f"stated:{','.join(settings)}" if settings else "stated"]


def outputs_from(texts: Sequence[str]) -> tuple[tuple[Choice, str], ...]:
    """Read the files that ``-x EXPORTER[:KEY=VALUE,...]=PATH`` asks for.

    Raises:
        TopoplanError: a text is something else.
    """
    outputs: dict[str, str] = {}
    for text in texts:
        name, path = output_and_path(text)
        if name in outputs:
            raise TopoplanError(f"-x {shown(text)}: {shown(name)} is given twice")
        outputs[name] = path
    return tuple((Choice.parse(name, "exporter", allow_code=True), path) for name, path in outputs.items())


_SECTIONS = ("model", "cluster", "topology", "estimator", "simulator", "searcher", "run", "outputs")


def experiment_from_toml(path: Path, changes: Sequence[str] = (), *, allow_code: bool = False) -> Experiment:
    """Read an experiment.

    Sections ``[model]``, ``[topology]``, ``[estimator]``, ``[simulator]`` and ``[[searcher]]`` name a
    component with ``use`` and hold its options; ``[cluster]``, ``[run]`` and ``[[cluster.hosts]]`` hold
    the options of those names; ``[outputs]`` maps exporters to paths.

    Args:
        path: the TOML file.
        changes: ``section.key=value`` texts that override it (``--set``).
        allow_code: whether options of the file may name code that is imported and run.

    Raises:
        TopoplanError: the file cannot be read or something in it is wrong; the message names the key.
    """
    document = read_toml(path)
    for change in changes:
        _apply(document, change)
    return experiment_from_document(document, str(path), allow_code=allow_code)


def _apply(document: dict[str, Any], change: str) -> None:
    """Apply one ``section.key=value``; ``searcher.0.every=9`` reaches into a list."""
    key, equals, text = change.partition("=")
    *way, last = key.split(".")
    flag = f"--set {shown(change)}"
    if not equals or not way or len(way) > MOST_PARTS:
        raise TopoplanError(f"{flag}: expected section.key=value, e.g. cluster.degree=8")
    table: Any = document
    for step in way:
        if isinstance(table, list):
            if not (step.isascii() and step.isdigit() and len(step) < 10 and int(step) < len(table)):
                raise TopoplanError(f"{flag}: {shown(step)} is not one of {len(table)} tables")
            table = table[int(step)]
        elif isinstance(table, dict):
            table = table.setdefault(step, {})
        else:
            raise TopoplanError(f"{flag}: {shown(step)} is in no table")
    if isinstance(table, list) and len(table) == 1:
        table = table[0]
    if not isinstance(table, dict):
        raise TopoplanError(f"{flag}: {shown('.'.join(way))} is not a table")
    table[last] = toml_value(text)


def experiment_from_document(document: Mapping[str, Any], where: str, *, allow_code: bool = False) -> Experiment:
    """Read an experiment from the content of a TOML file, or what has its form; ``where`` is for messages.

    Its options may name code that is imported and run if ``allow_code`` says so.

    Raises:
        TopoplanError: something in it is wrong; the message names the key.
    """
    if "network" in document:
        command = "share" if "share" in document else "compare"
        raise TopoplanError(f"{where}: compares networks ([[network]]): `topoplan {command} {where}` reads it")
    for section in document:
        if section not in _SECTIONS:
            raise TopoplanError(f"{where}: no section {shown(section)}{nearest(section, _SECTIONS)}")
    if "model" not in document:
        raise TopoplanError(f'{where}: needs a section [model] with use = "..."')
    cluster = dict(_table(document, "cluster", where))
    groups = cluster.pop("hosts", [])
    if not isinstance(groups, list):
        raise TopoplanError(f"{where}: cluster.hosts: must be a list of tables [[cluster.hosts]]")
    hosts = tuple(structure(HostGroup, group, f"{where}: cluster.hosts[{i}]") for i, group in enumerate(groups))
    chosen: dict[str, Any] = {
        section: choice_from(document[section], f"{where}: {section}", allow_code=allow_code)
        for section in ("model", "topology", "estimator", "simulator")
        if section in document
    }
    if "searcher" in document:
        searchers = document["searcher"]
        tables = searchers if isinstance(searchers, list) else [searchers]
        chosen["searchers"] = tuple(
            choice_from(table, f"{where}: searcher[{i}]", allow_code=allow_code) for i, table in enumerate(tables)
        )
    outputs = _table(document, "outputs", where)
    for name, output in outputs.items():
        if not isinstance(output, str) or not output:
            raise TopoplanError(f"{where}: outputs: {shown(name)}: expected the path of a file, got {shown(output)}")
    return Experiment(
        **chosen,
        cluster=attrs.evolve(structure(ClusterOptions, cluster, f"{where}: cluster"), hosts=hosts),
        run=_run_options(_table(document, "run", where), where, allow_code),
        outputs=tuple(
            (Choice.parse(name, "exporter", allow_code=allow_code, source=f"{where}: outputs"), path)
            for name, path in outputs.items()
        ),
    )


def _run_options(table: Mapping[str, Any], where: str, allow_code: bool) -> RunOptions:
    try:
        return structure(RunOptions, table, f"{where}: run", allow_code=allow_code)
    except TopoplanError as error:
        if str(error).startswith(where):
            raise
        raise TopoplanError(f"{where}: {error}") from None


def _table(document: Mapping[str, Any], section: str, where: str) -> Mapping[str, Any]:
    table = document.get(section, {})
    if not isinstance(table, dict):
        raise TopoplanError(f"{where}: {section}: must be a table [{section}]")
    return table


def choice_from(table: Any, where: str, *, allow_code: bool = False) -> Choice:
    """Read a component from TOML: text, or a table with ``use`` and its options.

    These may name code that is imported and run if ``allow_code`` says so.

    Raises:
        TopoplanError: it names no component.
    """
    if isinstance(table, str):
        return Choice.parse(table, where, allow_code=allow_code, source=where)
    if not isinstance(table, dict) or not isinstance(table.get("use"), str):
        raise TopoplanError(f'{where}: needs use = "name of a component"')
    name, options = parse_component(table["use"], where)
    settings = {key: value for key, value in table.items() if key != "use"}
    return Choice(name, {**options, **settings}, allow_code=allow_code, source=where)
