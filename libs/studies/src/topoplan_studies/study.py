"""A study: which models are compared on which networks, over what range, and what is expected.

This is what a TOML file under ``experiments/`` says, and what the command line of ``topoplan compare`` builds for a
single model.  Units carry their names, as in `topoplan_engine.experiment`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs

from topoplan.errors import TopoplanError, nearest, shown
from topoplan.options import SEEDS, option, structure
from topoplan_engine.experiment import Choice, ClusterOptions, choice_from

__all__ = ["BATCH", "Hypothesis", "Model", "Network", "Study", "number", "study_from"]

_LISTS = ("model", "network", "searcher", "claim")
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


@attrs.frozen(kw_only=True)
class _Settings:
    """The keys at the top of the file."""

    title: str = option("", help="headline")
    source: str = option("", help="publication and figure that is repeated")
    budget: int = option(1000, help="candidates to price in every run", minimum=0)
    seeds: tuple[int, ...] = option((0,), help="a run for each", minimum=0, maximum=SEEDS)
    keep: Literal["constructed", "fastest"] = option(
        "constructed",
        help="of searchers that construct a plan: the best that they constructed, or whatever simulates fastest",
    )
    draws: int = option(1, help="draws of equal paths whose mean a candidate costs", minimum=1, maximum=1000)
    precision: Literal["fp32", "fp16", "bf16"] = option("fp32", help="of the models; the last two are mixed precision")
    precision_speedup: float | None = option(
        None, help="how much faster they compute than fp32, for estimators that know times in fp32 only", above=0
    )
    optimizer: Literal["adam", "momentum", "sgd"] | None = option(None, help="of the models; unset: as they say")


@attrs.frozen(kw_only=True)
class Model:
    """A model with the options of its frontend.

    Attributes:
        name: as tables show it.
        batch_size: samples per iteration; None for the model's own.
        measured: estimator that takes over: always, or, where it has a ``file``, if a folder of measurements is given,
            in which that is looked for.  ``{batch-size}`` in its options is replaced by the batch size.
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
class Hypothesis:
    """An expected order of two networks, wherever they are compared."""

    says: str
    faster: str
    slower: str


@attrs.frozen(kw_only=True)
class Study:
    """Everything that one comparison needs.

    Attributes:
        name: of the file without suffix, or of the model.
        title, source: headline, and what is repeated.
        keep, draws: of all runs; see `topoplan_engine.experiment.RunOptions`.
        precision, precision_speedup, optimizer: of all models; see `topoplan_engine.experiment.RunOptions`.
        vary: option of the cluster (or ``batch-size``) -> the values that it takes; all combinations are run.
        estimator: prices operators; None leaves it to the model's frontend.
        searchers: of both axes; those of the network axis are left out on networks that cannot be rewired.
    """

    name: str
    title: str
    source: str
    budget: int
    seeds: tuple[int, ...]
    keep: Literal["constructed", "fastest"]
    draws: int
    precision: Literal["fp32", "fp16", "bf16"]
    precision_speedup: float | None
    optimizer: Literal["adam", "momentum", "sgd"] | None
    models: tuple[Model, ...]
    networks: tuple[Network, ...]
    cluster: ClusterOptions
    vary: Mapping[str, tuple[float, ...]]
    estimator: Choice | None
    simulator: Choice
    searchers: tuple[Choice, ...]
    claims: tuple[Hypothesis, ...] = ()


def study_from(document: Mapping[str, Any], name: str, where: str) -> Study:
    """Read a study from the content of a TOML file (or what has its form); ``where`` is for messages.

    Raises:
        TopoplanError: a section, key or name that does not fit; the message says which.
    """
    known = [*_LISTS, *_TABLES, *(field.name.replace("_", "-") for field in attrs.fields(_Settings))]
    for key in document:
        if key.replace("_", "-") not in known:
            raise TopoplanError(f"{where}: no section {shown(key)}{nearest(key, known)}")
    top = {key: value for key, value in document.items() if key not in (*_LISTS, *_TABLES)}
    settings = structure(_Settings, top, where)
    if not settings.seeds or len(set(settings.seeds)) < len(settings.seeds):
        raise TopoplanError(f"{where}: seeds: {list(settings.seeds)} must be one or more different numbers")
    cluster = structure(ClusterOptions, _table(document, "cluster", where), f"{where}: cluster")
    models = tuple(_model(table, f"{where}: model[{i}]") for i, table in enumerate(_list(document, "model", where)))
    networks = tuple(
        _network(table, f"{where}: network[{i}]") for i, table in enumerate(_list(document, "network", where))
    )
    for kind, entries in (("model", models), ("network", networks)):
        if not entries:
            raise TopoplanError(f'{where}: needs at least one [[{kind}]] with use = "..."')
        names = [entry.name for entry in entries]
        for one in names:
            if names.count(one) > 1:
                raise TopoplanError(f"{where}: {kind}: {shown(one)} is there twice (give each a name of its own)")
    by_name = {network.name: network for network in networks}
    for network in networks:
        if network.costs_as is None:
            continue
        _check_name(network.costs_as, by_name, f"{where}: network {network.name!r}: costs-as")
        if network.costs_as == network.name or by_name[network.costs_as].costs_as is not None:
            raise TopoplanError(
                f"{where}: network {shown(network.name)}: costs-as: {shown(network.costs_as)} has no cost of its own "
                "to go by"
            )
    searchers = tuple(
        choice_from(table, f"{where}: searcher[{i}]") for i, table in enumerate(_list(document, "searcher", where))
    )
    return Study(
        name=name,
        title=settings.title or name,
        source=settings.source,
        budget=settings.budget,
        seeds=settings.seeds,
        keep=settings.keep,
        draws=settings.draws,
        precision=settings.precision,
        precision_speedup=settings.precision_speedup,
        optimizer=settings.optimizer,
        models=models,
        networks=networks,
        cluster=cluster,
        vary=_vary(_table(document, "vary", where), f"{where}: vary"),
        estimator=choice_from(document["estimator"], f"{where}: estimator") if "estimator" in document else None,
        simulator=choice_from(document.get("simulator", "fluid"), f"{where}: simulator"),
        searchers=searchers or (Choice("mcmc"), Choice("totientperm")),
        claims=tuple(
            _claim(table, by_name, f"{where}: claim[{i}]") for i, table in enumerate(_list(document, "claim", where))
        ),
    )


