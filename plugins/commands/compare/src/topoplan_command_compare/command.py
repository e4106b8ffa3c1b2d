"""``topoplan compare``: networks side by side, for one model or for all runs of a study in TOML."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import typer

from topoplan.errors import TopoplanError, shown

__all__ = ["application"]

#: Options of the cluster of which one run takes one value, and a comparison may take several.
_VARYING = ("interface-bandwidth-gbps", "degree", "servers", "batch-size")


def application() -> typer.Typer:
    """Make the typer application."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command("compare")(compare)
    return app


def compare(
    context: typer.Context,
    target: str = typer.Argument(metavar="MODEL|FILE.toml", help="Frontend that builds the model, or a study."),
    option: list[str] = typer.Option([], "-o", "--option", metavar="KEY=VALUE", help="Option of the model."),
    networks: list[str] = typer.Option(
        None, "-n", "--networks", help="NAME or NAME:key=value,...; several with commas between, or the option again."
    ),
    at_equal_cost: bool = typer.Option(
        False, "--at-equal-cost", help="Give every network that is for sale the bandwidth that costs as the first one."
    ),
    searcher: list[str] = typer.Option(
        None,
        "-s",
        "--searcher",
        help="NAME or NAME:key=value,...; several with commas between, or the option again; those of the network axis "
        "only where they apply.  [default: mcmc,totientperm]",
    ),
    estimator: str = typer.Option(
        None, "-e", "--estimator", help="NAME or NAME:key=value,...  [default: the model's own]"
    ),
    simulator: str = typer.Option(None, "--simulator", help="NAME or NAME:key=value,...  [default: fluid]"),
    servers: str = typer.Option(None, help="Number of hosts; several with commas between.  [default: 16]"),
    gpus_per_server: int = typer.Option(None, help="Devices of each host, modelled one by one.  [default: 1]"),
    gpus_per_device: int = typer.Option(
        None, help="Real GPUs that one device stands for, with an all-reduce among them.  [default: 1]"
    ),
    inter_gpu_bandwidth_gbps: float = typer.Option(None, help="Between two GPUs of one host.  [default: 2400.0]"),
    interface_bandwidth_gbps: str = typer.Option(
        None, help="Of one network interface; several with commas.  [default: 100.0]"
    ),
    degree: str = typer.Option(
        None,
        help="Network interfaces of each host, all used; several with commas.  [default: 1 where all networks are "
        "switched, else 4]",
    ),
    latency_us: float = typer.Option(None, help="Of one network link, one way.  [default: 1.0]"),
    device: str = typer.Option(
        None, help="Kind of device: a machine that `topoplan plugins` lists.  [default: A100-40]"
    ),
    memory_gb: float = typer.Option(None, help="Memory of a device.  [default: as its kind has]"),
    batch_size: str = typer.Option(
        None, help="Samples per iteration over all devices; several with commas.  [default: the model's own]"
    ),
    budget: int = typer.Option(None, help="Candidates to price on each network.  [default: 1000]"),
    seeds: str = typer.Option(None, help="A run for each, with commas between.  [default: 0]"),
    keep: str = typer.Option(
        None, help="Of searchers that construct a plan: the best that they constructed (unless given), or the fastest."
    ),
    draws: int = typer.Option(None, help="Draws of equal paths whose mean a candidate costs."),
    precision: str = typer.Option(None, help="Of the model: fp32; fp16 or bf16 are mixed precision.  [default: fp32]"),
    precision_speedup: float = typer.Option(
        None, help="How much faster it computes than fp32; for estimators that know times in fp32 only."
    ),
    optimizer: str = typer.Option(
        None, help="adam, momentum or sgd: what memory keeps for each weight; adam, unless the model says otherwise."
    ),
    prices: Path = typer.Option(
        None, help="Prices of network parts, TOML; those that come with topoplan unless given."
    ),
    catalogue: bool = typer.Option(
        False, "--catalogue", help="Take only parts that the prices list, whole; nothing in between."
    ),
    measures: Path = typer.Option(None, help="Folder with the measurement files that a study names."),
    runs: Path = typer.Option(Path(".topoplan-runs"), help="Folder that keeps finished runs; they are not repeated."),
    jobs: int = typer.Option(1, "-j", "--jobs", min=1, help="Worker processes."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object and nothing else."),
    plot: Path = typer.Option(None, metavar="FILE.svg", help="Draw iteration times, and times against costs."),
    write: Path = typer.Option(
        None, metavar="PAGE.md", help="Write a section of a Markdown page, and its plot beside."
    ),
) -> None:
    """Compare networks for a model: each is searched for by itself, with the same budget, and priced.

    What is given on the command line goes over what a study says; the defaults are for what neither says.
    """
    from topoplan.options import listed_components
    from topoplan.plugin.host import Host
    from topoplan_engine.tomlfiles import read_toml
    from topoplan_studies.command import Outputs, compare_and_report
    from topoplan_studies.study import study_from

    host = Host.discover()
    path = Path(target)
    if target.endswith(".toml"):
        if option:
            raise TopoplanError("-o: a study says the options of its models itself")
        document = read_toml(path)
    else:
        document = {"title": f"{target} on several networks", "model": [_component(target, option)]}
    if networks:
        document["network"] = _networks(networks, at_equal_cost)
        document.pop("claim", None)
    elif at_equal_cost:
        raise TopoplanError("--at-equal-cost: needs --networks (a study says costs-as for each network)")
    if searcher:
        document["searcher"] = listed_components(searcher, "-s")
    given = {
        "estimator": estimator,
        "simulator": simulator,
        "budget": budget,
        "keep": keep,
        "draws": draws,
        "precision": precision,
        "precision-speedup": precision_speedup,
        "optimizer": optimizer,
    }
    document.update({key: value for key, value in given.items() if value is not None})
    if seeds is not None:
        document["seeds"] = seeds.split(",")
    cluster = {
        "gpus-per-server": gpus_per_server,
        "gpus-per-device": gpus_per_device,
        "inter-gpu-bandwidth-gbps": inter_gpu_bandwidth_gbps,
        "latency-us": latency_us,
        "device": device,
        "memory-gb": memory_gb,
    }
    _section(document, "cluster").update({key: value for key, value in cluster.items() if value is not None})
    varying = dict(zip(_VARYING, (interface_bandwidth_gbps, degree, servers, batch_size), strict=True))
    for key, text in varying.items():
        if text is not None:
            _vary(document, key, text)
    compare_and_report(
        study_from(document, path.stem, target),
        host,
        prices=prices,
        catalogue=catalogue,
        measures=measures,
        runs=runs,
        jobs=jobs,
        outputs=Outputs(plot=plot, page=write),
        as_json=as_json,
        command=_typed(context),
    )


def _typed(context: typer.Context) -> str:
    """Return what was typed, without what is this machine's affair and changes no outcome."""
    words = ["topoplan compare"]
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is None or source.name != "COMMANDLINE" or parameter.name in ("runs", "jobs"):
            continue
        value = "MEASURES" if parameter.name == "measures" else context.params[parameter.name or ""]
        flag = max(parameter.opts, key=len)
        for one in value if isinstance(value, list | tuple) else [value]:
            words += [flag] if flag.startswith("--") else []
            words += [] if one is True else [shlex.quote(str(one))]
    return " ".join(words)


def _component(text: str, options: list[str]) -> dict[str, Any]:
    from topoplan.options import pairs, parse_component

    name, own = parse_component(text, "model")
    return {"use": name, **own, **pairs(options, "-o")}


def _networks(texts: list[str], at_equal_cost: bool) -> list[dict[str, Any]]:
    """Return the tables of networks that a study would have."""
    from topoplan.options import listed_components

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


def _vary(document: dict[str, Any], key: str, text: str) -> None:
    """Let one or several values from the command line go over what a study says."""
    try:
        values = [float(word) if "." in word else int(word) for word in text.split(",")]
    except ValueError:
        raise TopoplanError(f"--{key} {shown(text)}: expected numbers with commas between") from None
    _section(document, "cluster").pop(key, None)
    _section(document, "vary")[key] = values
