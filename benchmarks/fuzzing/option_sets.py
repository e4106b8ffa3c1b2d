"""Option sets at random that are planned: model, cluster, network, estimator, simulator, searchers, run and outputs.

Most numbers are ones that somebody might type, some lie on the borders of their ranges.  What is not refused is planned
and written; its times are finite and not below their lower bounds, and what was written can be read again.
"""

from __future__ import annotations

import math
import typing
import warnings
from pathlib import Path
from random import Random
from typing import Any, Literal

import attrs

from fuzzing.draws import HOST, folder
from fuzzing.watch import Reader
from topoplan import TopoplanError
from topoplan.errors import NoPlanFitsError, TopoplanWarning
from topoplan.options import structure
from topoplan_engine import ClusterOptions, Experiment, RunOptions, optimize
from topoplan_engine.experiment import Choice
from topoplan_engine.exporting import read_plan, write_outputs

__all__ = ["readers_of_option_sets"]

_MODELS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("alexnet", {}),
    ("dlrm", {"arch-embedding-size": "1000-1000", "arch-mlp-bot": "64-64-64", "arch-mlp-top": "192-64-1"}),
    ("candle-uno", {}),
    ("ncf", {}),
    ("transformer", {"layers": 2}),
    ("moe", {}),
)
_SEARCHERS = (
    "mcmc",
    "random",
    "anneal",
    "cem",
    "baseline",
    "spmd",
    "pipeline",
    "auto",
    "exhaustive",
    "rewire",
    "relink",
)
_EXPORTERS = {"json": "a.json", "flatbuffer": "a.fbuf", "dot": "a.dot", "perfetto": "a.pftrace", "node-link": "n.json"}
#: Share of draws on a border, and relative error of a lower bound.
_BORDER, _ROUNDING = 0.03, 1e-6


class NonsenseError(Exception):
    """What was planned cannot be."""


def _value(rng: Random, field: attrs.Attribute[Any], hint: Any) -> Any:
    """Return a value of an option, mostly one that is in its range; its default where nothing else is known."""
    arguments = typing.get_args(hint)
    if type(None) in arguments:
        hint = next(argument for argument in arguments if argument is not type(None))
    if typing.get_origin(hint) is Literal:
        return rng.choice(typing.get_args(hint))
    if hint is bool:
        return rng.random() < 0.5
    if hint not in (int, float):
        return None
    low, high = field.metadata.get("minimum"), field.metadata.get("maximum")
    if rng.random() < _BORDER:
        return hint(rng.choice([edge for edge in (low, high, 0, 1) if edge is not None]))
    least = 1 if low is None else low
    most = least * 8 + 8 if high is None else min(high, least * 8 + 8)
    return rng.randint(math.ceil(least), math.floor(most)) if hint is int else rng.uniform(float(least), float(most))


def _options(rng: Random, cls: type[Any], most: int, without: tuple[str, ...] = ()) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    fields = [field for field in attrs.fields(cls) if "help" in field.metadata and field.name not in without]
    chosen = rng.sample(fields, min(len(fields), rng.randrange(most + 1)))
    values = {field.name: _value(rng, field, hints[field.name]) for field in chosen}
    return {name: value for name, value in values.items() if value is not None}


def _choice(rng: Random, kind: str, names: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    name = rng.choice(names)
    return name, _options(rng, HOST.get(kind, name), 2)


def draw_options(rng: Random) -> dict[str, Any]:
    """Return an option set."""
    topologies = tuple(one.name for one in HOST.components("topology") if one.name != "file")
    cluster = {"servers": rng.choice((1, 2, 3, 4, 8, 16)), **_options(rng, ClusterOptions, 3, ("servers", "devices"))}
    cluster["gpus_per_server"] = rng.choice((1, 1, 2, 4))
    skip = (
        "time_limit",
        "strategy",
        "workers",
        "executor",
        "restarts",
        "chains",
        "budget",
        "batch_size",
        "draws",
        "seed",
    )
    run = {"budget": rng.choice((0, 1, 5, 20)), "draws": rng.choice((1, 1, 2, 5)), **_options(rng, RunOptions, 2, skip)}
    if rng.random() < 0.5:
        run["batch_size"] = rng.choice((1, 3, 16, 64, 256, 1000))
    return {
        "model": rng.choice(_MODELS),
        "cluster": cluster,
        "topology": _choice(rng, "topology", topologies),
        "estimator": rng.choice((None, None, ("roofline", _options(rng, HOST.get("estimator", "roofline"), 1)))),
        "simulator": _choice(rng, "simulator", ("fluid", "flexnet")),
        "searchers": [_choice(rng, "searcher", _SEARCHERS) for _ in range(rng.choice((1, 1, 2)))],
        "run": run,
        "outputs": rng.sample(sorted(_EXPORTERS), rng.choice((0, 1, 2))),
    }


def plan_options(given: dict[str, Any]) -> None:
    """Plan an option set, and write what it asks for."""
    outputs = tuple((Choice(name), str(folder() / _EXPORTERS[name])) for name in given["outputs"])
    experiment = Experiment(
        model=Choice(*given["model"]),
        cluster=structure(ClusterOptions, given["cluster"], "cluster"),
        topology=Choice(*given["topology"]),
        estimator=None if given["estimator"] is None else Choice(*given["estimator"]),
        simulator=Choice(*given["simulator"]),
        searchers=tuple(Choice(*searcher) for searcher in given["searchers"]),
        run=structure(RunOptions, given["run"], "run"),
        outputs=outputs,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TopoplanWarning)
        try:
            outcome = optimize(experiment, host=HOST)
        except NoPlanFitsError:
            return  # planned, and nothing fits: an answer
        timeline = outcome.plan.timeline
        assert timeline is not None
        if not (math.isfinite(timeline.makespan) and timeline.makespan >= 0):
            raise NonsenseError(f"a time of {timeline.makespan}")
        if timeline.bounds.best > timeline.makespan * (1 + _ROUNDING):
            raise NonsenseError(f"{timeline.makespan} is below its bound {timeline.bounds.best}")
        written = write_outputs(HOST, outcome.plan, outputs)
        for name in {"json", "flatbuffer"} & written.paths.keys():
            try:
                read_plan(HOST, Path(written.paths[name]))
            except TopoplanError as error:
                raise NonsenseError(f"{name} that was written cannot be read: {error}") from None


def readers_of_option_sets() -> tuple[Reader, ...]:
    """Return the reader of option sets."""
    return (Reader("option-sets", "option sets at random, planned and written", 1.5, draw_options, plan_options),)
