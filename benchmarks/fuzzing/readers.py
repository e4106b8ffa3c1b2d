"""Everything that reads, each with a few inputs that are right, how to change them, and how it is read.

What can be simulated is simulated, by both simulators, and what was read is written and read again.
"""

from __future__ import annotations

import json
import math
import warnings
import zipfile
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import numpy as np

from fuzzing import draws
from fuzzing.draws import HOST, fbufs, folder, graph_of, json_files, jsons, options_of, plans, stored, texts, written
from fuzzing.mutators import bytes_of, json_of, text_of
from fuzzing.option_sets import readers_of_option_sets
from fuzzing.runs import readers_of_runs
from fuzzing.structure import readers_of_structure
from fuzzing.watch import Reader
from topoplan import TopoplanError
from topoplan.errors import TopoplanWarning
from topoplan.model.plan import Plan
from topoplan.options import parse_component, structure
from topoplan.testing import reference
from topoplan_command_compare.command import _networks
from topoplan_command_share.shared_cluster import shared_cluster_from
from topoplan_engine import ClusterOptions, Experiment, RunOptions, optimize
from topoplan_engine.experiment import Choice, build_cluster, experiment_from_toml
from topoplan_engine.exporting import read_plan, read_strategy, write_outputs
from topoplan_engine.flags import Flags
from topoplan_engine.folders import archive_of, files_of
from topoplan_engine.options import HostGroup
from topoplan_engine.replay import simulate_file
from topoplan_engine.tomlfiles import read_toml
from topoplan_engine.wordlists import listed, pairs
from topoplan_exporter_dtensor.reader import parse as parse_placements
from topoplan_network_files import Defaults, read_network
from topoplan_spmd_planning.hints import read_hints
from topoplan_spmd_planning.program import write_down
from topoplan_spmd_planning.released import released
from topoplan_studies.prices import read_prices
from topoplan_studies.store import Store
from topoplan_studies.study import study_from

__all__ = ["readers"]

_HINTS = """embedding = ["gather_2"]
"embedding.table" = ["replicate", "gather_1"]
"layer*_linear1*" = ["full", "gather_0", "replicate", "reduce"]
"""
KINDS = ("frontend", "topology", "estimator", "simulator", "searcher", "exporter")


class NonsenseError(Exception):
    """What was read gives what cannot be."""


def read_again(plan: Plan, exporter: str, suffix: str) -> None:
    """Write what was read, and read that."""
    path = folder() / f"again{suffix}"
    done = write_outputs(HOST, plan, ((Choice(exporter), str(path)),))
    if done.paths:
        try:
            read_plan(HOST, path)
        except TopoplanError as error:
            raise NonsenseError(f"{exporter} that was written cannot be read: {error}") from None


def read_as_plan(name: str, data: bytes) -> None:
    """Read a plan."""
    read_plan(HOST, stored(name, data))


def simulated(name: str, data: bytes) -> None:
    """Simulate a file with both simulators, and write it again in both formats."""
    path = stored(name, data)
    for simulator in ("fluid", "flexnet"):
        plan = simulate_file(path, simulator=simulator, host=HOST)
        times = [plan.timeline.makespan, *plan.timeline.finish.tolist()]
        if not all(math.isfinite(time) and time >= 0 for time in times):
            raise NonsenseError(f"{simulator}: a time of {plan.timeline.makespan}")
    for exporter, suffix in (("json", ".json"), ("flatbuffer", ".fbuf")):
        read_again(plan, exporter, suffix)


def read_as_strategy(name: str, data: bytes) -> None:
    """Read a strategy, alone or out of a plan, and check it."""
    graph = plans()[2].graph
    read_strategy(HOST, str(stored(name, data)), graph).check(graph, 4)


def read_placements(data: bytes) -> None:
    """Read the placements of a plan."""
    parse_placements(data, "a.dtensor")


def read_measurements(data: bytes) -> None:
    """Read measurements, and price every operator in several cuts."""
    path = stored("measured.json", data)
    estimator = HOST.make("estimator", "measured", {"file": str(path)})
    costs = estimator.build(graph_of("alexnet", 64), _cluster(4))
    for op in range(len(graph_of("alexnet", 64).operators)):
        for degree in (1, 2, 3, 4):
            degrees = (degree,) + (1,) * (len(graph_of("alexnet", 64).operators[op].dims) - 1)
            if costs.supports(op, degrees):
                price = costs.price(op, degrees, np.arange(degree, dtype=np.int32))
                _finite(price.forward, price.backward, price.memory)


