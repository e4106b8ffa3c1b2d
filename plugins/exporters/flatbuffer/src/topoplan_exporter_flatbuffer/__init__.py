"""Exporter ``flatbuffer``: task graphs as FlexNet writes and the packet simulator FlexNetPacket reads them.

Way out: plan -> file columns (`tables`; `unroll` writes out what the format does not know) -> bytes (`encode`).  Way
in: bytes -> file columns (`wire`, every offset checked) -> plan (`importer`).  `schema` describes the file once for
both; ``taskgraph.fbs`` says the same to other tools.  What the plan has no place for travels in
``TaskGraph.foreign``, so that reading and writing a file loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from topoplan import Exporter, OperatorGraph, Plan, Strategy, hookimpl

__all__ = ["FlatbufferOptions", "build", "read", "read_strategy", "topoplan_exporters"]


@attrs.frozen
class FlatbufferOptions:
    """The format leaves nothing to choose."""


def build(options: FlatbufferOptions) -> Callable[[Plan], bytes]:
    """Return the function that writes a plan; see `topoplan_exporter_flatbuffer.tables.tables_of`."""
    from topoplan_exporter_flatbuffer.encode import encode
    from topoplan_exporter_flatbuffer.tables import tables_of

    return lambda plan: encode(tables_of(plan))


def read(data: bytes, name: str) -> Plan:
    """Read a task graph file; ``name`` is for messages.

    Raises:
        TopoplanError: the file is damaged or says something impossible; the message names the field.
    """
    from topoplan_exporter_flatbuffer.importer import plan_of
    from topoplan_exporter_flatbuffer.wire import decode

    return plan_of(decode(data, name), name, len(data))


def read_strategy(data: bytes, name: str, graph: OperatorGraph) -> Strategy:
    """Recover the strategy that a task graph of ``graph`` encodes.

    Raises:
        TopoplanError: the file is damaged, or was not made from this model.
    """
    from topoplan_exporter_flatbuffer.recover import recover_strategy

    return recover_strategy(read(data, name).taskgraph, name, graph)


@hookimpl
def topoplan_exporters() -> list[Exporter]:
    """Register the exporter."""
    return [
        Exporter(
            name="flatbuffer",
            summary="task graph for FlexNetPacket, as FlexNet writes it (and back)",
            options=FlatbufferOptions,
            build=build,
            suffix=".fbuf",
            read=read,
            read_strategy=read_strategy,
        )
    ]
