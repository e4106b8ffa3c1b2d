"""What FlexNet's flags mean here: an experiment that comes as near to FlexNet as components allow.

`read_line` finds the program and its flags; `settings_of` puts what was found over FlexNet's defaults; `experiment_of`
chooses components and their options.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from topoplan import TopoplanError
from topoplan_command_flexnet.flags import FLAGS, TOPOLOGIES
from topoplan_command_flexnet.programs import MODEL, Program, program_of
from topoplan_command_flexnet.scan import Found, Skipped, scan
from topoplan_engine import Choice, ClusterOptions, Experiment, RunOptions

__all__ = [
    "DEFAULTS",
    "PROPAGATION",
    "CommandLine",
    "Settings",
    "experiment_of",
    "experiment_of_line",
    "flexnet_experiment",
    "interfaces_of",
    "measuring",
    "read_line",
    "reset_every",
    "settings_of",
]

#: Key of a flag -> its value, FlexNet's defaults included.
Settings = Mapping[str, Any]

#: What FlexNet takes where its command line says nothing (``FFConfig``): 20 MiB/ms between GPUs, an eighth of it
#: between hosts; for ``-ll:gpu`` its 0 cannot run, and 1 is what it must be.
DEFAULTS: Settings = {
    "servers": 1,
    "gpus": 1,
    "big-gpu": 0,
    "batch-size": 64,
    "interface-bandwidth": 20.97152,
    "inter-gpu-bandwidth": 167.77216,
    "latency": 0,
    "degree": 4,
    "net-opt": 0,
    "mfile": "",
    "budget": 0,
    "alpha": 1.0,
    "propagation": False,
}

#: Chance of a proposal that spreads a placement, with ``--enable-propagation`` (FlexNet's PROPAGATION_CHANCE).
PROPAGATION = 0.25

#: Options of topologies: FlexNet wires by its own rules, and has one shortest path for each pair.
_NETWORK: Mapping[str, Mapping[str, Any]] = {"topoopt": {"paths": 1}, "random": {"paths": 1}}


def flexnet_experiment(words: Sequence[str], seed: int = 0) -> Experiment:
    """Return what a command line of FlexNet asks for, as `topoplan.optimize` takes it.

    Args:
        words: the program, or a path of it, and its flags.
        seed: of the search.

    Raises:
        TopoplanError: there is no such program, a flag is wrong, or it measures, which no experiment does.
    """
    return experiment_of_line(read_line(words), seed)


class CommandLine(NamedTuple):
    """A program, what was found among its words, and what is set."""

    program: Program
    findings: Sequence[Found | Skipped]
    settings: Settings


def read_line(words: Sequence[str]) -> CommandLine:
    """Return what a command line says; ``words`` are the program and its flags.

    Raises:
        TopoplanError: there is no such program, or a flag's value is wrong.
    """
    called = program_of(words[0] if words else "")
    findings = scan(words[1:], (*FLAGS, *called.flags))
    return CommandLine(called, findings, settings_of(findings))


def experiment_of_line(line: CommandLine, seed: int) -> Experiment:
    """Return what is to be run.

    Raises:
        TopoplanError: ``--topology`` is missing, or ``--measure`` is given.
    """
    if "measure" in line.settings:
        raise measuring(line.program, line.settings)
    return experiment_of(line.program, line.settings, seed)


def settings_of(findings: Sequence[Found | Skipped]) -> Settings:
    """Return what is set: FlexNet's defaults, and over them what was found, of one flag the last."""
    values = {
        finding.flag.key: finding.value for finding in findings if isinstance(finding, Found) and finding.flag.key
    }
    return {**DEFAULTS, **values}


