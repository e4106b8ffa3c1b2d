"""What the host knows of plugins beside their components (broken, in conflict), and checks before one joins."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any

import attrs

from topoplan import __version__
from topoplan.errors import TopoplanError, nearest, shown
from topoplan.plugin.components import (
    Command,
    Estimator,
    Exporter,
    Frontend,
    Kind,
    Machine,
    Registered,
    Searcher,
    Simulator,
    Topology,
    check_class,
)
from topoplan.plugin.entry_points import ALLOW, DENY

__all__ = [
    "REGISTRATION",
    "Added",
    "Broken",
    "Conflict",
    "Provider",
    "Row",
    "check_markers",
    "check_requirements",
    "checked",
    "distribution_of",
    "is_component",
    "name_of",
    "unknown",
]

_CORE = "topoplan-core"
#: Registration hook -> the class that its components are subclasses of.
REGISTRATION: Mapping[str, type[Registered]] = {
    "topoplan_frontends": Frontend,
    "topoplan_machines": Machine,
    "topoplan_topologies": Topology,
    "topoplan_estimators": Estimator,
    "topoplan_simulators": Simulator,
    "topoplan_searchers": Searcher,
    "topoplan_exporters": Exporter,
    "topoplan_commands": Command,
}


@attrs.frozen(kw_only=True)
class Provider:
    """Where a plugin comes from: its entry point and the distribution that declares it."""

    name: str
    dist: str
    version: str

    def __str__(self) -> str:
        return f"{self.dist} {self.version}" if self.dist else f"plugin {self.name!r}"


@attrs.frozen(kw_only=True)
class Broken:
    """A plugin that could not be used: the cause in one line, and the traceback if there is one."""

    name: str
    dist: str
    version: str
    error: str
    details: str = ""

    def __str__(self) -> str:
        where = f" ({self.dist} {self.version})" if self.dist else ""
        return f"plugin {self.name!r}{where} is broken: {self.error}"


@attrs.frozen(kw_only=True)
class Conflict:
    """Several plugins that claim one name; ``subject`` is ``topology 'ring'`` or ``entry point 'x'``."""

    subject: str
    providers: tuple[Provider, ...]

    def __str__(self) -> str:
        both = "both " if len(self.providers) == 2 else ""
        return f"{self.subject} is provided by {both}{' and '.join(map(str, self.providers))}"


@attrs.frozen(kw_only=True)
class Row:
    """One line of ``topoplan plugins``."""

    kind: str
    name: str
    distribution: str
    version: str
    summary: str


@attrs.frozen(eq=False)
class Added:
    """What `Host.add` was given."""

    plugin: object
    name: str
    replace: bool


def check_requirements(requires: Iterable[str]) -> None:
    """Raise `TopoplanError` where the requirements of a plugin's distribution do not admit this version of core."""
    for text in requires:
        if text.lower().startswith(_CORE) and (refused := _refused(text)):
            raise TopoplanError(f"needs {_CORE} {refused}, but {__version__} is installed")


@functools.cache
def _refused(text: str) -> str:
    """Return the versions that a requirement of core asks for; empty if this one is among them."""
    from packaging.requirements import Requirement

    requirement = Requirement(text)
    applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    ours = applies and requirement.name.lower() == _CORE
    return str(requirement.specifier) if ours and not requirement.specifier.contains(__version__, True) else ""


def check_markers(plugin: object) -> None:
    """Raise `TopoplanError` where a hook function lacks its marker, or there is none at all."""
    hooks = [name for name in dir(plugin) if name.startswith("topoplan_") and callable(getattr(plugin, name))]
    for name in hooks:
        if not hasattr(getattr(plugin, name), "topoplan_impl"):
            raise TopoplanError(f"{name} is not marked with @hookimpl (write @topoplan.hookimpl above it)")
    if not hooks:
        raise TopoplanError("provides nothing; it has no function named topoplan_... marked with @hookimpl")


def checked(hook: str, wanted: type[Registered], returned: Any) -> Sequence[type[Registered]]:
    """Return the classes that a registration hook returned, if they are what it should return."""
    classes = returned if isinstance(returned, list | tuple) else [returned]
    for cls in classes:
        if not isinstance(cls, type) or not issubclass(cls, wanted):
            raise TopoplanError(f"{hook} returned {_name(cls)} (must return classes of {wanted.__name__})")
        check_class(cls)
    return classes


def unknown(kind: Kind, name: str, known: Iterable[str], broken: Sequence[Broken], disabled: Sequence[str]) -> str:
    """Say that there is no such component, and which broken or disabled plugin may be the one that has it."""
    parts = [f"no {kind.value} named {shown(name)}{nearest(name, known)}"]
    concerned = [one for one in broken if _concerns(one, kind, name)]
    if not concerned and not disabled and (distribution := distribution_of(kind, name)):
        parts.append(f"`pip install {distribution}` brings it")
    own = concerned or broken[:1]
    parts += map(str, own)
    if more := len(broken) - len(own):
        parts.append(f"{more} other plugin{'s are' if more > 1 else ' is'} broken")
    if broken:
        parts.append("`topoplan plugins doctor` tells the causes")
    if disabled:
        off = sorted(disabled, key=lambda one: name not in one)
        rest = f" and {len(off) - 3} more" if len(off) > 3 else ""
        parts.append(f"disabled by {DENY} or {ALLOW}: {', '.join(off[:3])}{rest}")
    return "; ".join(parts)


def distribution_of(kind: Kind, name: str) -> str:
    """Return the distribution of this project that has a component; empty if there is none."""
    for line in files("topoplan.plugin").joinpath("components.txt").read_text("utf-8").splitlines():
        if line.startswith(f"{kind.value} {name.lower()} "):
            return line.rpartition(" ")[2]
    return ""


def _concerns(broken: Broken, kind: Kind, name: str) -> bool:
    """Say whether a broken plugin is, by its name, likely to be the one that brings a component."""
    words = {*broken.name.split("-"), *broken.dist.split("-")} - {"topoplan", kind.value}
    return bool(words & {name, *name.split("-")})


def name_of(plugin: object) -> str:
    """Return the name of a plugin that was given none."""
    if isinstance(plugin, list | tuple):
        return "+".join(f"{cls.kind.value}-{cls.name}" for cls in plugin if is_component(cls)) or "components"
    return str(getattr(plugin, "__name__", None) or type(plugin).__name__)


def is_component(value: object) -> bool:
    """Say whether a value is a class of component or command."""
    return isinstance(value, type) and issubclass(value, Registered)


def _name(value: object) -> str:
    return value.__name__ if isinstance(value, type) else f"{type(value).__name__} {shown(value, 40)}"
