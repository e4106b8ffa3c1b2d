"""An experiment as the command line of ``topoplan optimize`` that runs it."""

from __future__ import annotations

import shlex
from typing import Any

from topoplan_engine import Choice, Experiment
from topoplan_engine.options import MEMORY_RESERVE_PERCENT

__all__ = ["command_line"]


def command_line(experiment: Experiment) -> str:
    """Write an experiment down; of the cluster and the run, all that FlexNet and FlexFlow have a word for."""
    cluster, run = experiment.cluster, experiment.run
    words = ["topoplan", "optimize", experiment.model.name]
    for key, value in experiment.model.options.items():
        words += ["-o", f"{key}={_text(value)}"]
    words += ["-t", _choice(experiment.topology)]
    for searcher in experiment.searchers:
        words += ["-s", _choice(searcher)]
    if experiment.estimator is not None:
        words += ["-e", _choice(experiment.estimator)]
    words += ["--simulator", _choice(experiment.simulator)]
    numbers = {
        "servers": cluster.servers,
        "gpus-per-server": cluster.gpus_per_server,
        "gpus-per-device": cluster.gpus_per_device,
        "inter-gpu-bandwidth-gbps": cluster.inter_gpu_bandwidth_gbps,
        "interface-bandwidth-gbps": cluster.interface_bandwidth_gbps,
        "degree": cluster.degree,
        "latency-us": cluster.latency_us,
        "batch-size": run.batch_size,
        "budget": run.budget,
        "seed": run.seed,
    }
    if cluster.memory_gb is not None:
        numbers["memory-gb"] = cluster.memory_gb
    if cluster.memory_reserve_percent != MEMORY_RESERVE_PERCENT:
        numbers["memory-reserve-percent"] = cluster.memory_reserve_percent
    for key, number in numbers.items():
        words += [f"--{key}", _text(number)]
    if run.strategy is not None:
        words += ["--strategy", run.strategy]
    if run.strategy_rest is not None:
        words += ["--strategy-rest", run.strategy_rest]
    for exporter, path in experiment.outputs:
        words += ["-x", f"{_choice(exporter)}={path}"]
    return shlex.join(words)


def _choice(choice: Choice) -> str:
    options = ",".join(f"{key}={_text(value)}" for key, value in choice.options.items())
    return f"{choice.name}:{options}" if options else choice.name


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return "-".join(map(str, value))
    return f"{value:.10g}" if isinstance(value, float) else str(value)
