"""Heads that have the table of the words: the same passes and messages as of a head with weights of its own."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from topoplan import TaskKind
from topoplan_engine.lowering.staged import StagedLowering
from topoplan_estimator_roofline import Roofline
from topoplan_samples.plans_drawn import cluster_of, models_in
from topoplan_searcher_stated.construct import strategy_of
from topoplan_searcher_stated.settings import Settings

LAYERS, BATCH = 2, 8
#: Bytes of an activation of the batch: 32 positions of 64 channels in fp32.
N = BATCH * 32 * 64 * 4


@pytest.fixture(scope="module")
def model_of(tmp_path_factory):
    return models_in(tmp_path_factory.mktemp("models"))


def head_of(graph, **options):
    """Return the tasks of the last device, and (kind, seconds) of what it computes of the head."""
    devices = options.get("tp", 1) * options.get("pp", 1)
    strategy, _ = strategy_of(Settings(**options), graph, devices)
    cluster = cluster_of(devices, 1)
    tasks = StagedLowering(graph, cluster, Roofline().build(graph, cluster)).lower(strategy)
    head = next(number for number, op in enumerate(graph.operators) if op.name == "lm_head")
    rows = np.flatnonzero((tasks.op == head) & (tasks.device == devices - 1))
    return tasks, Counter((TaskKind(tasks.kind[row]), round(tasks.seconds[row] * 1e12)) for row in rows)


@pytest.mark.parametrize(
    "options",
    [
        {"tp": 4, "async_tp": True, "micro_batch": BATCH},
        {"tp": 2, "pp": 2, "async_tp": True, "micro_batch": 1},
        {"tp": 2, "pp": 2, "async_tp": True, "micro_batch": 1, "schedule": "zb-h1"},
        {"tp": 4, "micro_batch": BATCH},
    ],
)
def test_a_tied_head_runs_as_one_with_weights_of_its_own(options, model_of):
    """Pieces along the ring, then the gradient of its weights at once, which waits for the second gather."""
    tied, untied = (head_of(model_of(kind, LAYERS, BATCH), **options) for kind in ("tied", "dense"))
    assert tied[1] == untied[1]
    pieces = options["tp"] if options.get("async_tp") else 1
    times = BATCH // options["micro_batch"]
    seconds = max(each for _, each in tied[1]) / pieces
    counts = Counter({kind: count for (kind, each), count in tied[1].items() if each < 1.5 * seconds})
    assert counts[TaskKind.FORWARD] == pieces * times
    assert sum(tied[1].values()) == (2 * pieces + 1) * times


def test_what_devices_of_a_tied_model_send_around_rings(model_of):
    """Four hops of N in each half of a layer, and two for the head: (8L + 2) (t - 1) N / t, as without ties."""
    tasks, _ = head_of(model_of("tied", LAYERS, BATCH), tp=4, async_tp=True, micro_batch=BATCH)
    sent = (tasks.kind == TaskKind.TRANSFER) & (tasks.src == 0)
    assert tasks.size[sent].sum() == (8 * LAYERS + 2) * 3 * N // 4
