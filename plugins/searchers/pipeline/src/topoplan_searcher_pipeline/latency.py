"""How long an iteration of a pipeline takes, stage by stage from the last one to the first.

DAPPLE (Fan et al., PPoPP 2021, section 4) puts an iteration together from filling the pipeline, a steady phase that
one stage, the *pivot*, dictates, and emptying it, all-reduces included.  Here the same is a recurrence: what a
pipeline takes follows from what it takes without its first stage (`early_backward`), with the pivot as the greatest of
the cases

- the first stage itself is busy all the time, but for waiting until the first micro-batch comes back and, at the
  end, the last one;
- one of the later stages is, and the first stage only adds its own passes of one micro-batch;
- only K micro-batches may be under way, and the first stage waits for each to come back;
- the transfers to the second stage are, or those of all cuts, which share the interfaces of the hosts.

No schedule with that K beats any of them, and for the usual pipelines the greatest is exact (the tests play schedules
pass by pass to see how far it is off).  Where all forward passes come first (`all_forward`, as GPipe does), each half
has a pivot of its own.  Transfers count both ways.  All-reduces start when a stage has done its last backward pass,
later stages first; what outlasts the first stage is added (`outlasting`).
"""

from __future__ import annotations

from topoplan_engine.kernels.jit import kernel

__all__ = ["all_forward", "early_backward", "outlasting"]


@kernel  # type: ignore[untyped-decorator]
def early_backward(
    forward: float,
    backward: float,
    deferred: float,
    transfer: float,
    in_flight: int,
    micro_batches: int,
    latency: float,
    around: float,
    network: float,
) -> float:
    """Put a stage before a pipeline and return the new ``latency``, without the last ``deferred``.

    Args:
        forward, backward: seconds of the stage's passes of one micro-batch; the backward one without ``deferred``.
        deferred: seconds of gradients of weights, which the stage before does not wait for.
        transfer: seconds that one micro-batch takes to the next stage, and its gradients back; 0 for the last stage.
        in_flight: micro-batches that the stage has begun and not done at a time.
        micro_batches: of the batch.
        latency: seconds from the next stage's first pass to its last one, likewise; 0 if there is no next stage.
        around: seconds that one micro-batch takes from the next stage on and back.
        network: seconds that the interfaces of a host are busy with one micro-batch, both ways.
    """
    later = around + 2.0 * transfer
    ahead = min(in_flight, micro_batches) - 1
    filling = max(0.0, later - ahead * forward)
    emptying = max(0.0, later - ahead * (backward + deferred))
    # One gap alone where no backward pass comes before the last forward one.
    gaps = max(filling, emptying) if micro_batches <= in_flight else filling + emptying
    back = forward + backward + later
    rounds = (micro_batches - 1) // in_flight
    remainder = micro_batches - 1 - rounds * in_flight
    busy = micro_batches * (forward + backward + deferred) - deferred + gaps
    waiting = (rounds + 1) * back + remainder * forward
    first = forward + backward + 2.0 * transfer + latency
    sending = back + (micro_batches - 1) * max(transfer, network)
    return max(busy, waiting, first, sending)


@kernel  # type: ignore[untyped-decorator]
def all_forward(forward: float, backward: float, micro_batches: int, around: float, network: float) -> float:
    """Return the ``latency`` of a pipeline in which every stage does all its forward passes first.

    Args:
        forward, backward: seconds of the slowest forward pass and transfer of a micro-batch, and of the slowest
            backward pass and transfer.
        micro_batches: of the batch.
        around: seconds that one micro-batch takes through the whole pipeline and back.
        network: see `early_backward`.
    """
    return around + (micro_batches - 1) * (max(forward, 0.5 * network) + max(backward, 0.5 * network))


@kernel  # type: ignore[untyped-decorator]
def outlasting(backward: float, transfer: float, summing: float, tail: float) -> float:
    """Return the seconds for which anything outlasts the last pass of a stage that the stage before waits for.

    Args:
        backward, transfer: see `early_backward`.
        summing: seconds of the stage's deferred gradients of weights, and of their all-reduce beyond that.
        tail: seconds that this takes behind the next stage's last pass.
    """
    return max(summing, tail - transfer - backward, 0.0)