def number(value: float) -> str:
    """Return a value of what varies as people write it."""
    return f"{value:.0f}" if value == round(value) else f"{value:.6g}"


def _model(table: Any, where: str) -> Model:
    rest, own = _split(table, ("name", BATCH, "measured"), where)
    choice = choice_from(rest, where)
    batch = own.get(BATCH)
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
        raise TopoplanError(f"{where}: {BATCH}: expected a positive integer, got {shown(batch)}")
    measured = choice_from(own["measured"], f"{where}: measured") if "measured" in own else None
    if measured is not None and not isinstance(measured.options.get("file", ""), str):
        raise TopoplanError(
            f"{where}: measured: file: expected the name of a file in the folder of measurements, got "
            f"{measured.options['file']!r}"
        )
    return Model(name=own.get("name", choice.name), choice=choice, batch_size=batch, measured=measured)


def _network(table: Any, where: str) -> Network:
    rest, own = _split(table, ("name", "costs-as"), where)
    choice = choice_from(rest, where)
    return Network(name=own.get("name", choice.name), choice=choice, costs_as=own.get("costs-as"))


def _claim(table: Any, networks: Mapping[str, Network], where: str) -> Hypothesis:
    rest, own = _split(table, ("says", "faster", "slower"), where)
    for key in rest:
        raise TopoplanError(f"{where}: no key {shown(key)}{nearest(key, ('says', 'faster', 'slower'))}")
    for key in ("faster", "slower"):
        _check_name(own.get(key, ""), networks, f"{where}: {key}")
    says = own.get("says", f"{own['faster']} is faster than {own['slower']}")
    return Hypothesis(says=says, faster=own["faster"], slower=own["slower"])


def _split(table: Any, own: Sequence[str], where: str) -> tuple[Any, dict[str, Any]]:
    """Part a table into what is a component's and the keys ``own``; texts among the latter must be texts."""
    if not isinstance(table, dict):
        return table, {}
    mine = {key: value for key, value in table.items() if key in own}
    for key, value in mine.items():
        if key not in (BATCH, "measured") and not isinstance(value, str):
            raise TopoplanError(f"{where}: {key}: expected text, got {shown(value)}")
    return {key: value for key, value in table.items() if key not in own}, mine


def _vary(table: Mapping[str, Any], where: str) -> dict[str, tuple[float, ...]]:
    """Read what varies; every value passes the same check as one of the cluster's options."""
    found: dict[str, tuple[float, ...]] = {}
    for key, values in table.items():
        if key not in (*_VARY, BATCH):
            raise TopoplanError(f"{where}: {shown(key)} cannot vary{nearest(key, (*_VARY, BATCH))}")
        if not isinstance(values, list) or not values:
            raise TopoplanError(f"{where}: {key}: expected a list of numbers, got {shown(values)}")
        if key == BATCH:
            if not all(isinstance(value, int) and not isinstance(value, bool) and value > 0 for value in values):
                raise TopoplanError(f"{where}: {key}: expected positive integers, got {shown(values)}")
            found[key] = tuple(values)
        else:
            name = key.replace("-", "_")
            found[key] = tuple(getattr(structure(ClusterOptions, {key: v}, where), name) for v in values)
        if len(set(found[key])) < len(found[key]):
            raise TopoplanError(f"{where}: {key}: {shown(values)} has a value twice")
    return found


def _check_name(name: str, networks: Mapping[str, Network], where: str) -> None:
    if name not in networks:
        raise TopoplanError(f"{where}: no network {shown(name)}{nearest(name, networks)}")


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