def experiment_of(program: Program, settings: Settings, seed: int) -> Experiment:
    """Return what is to be run.

    Raises:
        TopoplanError: ``--topology`` is missing.
    """
    if "topology" not in settings:
        raise TopoplanError(f"--topology is missing: name one of {', '.join(TOPOLOGIES)} (without it FlexNet aborts)")
    options = {key.removeprefix(MODEL): value for key, value in settings.items() if key.startswith(MODEL)}
    topology = TOPOLOGIES[settings["topology"]]
    outputs = (("taskgraph", "flatbuffer"), ("export", "strategy"))
    return Experiment(
        model=Choice(program.frontend, {"dialect": "flexnet", **options}),
        cluster=ClusterOptions(
            servers=settings["servers"],
            gpus_per_server=settings["gpus"],
            gpus_per_device=max(settings["big-gpu"], 1),
            inter_gpu_bandwidth_gbps=float(settings["inter-gpu-bandwidth"]),
            interface_bandwidth_gbps=float(settings["interface-bandwidth"]),
            degree=interfaces_of(settings),
            latency_us=float(settings["latency"]),
        ),
        topology=Choice(topology, {**_rules(settings), **_NETWORK.get(topology, {})}),
        estimator=_estimator(settings),
        simulator=Choice("flexnet"),
        searchers=_searchers(settings),
        run=RunOptions(
            batch_size=settings["batch-size"],
            budget=settings["budget"],
            seed=seed,
            strategy=f"strategy={settings['import']}" if "import" in settings else None,
        ),
        outputs=tuple((Choice(exporter), settings[key]) for key, exporter in outputs if key in settings),
    )


def interfaces_of(settings: Settings) -> int:
    """Return how many interfaces of a host FlexNet uses: one to a switch, one to each other host of a full mesh."""
    topology = settings.get("topology")
    if topology == "fattree":
        return 1
    if topology == "fc":
        return max(int(settings["servers"]) - 1, 1)
    return int(settings["degree"])


def _estimator(settings: Settings) -> Choice:
    """Measured times, of the cuts that were measured and no others; or what can be had without them."""
    if not settings["mfile"]:
        return Choice("roofline")
    return Choice("measured", {"file": settings["mfile"], "missing": "refuse"})


def _searchers(settings: Settings) -> tuple[Choice, ...]:
    """FlexNet's chain, and for a network that can be rewired its rewiring, after every accepted move."""
    hosts = {} if settings["net-opt"] else {"hosts": "neighbouring"}
    chain = Choice(
        "mcmc",
        {
            **hosts,
            "temperature": "absolute",
            "alpha": settings["alpha"],
            "propagation": PROPAGATION if settings["propagation"] else 0.0,
            "block": 0.0,
            "reset-every": reset_every(settings["budget"]),
        },
    )
    if settings["topology"] != "topoopt":
        return (chain,)
    return (chain, Choice("totientperm", {**_rules(settings), "after": "accepted"}))


def _rules(settings: Settings) -> Mapping[str, Any]:
    """Who gets the links of a patch panel: TotientPerm's rings, or without ``--net-opt`` the heaviest demands."""
    if settings["topology"] != "topoopt":
        return {}
    return {"rules": "released" if settings["net-opt"] else "greedy"}


def reset_every(budget: int) -> int:
    """FlexNet returns to its best state after a hundredth of the budget, within 1 and 1000 proposals."""
    return min(max(budget // 100, 1), 1000)


def measuring(program: Program, settings: Settings) -> TopoplanError:
    """Return what there is to say to ``--measure``: the command that measures, with the model of this command line."""
    options = {key.removeprefix(MODEL): value for key, value in settings.items() if key.startswith(MODEL)}
    words = ["topoplan", "profile", "operators", program.frontend]
    for key, value in {"dialect": "flexnet", **options}.items():
        text = "-".join(map(str, value)) if isinstance(value, tuple) else value
        words += ["-o", f"{key}={text}"]
    numbers = {"batch-size": settings["batch-size"], "servers": settings["servers"]}
    if settings["gpus"] > 1:
        numbers["gpus-per-server"] = settings["gpus"]
    if settings["big-gpu"] > 1:
        numbers["gpus-per-device"] = settings["big-gpu"]
    for key, number in numbers.items():
        words += [f"--{key}", str(number)]
    file = f"measure_{settings['batch-size']}_{settings['servers'] * settings['gpus']}.json"
    return TopoplanError(
        f"--measure: this command plans and measures nothing; `{shlex.join(words)}` measures these operators with "
        f"PyTorch and writes {file}, which --mfile takes (without --measure and --mfile the estimator roofline prices "
        "operators from their FLOPs and bytes)"
    )
