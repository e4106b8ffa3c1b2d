"""Weights that stages share, such as a table of words that is the head, too: copies, and sums between the stages."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan_searcher_pipeline.columns import Columns
from topoplan_searcher_pipeline.machine import allreduce_seconds

__all__ = ["Hosts", "add_tied"]


class Hosts(NamedTuple):
    """Where stages are: (S, H) ``counts`` of devices, and the machine's bandwidths and latency."""

    counts: I32
    outside: F64
    inside: F64
    latency: float


def add_tied(columns: Columns, hosts: Hosts, stage_of: I64, first: I64, persistent: F64, allreduce: F64) -> None:
    """Add copies of weights that stages share, and the all-reduces of their gradients over all of these stages.

    They take the place of those of the owner's stage alone, and follow all others of the stages with a copy.

    Args:
        columns, hosts: the model, and where the stages are.
        stage_of: (n,) the stage of each operator.
        first: (S,) the first operator of each stage in ``allreduce``.
        persistent: (S,) bytes of a device of each stage; copies are added.
        allreduce: (n,) see `topoplan_searcher_pipeline.plans.PipelineCosts`; sums are added.
    """
    ends = np.append(first[1:], len(allreduce))
    for owner, users, nbytes, copy in columns.tied:
        holder = stage_of[owner]
        stages = np.unique(stage_of[[owner, *users]])
        if len(stages) == 1:
            continue
        persistent[stages[stages != holder]] += copy
        together = np.stack([hosts.counts[stages].sum(axis=0, dtype=np.int32), hosts.counts[holder]])
        seconds = np.empty(2)
        allreduce_seconds(together, hosts.outside, hosts.inside, seconds)
        if columns.whole.is_whole[owner]:  # no sum within its stage
            seconds[1] = 0.0
        # Operators of a stage are in the order of the model: the owner, and those whose gradients come before its own.
        place = first[holder] + int((stage_of[:owner] == holder).sum())
        allreduce[place : ends[holder]] += nbytes * (seconds[0] - seconds[1])
        for stage in stages[stages != holder].tolist():
            allreduce[first[stage] : ends[stage]] += nbytes * seconds[0]
