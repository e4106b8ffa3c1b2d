"""Exporter ``json``: a whole plan as strict JSON; what is read equals what was written, to the last bit.

Way out: plan -> plain values (`convert`, with cattrs) -> text.  Way in: text -> plain values -> plan, every
value checked; a message names the place as ``$.fabric.link_src[3]``.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from topoplan import Exporter, Plan, hookimpl

__all__ = ["JsonOptions", "build", "read", "topoplan_exporters"]


@attrs.frozen
class JsonOptions:
    """The format leaves nothing to choose."""


def build(options: JsonOptions) -> Callable[[Plan], bytes]:
    """Return the function that writes a plan."""
    from topoplan_exporter_json.document import write

    return write


def read(data: bytes, name: str) -> Plan:
    """Read a plan; ``name`` is for messages.

    Raises:
        TopoplanError: the file is no such plan; the message names the place and what was expected.
    """
    from topoplan_exporter_json.document import read

    return read(data, name)


@hookimpl
def topoplan_exporters() -> list[Exporter]:
    """Register the exporter."""
    return [
        Exporter(
            name="json",
            summary="the whole plan: cluster, fabric, model, strategy, task graph, timeline (and back)",
            options=JsonOptions,
            build=build,
            suffix=".json",
            read=read,
        )
    ]