def read_profile(text: str) -> None:
    """Read a layer profile, price it, and simulate its initial strategy."""
    path = stored("profile-pbs-4.txt", text)
    experiment = Experiment(
        model=Choice("torchgraph", {"file": str(path)}),
        cluster=ClusterOptions(servers=2),
        simulator="fluid:memory=ignore",
        searchers="mcmc",
        run=RunOptions(budget=0, batch_size=4),
    )
    plan = optimize(experiment, host=HOST).plan
    _finite(plan.timeline.finish)


def read_model(suffix: str, data: str | bytes) -> None:
    """Read a model of layers."""
    HOST.make("frontend", "layers", {"file": str(stored(f"model{suffix}", data))}).build(None)


def read_config(data: bytes) -> None:
    """Read a configuration of Hugging Face."""
    options = {"config": str(stored("config.json", data)), "sequence-length": 16}
    HOST.make("frontend", "huggingface", options).build(None)


def read_onnx(data: bytes) -> None:
    """Read an ONNX file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of opaque operators
        HOST.make("frontend", "onnx", {"file": str(stored("model.onnx", data))}).build(None)


def readcollectives(data: bytes) -> None:
    """Read measured collectives, and price an operator with them."""
    path = stored("collectives.json", data)
    estimator = HOST.make("estimator", "hidup", {"file": str(path)})
    estimator.build(graph_of("bert-sgmoe", 8), _cluster(8))


def read_experiment(text: str, changes: tuple[str, ...] = ()) -> None:
    """Read an experiment; build its cluster and its network, and look up its components."""
    experiment = experiment_from_toml(stored("experiment.toml", text), changes)
    cluster = build_cluster(experiment.cluster, HOST)
    for kind, choice in (("frontend", experiment.model), ("simulator", experiment.simulator)):
        HOST.make(kind, choice.name, choice.options)
    for choice in experiment.searchers:
        HOST.make("searcher", choice.name, choice.options)
    _fabric(experiment.topology, cluster)


def read_comparison(text: str) -> None:
    """Read what is compared."""
    study = study_from(read_toml(stored("figure.toml", text)), "figure", "figure.toml")
    for network in study.networks:
        HOST.make("topology", network.choice.name, network.choice.options)


def read_share(text: str) -> None:
    """Read a shared cluster."""
    shared_cluster_from(read_toml(stored("share.toml", text)), "share", "share.toml")


def read_hint_file(text: str) -> None:
    """Read hints, and restrict a program with them."""
    graph = graph_of("bert-sgmoe", 8)
    read_hints(stored("hints.toml", text)).restricted(write_down(graph, released))


def read_network_file(suffix: str, data: bytes) -> None:
    """Read a network, write it as node-link JSON, and read that."""
    from topoplan_network_files.graphs import read_node_link, write_node_link

    defaults = Defaults(bandwidth=12.5e9, latency=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TopoplanWarning)  # of attributes that are not read
        fabric = read_network(data, f"a{suffix}", defaults)
    if read_node_link(write_node_link(fabric), "again.json", defaults).n_links != fabric.n_links:
        raise NonsenseError("a network that was written has other links")


def read_price_file(text: str) -> None:
    """Read prices, and ask for some."""
    prices = read_prices(stored("prices.toml", text))
    for part in ("nic", "switch-port", "ideal-switch-port", "fibre"):
        _finite([prices.price(part, gbps) for gbps in (1e-6, 25.0, 1e9)])


def read_options(text: str) -> None:
    """Read a component with options, of any kind, and the texts around it."""
    kind, _, choice = text.partition(" ")
    listed(choice)
    _, options = parse_component(choice, kind)
    pairs([f"{key}={value}" for key, value in options.items() if value], "-x")
    if kind in KINDS:
        HOST.make(kind, choice)


def read_values(given: tuple[str, dict[str, Any]]) -> None:
    """Read options of a component, or of a cluster, and build what is cheap to build."""
    name, options = given
    kind, _, component = name.partition(":")
    if kind == "cluster":
        build_cluster(structure(ClusterOptions, options, "--"), HOST)
    elif kind == "hosts":
        build_cluster(ClusterOptions(hosts=(structure(HostGroup, options, "cluster.hosts"),)), HOST)
    elif kind == "run":
        structure(RunOptions, options, "--")
    elif kind == "topology":
        _fabric(Choice(component, options), _cluster(4))
    else:
        HOST.make(kind, component, options)


def read_exported(data: bytes) -> None:
    """Read a module that torch.export.save wrote."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TopoplanWarning)
        HOST.make("frontend", "torch", {"file": str(stored("model.pt2", data))}).build(None)


