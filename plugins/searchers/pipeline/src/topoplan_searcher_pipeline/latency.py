"""The latency of one iteration of a pipeline, as a recurrence from the last stage to the first.

DAPPLE (Fan et al., PPoPP 2021, section 4) divides an iteration into three phases: filling the pipeline, a steady phase
that one stage (the *pivot*) determines, and draining it, with all-reduces.  Here the latency of a pipeline is computed
from its latency without the first stage (`early_backward`).  It is the maximum of four lower bounds:

- The first stage is busy all the time, except for waiting until the first micro-batch returns and, at the end, the
  last.
- A later stage is busy all the time, and the first stage adds its own passes of one micro-batch.
- At most K micro-batches are in flight, and the first stage waits until each returns.
- The transfers to the second stage are the bottleneck, or those of all cuts, which share the interfaces of hosts.

No schedule with K micro-batches in flight is faster than any of them.  For common pipelines the maximum is exact; tests
compare it with a simulation of all passes.  If all forward passes come first (`all_forward`, as in GPipe), each half
has its own pivot.  Transfers count in both directions.  The all-reduce of a stage starts after its last backward pass,
those of later stages first.  The part that ends after the first stage is added (`outlasting`).
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
    returned: float,
    in_flight: int,
    micro_batches: int,
    latency: float,
    around: float,
    network: float,
) -> float:
    """Add a stage before a pipeline and return the new ``latency``, without the last ``deferred``.

    Args:
        forward, backward: seconds of the stage's passes of one micro-batch; the backward one without ``deferred``.
        deferred: seconds of gradients of weights; the previous stage does not wait for them.
        transfer, returned: seconds that one micro-batch takes to the next stage, and its gradients back; 0 for the last
            stage.
        in_flight: greatest number of micro-batches that the stage has started and not ended.
        micro_batches: number of micro-batches of the batch.
        latency: seconds from the next stage's first pass to its last one, likewise; 0 if there is no next stage.
        around: seconds that one micro-batch takes from the next stage on and back.
        network: seconds that the interfaces of a host are busy with one micro-batch, both ways.
    """
    return_time = around + (transfer + returned)
    lead = min(in_flight, micro_batches) - 1
    fill_gap = max(0.0, return_time - lead * forward)
    drain_gap = max(0.0, return_time - lead * (backward + deferred))
    # There is only one gap if no backward pass precedes the last forward pass.
    gaps = max(fill_gap, drain_gap) if micro_batches <= in_flight else fill_gap + drain_gap
    round_trip = forward + backward + return_time
    rounds = (micro_batches - 1) // in_flight
    remainder = micro_batches - 1 - rounds * in_flight
    busy_bound = micro_batches * (forward + backward + deferred) - deferred + gaps
    window_bound = (rounds + 1) * round_trip + remainder * forward
    stage_bound = forward + backward + (transfer + returned) + latency
    transfer_bound = round_trip + (micro_batches - 1) * max(transfer, returned, network)
    return max(busy_bound, window_bound, stage_bound, transfer_bound)


@kernel  # type: ignore[untyped-decorator]
def all_forward(forward: float, backward: float, micro_batches: int, around: float, network: float) -> float:
    """Return the ``latency`` of a pipeline in which every stage runs all its forward passes first.

    Args:
        forward, backward: seconds of the slowest forward pass and transfer of a micro-batch, and of the slowest
            backward pass and transfer.
        micro_batches: of the batch.
        around: seconds that one micro-batch takes through the whole pipeline and back.
        network: see `early_backward`.
    """
    return around + (micro_batches - 1) * (max(forward, 0.5 * network) + max(backward, 0.5 * network))


@kernel  # type: ignore[untyped-decorator]
def outlasting(backward: float, returned: float, weight_tail: float, tail: float) -> float:
    """Return the tail of a stage: seconds of work after the last of its passes that the previous stage waits for.

    Args:
        backward, returned: see `early_backward`.
        weight_tail: seconds of the stage's deferred gradients of weights, and of the rest of their all-reduce.
        tail: tail of the next stage.
    """
    return max(weight_tail, tail - returned - backward, 0.0)
