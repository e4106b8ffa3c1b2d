"""Placements: how one operator is cut, and which devices run its parts."""

from __future__ import annotations

import functools
import hashlib
import math

import attrs

from topoplan.arrays import ARRAY_EQ, I32, i32, ints
from topoplan.errors import TopoplanError, shown

__all__ = ["Placement"]


@attrs.frozen(hash=False)
class Placement:
    """One operator's degree vector and the devices that run its parts.

    Attributes:
        degrees: into how many parts each dimension of the iteration space is cut; `Slices` where they are uneven.
        devices: (P,) int32, P the product of degrees: the device of each part, parts numbered with the
            last dimension fastest (C order of an array of shape ``degrees``).
    """

    degrees: tuple[int, ...] = attrs.field(converter=ints)
    devices: I32 = attrs.field(converter=i32, eq=ARRAY_EQ)

    def __attrs_post_init__(self) -> None:
        parts = math.prod(self.degrees)
        if min(self.degrees, default=1) < 1 or self.devices.shape != (parts,):
            need = f"need {shown(parts)} devices, got {self.devices.size}"
            raise TopoplanError(f"placement: degrees {shown(self.degrees)} {need}")

    @functools.cached_property
    def key(self) -> bytes:
        """Value key: two placements are equal iff their keys are."""
        digest = hashlib.blake2b(repr(self.degrees).encode(), digest_size=16)
        digest.update(self.devices.tobytes())
        return digest.digest()

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def parts(self) -> int:
        """Number of parts."""
        return len(self.devices)
