"""What a plan's provenance keeps of the components that made it: JSON values only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from topoplan.plugin.components import Registered
from topoplan.plugin.host import Host

__all__ = ["component_record", "json_ready"]


def component_record(host: Host, component: Registered, options: Any) -> dict[str, Any]:
    """Record a component of ``host`` with its options, an attrs object."""
    provider = host.provider(component)
    return {
        "kind": component.kind.value,
        "name": component.name,
        "distribution": provider.dist,
        "version": provider.version,
        "options": {key: json_ready(value) for key, value in attrs.asdict(options).items()},
    }


def json_ready(value: Any) -> Any:
    """Return lists for tuples and dicts for mappings, however deep."""
    if isinstance(value, tuple | list):
        return [json_ready(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): json_ready(item) for key, item in value.items()}
    return value
