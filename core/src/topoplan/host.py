"""The host: loads plugins, keeps a broken one from harming the others, and answers by kind and name.

Data flow: entry points (`topoplan.installed`) and core's own modules go through the hooks of
`topoplan.hookspecs`; what they return is indexed by (kind, name).  A plugin that cannot be used is kept as
a `Broken` with its cause, two that claim one name as a `Conflict`; both are told where their absence hurts
and by ``topoplan plugins doctor``.  Nothing here is global: tests make a `Host` of their own.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import traceback
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, cast

import attrs
import pluggy

from topoplan import __version__, hookspecs
from topoplan.components import (
    CORE_COMMANDS,
    Command,
    Component,
    Estimator,
    Exporter,
    Frontend,
    Kind,
    Registered,
    Searcher,
    Simulator,
    Topology,
)
from topoplan.errors import TopoplanError, nearest
from topoplan.installed import ALLOW, DENY, GROUP, Provider, enabled, entry_points, listed
from topoplan.options import parse_component, structure

__all__ = ["GROUP", "Broken", "Conflict", "Host", "Provider", "Row"]

_CORE = "topoplan-core"
_BUILT_IN = ("topoplan.simulate.components",)
_REGISTRATION: Mapping[str, type[Registered]] = {
    "topoplan_frontends": Frontend,
    "topoplan_topologies": Topology,
    "topoplan_estimators": Estimator,
    "topoplan_simulators": Simulator,
    "topoplan_searchers": Searcher,
    "topoplan_exporters": Exporter,
    "topoplan_commands": Command,
}


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


@attrs.frozen
class _Entry:
    component: Registered
    provider: Provider


class Host:
    """Components and commands by kind and name.

    ``Host()`` knows only what core brings and touches no entry point; `discover` adds what is installed;
    `add` adds one plugin.
    """

    def __init__(self) -> None:
        self._manager = pluggy.PluginManager("topoplan")
        self._manager.add_hookspecs(hookspecs)
        self._index: dict[tuple[Kind, str], list[_Entry]] = defaultdict(list)
        self._shared_names: list[Conflict] = []
        self.broken: list[Broken] = []
        self.disabled: list[str] = []
        for module in _BUILT_IN:
            provider = Provider(name=module, dist=_CORE, version=__version__)
            self._add(importlib.import_module(module), provider)

    @classmethod
    def discover(cls, strict: bool = False) -> Host:
        """Load every installed plugin, one by one, sorted by entry point and distribution.

        ``TOPOPLAN_PLUGINS`` (only these; empty means none) and ``TOPOPLAN_DISABLE_PLUGINS`` (not these)
        hold entry points or distributions, separated by commas.

        Args:
            strict: raise `TopoplanError` for the first broken or conflicting plugin instead of keeping
                it in `broken` or `conflicts`.
        """
        host = cls()
        by_name: dict[str, list[Provider]] = defaultdict(list)
        for provider, point in entry_points():
            if not enabled(provider):
                host.disabled.append(provider.name)
                continue
            by_name[provider.name].append(provider)
            host._load(provider, point)
        for name in sorted(listed(ALLOW) or ()):
            if not any(name in (p.name, p.dist) for found in by_name.values() for p in found):
                error = f"{ALLOW} names it, but no such plugin is installed (or it is disabled)"
                host.broken.append(Broken(name=name, dist="", version="", error=error))
        host._shared_names = [
            Conflict(subject=f"entry point {name!r}", providers=tuple(found))
            for name, found in sorted(by_name.items())
            if len(found) > 1
        ]
        if strict:
            for problem in (*host.broken, *host.conflicts):
                raise TopoplanError(str(problem))
        return host

    def add(self, plugin: object, *, name: str) -> None:
        """Add a plugin: a module or an object with hook implementations.

        Raises:
            TopoplanError: it cannot be used; nothing of it is added then.
        """
        self._add(plugin, Provider(name=name, dist="", version=""))

    def get(self, kind: Kind | str, name: str) -> Registered:
        """Return a component or a command.

        Raises:
            TopoplanError: there is none of that name, or plugins are in conflict about it.  The message
                says what exists and which plugins are broken.
        """
        kind = _kind(kind)
        entries = self._index.get((kind, name))
        if not entries:
            raise TopoplanError(self._unknown(kind, name))
        conflict = self._conflict(kind, name)
        if conflict is not None:
            raise TopoplanError(f"{conflict}; uninstall one, or disable one with {DENY}=<distribution>")
        return entries[0].component

    def make(self, kind: Kind | str, text: str, options: Mapping[str, Any] | None = None) -> tuple[Component, Any]:
        """Return a component and its options from ``name`` or ``name:key=value,...`` and a table.

        Raises:
            TopoplanError: the component or an option is unknown, wrong, or given in both places.
        """
        kind = _kind(kind)
        name, given = parse_component(text, kind.value)
        component = cast("Component", self.get(kind, name))
        table = dict(options or {})
        spelt = {key.replace("-", "_") for key in table}
        for key in given:
            if key.replace("-", "_") in spelt:
                raise TopoplanError(f"{kind.value} {text!r}: {key!r} is given twice (here and beside it)")
        return component, structure(component.options, {**table, **given}, f"{kind.value} {name}")

    def components(self, kind: Kind | str | None = None) -> list[Component]:
        """List the usable components, of one kind or all, sorted by kind and name."""
        wanted = None if kind is None else _kind(kind)
        return [
            cast("Component", entries[0].component)
            for (found, name), entries in self._sorted()
            if found is not Kind.COMMAND and wanted in (None, found) and self._conflict(found, name) is None
        ]

    def listing(self) -> list[Row]:
        """List all components and commands, conflicting ones included, with the distributions that provide them."""
        return [
            Row(
                kind=kind.value,
                name=name,
                distribution=entry.provider.dist or entry.provider.name,
                version=entry.provider.version,
                summary=entry.component.summary,
            )
            for (kind, name), entries in self._sorted()
            for entry in entries
        ]

    def provider(self, component: Registered) -> Provider:
        """Return where a component or command of this host comes from."""
        for entry in self._index.get((component.kind, component.name), ()):
            if entry.component is component:
                return entry.provider
        raise TopoplanError(f"{component.kind.value} {component.name!r} does not belong to this host")

    @property
    def conflicts(self) -> list[Conflict]:
        """Every name that several plugins claim."""
        found = (self._conflict(kind, name) for (kind, name), entries in self._sorted() if len(entries) > 1)
        return [*self._shared_names, *filter(None, found)]

    @property
    def hook(self) -> Any:
        """The observer hooks, e.g. ``host.hook.topoplan_run_started(run=run)``; for batch boundaries only."""
        return self._manager.hook

    # ── How plugins come in ────────────────────────────────────────────────────────────────────────────

    def _load(self, provider: Provider, point: importlib.metadata.EntryPoint) -> None:
        """Load and add one entry point; whatever goes wrong becomes a `Broken`."""
        try:
            _check_requirements(point)
            plugin = point.load()
        except TopoplanError as error:
            self._record(provider, str(error), "")
        except (Exception, SystemExit) as error:  # a plugin may do anything at all while it is imported
            self._record(provider, f"{point.value} does not load: {_told(error)}", traceback.format_exc())
        else:
            try:
                self._add(plugin, provider)
            except TopoplanError as error:
                self._record(provider, str(error), "" if error.__cause__ is None else traceback.format_exc())

    def _record(self, provider: Provider, error: str, details: str) -> None:
        self.broken.append(
            Broken(name=provider.name, dist=provider.dist, version=provider.version, error=error, details=details)
        )

    def _add(self, plugin: object, provider: Provider) -> None:
        """Register a plugin and index its components: all of them, or none and a `TopoplanError`."""
        _check_markers(plugin)
        key = f"{provider.name} of {provider.dist}" if provider.dist else provider.name
        if self._manager.has_plugin(key):
            raise TopoplanError(f"plugin {key!r}: already added")
        try:
            # Not atomic by itself: it keeps what it registered before its own checks failed.
            self._manager.register(plugin, key)
            entries = [_Entry(component, provider) for component in self._collect(plugin)]
        except Exception as error:
            if self._manager.has_plugin(key):
                self._manager.unregister(name=key)
            if isinstance(error, TopoplanError):
                raise
            raise TopoplanError(_told(error)) from error
        for entry in entries:
            self._index[entry.component.kind, entry.component.name].append(entry)

    def _collect(self, plugin: object) -> list[Registered]:
        """Call the registration hooks of one plugin and check what they return."""
        components: list[Registered] = []
        for caller in self._manager.get_hookcallers(plugin) or ():
            if not caller.has_spec():
                known = (name for name, other in vars(self._manager.hook).items() if other.has_spec())
                raise TopoplanError(f"unknown hook {caller.name!r}{nearest(caller.name, known)}")
            wanted = _REGISTRATION.get(caller.name)
            if wanted is not None:
                # The plugin's own implementations only, so that what they return is known to be its own.
                for own in (impl for impl in caller.get_hookimpls() if impl.plugin is plugin):
                    components += _checked(caller.name, wanted, own.function())
        keys = [(component.kind, component.name) for component in components]
        for kind, name in keys:
            if keys.count((kind, name)) > 1:
                raise TopoplanError(f"provides {kind.value} {name!r} twice")
        return components

    # ── How questions are answered ─────────────────────────────────────────────────────────────────────

    def _sorted(self) -> list[tuple[tuple[Kind, str], list[_Entry]]]:
        order = list(Kind)
        return sorted(self._index.items(), key=lambda item: (order.index(item[0][0]), item[0][1]))

    def _conflict(self, kind: Kind, name: str) -> Conflict | None:
        entries = self._index[kind, name]
        if len(entries) > 1:
            return Conflict(subject=f"{kind.value} {name!r}", providers=tuple(entry.provider for entry in entries))
        return next((shared for shared in self._shared_names if entries[0].provider in shared.providers), None)

    def _unknown(self, kind: Kind, name: str) -> str:
        known = {n for k, n in self._index if k is kind} | set(CORE_COMMANDS if kind is Kind.COMMAND else ())
        lines = [f"no {kind.value} named {name!r}{nearest(name, known)}"]
        lines += [f"  {broken}" for broken in self.broken]
        if self.disabled:
            lines.append(f"  disabled by {DENY} or {ALLOW}: {', '.join(self.disabled)}")
        if self.broken:
            lines.append("  run `topoplan plugins doctor` for the causes")
        return "\n".join(lines)


def _kind(kind: Kind | str) -> Kind:
    try:
        return Kind(kind)
    except ValueError:
        raise TopoplanError(f"no kind of component named {kind!r}{nearest(kind, (k.value for k in Kind))}") from None


def _check_requirements(point: importlib.metadata.EntryPoint) -> None:
    """Raise `TopoplanError` where the plugin's distribution does not admit this version of core."""
    wanted = [text for text in (point.dist.requires if point.dist else None) or () if _CORE in text.lower()]
    if not wanted:
        return
    from packaging.requirements import Requirement

    for text in wanted:
        requirement = Requirement(text)
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if applies and requirement.name.lower() == _CORE and not requirement.specifier.contains(__version__, True):
            raise TopoplanError(f"needs {_CORE} {requirement.specifier}, but {__version__} is installed")


def _check_markers(plugin: object) -> None:
    """Raise `TopoplanError` where a hook function lacks its marker, or there is none at all."""
    hooks = [name for name in dir(plugin) if name.startswith("topoplan_") and callable(getattr(plugin, name))]
    for name in hooks:
        if not hasattr(getattr(plugin, name), "topoplan_impl"):
            raise TopoplanError(f"{name} is not marked with @hookimpl (write @topoplan.hookimpl above it)")
    if not hooks:
        raise TopoplanError("provides nothing; it has no function named topoplan_... marked with @hookimpl")


def _checked(hook: str, wanted: type[Registered], returned: Any) -> Iterable[Registered]:
    if not isinstance(returned, list | tuple):
        raise TopoplanError(f"{hook} returned {type(returned).__name__} (must return a list of {wanted.__name__})")
    for item in returned:
        if not isinstance(item, wanted):
            raise TopoplanError(f"{hook} returned a list with {type(item).__name__} (must be {wanted.__name__})")
        if isinstance(item, Component) and not attrs.has(item.options):
            raise TopoplanError(f"{item.kind.value} {item.name!r}: options {item.options!r} is not an attrs class")
    return returned


def _told(error: BaseException) -> str:
    """One line for an exception of somebody else's code."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
