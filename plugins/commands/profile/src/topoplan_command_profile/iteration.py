"""One training iteration of a model on one device: forward, backward and a step of SGD, through PyTorch.

Operators are chained as in the graph, so that an iteration is what a framework runs, with random data and weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from topoplan import OperatorGraph
from topoplan_command_profile.kernels import KERNELS
from topoplan_command_profile.torch_timer import TorchTimer
from topoplan_operator_times.parts import PartShape, gradients_of, part_shape

__all__ = ["Chain", "iteration"]

#: Small, so that numbers stay numbers however often the iteration is repeated.
_LEARNING_RATE = 1e-9

#: An output: number of its operator, and which of its outputs.
_Output = tuple[int, int]


@attrs.frozen(eq=False)
class Chain:
    """The operators of a graph in a row, with data and weights.

    Attributes:
        shapes: of the operators.
        sources: of each input (operator, place) the output that it is; data and weights of others have none.
        data: of each other input its tensor.
        weights: of each operator.
        last_reader: the last operator that reads an output, after which nothing else needs it.
    """

    torch: Any
    shapes: list[PartShape]
    sources: Mapping[_Output, _Output]
    data: Mapping[_Output, Any]
    weights: list[list[Any]]
    last_reader: Mapping[_Output, int]

    @classmethod
    def of(cls, torch: Any, timer: TorchTimer, graph: OperatorGraph) -> Chain:
        """Make all tensors that no operator makes."""
        sources = {(int(v), int(into)): (int(u), int(out)) for u, out, v, into in graph.edges.reshape(-1, 4)}
        shapes = [
            part_shape(op, (1,) * len(op.dims), gradients)
            for op, gradients in zip(graph.operators, gradients_of(graph), strict=True)
        ]
        data = {
            (v, k): timer.input(shape, k)
            for v, shape in enumerate(shapes)
            for k in range(len(shape.inputs))
            if (v, k) not in sources
        }
        last_reader = {output: v for (v, _), output in sorted(sources.items())}
        return cls(torch, shapes, sources, data, list(map(timer.weights, shapes)), last_reader)

    def loss(self) -> Any:
        """Run all operators, and return the sum of the outputs that none of them reads."""
        results: dict[_Output, Any] = {}
        ends = []
        for v, (shape, weights) in enumerate(zip(self.shapes, self.weights, strict=True)):
            places = [(v, k) for k in range(len(shape.inputs))]
            x = [results[self.sources[place]] if place in self.sources else self.data[place] for place in places]
            outcome = KERNELS[shape.kind](self.torch, shape, x, weights)
            for output in {self.sources[place] for place in places if place in self.sources}:
                if self.last_reader[output] == v:
                    del results[output]
            for k, y in enumerate(outcome if isinstance(outcome, tuple) else (outcome,)):
                if (v, k) in self.last_reader:
                    results[v, k] = y
                elif y.requires_grad:
                    ends.append(y.sum())
            del x, outcome, y
        return sum(ends)

    def forget_gradients(self) -> None:
        """Forget those of weights that stand for another operator's, which it updates."""
        for tensor in self.data.values():
            tensor.grad = None


def iteration(torch: Any, timer: TorchTimer, graph: OperatorGraph) -> Callable[[], None]:
    """Return a call that runs one iteration of ``graph``; all tensors of it are made here."""
    chain = Chain.of(torch, timer, graph)
    every_weight = [weight for weights in chain.weights for weight in weights]

    def run() -> None:
        chain.loss().backward()
        with torch.no_grad():
            for weight in every_weight:
                if weight.grad is not None:
                    weight.add_(weight.grad, alpha=-_LEARNING_RATE)
                    weight.grad = None
            chain.forget_gradients()

    return run
