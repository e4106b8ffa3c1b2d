"""Exporter ``strategy``: FlexFlow's text strategy files, as its TopoOpt fork exports and imports them.

For every operator, sorted by name: name, device type, the number of parts along each axis of its output
(innermost axis first) and the device of each part (innermost axis fastest).  `text` maps this to and from
placements, which count along the operator's own dimensions.
"""

from __future__ import annotations

from topoplan import Exporter, OperatorGraph, PipelineStrategy, Plan, SpmdStrategy, Strategy, TopoplanError, hookimpl

__all__ = ["StrategyFile", "topoplan_exporters"]


class StrategyFile(Exporter):
    """FlexFlow strategy file: cut and devices of every operator (and back)."""

    name = "strategy"
    suffix = ".strategy"

    def write(self, plan: Plan) -> bytes:
        """Write the strategy of a plan.

        Raises:
            TopoplanError: it has none, or one that the format cannot express.
        """
        from topoplan_exporter_strategy.text import write

        if plan.graph is None or plan.strategy is None:
            raise TopoplanError("strategy: the plan holds only a task graph (plan a model to get a strategy)")
        if isinstance(plan.strategy, SpmdStrategy):
            raise TopoplanError(
                "strategy: the plan is an SPMD program, whose conversions this format cannot say (json can)"
            )
        if isinstance(plan.strategy, PipelineStrategy):
            schedule = plan.strategy.schedule
            raise TopoplanError(
                f"strategy: the plan has a schedule ({schedule.kind}, {schedule.micro_batches} micro-batches, "
                f"{schedule.n_stages} stages), which this format cannot say (json can)"
            )
        return write(plan.graph, plan.strategy)

    def read_strategy(self, data: bytes, name: str, graph: OperatorGraph) -> Strategy:
        """Read a strategy for ``graph``; ``name`` is for messages.

        Raises:
            TopoplanError: the file is damaged, or does not fit the graph; the message names line and operator.
        """
        from topoplan_exporter_strategy.text import read

        return read(data, name, graph)


@hookimpl
def topoplan_exporters() -> type[Exporter]:
    """Register the exporter."""
    return StrategyFile
