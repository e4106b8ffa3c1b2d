"""Exporter ``json``: a whole plan as strict JSON.  A plan that is written and read is equal to the last bit.

Write: plan -> plain values (`convert`, with cattrs) -> text.  Read: text -> plain values -> plan, with checks of every
value.  Messages name the place, for example ``$.fabric.link_src[3]``.
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
            TopoplanError: the file is no valid plan; the message names the place and the expected value.
        """
        from topoplan_exporter_json.document import read

        return read(data, name)


@hookimpl
def topoplan_exporters() -> type[Exporter]:
    """Register the exporter."""
    return Json
