"""``topoplan compare``: networks side by side, for one model or for all runs of a study in TOML."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import attrs
import typer

from topoplan.errors import TopoplanError
from topoplan.options import option
from topoplan_engine.flags import AllowCode, AsJson, Flags, typed_command
from topoplan_engine.options import EXECUTOR, ClusterOptions, ComponentOptions, RunOptions
from topoplan_studies.options import SEARCHERS, StudyFiles

__all__ = ["CompareOptions", "compare"]

#: Options of which one run has one value, and a comparison may take several.
_VARYING = ("interface_bandwidth_gbps", "degree", "servers", "batch_size")
_MACHINE = "machine"
_RUN = ("batch_size", "budget", "time_limit", "keep", "draws", "precision", "precision_speedup", "kernels", "optimizer")
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
    searchers: tuple[str, ...] = option(
        (),
        help="what is compared in place of networks; A+B take turns in one search; several with commas between, or the "
        "option again",
        metavar="NAME[:KEY=VALUE,...][+NAME...]",
    )
    problems: tuple[str, ...] = option(
        (),
        help="benchmark problems to compare searchers on: standard, placement, spmd, pipeline or names",
        metavar="NAME,...",
    )
    at_equal_cost: bool = option(
        False, help="give every network that is for sale the bandwidth that costs as the first one"
    )
    seeds: str = option(
        "", help="a run for each, such as 1..10 or 1,2,5..8; unset: the study's, else 0", metavar="N,N..N"
    )
    runs: Path = option(
        Path(".topoplan-runs"), help="folder that keeps finished runs; processes that share it share the work"
    )
    no_wait: bool = option(False, help="end when other processes do all that is left, without a report")
    jobs: int = option(1, help="worker processes of this machine", minimum=1, short="-j")
    best: Path | None = option(
        None, help="folder of best known plans of problems (topoplan problems --improve), where they beat the set's"
    )
    table: Path | None = option(
        None,
        help="write a row for each run (CSV, Parquet), or the table of results (Markdown, LaTeX)",
        metavar="FILE.csv|.parquet|.md|.tex",
    )
    executor: str = option("processes", help=EXECUTOR, metavar="NAME[:KEY=VALUE,...]")


def compare(
    context: typer.Context,
    comparison: CompareOptions,
    components: Annotated[
        Mapping[str, Any], Flags(of=ComponentOptions, without=("topology",), defaults={"searcher": SEARCHERS})
    ],
    cluster: Annotated[Mapping[str, Any], Flags(of=ClusterOptions, several=(*_VARYING, _MACHINE))],
    run: Annotated[Mapping[str, Any], Flags(of=RunOptions, only=_RUN, several=_VARYING)],
    files: StudyFiles,
    targets: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL...|FILE.toml", help="Frontends that build models, or a study."),
    ] = None,
    allow_code: AllowCode = False,
    as_json: AsJson = False,
) -> None:
    """Compare networks, or searchers (--searchers): each is run by itself, with the same budget and --time-limit.

    Several models, machines (-m) and networks (-n) are a run for each of each.
    What is given on the command line goes over what a study says; the defaults are for what neither says.  Searchers
    of the network axis search only where it can be rewired; --plot draws iteration times, and times against costs.
    """
    from topoplan.plugin.host import Host
    from topoplan_engine.executors import executor_from
    from topoplan_studies.command import compare_and_report
    from topoplan_studies.study import study_from

    host = Host.discover()
    document, where = _document(targets or [], comparison, components.get("option", ()))
    read = {key: repr(value) for key, value in document.items()}
    _set_networks(document, comparison)
    _set_searches(document, comparison, components, run)
    _set_cluster(document, {**cluster, **run})
    is_file = _is_study(where)
    typed = [key for key, value in document.items() if repr(value) != read.get(key)]
    if not is_file:
        typed = ["model", "network", "cluster", "estimator", "simulator", "searcher"]
    elif "searchers" in typed:
        typed.append("searcher")
    compare_and_report(
        study_from(document, Path(where).stem, where, allow_code=allow_code or not is_file, typed=typed),
        host,
        prices=files.prices,
        catalogue=files.catalogue,
        measures=files.measures,
        runs=comparison.runs,
        executor=executor_from(comparison.executor, comparison.jobs),
        wait=not comparison.no_wait,
        table=comparison.table,
        best=comparison.best,
        plot=files.plot,
        page=files.write,
        command=typed_command(context, without=_NO_MATTER),
        as_json=as_json,
    )


def _is_study(target: str) -> bool:
    """Say whether this names a file, and is no model whose option names one, such as ``layers:file=model.toml``."""
    return target.endswith(".toml") and not re.match(r"[\w-]+:[\w-]+=", target)


def _document(targets: Sequence[str], comparison: CompareOptions, options: Sequence[str]) -> tuple[dict[str, Any], str]:
    """Read a study, or write the one of models or benchmark problems; return it, and its name for messages."""
    from topoplan_engine.tomlfiles import read_toml
    from topoplan_engine.wordlists import listed

    files = [target for target in targets if _is_study(target)]
    if files and len(targets) > 1:
        raise TopoplanError(f"{files[0]}: a study is compared by itself (leave the others out)")
    if comparison.problems and targets:
        raise TopoplanError(f"--problems: beside {targets[0]} (give models, or problems)")
    if options and (len(targets) != 1 or files):
        form = f"write {targets[0]}:{options[0]}" if len(targets) > 1 else "a study and problems say them themselves"
        raise TopoplanError(f"-o: options of models ({form})")
    if files:
        return read_toml(Path(files[0])), files[0]
    if comparison.problems:
        names = [name for text in comparison.problems for name in listed(text)]
        return {"title": "benchmark problems", "problems": names}, "problems"
    if not targets:
        raise TopoplanError("compare: needs a MODEL, a study FILE.toml, or --problems standard")
    where = "+".join(targets)
    models = [{"name": target, **_component(target, options)} for target in targets]
    if len(models) == 1:
        del models[0]["name"]
    if comparison.searchers:
        return {"title": "searchers side by side", "model": models}, where
    return {"title": f"{', '.join(targets)} on several networks", "model": models}, where


def _set_networks(document: dict[str, Any], comparison: CompareOptions) -> None:
    if comparison.networks:
        if comparison.problems:
            raise TopoplanError("--networks: beside --problems, which have a network each")
        document["network"] = _networks(comparison.networks, comparison.at_equal_cost)
        document.pop("claim", None)
    elif comparison.at_equal_cost:
        raise TopoplanError("--at-equal-cost: needs --networks (a study says costs-as for each network)")
    elif comparison.searchers and "network" not in document and "problems" not in document:
        document["network"] = [{"use": ComponentOptions().topology}]


def _set_searches(
    document: dict[str, Any], comparison: CompareOptions, components: Mapping[str, Any], run: Mapping[str, Any]
) -> None:
    from topoplan_engine.experiment import choice_from, named_searchers, with_collectives
    from topoplan_engine.wordlists import listed, listed_components

    if comparison.searchers:
        if "searcher" in components:
            raise TopoplanError(
                f"-s: searchers that take turns; with --searchers, join them: --searchers {comparison.searchers[0]}+"
                f"{components['searcher'][0]}"
            )
        for section in ("searcher", "planner", "claim", "published"):
            document.pop(section, None)
        document["searchers"] = listed_components(comparison.searchers, "--searchers")
    elif {"plan", "plan_from"} & components.keys():
        settings = {name: components[name] for name in ("plan", "plan_from", "searcher") if name in components}
        document["searcher"] = named_searchers(attrs.evolve(ComponentOptions(), **settings))
        document.pop("searchers", None)
    elif "searcher" in components:
        document["searcher"] = listed_components(components["searcher"], "-s")
        document.pop("searchers", None)
    document.update({key: components[key] for key in ("estimator", "simulator") if key in components})
    if {"collective", "protocol"} & components.keys():
        simulator = choice_from(document.get("simulator", ComponentOptions().simulator), "simulator", allow_code=True)
        simulator = with_collectives(simulator, components.get("collective") or (), components.get("protocol"))
        document["simulator"] = {"use": simulator.name, **simulator.options}
    document.update({_key(name): value for name, value in run.items() if name not in _VARYING})
    if comparison.seeds:
        document["seeds"] = [_number(word) for word in listed(comparison.seeds)]


def _set_cluster(document: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Set what is the same for all runs, and what varies: it goes over one value of the study, too."""
    for name, value in values.items():
        if name == _MACHINE:
            _set_machines(document, value)
        elif name in _VARYING:
            _section(document, "cluster").pop(_key(name), None)
            _section(document, "vary")[_key(name)] = list(value)
        elif name not in _RUN:
            _section(document, "cluster")[_key(name)] = value


def _set_machines(document: dict[str, Any], words: Sequence[str]) -> None:
    """Set the machine of all runs, or a list of which each run has one, in place of those of the study."""
    from topoplan_engine.wordlists import listed_components

    machines = listed_components([",".join(words)], "-m")
    document.pop(_MACHINE, None)
    if len(machines) == 1:
        _section(document, "cluster")[_MACHINE] = machines[0]
        return
    _section(document, "cluster").pop(_MACHINE, None)
    document[_MACHINE] = [{"name": machine, _MACHINE: machine} for machine in machines]


def _number(word: str) -> int | str:
    """Return a seed as a number; what is none, a range for example, stays text."""
    return int(word) if word.isascii() and word.isdigit() and len(word) < 20 else word


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
