"""What FlexFlow's flags mean here: an experiment on the machine that FlexFlow's simulator assumes.

FlexFlow looks operators of a strategy up by name and runs all others data parallel, so ``--strategy-rest`` is on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from topoplan_command_flexnet.flexflow.flags import FLAGS, PROGRAMS, RUNTIME
from topoplan_command_flexnet.programs import MODEL, Program, program_of
from topoplan_command_flexnet.scan import Found, Skipped, scan
from topoplan_command_flexnet.translate import PROPAGATION, CommandLine, Settings, reset_every
from topoplan_engine import Choice, ClusterOptions, Experiment, RunOptions
from topoplan_engine.files import read_file

__all__ = [
    "DEFAULTS",
    "experiment_of",
    "exporter_of",
    "flexflow_experiment",
    "gigabytes",
    "has_numbered_names",
    "read_line",
    "settings_of",
]

#: FlexFlow's defaults (``DefaultConfig``, ``src/runtime/model.cc`` of r20.12 and r21.09); for ``-ll:gpu`` its 0 cannot
#: run, and 1 is what it must be.
DEFAULTS: Settings = {
    "servers": 1,
    "gpus": 1,
    "batch-size": 64,
    "budget": 0,
    "alpha": 1.0,
    "propagation": False,
    "overlap": False,
}

#: MiB/ms of FlexFlow's simple machine model (``machine_model.cc``): between GPUs, and between hosts for all of them.
_BETWEEN_GPUS, _BETWEEN_HOSTS = 20, 12
#: Legion counts in MiB; Gbit/s of a MiB/ms, GB of a MiB.
_GBPS, _GB = 1024 * 1024 * 8 / 1e6, 1024 * 1024 / 1e9

#: Options with which a frontend builds the model of FlexFlow's example, where it differs from the frontend's own.
_EXAMPLES: Mapping[str, Mapping[str, Any]] = {"alexnet": {"image": (229,), "classes": 10}}

#: Names that FlexFlow gives since 2020, and FlexNet: a type and a number from 100.
_NUMBERED = re.compile(rb"\b[A-Z][A-Za-z0-9]*_1[0-9]{2}\b")


def flexflow_experiment(words: Sequence[str], seed: int = 0) -> Experiment:
    """Return what a command line of FlexFlow asks for, as `topoplan.optimize` takes it.

    Args:
        words: the program, or a path of it, and its flags.
        seed: of the search.

    Raises:
        TopoplanError: there is no such program, a flag is wrong, or the strategy's file cannot be read.
    """
    line = read_line(words)
    return experiment_of(line.program, line.settings, seed)


def read_line(words: Sequence[str]) -> CommandLine:
    """Return what a command line says; ``words`` are the program and its flags.

    Raises:
        TopoplanError: there is no such program, or a flag's value is wrong.
    """
    called = program_of(words[0] if words else "", PROGRAMS, "FlexFlow that is planned here")
    findings = scan(words[1:], (*FLAGS, *called.flags), RUNTIME)
    return CommandLine(called, findings, settings_of(findings))


def settings_of(findings: Sequence[Found | Skipped]) -> Settings:
    """Return what is set: FlexFlow's defaults, and over them what was typed, of one flag the last."""
    values = {
        finding.flag.key: finding.value for finding in findings if isinstance(finding, Found) and finding.flag.key
    }
    return {**DEFAULTS, **values}


def experiment_of(program: Program, settings: Settings, seed: int) -> Experiment:
    """Return what is to be run.

    Raises:
        TopoplanError: the strategy's file cannot be read.
    """
    options = {key.removeprefix(MODEL): value for key, value in settings.items() if key.startswith(MODEL)}
    names = {"dialect": "flexnet"} if has_numbered_names(settings) else {}
    strategy = settings.get("strategy")
    outputs = []
    if "export" in settings:
        outputs.append((Choice(exporter_of(settings["export"])), settings["export"]))
    if "taskgraph" in settings:
        outputs.append((Choice("dot"), settings["taskgraph"]))
    return Experiment(
        model=Choice(program.frontend, {**names, **_EXAMPLES.get(program.frontend, {}), **options}),
        cluster=ClusterOptions(
            servers=settings["servers"],
            gpus_per_server=settings["gpus"],
            inter_gpu_bandwidth_gbps=_BETWEEN_GPUS * _GBPS,
            interface_bandwidth_gbps=_BETWEEN_HOSTS * _GBPS / settings["servers"],
            degree=1,
            memory_gb=gigabytes(settings["memory"]) if "memory" in settings else None,
            memory_reserve_percent=0.0,  # FlexFlow fills all that it is given
        ),
        topology=Choice("bigswitch"),
        estimator=Choice("roofline"),
        simulator=Choice("fluid", {"gradient-sync": "overlap" if settings["overlap"] else "barrier"}),
        searchers=(_searcher(settings),),
        run=RunOptions(
            batch_size=settings["batch-size"],
            budget=0 if settings.get("only-data-parallel") else settings["budget"],
            seed=seed,
            strategy=None if strategy is None else f"strategy={strategy}",
            strategy_rest=None if strategy is None else "data-parallel",
        ),
        outputs=tuple(outputs),
    )


def has_numbered_names(settings: Settings) -> bool:
    """Say whether the strategy names operators as FlexFlow does since 2020 (``Conv2D_100``).

    Raises:
        TopoplanError: the file cannot be read.
    """
    return "strategy" in settings and _NUMBERED.search(read_file(Path(settings["strategy"]))) is not None


def exporter_of(path: str) -> str:
    """Return the exporter for a strategy's file: protocol buffers go by their suffix."""
    return "strategy-pb" if path.endswith(".pb") else "strategy"


def gigabytes(mebibytes: int) -> float:
    """Return GB of the MiB that Legion counts in."""
    return mebibytes * _GB


def _searcher(settings: Settings) -> Choice:
    """FlexFlow's chain."""
    return Choice(
        "mcmc",
        {
            "temperature": "absolute",
            "alpha": settings["alpha"],
            "propagation": PROPAGATION if settings["propagation"] else 0.0,
            "block": 0.0,
            "reset-every": reset_every(settings["budget"]),
        },
    )
