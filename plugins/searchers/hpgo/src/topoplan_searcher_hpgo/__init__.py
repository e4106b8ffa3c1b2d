"""HPGO, the planner of DAPPLE, as a searcher that constructs its answer: options and registration.

`topoplan_pipeline_planning` cuts the model into layers and plans.  `baselines` estimates data-parallel training in the
same way.  `search` converts plans into candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import attrs

from topoplan import Frontend, PlacedStrategy, Searcher, StagedStrategy, TopoplanError, hookimpl, option

if TYPE_CHECKING:
    import numpy as np

    from topoplan import OperatorGraph, Problem, Search
    from topoplan_pipeline_planning.plans import HpgoPlan

__all__ = ["Hpgo", "plan", "topoplan_searchers"]


@attrs.frozen(kw_only=True)
class Hpgo(Searcher):
    """HPGO, DAPPLE's planner: pipelines of data-parallel stages.

    The options are assumptions of the planner.  Their defaults are HPGO's.
    """

    name = "hpgo"
    axis = "strategy"
    constructs = True
    proposes = (StagedStrategy, PlacedStrategy)

    micro_batch: int = option(1, help="samples of the smallest micro-batch", minimum=1)
    bandwidths: Literal["released", "cluster"] = option(
        "released", help="released: built in, as in HPGO; cluster: of the slowest host, all its interfaces together"
    )
    baselines: Literal["corrected", "released"] = option(
        "corrected", help="baselines of data-parallel training: with corrected formulas, or with those of HPGO"
    )
    weight_copies: float | None = option(
        None, help="memory for each byte of weights, for the baselines; unset: 3 if corrected, else HPGO's 1", above=0
    )
    sample_mb: float | None = option(
        None, help="memory for one sample, for the baselines; unset: all its activations", unit="MB", above=0
    )
    max_states: int = option(4000, help="refuse models of more layers than this", minimum=1)
    simplify: bool = option(False, help="one layer per operator, cut in the order of the graph, not antichain states")

    def build(self, problem: Problem, rng: np.random.Generator) -> Search:
        """Start the search."""
        from topoplan_searcher_hpgo.search import HpgoSearch

        return HpgoSearch(self, problem)


def plan(
    model: Frontend | OperatorGraph, *, devices: Sequence[int], batch_size: int | None = None, micro_batch: int = 1
) -> HpgoPlan:
    """Plan a model with measured times as HPGO does, without simulation.

    Args:
        model: a frontend such as ``Torchgraph(profile="bert-48")``, or its graph.
        devices: where each host's devices end, as in ``--devices``: ``[8, 16]`` means two hosts of eight.
        batch_size: samples of one iteration, on all devices; unset, the batch of the profile or of the graph.
        micro_batch: samples of the smallest micro-batch.

    Returns:
        The plan of the greatest speedup, with ``speedup``, ``stages`` and ``split``.

    Raises:
        TopoplanError: no measured times, a wrong profile, ends that do not ascend, or a micro-batch larger than the
            batch.
    """
    from topoplan_pipeline_planning.layers import layers_of, profiled_columns
    from topoplan_pipeline_planning.planning import plan as plan_layers

    graph = model.build(batch_size) if isinstance(model, Frontend) else model
    if batch_size is not None and batch_size != graph.batch_size:
        raise TopoplanError(f"hpgo: the graph is for {graph.batch_size} samples, batch_size is {batch_size}")
    layers = layers_of(graph, profiled_columns(graph), limit=Hpgo().max_states, simplify=False)
    return plan_layers(layers, devices, graph.batch_size, micro_batch=micro_batch)


@hookimpl
def topoplan_searchers() -> type[Searcher]:
    """Register the searcher."""
    return Hpgo