def read_program(data: bytes) -> None:
    """Read the graph of such a file."""
    path = folder() / "graph.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("graph/models/model.json", data)
    read_exported(path.read_bytes())


def read_flags(words: list[str]) -> None:
    """Read a command line of FlexNet."""
    from topoplan_command_flexnet.flags import FLAGS
    from topoplan_command_flexnet.programs import program_of
    from topoplan_command_flexnet.scan import scan
    from topoplan_command_flexnet.spell import command_line
    from topoplan_command_flexnet.story import rows_of, warnings_of
    from topoplan_command_flexnet.translate import experiment_of, settings_of

    program = program_of(words[0])
    found = scan(words[1:], (*FLAGS, *program.flags))
    settings = settings_of(found)
    rows_of(found, settings)
    warnings_of(found, settings)
    experiment = experiment_of(program, settings, 0)
    command_line(experiment)
    HOST.make("frontend", experiment.model.name, experiment.model.options)


def read_words(words: tuple[str, str, str]) -> None:
    """Read the networks and the numbers with commas of a comparison."""
    networks, key, values = words
    _networks([networks], True)
    name = key.replace("-", "_")
    flags = Flags(of=RunOptions if name == "batch_size" else ClusterOptions, only=(name,), several=(name,))
    flags.read({name: values})


def read_kept(data: bytes) -> None:
    """Ask for a kept run; it is there whole, or not at all."""
    stored("0.json", data)
    result = Store(folder()).get("0")
    if result is not None and result != {"iteration_time_s": 0.5, "parts": [["nic", 25.0, 4.0]]}:
        raise NonsenseError(f"a kept run that was changed: {result}")


def _cluster(hosts: int) -> Any:
    return reference.cluster(hosts)


def _fabric(choice: Choice, cluster: Any) -> None:
    from topoplan import TopologyContext

    topology = HOST.make("topology", choice.name, choice.options)
    if cluster.n_hosts <= 64:
        demand = reference.demand(cluster.n_hosts) if topology.follows_demand else None
        topology.build(TopologyContext(cluster=cluster, demand=demand, rng=np.random.default_rng(0)))


def _finite(*columns: Any) -> None:
    for column in columns:
        if not (np.isfinite(column).all() and (np.asarray(column) >= 0).all()):
            raise NonsenseError(f"a number that is none: {column}")


def readers() -> tuple[Reader, ...]:
    """Return all readers, with their shares of the inputs; the cheap ones have the most."""
    words = tuple({key for keys in options_of().values() for key in keys} | {"use", "name", "file", "costs-as"})
    data = (*_of_data(words), *_of_exported(), *_of_networks())
    rest = (*_of_task_graphs(), *_of_plans(), *readers_of_structure(), *readers_of_option_sets())
    return (*_of_words(), *_of_toml(words), *data, *readers_of_runs(), *rest)


def _of_words() -> tuple[Reader, ...]:
    """Return the readers of what a user types."""
    return (
        Reader("options", "name:key=value texts", 400, draws.draw_option_text, read_options),
        Reader("values", "options of components, clusters and runs", 300, draws.draw_values, read_values),
        Reader("flexnet", "flags of `topoplan flexnet`", 10, draws.draw_flags, read_flags),
        Reader("compare", "networks and numbers of `topoplan compare`", 90, draws.draw_words, read_words),
        Reader("set", "--set texts", 50, draws.draw_change, lambda given: read_experiment(*given)),
    )


def _of_toml(words: tuple[str, ...]) -> tuple[Reader, ...]:
    """Return the readers of TOML files; ``words`` are put into their texts."""

    def drawn(*patterns: str) -> Callable[[Random], str]:
        return lambda rng: text_of(rng, texts(*patterns), words)

    studies = drawn("experiments/d*.toml", "experiments/a*.toml")
    return (
        Reader("experiment", "experiment TOML", 12, drawn("examples/*.toml"), read_experiment),
        Reader("figure", "figure TOML", 10, studies, read_comparison),
        Reader("hints", "hints TOML", 8, lambda rng: text_of(rng, [_HINTS], words), read_hint_file),
        Reader("share", "share TOML", 8, drawn("experiments/shared-cluster.toml"), read_share),
        Reader(
            "prices", "price TOML", 10, drawn("libs/studies/src/topoplan_studies/prices/default.toml"), read_price_file
        ),
    )


