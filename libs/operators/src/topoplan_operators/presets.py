"""What a frontend's options mean: the user's word first, then the published configuration, then the model's own.

Options that a preset may set default to None in their class, so that "not given" can be told from any value.
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

#: Samples of one iteration when nobody says anything (FlexFlow's default).
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
    """Return what the options come to without gaps, and the batch size.

    Args:
        where: what messages name first, e.g. ``"frontend dlrm"``.
        options: frozen attrs value; fields that are None are filled.
        batch_size: the user's, or None.
        sizes: attrs class with fields of the options that are never None; its defaults are the values where neither
            user nor preset says anything.  A frontend whose options have no gaps gives their class.
        defaults: field -> such a value where it depends on other options; may hold ``batch_size``.
        presets: value of ``options.preset`` -> field -> value; may hold ``batch_size``.

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
