"""What is wrong with plugins that load, and what to do about one that does not work."""

from __future__ import annotations

import importlib.metadata
import json

from topoplan.errors import PluginError, TopoplanError
from topoplan.plugin.components import Component
from topoplan.plugin.host import Host, Provider
from topoplan.testing import build_example


def failures(host: Host) -> list[tuple[Provider, PluginError]]:
    """Build every component that builds something with the options of its example; return what raised.

    What refuses an example with a `TopoplanError`, and how it behaves, is the conformance kit's to judge.
    """
    problems = []
    components: list[type[Component]] = host.components()
    for component in components:
        try:
            build_example(component)
        except PluginError as error:
            problems.append((host.provider(component), error))
        except TopoplanError:
            continue
    return problems


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
