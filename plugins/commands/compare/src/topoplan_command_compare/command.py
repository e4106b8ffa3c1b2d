"""``topoplan compare``: networks side by side, for one model or for all runs of a study in TOML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import attrs
import typer

from topoplan.errors import TopoplanError
from topoplan.options import SEEDS, option
from topoplan_engine.flags import AsJson, Flags, typed_command
from topoplan_engine.options import EXECUTOR, ClusterOptions, ComponentOptions, RunOptions
from topoplan_studies.options import SEARCHERS, StudyFiles

__all__ = ["CompareOptions", "compare"]

#: Options of which one run has one value, and a comparison may take several.
_VARYING = ("interface_bandwidth_gbps", "degree", "servers", "batch_size")
_RUN = ("batch_size", "budget", "keep", "draws", "precision", "precision_speedup", "optimizer")
#: Options that change no result; a page does not repeat them.
_NO_MATTER = ("runs", "no_wait", "table", "jobs", "executor", "write", "plot", "as_json")


@attrs.frozen(kw_only=True)
class CompareOptions:
    """What is compared, and how its runs are made."""

    networks: tuple[str, ...] = option(
        (),
        help="topologies; several with commas between, or the option again; unset: the study's",
        short="-n",
        metavar="NAME[:KEY=VALUE,...]",
    )
    at_equal_cost: bool = option(
        False, help="give every network that is for sale the bandwidth that costs as the first one"
    )
    seeds: tuple[int, ...] = option(
        (), help="a run for each; unset: the study's, else 0", minimum=0, maximum=SEEDS, metavar="N,..."
    )
    runs: Path = option(
        Path(".topoplan-runs"), help="folder that keeps finished runs; processes that share it share the work"
    )
    no_wait: bool = option(False, help="end when other processes do all that is left, without a report")
    jobs: int = option(1, help="worker processes of this machine", minimum=1, short="-j")
    table: Path | None = option(None, help="write a row for each run; CSV or Parquet", metavar="FILE.csv|FILE.parquet")
    executor: str = option("processes", help=EXECUTOR, metavar="NAME[:KEY=VALUE,...]")


def compare(
    context: typer.Context,
    target: Annotated[
        str, typer.Argument(metavar="MODEL|FILE.toml", help="Frontend that builds the model, or a study.")
    ],
    comparison: CompareOptions,
    components: Annotated[
        Mapping[str, Any], Flags(of=ComponentOptions, without=("topology",), defaults={"searcher": SEARCHERS})
    ],
    cluster: Annotated[Mapping[str, Any], Flags(of=ClusterOptions, several=_VARYING)],
    run: Annotated[Mapping[str, Any], Flags(of=RunOptions, only=_RUN, several=_VARYING)],
    files: StudyFiles,
    as_json: AsJson = False,
) -> None:
    """Compare networks for a model: each is searched for by itself, with the same budget, and priced.

    What is given on the command line goes over what a study says; the defaults are for what neither says.  Searchers
    of the network axis search only where it can be rewired; --plot draws iteration times, and times against costs.
    """
    from topoplan.plugin.host import Host
    from topoplan_engine.executors import executor_from
    from topoplan_studies.command import compare_and_report
    from topoplan_studies.study import study_from

    host = Host.discover()
    document = _document(target, components.get("option", ()))
    _set_networks(document, comparison)
    _set_searches(document, comparison, components, run)
    _set_cluster(document, {**cluster, **run})
    compare_and_report(
        study_from(document, Path(target).stem, target),
        host,
        prices=files.prices,
        catalogue=files.catalogue,
        measures=files.measures,
        runs=comparison.runs,
        executor=executor_from(comparison.executor, comparison.jobs),
        wait=not comparison.no_wait,
        table=comparison.table,
        plot=files.plot,
        page=files.write,
        command=typed_command(context, without=_NO_MATTER),
        as_json=as_json,
    )


def _document(target: str, options: Sequence[str]) -> dict[str, Any]:
    """Read a study, or write the one of a single model."""
    from topoplan_engine.tomlfiles import read_toml

    if not target.endswith(".toml"):
        return {"title": f"{target} on several networks", "model": [_component(target, options)]}
    if options:
        raise TopoplanError("-o: a study says the options of its models itself")
    return read_toml(Path(target))


def _set_networks(document: dict[str, Any], comparison: CompareOptions) -> None:
    if comparison.networks:
        document["network"] = _networks(comparison.networks, comparison.at_equal_cost)
        document.pop("claim", None)
    elif comparison.at_equal_cost:
        raise TopoplanError("--at-equal-cost: needs --networks (a study says costs-as for each network)")


def _set_searches(
    document: dict[str, Any], comparison: CompareOptions, components: Mapping[str, Any], run: Mapping[str, Any]
) -> None:
    from topoplan_engine.wordlists import listed_components

    if "searcher" in components:
        document["searcher"] = listed_components(components["searcher"], "-s")
    document.update({key: components[key] for key in ("estimator", "simulator") if key in components})
    document.update({_key(name): value for name, value in run.items() if name not in _VARYING})
    if comparison.seeds:
        document["seeds"] = list(comparison.seeds)


def _set_cluster(document: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Set what is the same for all runs, and what varies: it goes over one value of the study, too."""
    for name, value in values.items():
        if name in _VARYING:
            _section(document, "cluster").pop(_key(name), None)
            _section(document, "vary")[_key(name)] = list(value)
        elif name not in _RUN:
            _section(document, "cluster")[_key(name)] = value


def _key(name: str) -> str:
    return name.replace("_", "-")


def _component(text: str, options: Sequence[str]) -> dict[str, Any]:
    from topoplan.options import parse_component
    from topoplan_engine.wordlists import pairs

    name, component_options = parse_component(text, "model")
    component_options |= pairs(options, "-o")
    if "batch-size" in component_options:  # a key of a study's models
        raise TopoplanError(f"{name}: no option 'batch-size' (write --batch-size)")
    return {"use": name, **component_options}


def _networks(texts: Sequence[str], at_equal_cost: bool) -> list[dict[str, Any]]:
    """Return the tables of networks that a study would have."""
    from topoplan_engine.wordlists import listed_components

    words = listed_components(texts, "-n")
    tables: list[dict[str, Any]] = []
    for word in words:
        table = _component(word, [])
        if tables and at_equal_cost:
            table["costs-as"] = tables[0]["name"]
        tables.append({"name": word, **table})
    return tables


def _section(document: dict[str, Any], name: str) -> dict[str, Any]:
    table = document.setdefault(name, {})
    if not isinstance(table, dict):
        raise TopoplanError(f"{name}: must be a table [{name}]")
    return table