def _of_data(words: tuple[str, ...]) -> tuple[Reader, ...]:
    """Return the readers of finished runs, of measurements and of strategies; ``words`` are put into texts."""
    models, documents = draws.models()
    configs = draws.configs()
    graphs = [(draws.ROOT / "examples/models/convolution.onnx").read_bytes()]
    profile = texts("plugins/frontends/torchgraph/src/*/example-pbs-4.txt")
    strategy = [data.decode() for data in written("strategy", plans()[2:3])]
    measured, collectives = draws.measured(), draws.collectives()
    as_strategy = partial(read_as_strategy, "a.strategy")
    placements = [json.loads(data) for data in written("dtensor", plans())]
    return (
        Reader("kept", "kept runs", 30, draws.draw_kept, read_kept),
        Reader("collectives", "collectives JSON", 20, lambda rng: json_of(rng, collectives), readcollectives),
        Reader("measured", "measurement JSON", 6, lambda rng: json_of(rng, measured), read_measurements),
        Reader("strategy", "strategy text", 60, lambda rng: text_of(rng, strategy, words), as_strategy),
        Reader("dtensor", "placements JSON", 20, lambda rng: json_of(rng, placements), read_placements),
        Reader("layers", "models in TOML", 20, lambda rng: text_of(rng, models, words), partial(read_model, ".toml")),
        Reader("layers-json", "models in JSON", 20, lambda rng: json_of(rng, documents), partial(read_model, ".json")),
        Reader("onnx", "ONNX files", 20, lambda rng: bytes_of(rng, graphs), read_onnx),
        Reader("huggingface", "config.json", 20, lambda rng: json_of(rng, configs), read_config),
        Reader("torchgraph", "layer profiles, planned", 3, lambda rng: text_of(rng, profile), read_profile),
    )


def _of_exported() -> tuple[Reader, ...]:
    """Return the readers of PyTorch modules that torch.export.save wrote."""
    files, programs = draws.exported(), draws.programs()
    return (
        Reader("pt2-bytes", ".pt2 files, bytes changed", 10, lambda rng: bytes_of(rng, files), read_exported),
        Reader("pt2", ".pt2 files, graphs changed", 8, lambda rng: json_of(rng, programs), read_program),
    )


def _of_task_graphs() -> tuple[Reader, ...]:
    """Return the readers of task graph files."""

    def changed(rng: Random) -> bytes:
        return bytes_of(rng, fbufs())

    what = "task graph files"
    read, simulate, as_strategy = _takers("fbuf")
    return (
        Reader("fbuf-bytes", f"{what}, bytes changed", 12, changed, read),
        Reader("fbuf-values", f"{what}, values changed, simulated", 1.5, draws.draw_columns, simulate),
        Reader("fbuf-simulated", f"{what}, bytes changed, simulated", 2, changed, simulate),
        Reader("fbuf-strategy", f"{what} as strategies", 2, changed, as_strategy),
    )


def _of_plans() -> tuple[Reader, ...]:
    """Return the readers of plans in JSON."""
    read, simulate, as_strategy = _takers("json")
    return (
        Reader("plan-bytes", "plan JSON, bytes changed", 10, lambda rng: bytes_of(rng, json_files()), read),
        Reader("plan-values", "plan JSON, values changed, simulated", 1.5, lambda rng: json_of(rng, jsons()), simulate),
        Reader("plan-strategy", "plan JSON as a strategy", 1.5, lambda rng: json_of(rng, jsons()[2:]), as_strategy),
    )


def _of_networks() -> tuple[Reader, ...]:
    """Return the readers of networks, and of execution traces."""
    nets = {name: written(name, plans()) for name in ("node-link", "graphml", "infragraph")}
    traces = [files_of(HOST.make("exporter", "chakra").write(plan), "a") for plan in plans()]

    def changed(name: str) -> Callable[[Random], bytes]:
        return lambda rng: bytes_of(rng, nets[name])

    def changed_trace(rng: Random) -> bytes:
        files = dict(rng.choice(traces))
        name = rng.choice(sorted(files))
        return archive_of({**files, name: bytes_of(rng, [files[name]])})

    return (
        Reader("node-link", "networks in JSON", 20, changed("node-link"), partial(read_network_file, ".json")),
        Reader("graphml", "networks in GraphML", 10, changed("graphml"), partial(read_network_file, ".graphml")),
        Reader("infragraph", "networks in YAML", 5, changed("infragraph"), partial(read_network_file, ".yaml")),
        Reader("chakra", "execution traces", 5, changed_trace, partial(read_as_plan, "a.et.tar")),
    )


def _takers(suffix: str) -> tuple[Callable[[bytes], None], ...]:
    """Return what reads a file of a plan: as a plan, as a plan that is simulated, and as a strategy."""
    names = (f"a.{suffix}", f"c.{suffix}", f"b.{suffix}")
    return tuple(map(partial, (read_as_plan, simulated, read_as_strategy), names))
