"""Resolves a frontend's options: first the user's value, then that of the preset, then the model's default.

Options that a preset may set have the default None in their class, so that an unset option differs from every value.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import attrs

from topoplan.errors import TopoplanError, nearest
from topoplan.options import check

__all__ = ["FLEXNET_BATCH_SIZE", "with_preset"]

T = TypeVar("T", bound=attrs.AttrsInstance)
Sizes = TypeVar("Sizes", bound=attrs.AttrsInstance)

#: Default batch size (FlexFlow's).
FLEXNET_BATCH_SIZE = 64


def with_preset(
    where: str,
    options: T,
    batch_size: int | None,
    sizes: type[Sizes],
    *,
    defaults: Mapping[str, Any] = MappingProxyType({}),
    presets: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> tuple[Sizes, int]:
    """Return the resolved options, and the batch size.

    Args:
        where: start of error messages, e.g. ``"frontend dlrm"``.
        options: frozen attrs value; fields that are None are filled.
        batch_size: the user's, or None.
        sizes: attrs class with the fields of the options, never None; its defaults apply if neither user nor preset
            sets a field.  If no option can be None, this is the class of the options.
        defaults: field -> default that depends on other options; may contain ``batch_size``.
        presets: value of ``options.preset`` -> field -> value; may contain ``batch_size``.

    Raises:
        TopoplanError: a value out of its range, or a list without an entry.
    """
    size_fields = attrs.fields(sizes)
    given_sizes = {f.name: f.default for f in size_fields if f.default is not attrs.NOTHING}
    given_sizes |= {"batch_size": FLEXNET_BATCH_SIZE, **defaults}
    preset = getattr(options, "preset", "")
    if preset and presets:
        if preset not in presets:
            raise TopoplanError(f"{where}: preset: {preset!r} is unknown{nearest(preset, presets)}")
        given_sizes |= presets[preset]
    fields = attrs.fields(type(options))
    gaps = {f.name: given_sizes[f.name] for f in fields if getattr(options, f.name) is None and f.name in given_sizes}
    full = attrs.evolve(options, **gaps)  # type: ignore[misc]
    check(full, where)
    for field in fields:
        if getattr(full, field.name) == ():
            raise TopoplanError(
                f"{where}: {field.name.replace('_', '-')}: the list is empty (give at least one number)"
            )
    batch = given_sizes["batch_size"] if batch_size is None else batch_size
    if batch < 1:
        raise TopoplanError(f"{where}: batch size {batch} is too small (at least 1)")
    return sizes(**{f.name: getattr(full, f.name) for f in size_fields}), batch
