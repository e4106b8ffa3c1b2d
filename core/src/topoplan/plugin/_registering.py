"""What the host knows of plugins beside their components (broken, in conflict), and checks before one joins."""

from __future__ import annotations

import functools
import inspect
import types
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any

import attrs

from topoplan import __version__
from topoplan.errors import TopoplanError, nearest, shown
from topoplan.model.machine import nearest_device
from topoplan.plugin import hookspecs
from topoplan.plugin.components import CONTRACTS, Kind, Registered, check_class
from topoplan.plugin.entry_points import ALLOW, DENY

_CORE = "topoplan-core"
_MAJOR, _MINOR = map(int, __version__.split(".")[:2])
#: What all packages of this series ask for, word for word; other words need a library to read them.
_SERIES = f"{_CORE}>={_MAJOR}.{_MINOR},<{_MAJOR}.{_MINOR + 1}"
#: Most of what a module holds, and none of it implements a hook.
_NO_HOOKS = (type, types.ModuleType, str, types.NoneType)
#: Registration hook -> the class that its components are subclasses of.
REGISTRATION: Mapping[str, type[Registered]] = {
    f"topoplan_{kind}s".replace("ys", "ies"): contract for kind, contract in CONTRACTS.items()
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
class Broken(Provider):
    """A plugin that could not be used: the cause in one line, and the traceback if there is one."""

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
        prefix = "both " if len(self.providers) == 2 else ""
        return f"{self.subject} is provided by {prefix}{' and '.join(map(str, self.providers))}"


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


def check_requirements(dist: str, requires: Iterable[str]) -> None:
    """Raise `TopoplanError` where the requirements of a plugin's distribution do not admit this version of core."""
    ours = [text for text in requires if text.lower().replace("_", "-").startswith(_CORE)]
    for text in ours:
        if text != _SERIES and (refused := _refused(text)):
            raise TopoplanError(f"needs {_CORE} {refused}, but {__version__} is installed")
    if not ours:  # `topoplan plugins doctor` shows this
        warnings.warn(f"{dist} does not say which {_CORE} it needs (such as {_SERIES})", PendingDeprecationWarning, 2)


@functools.cache
def _refused(text: str) -> str:
    """Return the versions that a requirement of core asks for; empty if this one is among them."""
    from packaging.requirements import Requirement

    requirement = Requirement(text)
    applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    ours = applies and requirement.name.lower().replace("_", "-") == _CORE
    return str(requirement.specifier) if ours and not requirement.specifier.contains(__version__, True) else ""


def hooks_of(plugin: object) -> dict[str, Callable[..., Any]]:
    """Return the functions of a module or an object that implement hooks, by the name of the hook.

    Raises:
        TopoplanError: one lacks its marker, implements no hook that there is, or asks of a registration hook what that
            does not do; or there are none.
    """
    hook_names = [name for name in vars(hookspecs) if name.startswith("topoplan_")]
    hooks: dict[str, Callable[..., Any]] = {}
    for name in dir(plugin):
        options = marked(plugin, name)
        if options is None:
            if name.startswith("topoplan_") and callable(getattr(plugin, name)):
                raise TopoplanError(f"{name} is not marked with @hookimpl (write @topoplan.hookimpl above it)")
            continue
        hook, function = options["specname"] or name, getattr(plugin, name)
        if hook in hooks:
            raise TopoplanError(f"{name}: hook {hook} is implemented already (one function for each hook)")
        if hook in hook_names:
            _check_options(name, hook, options, function)
        elif not options["optionalhook"]:
            raise TopoplanError(f"unknown hook {hook!r}{nearest(hook, hook_names)}")
        hooks[hook] = function
    if not hooks:
        raise TopoplanError("provides nothing; it has no function named topoplan_... marked with @hookimpl")
    return hooks


def marked(plugin: object, name: str) -> dict[str, Any] | None:
    """Return what ``@hookimpl(...)`` says of a function of a plugin; None where it is no implementation of a hook.

    What a module imports on first use is left alone.
    """
    attribute = vars(plugin).get(name) if inspect.ismodule(plugin) else inspect.getattr_static(plugin, name, None)
    if not name.startswith("topoplan_") and (isinstance(attribute, _NO_HOOKS) or not inspect.isroutine(attribute)):
        return None
    options = getattr(getattr(plugin, name), "topoplan_impl", None)
    return options if isinstance(options, dict) else None


def _check_options(name: str, hook: str, options: Mapping[str, Any], function: object) -> None:
    """Raise where an implementation asks for what is not done: plugins register one by one, each by itself."""
    if (options["wrapper"] or options["hookwrapper"]) and not inspect.isgeneratorfunction(function):
        raise TopoplanError(f"{name}: is a wrapper, but no generator (it must yield once, where the others are called)")
    refused = [key for key in ("wrapper", "hookwrapper", "tryfirst", "trylast") if options[key]]
    if hook in REGISTRATION and refused:
        raise TopoplanError(
            f"{name}: @hookimpl({refused[0]}=True) of a registration hook does nothing, because every plugin registers "
            "by itself (leave it out; observer hooks take it)"
        )


def components_from(hooks: Mapping[str, Callable[..., Any]]) -> list[type[Registered]]:
    """Call registration hooks; return the classes that they return, if these are what they should be."""
    classes: list[type[Registered]] = []
    for hook in filter(REGISTRATION.__contains__, hooks):
        returned = hooks[hook]()
        for cls in returned if isinstance(returned, list | tuple) else [returned]:
            if not isinstance(cls, type) or not issubclass(cls, REGISTRATION[hook]):
                named = cls.__name__ if isinstance(cls, type) else f"{type(cls).__name__} {shown(cls, 40)}"
                raise TopoplanError(f"{hook} returned {named} (must return classes of {REGISTRATION[hook].__name__})")
            check_class(cls)
            if any((cls.kind, cls.name) == (peer.kind, peer.name) for peer in classes):
                raise TopoplanError(f"provides {cls.kind.value} {cls.name!r} twice")
            classes.append(cls)
    return classes


def check_classes(classes: Sequence[Any], plugin: str) -> list[type[Registered]]:
    """Return classes of components that a program adds as a plugin of this name.

    Raises:
        TopoplanError: one of them is none.
    """
    for cls in classes:
        if not is_component(cls):
            raise TopoplanError(f"plugin {plugin!r}: {shown(cls)} is no class of component (expected a Topology, ...)")
        check_class(cls)
    return list(classes)


def unknown(kind: Kind, name: str, names: Iterable[str], broken: Sequence[Broken], disabled: Sequence[str]) -> str:
    """Say that there is no such component, and which broken or disabled plugin may be the one that has it."""
    hint = nearest_device(name, names) if kind is Kind.MACHINE else nearest(name, names)
    parts = [f"no {kind.value} named {shown(name)}{hint}"]
    concerned_plugins = [plugin for plugin in broken if _concerns(plugin, kind, name)]
    entry = (distribution := distribution_of(kind, name)).removeprefix("topoplan-")
    if not concerned_plugins and distribution and entry not in disabled:
        parts.append(f"`pip install {distribution}` brings it")
    suspects = concerned_plugins or broken[:1]
    parts += map(str, suspects)
    if more := len(broken) - len(suspects):
        parts.append(f"{more} other plugin{'s are' if more > 1 else ' is'} broken")
    if broken:
        parts.append("`topoplan plugins doctor` tells the causes")
    if disabled and (entry in disabled or not distribution):
        off = [entry] if entry in disabled else sorted(disabled, key=lambda plugin: name not in plugin)
        ending = f" and {len(off) - 3} more" if len(off) > 3 else ""
        parts.append(f"disabled by {DENY} or {ALLOW}: {', '.join(off[:3])}{ending}")
    return "; ".join(parts)


def distribution_of(kind: Kind, name: str) -> str:
    """Return the distribution of this project that has a component; empty if there is none."""
    return next((dist for dist, components in components_of().items() if (kind, name.lower()) in components), "")


@functools.cache
def components_of() -> Mapping[str, Collection[tuple[Kind, str]]]:
    """Return the kinds and names of the components of each distribution of this project."""
    rows: dict[str, list[tuple[Kind, str]]] = {}
    for line in files("topoplan.plugin").joinpath("components.txt").read_text("utf-8").splitlines():
        kind, name, dist = line.split(" ")
        rows.setdefault(dist, []).append((Kind(kind), name))
    return rows


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
