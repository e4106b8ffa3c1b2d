"""Searches for plans that a trainer runs, of models that people train."""

from __future__ import annotations

from topoplan_engine import ClusterOptions, Experiment, RunOptions, optimize
from topoplan_samples.configurations import written

__all__ = ["searched"]


def searched(folder, model, devices, trainer, *, searchers="spmd", batch=None, memory_gb=None, **more):
    """The outcome of a search for a trainer, on hosts of eight H100 (of another memory, if that is given)."""
    options = {"config": str(written(folder, model)), **more}
    if model != "vit-base":
        options.setdefault("sequence-length", "512")
    words = ",".join(f"{key}={value}" for key, value in options.items())
    experiment = Experiment(
        model=f"huggingface:{words}",
        searchers=searchers,
        cluster=ClusterOptions(
            servers=devices // 8,
            gpus_per_server=8,
            device="h100",
            degree=8,
            interface_bandwidth_gbps=400.0,
            inter_gpu_bandwidth_gbps=3600.0,
            memory_gb=memory_gb,
        ),
        run=RunOptions(batch_size=batch or devices, precision="bf16", trainers=(trainer,), budget=4),
    )
    return optimize(experiment)
