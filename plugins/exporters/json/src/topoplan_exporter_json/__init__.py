"""Exporter ``json``: a whole plan as strict JSON; what is read equals what was written, to the last bit.

Way out: plan -> plain values (`convert`, with cattrs) -> text.  Way in: text -> plain values -> plan, every
value checked; a message names the place as ``$.fabric.link_src[3]``.
"""

from __future__ import annotations

from topoplan import Exporter, Plan, hookimpl

__all__ = ["Json", "topoplan_exporters"]


class Json(Exporter):
    """The whole plan: cluster, fabric, model, strategy, task graph, timeline (and back)."""

    name = "json"
    suffix = ".json"

    def write(self, plan: Plan) -> bytes:
        """Write a plan."""
        from topoplan_exporter_json.document import write

        return write(plan)

    def read(self, data: bytes, name: str) -> Plan:
        """Read a plan; ``name`` is for messages.

        Raises:
            TopoplanError: the file is no such plan; the message names the place and what was expected.
        """
        from topoplan_exporter_json.document import read

        return read(data, name)


@hookimpl
def topoplan_exporters() -> type[Exporter]:
    """Register the exporter."""
    return Json
