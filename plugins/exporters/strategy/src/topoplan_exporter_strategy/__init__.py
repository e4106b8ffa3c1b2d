"""Exporters ``strategy`` and ``strategy-pb``: FlexFlow's strategy files, as text and as protocol buffers.

For every operator, sorted by name: name, device type, the number of parts along each axis of its output
(innermost axis first) and the device of each part (innermost axis fastest).  `text` maps this to and from
placements, which count along the operator's own dimensions; `protobuf` reads and writes the older binary form;
`names` knows what FlexFlow's programs call their operators.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from topoplan import (
    Exporter,
    OperatorGraph,
    Plan,
    StagedStrategy,
    Strategy,
    TopoplanError,
    hookimpl,
)

if TYPE_CHECKING:
    from topoplan_exporter_strategy.text import Entry

__all__ = ["StrategyFile", "StrategyProtobuf", "topoplan_exporters"]


class StrategyFile(Exporter):
    """FlexFlow strategy file: cut and devices of every operator (and back)."""

    name = "strategy"
    suffix = ".strategy"
    unwritable = (StagedStrategy,)

    def write(self, plan: Plan) -> bytes:
        """Write the strategy of a plan as text.

        Raises:
            TopoplanError: it has none, or one that the format cannot express.
        """
        from topoplan_exporter_strategy.text import write

        return write(_entries(plan))

    def unwritable_part(self, graph: OperatorGraph, strategy: Strategy) -> str:
        """Name the first operator whose cut the output does not show, or whose name is too long; empty if none."""
        from topoplan_exporter_strategy.text import unwritable_operator

        return "" if isinstance(strategy, self.unwritable) else unwritable_operator(graph, strategy)

    def read_strategy(self, data: bytes, name: str, graph: OperatorGraph) -> Strategy:
        """Read a strategy for ``graph`` in either form; ``name`` is for messages.

        Raises:
            TopoplanError: the file is damaged, or does not fit the graph; the message names line or byte, and operator.
        """
        from topoplan_exporter_strategy.protobuf import is_protobuf, tokens_of
        from topoplan_exporter_strategy.text import read
        from topoplan_exporter_strategy.tokens import Tokens

        return read(tokens_of(data, name) if is_protobuf(data) else Tokens.of_text(data, name), graph)


class StrategyProtobuf(StrategyFile):
    """FlexFlow strategy file before 2021: the same as a protocol buffer (and back)."""

    name = "strategy-pb"
    suffix = ".pb"

    def write(self, plan: Plan) -> bytes:
        """Write the strategy of a plan by FlexFlow's last schema.

        Raises:
            TopoplanError: it has none, or one that the format cannot express.
        """
        from topoplan_exporter_strategy.protobuf import encode

        return encode(_entries(plan))


def _entries(plan: Plan) -> Iterator[Entry]:
    """Yield what a file says of every operator."""
    from topoplan_exporter_strategy.text import entries_of

    if plan.graph is None or plan.strategy is None:
        raise TopoplanError("strategy: the plan holds only a task graph (plan a model to get a strategy)")
    if plan.strategy.program is not None:
        raise TopoplanError(
            "strategy: the plan is an SPMD program, whose conversions this format cannot say (json can)"
        )
    if isinstance(plan.strategy, StagedStrategy) and not plan.strategy.is_placed:
        raise TopoplanError("strategy: the plan has stages with programs, which this format cannot say (json can)")
    if isinstance(plan.strategy, StagedStrategy):
        raise TopoplanError(
            f"strategy: the plan has a schedule ({plan.strategy.order_name}, {plan.strategy.micro_batches} "
            f"micro-batches, {plan.strategy.n_stages} stages), which this format cannot say (json can)"
        )
    yield from entries_of(plan.graph, plan.strategy)


@hookimpl
def topoplan_exporters() -> list[type[Exporter]]:
    """Register the exporters."""
    return [StrategyFile, StrategyProtobuf]
