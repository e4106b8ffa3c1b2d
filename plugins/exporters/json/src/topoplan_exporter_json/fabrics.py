"""Fabrics as files have them: one object for both types, the columns of links, and the phases where it is rebuilt."""

from __future__ import annotations

from typing import Any

import attrs

from topoplan import AnyFabric, Fabric, ReconfigurableFabric

__all__ = ["FabricFields"]


@attrs.frozen(kw_only=True)
class FabricFields(Fabric):
    """The fields of a fabric, or the links of one that is rebuilt, and its phases; null where it stays as it is."""

    phases: PhasesFields | None = None

    @classmethod
    def of(cls, fabric: AnyFabric) -> FabricFields:
        """Return the fields of a fabric."""
        phases = None
        if isinstance(fabric, ReconfigurableFabric):
            forward, backward, reduce = map(cls.of, fabric.wirings)
            phases = PhasesFields(forward, backward, reduce, fabric.delay)
        return cls(**_columns(fabric.links), phases=phases)

    @property
    def fabric(self) -> AnyFabric:
        """The fabric; links of one that is rebuilt follow from its phases.

        Raises:
            TopoplanError: a phase is rebuilt itself, or has other nodes.
        """
        if self.phases is None:
            return Fabric(**_columns(self))
        parts = {name: getattr(self.phases, name).fabric for name in ("forward", "backward", "reduce")}
        return ReconfigurableFabric(**parts, delay=self.phases.delay)


@attrs.frozen
class PhasesFields:
    """The phases of a fabric that is rebuilt, and the seconds of a rebuild."""

    forward: FabricFields
    backward: FabricFields
    reduce: FabricFields
    delay: float


def _columns(fabric: Fabric) -> dict[str, Any]:
    return {field.name: getattr(fabric, field.name) for field in attrs.fields(Fabric)}
