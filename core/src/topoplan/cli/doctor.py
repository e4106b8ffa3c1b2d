"""What is wrong with plugins that load, and what to do about one that does not work."""

from __future__ import annotations

import importlib.metadata
import json

from topoplan.errors import TopoplanError
from topoplan.plugin.components import Component
from topoplan.plugin.guard import PluginError
from topoplan.plugin.host import Host, Provider

__all__ = ["failures", "remedy"]

#: Hosts of the cluster that topologies are built for, as the conformance kit does.
_HOSTS = 16


def failures(host: Host) -> list[tuple[Provider, PluginError]]:
    """Build every component that is built by itself with the options of its example; return what raised.

    Those are frontends, machines, topologies and simulators.  What refuses an example with a `TopoplanError` is the
    conformance kit's to judge.
    """
    found = []
    components: list[type[Component]] = host.components()
    for component in components:
        try:
            _build(host, component)
        except PluginError as error:
            found.append((host.provider(component), error))
        except TopoplanError:
            continue
    return found


def _build(host: Host, cls: type[Component]) -> None:
    import numpy as np

    from topoplan.plugin.components import Frontend, Machine, Simulator, Topology, TopologyContext
    from topoplan.testing import reference

    component = host.make(cls, cls.name, cls.example)
    if isinstance(component, Frontend):
        component.build(None)
    elif isinstance(component, Machine | Simulator):
        component.build()
    elif isinstance(component, Topology):
        demand = reference.demand(_HOSTS) if component.follows_demand else None
        cluster, rng = reference.cluster(_HOSTS), np.random.default_rng(0)
        component.build(TopologyContext(cluster=cluster, demand=demand, rng=rng))


def remedy(dist: str, name: str) -> str:
    """Say what to do about a plugin of a distribution; of one under development, where its source is."""
    if not dist:
        return f"install the plugin, or take {name!r} out of TOPOPLAN_PLUGINS"
    if source := _source(dist):
        return f"correct it in {source}, where {dist} is being developed, or set TOPOPLAN_DISABLE_PLUGINS={name}"
    return (
        f"upgrade it (pip install -U {dist}), remove it (pip uninstall {dist}), or set TOPOPLAN_DISABLE_PLUGINS={name}"
    )


def _source(dist: str) -> str:
    """Return the folder of a distribution that is installed as editable; empty for others."""
    try:
        text = importlib.metadata.distribution(dist).read_text("direct_url.json")
        origin = json.loads(text or "{}")
        editable = origin.get("dir_info", {}).get("editable", False)
        return str(origin["url"]).removeprefix("file://") if editable else ""
    except (importlib.metadata.PackageNotFoundError, ValueError, KeyError, AttributeError):
        return ""
