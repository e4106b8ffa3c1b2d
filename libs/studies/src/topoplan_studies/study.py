"""A study: which models are compared on which networks, over what range, and what is expected.

This is what a TOML file under ``experiments/`` says, and what the command line of ``topoplan compare`` builds for a
single model.  Units carry their names, as in `topoplan_engine.experiment`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import attrs

from topoplan.errors import TopoplanError, nearest, printable, shown
from topoplan.options import SEEDS, option, structure
from topoplan_engine.experiment import Choice, choice_from
from topoplan_engine.options import ClusterOptions, RunOptions
from topoplan_studies.listing import searcher_choices, seeds_of
from topoplan_studies.options import SEARCHERS
from topoplan_studies.problems import BenchmarkProblem, named_problems
from topoplan_studies.published import Published, published_from

__all__ = [
    "BATCH",
    "DEVICES",
    "MACHINE",
    "Hypothesis",
    "Machine",
    "Model",
    "Network",
    "Planner",
    "Study",
    "label",
    "number",
    "study_from",
]

_LISTS = ("model", "network", "machine", "searcher", "planner", "claim", "published")
_TABLES = ("cluster", "vary", "estimator", "simulator")
#: What may vary: numbers of the cluster, and the batch size.
_VARY = (
    "servers",
    "degree",
    "interface-bandwidth-gbps",
    "latency-us",
    "inter-gpu-bandwidth-gbps",
    "gpus-per-server",
    "gpus-per-device",
)
BATCH = "batch-size"
#: What varies where a study has several machines: their names.
MACHINE = "machine"
#: Runs of the largest study: a month, if each takes half a minute.
_MOST_RUNS = 100_000
#: In options of models: the number of devices.
DEVICES = "{devices}"
#: Options of runs that stand at the top of the file, beside `_Settings`.
_RUN = ("budget", "time-limit", "keep", "draws", "precision", "precision-speedup", "optimizer")


@attrs.frozen(kw_only=True)
class _Settings:
    """The keys at the top of the file that are no options of runs."""

    title: str = option("", help="headline")
    source: str = option("", help="publication and figure that is repeated")
    seeds: tuple[int, ...] = option((0,), help="a run for each", minimum=0, maximum=SEEDS)
    searchers: tuple[str, ...] = option((), help="what is compared: NAME[:KEY=VALUE,...], or NAME+NAME to take turns")
    problems: tuple[str, ...] = option((), help="benchmark problems, in place of models, networks and a cluster")


@attrs.frozen(kw_only=True)
class Model:
    """A model with the options of its frontend.

    Attributes:
        name: as tables show it.
        choice: the frontend; an option that is `DEVICES` is replaced by the number of devices.
        batch_size: samples per iteration; None for the model's own.
        measured: estimator that replaces the study's.  If it has a ``file``, it does so only if there is a folder of
            measurements, which holds that file.  ``{batch-size}`` in its options is replaced by the batch size.
    """

    name: str
    choice: Choice
    batch_size: int | None = None
    measured: Choice | None = None


@attrs.frozen(kw_only=True)
class Network:
    """A topology with its options.

    Attributes:
        name: as tables show it.
        costs_as: name of another network; this one gets the bandwidth at which it costs as much as that one.  An ideal
            switch, which is not for sale, keeps its bandwidth and is marked.
    """

    name: str
    choice: Choice
    costs_as: str | None = None


@attrs.frozen(kw_only=True)
class Machine:
    """One of several clusters that models are planned for.

    Attributes:
        name: as tables show it.
        cluster: what the study says of all clusters, and what this one has instead.
    """

    name: str
    cluster: ClusterOptions


@attrs.frozen(kw_only=True)
class Planner:
    """Searchers that work together, as one of several ways to plan that a study compares.

    Attributes:
        name: as tables show it; empty for the searchers of a study that compares networks alone.
        searchers: of both axes; those of the network axis are left out on networks that cannot be rewired.
    """

    name: str
    searchers: tuple[Choice, ...]


@attrs.frozen(kw_only=True)
class Hypothesis:
    """An expected order of two of the things that a study compares (`label`), wherever it compares them."""

    says: str
    faster: str
    slower: str


@attrs.frozen(kw_only=True)
class Study:
    """Everything that one comparison needs.

    Attributes:
        name: of the file without suffix, or of the model.
        title, source: headline, and what is repeated.
        run: of all runs, but for seeds and batch sizes.
        vary: option of the cluster, ``batch-size`` or `MACHINE` -> the values that it takes; all combinations are run.
        estimator: prices operators; None leaves it to the model's frontend.
        planners: all are run on every network.
        hypotheses: on the order of what is compared.
        published: what others measured, to stand beside the results.
        machines: of which `MACHINE` takes the names; none if there is but the cluster.
        problems: benchmark problems, which stand for models, networks and clusters; there are none of these then.
        compares_searchers: what is compared are searchers, with statistics over seeds, and not what networks cost.
        file: that says all this, for messages; empty where a command line does.
    """

    name: str
    title: str
    source: str
    seeds: tuple[int, ...]
    run: RunOptions
    models: tuple[Model, ...]
    networks: tuple[Network, ...]
    cluster: ClusterOptions
    vary: Mapping[str, tuple[float | str, ...]]
    estimator: Choice | None
    simulator: Choice
    planners: tuple[Planner, ...]
    hypotheses: tuple[Hypothesis, ...] = ()
    published: tuple[Published, ...] = ()
    machines: tuple[Machine, ...] = ()
    problems: tuple[BenchmarkProblem, ...] = ()
    compares_searchers: bool = False
    file: str = attrs.field(default="", eq=False)

    @property
    def compares_planners(self) -> bool:
        """Whether planners have names."""
        return any(planner.name for planner in self.planners)

    @property
    def labels(self) -> tuple[str, ...]:
        """What is compared, in the order of the file."""
        one_network = len(self.networks) == 1
        return tuple(
            label("" if one_network and planner.name else network.name, planner.name)
            for network in self.networks
            for planner in self.planners
        )


def label(network: str, planner: str) -> str:
    """Return the name of what is compared: a planner, a network, or a planner on a network."""
    return " on ".join(name for name in (planner, network) if name)


def study_from(
    document: Mapping[str, Any], name: str, where: str, *, allow_code: bool = False, typed: Collection[str] = ()
) -> Study:
    """Read a study from the content of a TOML file (or what has its form).

    Args:
        document: the content.
        name: of the study.
        where: the file, for messages.
        allow_code: whether options of components may name code that is imported and run.
        typed: sections that come from a command line: errors about their components name no file.

    Raises:
        TopoplanError: a section, key or name that does not fit; the message says which.
    """
    study = _study(document, name, where)

    def said(section: str, choice: Choice) -> Choice:
        source = "" if section in typed else choice.source
        return attrs.evolve(choice, allow_code=choice.allow_code or allow_code, source=source)

    return attrs.evolve(
        study,
        file="" if "cluster" in typed else where,
        models=tuple(
            attrs.evolve(
                model,
                choice=said("model", model.choice),
                measured=None if model.measured is None else said("model", model.measured),
            )
            for model in study.models
        ),
        networks=tuple(attrs.evolve(network, choice=said("network", network.choice)) for network in study.networks),
        estimator=None if study.estimator is None else said("estimator", study.estimator),
        simulator=said("simulator", study.simulator),
        planners=tuple(
            attrs.evolve(planner, searchers=tuple(said("searcher", choice) for choice in planner.searchers))
            for planner in study.planners
        ),
    )


def _study(document: Mapping[str, Any], name: str, where: str) -> Study:
    settings, run = _settings(document, where)
    if settings.problems:
        return _of_problems(document, settings, run, name, where)
    models = tuple(_model(table, f"{where}: model[{i}]") for i, table in enumerate(_list(document, "model", where)))
    networks = tuple(
        _network(table, f"{where}: network[{i}]") for i, table in enumerate(_list(document, "network", where))
    )
    for kind, entries in (("model", models), ("network", networks)):
        _check_names(kind, [entry.name for entry in entries], where)
    _check_costs({network.name: network for network in networks}, where)
    machines, vary = _machines(document, where), _vary(_table(document, "vary", where), f"{where}: vary")
    study = Study(
        name=name,
        title=settings.title or printable(name),
        source=settings.source,
        seeds=settings.seeds,
        run=run,
        models=models,
        networks=networks,
        cluster=structure(ClusterOptions, _table(document, "cluster", where), f"{where}: cluster"),
        vary={**({MACHINE: tuple(machine.name for machine in machines)} if machines else {}), **vary},
        machines=machines,
        estimator=choice_from(document["estimator"], f"{where}: estimator") if "estimator" in document else None,
        simulator=choice_from(document.get("simulator", "fluid"), f"{where}: simulator"),
        planners=_planners(document, settings, where),
        compares_searchers=bool(settings.searchers),
    )
    _check_runs(study, where)
    labels = dict.fromkeys(study.labels)
    return attrs.evolve(
        study,
        hypotheses=tuple(
            _hypothesis(table, study, labels, f"{where}: claim[{i}]")
            for i, table in enumerate(_list(document, "claim", where))
        ),
        published=published_from(
            _list(document, "published", where),
            models=[model.name for model in models],
            labels=labels,
            settings=math.prod(map(len, study.vary.values())),
            where=where,
        ),
    )


def _check_runs(study: Study, where: str) -> None:
    """Raise where all combinations are more runs than anybody makes; each is a value before the first one begins."""
    factors = {
        "problems": len(study.problems),
        "models": len(study.models),
        **{f"vary.{key}": len(values) for key, values in study.vary.items()},
        "networks": len(study.networks),
        "planners": len(study.planners),
        "seeds": len(study.seeds),
    }
    several = {key: count for key, count in factors.items() if count > 1}
    runs = math.prod(several.values())
    if runs > _MOST_RUNS:
        product = " x ".join(f"{count} {key}" for key, count in several.items())
        raise TopoplanError(
            f"{where}: {shown(runs)} runs ({product}; expected at most {_MOST_RUNS}: vary less, or write more studies)"
        )


def _of_problems(document: Mapping[str, Any], settings: _Settings, run: RunOptions, name: str, where: str) -> Study:
    """Return the study of benchmark problems, which say all but searchers, seeds and how long to search."""
    for section in (*_LISTS, *_TABLES, "precision", "precision-speedup", "optimizer"):
        if section in document and section not in ("searcher", "planner"):
            raise TopoplanError(f"{where}: {section}: has no place beside problems, which say it themselves")
    study = Study(
        name=name,
        title=settings.title or printable(name),
        source=settings.source,
        seeds=settings.seeds,
        run=run,
        models=(),
        networks=(),
        cluster=ClusterOptions(),
        vary={},
        estimator=None,
        simulator=Choice("fluid"),
        planners=_planners(document, settings, where),
        problems=named_problems(settings.problems),
        compares_searchers=True,
    )
    _check_runs(study, where)
    return study


def _machines(document: Mapping[str, Any], where: str) -> tuple[Machine, ...]:
    """Read the machines: each has the keys of [cluster] that differ from it."""
    shared = _table(document, "cluster", where)
    machines = []
    for number, table in enumerate(_list(document, "machine", where)):
        place = f"{where}: machine[{number}]"
        if not isinstance(table, dict) or not isinstance(table.get("name"), str):
            raise TopoplanError(f'{place}: needs name = "..." and keys of [cluster]')
        keys = {key: value for key, value in table.items() if key != "name"}
        machines.append(
            Machine(name=printable(table["name"]), cluster=structure(ClusterOptions, {**shared, **keys}, place))
        )
    if machines:
        _check_names("machine", [machine.name for machine in machines], where)
    return tuple(machines)


def _planners(document: Mapping[str, Any], settings: _Settings, where: str) -> tuple[Planner, ...]:
    """Read the planners; a study without them has one of its searchers."""
    if settings.searchers:
        for section in ("planner", "searcher"):
            if section in document:
                raise TopoplanError(
                    f"{where}: has searchers and [[{section}]] (searchers = [...] are compared; NAME+NAME take turns)"
                )
        _check_names("searchers", list(settings.searchers), where)
        return tuple(
            Planner(name=text, searchers=searcher_choices(text, f"{where}: searchers[{number}]"))
            for number, text in enumerate(settings.searchers)
        )
    planners = tuple(
        _planner(table, f"{where}: planner[{i}]") for i, table in enumerate(_list(document, "planner", where))
    )
    searchers = _searchers(document, where)
    if planners and searchers:
        raise TopoplanError(f"{where}: has [[planner]] and [[searcher]] (write [[planner.searcher]], or leave one out)")
    if planners:
        _check_names("planner", [planner.name for planner in planners], where)
    return planners or (Planner(name="", searchers=searchers or tuple(map(Choice, SEARCHERS))),)


def _planner(table: Any, where: str) -> Planner:
    searchers = _searchers(table, where) if isinstance(table, dict) else ()
    if not searchers:
        raise TopoplanError(f'{where}: needs at least one [[planner.searcher]] with use = "..."')
    unknown, keys = _split({key: value for key, value in table.items() if key != "searcher"}, ("name",), where)
    for key in unknown:
        raise TopoplanError(f"{where}: no key {shown(key)}{nearest(key, ('name', 'searcher'))}")
    return Planner(name=keys.get("name") or "+".join(choice.name for choice in searchers), searchers=searchers)


def _searchers(table: Mapping[str, Any], where: str) -> tuple[Choice, ...]:
    choices = enumerate(_list(table, "searcher", where))
    return tuple(choice_from(choice, f"{where}: searcher[{i}]") for i, choice in choices)


def _settings(document: Mapping[str, Any], where: str) -> tuple[_Settings, RunOptions]:
    """Read the keys at the top of the file; all others must be sections."""
    keys = [*_LISTS, *_TABLES, *(field.name for field in attrs.fields(_Settings)), *_RUN]
    if "network" not in document and ("topology" in document or "run" in document):
        raise TopoplanError(f"{where}: is an experiment on one network: `topoplan run {where}` reads it")
    for key in document:
        if key.replace("_", "-") not in keys:
            raise TopoplanError(f"{where}: no section {shown(key)}{nearest(key, keys)}")
    top = {key: value for key, value in document.items() if key not in (*_LISTS, *_TABLES)}
    if "seeds" in top:
        top["seeds"] = seeds_of(top["seeds"], f"{where}: seeds")
    run = {key: top.pop(key) for key in list(top) if key.replace("_", "-") in _RUN}
    settings = structure(_Settings, top, where)
    settings = attrs.evolve(settings, title=printable(settings.title), source=printable(settings.source))
    if not settings.seeds or len(set(settings.seeds)) < len(settings.seeds):
        raise TopoplanError(f"{where}: seeds: {list(settings.seeds)} must be one or more different numbers")
    return settings, structure(RunOptions, run, where)


def _check_names(kind: str, names: Sequence[str], where: str) -> None:
    """Raise `TopoplanError` unless there is a name, and none twice."""
    if not names:
        flag = "" if where.endswith(".toml") or kind != "network" else " (--networks, such as -n fattree,topoopt)"
        raise TopoplanError(f'{where}: needs at least one [[{kind}]] with use = "..."{flag}')
    for name, count in Counter(names).items():
        if count > 1:
            raise TopoplanError(f"{where}: {kind}: {shown(name)} is there twice (give each a name of its own)")


def _check_costs(networks: Mapping[str, Network], where: str) -> None:
    """Raise `TopoplanError` if a network has to cost as much as one that is priced by another network itself."""
    for network in networks.values():
        if network.costs_as is None:
            continue
        _check_name(network.costs_as, networks, f"{where}: network {network.name!r}: costs-as")
        if network.costs_as == network.name or networks[network.costs_as].costs_as is not None:
            raise TopoplanError(
                f"{where}: network {shown(network.name)}: costs-as: {shown(network.costs_as)} has no cost of its own "
                "to go by"
            )


def number(value: float | str) -> str:
    """Return a value of what varies as people write it."""
    if isinstance(value, str):
        return value
    return f"{value:.0f}" if value == round(value) else f"{value:.6g}"


def _model(table: Any, where: str) -> Model:
    component, keys = _split(table, ("name", BATCH, "measured"), where)
    choice = choice_from(component, where)
    batch = keys.get(BATCH)
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
        raise TopoplanError(f"{where}: {BATCH}: expected a positive integer, got {shown(batch)}")
    measured = choice_from(keys["measured"], f"{where}: measured") if "measured" in keys else None
    if measured is not None and not isinstance(measured.options.get("file", ""), str):
        raise TopoplanError(
            f"{where}: measured: file: expected the name of a file in the folder of measurements, got "
            f"{measured.options['file']!r}"
        )
    return Model(name=keys.get("name", choice.name), choice=choice, batch_size=batch, measured=measured)


def _network(table: Any, where: str) -> Network:
    component, keys = _split(table, ("name", "costs-as"), where)
    choice = choice_from(component, where)
    return Network(name=keys.get("name", choice.name), choice=choice, costs_as=keys.get("costs-as"))


def _hypothesis(table: Any, study: Study, labels: Collection[str], where: str) -> Hypothesis:
    if not isinstance(table, dict):
        raise TopoplanError(f'{where}: {shown(table)} is no table (expected [[claim]] with faster = "..." and slower)')
    unknown, keys = _split(table, ("says", "faster", "slower"), where)
    for key in unknown:
        raise TopoplanError(f"{where}: no key {shown(key)}{nearest(key, ('says', 'faster', 'slower'))}")
    for key in ("faster", "slower"):
        kind = "network or planner" if study.compares_planners else "network"
        _check_name(keys.get(key, ""), labels, f"{where}: {key}", kind)
    says = keys.get("says", f"{keys['faster']} is faster than {keys['slower']}")
    return Hypothesis(says=says, faster=keys["faster"], slower=keys["slower"])


def _split(table: Any, names: Sequence[str], where: str) -> tuple[Any, dict[str, Any]]:
    """Divide a table into the keys of a component and the keys ``names``; the values of the latter must be texts."""
    if not isinstance(table, dict):
        return table, {}
    keys = {key: value for key, value in table.items() if key in names}
    for key, value in keys.items():
        if key not in (BATCH, "measured"):
            if not isinstance(value, str):
                raise TopoplanError(f"{where}: {key}: expected text, got {shown(value)}")
            keys[key] = printable(value)  # tables, pages, pictures and terminals show it
    return {key: value for key, value in table.items() if key not in names}, keys


def _vary(table: Mapping[str, Any], where: str) -> dict[str, tuple[float | str, ...]]:
    """Read what varies; every value passes the same check as one of the cluster's options."""
    ranges: dict[str, tuple[float | str, ...]] = {}
    for key, values in table.items():
        if key not in (*_VARY, BATCH):
            raise TopoplanError(f"{where}: {shown(key)} cannot vary{nearest(key, (*_VARY, BATCH))}")
        if not isinstance(values, list) or not values:
            raise TopoplanError(f"{where}: {key}: expected a list of numbers, got {shown(values)}")
        if key == BATCH:
            if not all(isinstance(value, int) and not isinstance(value, bool) and value > 0 for value in values):
                raise TopoplanError(f"{where}: {key}: expected positive integers, got {shown(values)}")
            ranges[key] = tuple(values)
        else:
            name = key.replace("-", "_")
            ranges[key] = tuple(getattr(structure(ClusterOptions, {key: v}, where), name) for v in values)
        if len(set(ranges[key])) < len(ranges[key]):
            raise TopoplanError(f"{where}: {key}: {shown(values)} has a value twice")
    return ranges


def _check_name(name: str, names: Collection[str], where: str, kind: str = "network") -> None:
    if name not in names:
        raise TopoplanError(f"{where}: no {kind} {shown(name)}{nearest(name, names)}")


def _table(document: Mapping[str, Any], section: str, where: str) -> Mapping[str, Any]:
    table = document.get(section, {})
    if not isinstance(table, dict):
        raise TopoplanError(f"{where}: {section}: must be a table [{section}]")
    return table


def _list(document: Mapping[str, Any], section: str, where: str) -> list[Any]:
    tables = document.get(section, [])
    if not isinstance(tables, list):
        raise TopoplanError(f"{where}: {section}: must be a list of tables [[{section}]]")
    return tables
