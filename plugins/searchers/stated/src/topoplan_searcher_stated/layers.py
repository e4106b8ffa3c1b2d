"""Which layers each stage has: evenly many, as many as a plan says, or with the embedding and the head as layers.

    (left out)            equally many
    15+16+16+15           so many on each stage, in the order in which a micro-batch goes through them
    1+2*62+1              2 layers on each of 62 stages in between
    0+16+16+16            the embedding alone on the first stage
    embedding+head        equally many, where the embedding and the head count as a layer each (or one of both alone)

The first stage has what comes before the first layer, the last one what comes behind the last.

Source: NVIDIA/Megatron-LM@d98e8a64, ``--account-for-embedding-in-pipeline-split`` and
``--pipeline-model-parallel-layout``, whose letters `topoplan_trainer_plans` turns into numbers.
"""

from __future__ import annotations

import re

import numpy as np

from topoplan import OperatorGraph, PassOrder, TopoplanError
from topoplan.arrays import I32
from topoplan_engine.equal_operators import layers_of
from topoplan_searcher_stated.degrees import divisors, nearest

__all__ = ["stages_of"]

_ENDS = ("embedding", "head")


def stages_of(graph: OperatorGraph, ranks: int, order: PassOrder, text: str) -> I32:
    """(n_ops,) the stage of each operator.

    Args:
        graph: the model.
        ranks: of the pipeline.
        order: of its passes; has the number of stages.
        text: see the module.

    Raises:
        TopoplanError: the model has no layers, their number does not divide, or is not that of the text.
    """
    names = layers_of(graph).layer
    layers = list(dict.fromkeys(name for name in names if name))
    chunks = order.n_chunks
    if not layers and (chunks > 1 or text):
        raise TopoplanError(f"plan: pp={ranks}: model {graph.name!r} has no numbered layers to divide (pp=1)")
    if chunks == 1 and not text:
        return np.zeros(len(names), dtype=np.int32)
    ends = text.split("+")
    if all(end in _ENDS for end in ends):
        counts = _even(graph, len(layers), ranks, chunks, ends)
    else:
        counts = _counts(text, graph, len(layers), chunks) if text else _even(graph, len(layers), ranks, chunks, [])
    stage_of_layer = dict(zip(layers, np.repeat(np.arange(chunks), counts).tolist(), strict=True))
    stage, current = np.zeros(len(names), dtype=np.int32), 0
    last = max(index for index, name in enumerate(names) if name)
    for index, name in enumerate(names):
        current = max(current, stage_of_layer[name]) if name else current
        stage[index] = chunks - 1 if index > last else current
    empty = np.setdiff1d(np.arange(chunks), stage)
    if len(empty):
        raise TopoplanError(
            f"plan: layers={text}: stage {empty[0]} has no operator (the first and the last may have 0)"
        )
    return stage


def _even(graph: OperatorGraph, n_layers: int, ranks: int, chunks: int, ends: list[str]) -> list[int]:
    """Return equally many layers for each stage, less those that stand for the ends.

    Raises:
        TopoplanError: they do not divide; the message names what would.
    """
    total = n_layers + len(ends)
    if total % chunks:
        per_rank = chunks // ranks
        fits = [k for k in divisors(total) if total % (k * per_rank) == 0]
        hint = f"pp={nearest_value}" if (nearest_value := nearest(ranks, fits)) else "schedule=1f1b"
        what = f"pp={ranks}" if per_rank == 1 else f"pp={ranks} x {per_rank} chunks"
        counted = f"{n_layers} layers" + "".join(f" and the {end}" for end in ends)
        if not ends and n_layers >= chunks:
            deeper = n_layers % chunks
            first = [f"{n_layers // chunks}*{chunks - deeper}", f"{n_layers // chunks + 1}*{deeper}"]
            hint += f"; or layers={'+'.join(part.removesuffix('*1') for part in first)}"
        raise TopoplanError(f"plan: {what} does not divide the {counted} of model {graph.name!r} (nearest: {hint})")
    counts = [total // chunks] * chunks
    counts[0] -= "embedding" in ends
    counts[-1] -= "head" in ends
    return counts


def _counts(text: str, graph: OperatorGraph, n_layers: int, chunks: int) -> list[int]:
    counts: list[int] = []
    for part in text.split("+"):
        match = re.fullmatch(r"(\d+)(?:\*(\d+))?", part)
        if match is None:
            raise TopoplanError(
                f"plan: layers={text}: {part!r} is no number of layers (15+16+16+15, 1+2*62+1 or embedding+head)"
            )
        counts += [int(match[1])] * int(match[2] or 1)
    if len(counts) != chunks:
        raise TopoplanError(
            f"plan: layers={text}: has {len(counts)} stages, the schedule {chunks} (one number for each)"
        )
    if sum(counts) != n_layers:
        raise TopoplanError(f"plan: layers={text}: has {sum(counts)} layers, model {graph.name!r} has {n_layers}")
    return counts
