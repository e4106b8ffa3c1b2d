"""What a plan's provenance keeps of the components and the cluster that made it: JSON values only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from topoplan.options import structure
from topoplan.plugin.components import Component
from topoplan.plugin.host import Host
from topoplan_engine.options import ClusterOptions, HostGroup

__all__ = ["cluster_options", "cluster_record", "component_record", "json_ready"]

#: Option of a cluster -> its key in plans, where that is another one.
_KEYS = {"gpus_per_device": "big_gpu"}


def component_record(host: Host, component: Component) -> dict[str, Any]:
    """Record a component of ``host`` with its options."""
    provider = host.provider(component)
    return {
        "kind": component.kind.value,
        "name": component.name,
        "distribution": provider.dist,
        "version": provider.version,
        "options": {key: json_ready(value) for key, value in attrs.asdict(component).items()},
    }


def cluster_record(options: ClusterOptions) -> dict[str, Any]:
    """Record the options of a cluster."""
    return {_KEYS.get(name, name): json_ready(value) for name, value in attrs.asdict(options).items()}


def cluster_options(record: Mapping[str, Any], where: str) -> ClusterOptions:
    """Return the options that `cluster_record` recorded.

    Raises:
        TopoplanError: the record holds what is no option of a cluster; the message begins with ``where``.
    """
    names = {key: name for name, key in _KEYS.items()}
    table = {names.get(key, key): value for key, value in record.items() if key != "hosts"}
    return attrs.evolve(
        structure(ClusterOptions, table, f"{where}: cluster"),
        hosts=tuple(structure(HostGroup, group, f"{where}: cluster.hosts") for group in record.get("hosts", ())),
    )


def json_ready(value: Any) -> Any:
    """Return lists for tuples and dicts for mappings, however deep."""
    if isinstance(value, tuple | list):
        return [json_ready(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): json_ready(item) for key, item in value.items()}
    return value
