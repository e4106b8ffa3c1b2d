"""``topoplan profile device``: what the device here computes and moves in a second.

HiDup's cost model has one rate for all operators, which its profiler fits: forward FLOPs, as HiDup counts them, over
the time of a whole iteration (forward, backward, SGD) on one device.  Source: HiDup (Zhang et al., SoCC 2022), its
``profiler.py``: eleven iterations to warm up, and half of a device's share of the batch.  The rates of a roofline are
those of the best of some matrix products, and of a copy.
"""

from __future__ import annotations

import functools
import importlib
import json
import statistics
from collections.abc import Mapping
from typing import Annotated, Any

import attrs
import numpy as np
import typer

from topoplan import Cluster, Host, OperatorGraph, TopoplanError
from topoplan.plugin.components import Estimator
from topoplan_command_profile.iteration import iteration
from topoplan_command_profile.launch import check_torch
from topoplan_command_profile.model_options import ModelOptions, RunsOptions, build_model
from topoplan_command_profile.torch_timer import TorchTimer, check_kinds
from topoplan_engine.completion import models
from topoplan_engine.flags import AsJson, Flags
from topoplan_engine.options import RunOptions

__all__ = ["device", "hidup_flops", "profile_device"]

#: FLOP/s at which counts of FLOPs are read off the prices of the estimator.
_ONE = 10**12
#: Runs that do not count, and those that do, of an iteration.
_RUNS = RunsOptions(warm_up=11, repeats=5)
#: Rows of the square matrices that are multiplied, and elements of a copied vector.
_MATRICES = {"cpu": (1024, 2048), "cuda": (4096, 8192)}
_VECTOR = {"cpu": 1 << 25, "cuda": 1 << 28}


def device(
    components: ModelOptions,
    run: Annotated[RunOptions, Flags(only=("batch_size", "precision"), defaults={"batch_size": 16})],
    timing: Annotated[RunsOptions, Flags(defaults={"warm_up": _RUNS.warm_up, "repeats": _RUNS.repeats})],
    model: Annotated[
        str,
        typer.Argument(help="Frontend that builds the model whose iteration is timed.", autocompletion=models),
    ] = "bert-sgmoe",
    as_json: AsJson = False,
) -> None:
    """Measure HiDup's device FLOP/s with a training iteration, and the rates of a roofline."""
    host = Host.discover()
    result = profile_device(build_model(host, model, components, run), timing, host)
    typer.echo(json.dumps(result, indent=2) if as_json else _text(result))


def profile_device(graph: OperatorGraph, timing: RunsOptions | None = None, host: Host | None = None) -> dict[str, Any]:
    """Measure HiDup's device FLOP/s with a training iteration, and the rates of a roofline, with PyTorch.

    Args:
        graph: the model whose iteration is timed.
        timing: on what, and how often; eleven runs to warm up, and five that count, unless given.
        host: has the estimator ``hidup``; all installed plugins unless given.

    Returns:
        What ``topoplan profile device --json`` prints: seconds, FLOP/s, bytes/s.

    Raises:
        TopoplanError: torch is missing, or cannot run an iteration of the model.
    """
    host, timing = host or Host.discover(), timing or _RUNS
    flops = hidup_flops(host, graph)
    check_kinds([(operator.name, operator.kind) for operator in graph.operators])
    check_torch("device")
    timer = TorchTimer(timing.on, graph.precision, timing.warm_up, timing.repeats, timing.tf32)
    seconds = _iteration_seconds(timer, graph)
    rates = _rates(timer)
    return {
        "bench": attrs.asdict(timer.bench),
        "model": graph.name,
        "batch_size": graph.batch_size,
        "iteration_s": seconds,
        "forward_flops": flops,
        "device_flops": int(flops / seconds["median"]),
        **rates,
    }


def hidup_flops(host: Host, graph: OperatorGraph) -> int:
    """Return the FLOPs of one forward pass as HiDup counts them: those that its estimator prices."""
    cluster = Cluster.uniform(n_hosts=1)
    # With the released preset the rate is that of the forward pass alone.
    costs = host.make(Estimator, "hidup", {"device_flops": _ONE, "preset": "released"}).build(graph, cluster)
    device_number = np.zeros(1, dtype=np.int32)
    prices = (costs.price(v, (1,) * len(op.dims), device_number).forward[0] for v, op in enumerate(graph.operators))
    return round(sum(map(float, prices)) * _ONE)


def _iteration_seconds(timer: TorchTimer, graph: OperatorGraph) -> Mapping[str, float]:
    """Time iterations of the model; return the median and the quartiles."""
    torch = importlib.import_module("torch")
    try:
        seconds = timer.run(iteration(torch, timer, graph))
    except RuntimeError as error:
        raise TopoplanError(f"{graph.name}: torch cannot run an iteration ({str(error).splitlines()[0]})") from None
    low, median, high = np.percentile(seconds, (25, 50, 75))
    return {"low": float(low), "median": float(median), "high": float(high)}


def _rates(timer: TorchTimer) -> dict[str, float]:
    """Return FLOP/s of the best matrix product, and bytes/s of a copy, read and written bytes together."""
    torch = importlib.import_module("torch")
    best = 0.0
    for rows in _MATRICES[timer.kind]:
        factors = timer.random((rows, rows)), timer.random((rows, rows))
        product = timer.run(functools.partial(torch.matmul, *factors))
        best = max(best, 2 * rows**3 / statistics.median(product))
    source = timer.random((_VECTOR[timer.kind],))
    target = torch.empty_like(source)
    copied = timer.run(lambda: target.copy_(source))
    return {
        "matmul_flops_per_s": best,
        "memory_bytes_per_s": 2 * source.numel() * source.element_size() / statistics.median(copied),
    }


def _text(result: Mapping[str, Any]) -> str:
    seconds, bench = result["iteration_s"], result["bench"]
    tflops, memory = result["matmul_flops_per_s"] / 1e12, result["memory_bytes_per_s"] / 1e9
    lines = [
        f"on {bench['device']}, {bench['precision']}, torch {bench['torch']}",
        f"{result['model']}, {result['batch_size']} samples: iteration {seconds['median'] * 1e3:.5g} ms "
        f"(quartiles {seconds['low'] * 1e3:.5g} to {seconds['high'] * 1e3:.5g} ms), "
        f"{result['forward_flops']:.4g} forward FLOPs as HiDup counts them",
        f"device FLOP/s as HiDup fits them: {result['device_flops']}",
        f"best matrix product {tflops:.4g} TFLOP/s, copy {memory:.4g} GB/s",
        "to plan with them:",
        f"  -e hidup:device-flops={result['device_flops']}",
        f"  -e roofline:compute-tflops={tflops:.4g},memory-gb-per-s={memory:.4g}",
    ]
    return "\n".join(lines)
