"""Experiments as notebooks write them: a model, and every option by its name.

    optimize("alexnet", topology="topoopt", searchers=["totientperm"], servers=16, batch_size=1024)

`experiment_of` sorts the keywords into an `Experiment`.  A model may also be an operator graph that the user has, which
becomes a frontend of its own; equal graphs become the same one, so that a host takes it again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, TypedDict, Unpack
from weakref import WeakValueDictionary

import attrs

from topoplan.arrays import digest
from topoplan.errors import TopoplanError, nearest
from topoplan.model.graph import OperatorGraph
from topoplan.plugin.components import Component, Estimator, Frontend, Searcher, Simulator, Topology
from topoplan_engine.experiment import Choice, Experiment
from topoplan_engine.options import ClusterOptions, HostGroup, Kernels, RunOptions

__all__ = ["Keywords", "Model", "experiment_of"]

#: What can be planned: a frontend by name (with options, after a colon), a frontend, or an operator graph.
Model: TypeAlias = str | Choice | Frontend | type[Frontend] | OperatorGraph

#: The frontends of operator graphs that something still uses, by digest.
_given_graphs: WeakValueDictionary[bytes, type[Frontend]] = WeakValueDictionary()


class Keywords(TypedDict, total=False):
    """The options of a run by their names: components, `ClusterOptions` and `RunOptions`."""

    topology: str | Choice | Topology | type[Topology]
    searchers: str | Choice | Searcher | type[Searcher] | Sequence[str | Choice | Searcher | type[Searcher]]
    estimator: str | Choice | Estimator | type[Estimator] | None
    simulator: str | Choice | Simulator | type[Simulator]

    machine: str | None
    servers: int
    gpus_per_server: int
    gpus_per_device: int
    inter_gpu_bandwidth_gbps: float
    interface_bandwidth_gbps: float
    degree: int | None
    latency_us: float
    device: str
    memory_gb: float | None
    memory_reserve_percent: float
    devices: tuple[int, ...]
    hosts: tuple[HostGroup, ...]

    batch_size: int | None
    time_limit: str | float | None
    budget: int
    restarts: int
    seed: int
    strategy: str | None
    strategy_rest: Literal["data-parallel"] | None
    patience: float | None
    keep: Literal["constructed", "fastest"]
    draws: int
    chains: int
    workers: int
    executor: str
    precision: Literal["fp32", "fp16", "bf16", "fp8"] | None
    precision_speedup: float | None
    kernels: Kernels | None
    optimizer: Literal["adam", "adam-bf16", "momentum", "sgd"] | None
    record: bool
    trainers: tuple[str, ...]


def experiment_of(model: Model, **options: Unpack[Keywords]) -> Experiment:
    """Return the experiment of a model and options.

    Args:
        model: a frontend, by name or itself, or an operator graph.
        options: see `Keywords`.

    Raises:
        TopoplanError: there is no such option, or its value is wrong.
    """
    values: dict[str, Any] = dict(options)
    unknown = sorted(values.keys() - Keywords.__annotations__.keys())
    if unknown:
        raise TopoplanError(f"optimize: no option {unknown[0]!r}{nearest(unknown[0], Keywords.__annotations__)}")
    cluster, run = ({k: values.pop(k) for k in _names(cls) & values.keys()} for cls in (ClusterOptions, RunOptions))
    return Experiment(
        model=frontend_of(model) if isinstance(model, OperatorGraph) else model,
        cluster=ClusterOptions(**cluster),
        run=RunOptions(**run),
        **values,
    )


def _names(cls: type[attrs.AttrsInstance]) -> set[str]:
    return {field.name for field in attrs.fields(cls)}


def frontend_of(graph: OperatorGraph) -> type[Frontend]:
    """Return the frontend that builds one operator graph, for one batch size."""
    key = digest([graph])
    if (cached := _given_graphs.get(key)) is not None:
        return cached

    def build(self: Frontend, batch_size: int | None) -> OperatorGraph:
        if batch_size not in (None, graph.batch_size):
            raise TopoplanError(
                f"model {graph.name!r}: was built for a batch of {graph.batch_size}, not {batch_size} (build it again)"
            )
        return graph

    word = re.sub(r"[^a-z0-9]+", "-", graph.name.lower()).strip("-") or "graph"
    members: dict[str, Any] = {
        "__doc__": f"The operator graph {graph.name!r}.",
        "__module__": __name__,
        "name": f"graph-{word}-{key.hex()[:8]}",
        "build": build,
    }
    component: type[Component] = type("GivenGraph", (Frontend,), members)
    frontend: type[Frontend] = attrs.frozen(component)  # type: ignore[assignment]
    return _given_graphs.setdefault(key, frontend)
