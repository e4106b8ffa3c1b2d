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

import itertools
import re
from collections.abc import Sequence

import numpy as np

from topoplan import OperatorGraph, Pass, PassOrder, TopoplanError
from topoplan.arrays import I32
from topoplan_engine.blocks import LayerNumbers, layer_numbers, shared_evenly, work_of
from topoplan_engine.recomputation import ATTENTION
from topoplan_searcher_stated.degrees import divisors, nearest

__all__ = ["layer_counts", "stages_of", "text_of"]

_ENDS = ("embedding", "head")


def stages_of(graph: OperatorGraph, order: PassOrder, text: str, devices: int = 0) -> I32:
    """(n_ops,) the stage of each operator, in the first copy of the model.

    Args:
        graph: the model.
        order: of the passes of the pipeline, which has the number of ranks and stages.
        text: see the module.
        devices: that other numbers of ranks divide, of which errors name some; 0: any number of them.

    Raises:
        TopoplanError: the model has no layers, their number does not divide, or is not that of the text.
    """
    numbers, counts = layer_numbers(graph), layer_counts(graph, order, text, devices)
    stage_of_layer = np.repeat(np.arange(len(counts)), counts) if numbers.n_layers else np.zeros(1, dtype=np.int64)
    of_layer = np.array([0, *stage_of_layer, len(counts) - 1], dtype=np.int32)
    stage: I32 = of_layer[np.array(numbers.of) + 1]
    empty = np.setdiff1d(np.arange(len(counts)), stage)
    if len(empty):
        raise TopoplanError(
            f"plan: layers={text}: stage {empty[0]} has no operator (the first and the last may have 0)"
        )
    return stage


def layer_counts(graph: OperatorGraph, order: PassOrder, text: str, devices: int = 0) -> list[int]:
    """(stages,) layers of each stage of a copy of the model; see `stages_of`."""
    numbers, ranks = layer_numbers(graph), order.n_ranks
    n_layers = numbers.n_layers
    chunks = int((order.row_of[Pass.FORWARD, :, 0] >= 0).sum())  # of one copy of the model
    if not n_layers and (chunks > 1 or text):
        raise TopoplanError(f"plan: pp={ranks}: model {graph.name!r} has no parts with weights to divide (pp=1)")
    if chunks == 1 and not text:
        return [n_layers]
    ends = text.split("+")
    divides = n_layers % chunks == 0 or any(op.kind in ATTENTION for op in graph.operators)
    if not numbers.named or (not text and not divides):
        return _counts(text, graph, numbers, chunks) if text else _of_blocks(graph, numbers, ranks, chunks)
    if all(end in _ENDS for end in ends):
        return _even(graph, n_layers, (ranks, chunks, devices), ends)
    return _counts(text, graph, numbers, chunks) if text else _even(graph, n_layers, (ranks, chunks, devices), [])


def text_of(counts: Sequence[int]) -> str:
    """Return layers of stages as text.

    >>> text_of((1, 2, 2, 2, 1))
    '1+2*3+1'
    """
    runs = [(count, len(list(run))) for count, run in itertools.groupby(counts)]
    return "+".join(str(count) if length == 1 else f"{count}*{length}" for count, length in runs)


def _even(graph: OperatorGraph, n_layers: int, counts_of: tuple[int, int, int], ends: list[str]) -> list[int]:
    """Return equally many layers for each stage, less those that stand for the ends.

    Args:
        graph: the model.
        n_layers: that it has.
        counts_of: ranks, chunks, and devices that other numbers of ranks divide.
        ends: what counts as a layer.

    Raises:
        TopoplanError: they do not divide; the message names what would.
    """
    (ranks, chunks, devices), total = counts_of, n_layers + len(ends)
    if total % chunks:
        per_rank = chunks // ranks
        fits = [k for k in divisors(total) if total % (k * per_rank) == 0 and devices % k == 0]
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


def _of_blocks(graph: OperatorGraph, numbers: LayerNumbers, ranks: int, chunks: int) -> list[int]:
    """Return blocks, or layers that do not divide, for each stage, about equally much work.

    Raises:
        TopoplanError: there are fewer.
    """
    block_of = np.clip(numbers.of, 0, numbers.n_layers - 1)
    work: list[float] = np.bincount(block_of, weights=[work_of(op) for op in graph.operators]).tolist()
    if chunks > len(work):
        per_rank = chunks // ranks
        what = f"pp={ranks}" if per_rank == 1 else f"pp={ranks} x {per_rank} chunks"
        most = f"pp={len(work) // per_rank}" if len(work) >= per_rank else "schedule=1f1b"
        has = f"{len(work)} layers" if numbers.named else f"{len(work)} blocks between cuts that few tensors cross"
        raise TopoplanError(f"plan: {what}: model {graph.name!r} has {has} (at most {most})")
    return shared_evenly(work, chunks)


def _counts(text: str, graph: OperatorGraph, numbers: LayerNumbers, chunks: int) -> list[int]:
    counts, what = list[int](), "layers" if numbers.named else "blocks"
    for part in text.split("+"):
        match = re.fullmatch(r"(\d+)(?:\*(\d+))?", part)
        if match is None:
            raise TopoplanError(
                f"plan: layers={text}: {part!r} is no number of {what} (15+16+16+15, 1+2*62+1 or embedding+head)"
            )
        counts += [int(match[1])] * int(match[2] or 1)
    if len(counts) != chunks:
        raise TopoplanError(
            f"plan: layers={text}: has {len(counts)} stages, the schedule {chunks} (one number for each)"
        )
    if sum(counts) != numbers.n_layers:
        raise TopoplanError(
            f"plan: layers={text}: has {sum(counts)} {what}, model {graph.name!r} has {numbers.n_layers}"
        )
    return counts
