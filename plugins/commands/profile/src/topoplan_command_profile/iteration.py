"""One training iteration of a model on one device: forward, backward and a step of SGD, through PyTorch.

Operators are chained as in the graph, so that an iteration is what a framework runs, with random data and weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from topoplan import OperatorGraph
from topoplan_command_profile.kernels import KERNELS
from topoplan_command_profile.torch_timer import TorchTimer
from topoplan_operator_times.parts import gradients_of, part_shape

__all__ = ["iteration"]

#: Small, so that numbers stay numbers however often the iteration is repeated.
_LEARNING_RATE = 1e-9


def iteration(torch: Any, timer: TorchTimer, graph: OperatorGraph) -> Callable[[], None]:
    """Return a call that runs one iteration of ``graph``; all tensors of it are made here."""
    sources = {(int(v), int(into)): (int(u), int(out)) for u, out, v, into in graph.edges.reshape(-1, 4)}
    shapes = [
        part_shape(op, (1,) * len(op.dims), gradients)
        for op, gradients in zip(graph.operators, gradients_of(graph), strict=True)
    ]
    tensors = [timer.tensors(shape) for shape in shapes]
    used = set(sources.values())
    every_weight = [weight for _, weights in tensors for weight in weights]

    def run() -> None:
        results: dict[tuple[int, int], Any] = {}
        for v, (shape, (inputs, weights)) in enumerate(zip(shapes, tensors, strict=True)):
            x = [results[sources[v, k]] if (v, k) in sources else data for k, data in enumerate(inputs)]
            outcome = KERNELS[shape.kind](torch, shape, x, weights)
            for k, y in enumerate(outcome if isinstance(outcome, tuple) else (outcome,)):
                results[v, k] = y
        ends = [y for key, y in results.items() if key not in used and y.requires_grad]
        sum(y.sum() for y in ends).backward()
        with torch.no_grad():
            for weight in every_weight:
                if weight.grad is not None:
                    weight.add_(weight.grad, alpha=-_LEARNING_RATE)
                    weight.grad = None

    return run
