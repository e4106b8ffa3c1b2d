"""The models that come along, small or as published, on hosts of devices of two GPUs."""

from __future__ import annotations

from topoplan_engine import ClusterOptions, problem_on
from topoplan_engine.experiment import build_cluster

__all__ = ["MODELS", "model_problem"]

#: Frontend -> options.
MODELS = {
    "dlrm": {"preset": "dlrm16", "dialect": "flexnet"},
    "alexnet": {},
    "vgg16": {},
    "resnet50": {},
    "inception-v3": {},
    "transformer": {"num_layers": 2},
    "ncf": {},
    "candle-uno": {},
    "moe": {},
}


def model_problem(host, model, topology="bigswitch", batch=64, servers=8, degree=None):
    """Return the problem of one of `MODELS`, priced by the roofline; a preset has a batch of its own."""
    options = MODELS[model]
    graph = host.make("frontend", model, options).build(None if "preset" in options else batch)
    cluster = build_cluster(ClusterOptions(servers=servers, gpus_per_device=2, degree=degree))
    costs = host.make("estimator", "roofline").build(graph, cluster)
    return problem_on(graph, cluster, costs, host.make("topology", topology))
