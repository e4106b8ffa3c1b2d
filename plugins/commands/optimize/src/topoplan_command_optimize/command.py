"""``topoplan optimize``: search a strategy (and a network) for a model, and write the plan."""

from __future__ import annotations

from typing import Any

import typer

__all__ = ["application"]


def application() -> typer.Typer:
    """Make the typer application."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command("optimize")(optimize)
    return app


def optimize(
    model: str = typer.Argument(help="Frontend that builds the model, e.g. dlrm."),
    option: list[str] = typer.Option(
        [], "-o", "--option", metavar="KEY=VALUE", help="Option of the model, e.g. preset=dlrm16."
    ),
    topology: str = typer.Option("bigswitch", "-t", "--topology", help="NAME or NAME:key=value,..."),
    searcher: list[str] = typer.Option(
        ["mcmc"],
        "-s",
        "--searcher",
        help="NAME or NAME:key=value,...; several, with commas between or the option again, take turns.",
    ),
    estimator: str = typer.Option(
        None, "-e", "--estimator", help="NAME or NAME:key=value,...; the model's own unless given: most have roofline."
    ),
    simulator: str = typer.Option("fluid", "--simulator", help="NAME or NAME:key=value,..."),
    servers: int = typer.Option(16, help="Number of hosts."),
    gpus_per_server: int = typer.Option(1, help="Devices of each host, modelled one by one."),
    devices: str = typer.Option(
        None, metavar="[END,...]", help="Where each host's devices end, in place of --servers and --gpus-per-server."
    ),
    gpus_per_device: int = typer.Option(1, help="Real GPUs that one device stands for, with an all-reduce among them."),
    inter_gpu_bandwidth_gbps: float = typer.Option(2400.0, help="Between two GPUs of one host."),
    interface_bandwidth_gbps: float = typer.Option(100.0, help="Of one network interface."),
    degree: int = typer.Option(
        None, help="Network interfaces of each host, all used; unless given 1 to a switch, 4 where hosts are wired."
    ),
    latency_us: float = typer.Option(1.0, help="Of one network link, one way."),
    device: str = typer.Option("A100-40", help="Kind of device: a machine that `topoplan plugins` lists."),
    memory_gb: float = typer.Option(None, help="Memory of a device; as its kind has, unless given."),
    batch_size: int = typer.Option(None, help="Samples per iteration over all devices; the model's own unless given."),
    budget: int = typer.Option(1000, help="Candidates to price; 0 prices the initial strategy only."),
    seed: int = typer.Option(0, help="Of all randomness."),
    strategy: str = typer.Option(None, metavar="[EXPORTER=]FILE", help="Strategy to start from."),
    patience: float = typer.Option(
        None, metavar="SHARE", help="Share of the budget after which to stop if nothing was better."
    ),
    keep: str = typer.Option(
        "constructed",
        help="Of searchers that construct a plan: the best that they constructed, or (fastest) what simulates fastest.",
    ),
    draws: int = typer.Option(1, help="Draws of equal paths whose mean a candidate costs."),
    chains: int = typer.Option(1, help="Searches that share the budget and pass on what they reach."),
    workers: int = typer.Option(1, help="Processes for the chains; the result does not depend on it."),
    precision: str = typer.Option("fp32", help="Of the model: fp32; fp16 or bf16 are mixed precision."),
    precision_speedup: float = typer.Option(
        None, help="How much faster it computes than fp32; for estimators that know times in fp32 only."
    ),
    optimizer: str = typer.Option(
        None, help="adam, momentum or sgd: what memory keeps for each weight; adam, unless the model says otherwise."
    ),
    export: list[str] = typer.Option(
        [], "-x", "--export", metavar="EXPORTER=PATH", help="Write the plan, e.g. flatbuffer=dlrm.fbuf."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object and nothing else."),
) -> None:
    """Search the best strategy (and network) for a model on a cluster."""
    from topoplan.options import listed, listed_components, pairs, structure
    from topoplan_engine.experiment import Choice, ClusterOptions, Experiment, RunOptions
    from topoplan_engine.reporting.report import run_and_report

    # Numbers pass through the same checks as a TOML file's, so that both say the same about a bad one.
    cluster: dict[str, Any] = {
        "servers": servers,
        "gpus-per-server": gpus_per_server,
        "gpus-per-device": gpus_per_device,
        "inter-gpu-bandwidth-gbps": inter_gpu_bandwidth_gbps,
        "interface-bandwidth-gbps": interface_bandwidth_gbps,
        "degree": degree,
        "latency-us": latency_us,
        "device": device,
        "memory-gb": memory_gb,
    }
    if devices is not None:
        cluster["devices"] = listed(devices)
    run = {
        "batch-size": batch_size,
        "budget": budget,
        "seed": seed,
        "strategy": strategy,
        "patience": patience,
        "keep": keep,
        "draws": draws,
        "chains": chains,
        "workers": workers,
        "precision": precision,
        "precision-speedup": precision_speedup,
        "optimizer": optimizer,
    }
    name = Choice.parse(model, "model")
    run_and_report(
        Experiment(
            model=Choice(name.name, {**name.options, **pairs(option, "-o")}),
            cluster=structure(ClusterOptions, cluster, "--"),
            topology=Choice.parse(topology, "topology"),
            estimator=None if estimator is None else Choice.parse(estimator, "estimator"),
            simulator=Choice.parse(simulator, "simulator"),
            searchers=[Choice.parse(text, "searcher") for text in listed_components(searcher, "-s")],
            run=structure(RunOptions, run, "--"),
            outputs=tuple((Choice.parse(key, "exporter"), path) for key, path in pairs(export, "-x").items()),
        ),
        as_json=as_json,
    )
