"""Exporter ``dot``: the task graph for Graphviz, a record of name, type, start and end for every task.

The form is that of FlexFlow's task graph drawings.  Start and end stand in milliseconds, where the plan
has a timeline.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from topoplan import Exporter, Plan, hookimpl

__all__ = ["DotOptions", "build", "topoplan_exporters"]


@attrs.frozen
class DotOptions:
    """The format leaves nothing to choose."""


def build(options: DotOptions) -> Callable[[Plan], bytes]:
    """Return the function that writes the task graph of a plan."""
    from topoplan_exporter_dot.records import write

    return write


@hookimpl
def topoplan_exporters() -> list[Exporter]:
    """Register the exporter."""
    return [
        Exporter(
            name="dot",
            summary="task graph for Graphviz",
            options=DotOptions,
            build=build,
            suffix=".dot",
        )
    ]
