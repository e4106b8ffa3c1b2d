"""The host: loads plugins, keeps a broken one from harming the others, and answers by kind and name.

Data flow: entry points (`topoplan.plugin.entry_points`) and core's own modules go through the hooks of
`topoplan.plugin.hookspecs`; what they return is indexed by (kind, name).  Plugins of this project wait until one of
their components is asked for.  A plugin that cannot be used is kept as a `Broken` with its cause, two that claim one
name as a `Conflict`; both are reported where they hurt and by ``topoplan plugins doctor``.  Nothing here is global.
"""

from __future__ import annotations

import time
import traceback
import warnings
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar, cast, overload

import attrs
import pluggy

from topoplan.errors import TopoplanError, TopoplanWarning, exception_line, nearest, printing_aside, shown
from topoplan.options import parse_component, structure
from topoplan.plugin import hookspecs
from topoplan.plugin._guard import guarded, modules_of
from topoplan.plugin._observers import observing_safely
from topoplan.plugin._registering import (
    Added,
    Broken,
    Conflict,
    Provider,
    Row,
    check_classes,
    check_requirements,
    components_from,
    components_of,
    hooks_of,
    is_component,
    marked,
    name_of,
    unknown,
)
from topoplan.plugin.components import CORE_COMMANDS, Component, Kind, Registered, unguarded
from topoplan.plugin.entry_points import ALLOW, DENY, GROUP, InstalledPlugin, enabled, installed_plugins, listed

__all__ = ["GROUP", "Added", "Broken", "Conflict", "Host", "Provider", "Row"]

R = TypeVar("R", bound=Registered)
C = TypeVar("C", bound=Component)


@attrs.frozen(eq=False)
class _Entry:
    component: type[Registered]
    provider: Provider
    guarded: type[Registered] = attrs.field()

    @guarded.default
    def _guard(self) -> type[Registered]:
        return guarded(self.component, self.provider)


class Host:
    """Components and commands by kind and name.

    ``Host()`` is empty and touches no entry point; `discover` adds what is installed, `add` one plugin.

    Attributes:
        disabled: what is installed and not used, because the environment says so.
        added: what `add` was given, in order.
        discovered: whether installed plugins were looked for.
    """

    def __init__(self) -> None:
        self._manager = _Manager("topoplan")
        self._manager.add_hookspecs(hookspecs)
        self._index: dict[tuple[Kind, str], list[_Entry]] = defaultdict(list)
        self._shared_names: list[Conflict] = []
        self.added: list[Added] = []
        self._modules: dict[str, Provider] = {}
        self.discovered = False
        self._load_seconds: dict[Provider, float] = {}
        self._broken: list[Broken] = []
        self.disabled: list[str] = []
        self._waiting: dict[Provider, InstalledPlugin] = {}  # not loaded yet, in order
        self._sought: set[tuple[Kind, str]] = set()  # no plugin that waits is known to have it

    @classmethod
    def discover(cls, strict: bool = False, prefix: str = "") -> Host:
        """Find every installed plugin; load those of others, sorted, and ours when a component of theirs is asked for.

        ``TOPOPLAN_PLUGINS`` (only these; empty means none) and ``TOPOPLAN_DISABLE_PLUGINS`` (not these)
        hold entry points or distributions, separated by commas.

        Args:
            strict: raise `TopoplanError` for the first plugin that would be in `broken` or `conflicts`.
            prefix: load only plugins whose entry points begin so, e.g. ``command-``.
        """
        host = cls()
        host.discovered = True
        by_name: dict[str, list[Provider]] = defaultdict(list)
        for plugin in (plugins := installed_plugins(prefix)):
            if not enabled(plugin):
                host.disabled.append(plugin.name)
                continue
            provider = Provider(name=plugin.name, dist=plugin.dist, version=plugin.version)
            by_name[plugin.name].append(provider)
            host._waiting[provider] = plugin
            if prefix or strict or plugin.dist not in components_of():
                host._load(host._waiting.pop(provider), provider)
        names = {name for plugin in plugins for name in (plugin.name, plugin.dist)}
        for name in [] if prefix else sorted((listed(ALLOW) or set()) - names):
            error = f"{ALLOW} names it, but no such plugin is installed{nearest(name, names)}"
            host._record(Provider(name=name, dist="", version=""), error, "")
        for name in [] if prefix else sorted((listed(DENY) or set()) - names):
            note = f"{DENY}: no plugin {shown(name)} is installed{nearest(name, names).partition(' (have')[0]}"
            warnings.warn(note, TopoplanWarning, stacklevel=2)
        host._shared_names = [
            Conflict(subject=f"entry point {name!r}", providers=tuple(providers))
            for name, providers in sorted(by_name.items())
            if len(providers) > 1
        ]
        if strict and (problems := [*host.broken, *host.conflicts]):
            raise TopoplanError(str(problems[0]))
        return host

    def add(self, plugin: object, *, name: str | None = None, replace: bool = False) -> None:
        """Add a plugin to this host, and to the worker processes of what it runs.

        Args:
            plugin: a class of component or command, several of them, or a module or an object with hook
                implementations.  To add the same one again changes nothing.
            name: for messages and for `replace`; a component has ``kind-name`` unless given, a module its own.
            replace: take the place of what was added under this name, and of components of the same names, whoever
                brought them.  A notebook's cell that says so can be run again.

        Raises:
            TopoplanError: it cannot be used; nothing of it is added then.
        """
        several = [plugin] if is_component(plugin) else plugin
        classes = [unguarded(each) for each in several] if isinstance(several, list | tuple) else None
        hits = (is_component(c) and any(e.component is c for e in self._known(c.kind, c.name)) for c in classes or ())
        if classes and not replace and all(hits):
            return
        source = plugin if classes is None else classes
        provider = Provider(name=name or name_of(source), dist="", version="")
        if any(added.plugin is plugin and added.name == provider.name for added in self.added):
            return
        if classes is not None or replace:
            self._make_room(source, provider, replace=replace)
        self._add(source, provider)
        self.added = [added for added in self.added if added.name != provider.name]
        self.added.append(Added(source, provider.name, replace))

    def has(self, kind: type[Registered] | Kind | str, name: str) -> bool:
        """Say whether there is a component or a command of that name that can be used."""
        return bool(self._found(_kind(kind), name)) and self._conflict(_kind(kind), name) is None

    def _make_room(self, plugin: object, provider: Provider, *, replace: bool) -> None:
        """Take out what a plugin replaces, or refuse it where others have its names; nothing changes if it is wrong."""
        trial = Host()
        trial._add(plugin, provider)
        for kind, name in trial._index:
            if (entries := self._known(kind, name)) and not replace:
                raise TopoplanError(
                    f"{kind.value} {name!r}: {entries[0].provider} has one of this name "
                    "(replace=True takes its place in this host)"
                )
        self._drop(provider.name, trial._index)

    def _drop(self, name: str, keys: Iterable[tuple[Kind, str]]) -> None:
        """Take out what was added under a name, and the components of these keys."""
        if self._manager.has_plugin(name):
            self._manager.unregister(name=name)
        gone = set(keys)
        for key in list(self._index):
            entries = [] if key in gone else [entry for entry in self._index[key] if entry.provider.name != name]
            if entries:
                self._index[key] = entries
            else:
                del self._index[key]

    @overload
    def get(self, kind: Kind | str, name: str) -> type[Any]: ...
    @overload
    def get(self, kind: type[R] | Kind | str, name: str) -> type[R]: ...
    def get(self, kind: type[R] | Kind | str, name: str) -> type[R]:
        """Return the class of a component or a command; ``kind`` may be its base class, as `Topology`.

        Raises:
            TopoplanError: there is none of that name, or plugins are in conflict about it.  The message
                says what exists and which plugins are broken.
        """
        return cast("type[R]", self._entry(_kind(kind), name).guarded)

    def _entry(self, kind: Kind, text: str) -> _Entry:
        """Find ``name``, or ``distribution/name`` where several distributions have one of that name."""
        dist, slash, name = text.rpartition("/")
        name = name.lower() if kind is Kind.MACHINE else name
        entries = self._found(kind, name)
        hits = [entry for entry in entries if dist in (entry.provider.dist, entry.provider.name)] if slash else entries
        if not hits:
            names = {n for k, n in self._index if k is kind} | set(CORE_COMMANDS if kind is Kind.COMMAND else ())
            raise TopoplanError(unknown(kind, text, names, self.broken, self.disabled))
        conflict = None if len(hits) == 1 and slash else self._conflict(kind, name)
        if conflict is not None:
            ways = " or ".join(f"{p.dist or p.name}/{name}" for p in conflict.providers)
            raise TopoplanError(f"{conflict}; write {ways}, or disable one with {DENY}=<distribution>")
        return hits[0]

    @overload
    def make(
        self, kind: Kind | str, text: str, options: Mapping[str, Any] | None = None, *, allow_code: bool = False
    ) -> Any: ...
    @overload
    def make(
        self,
        kind: type[C] | Kind | str,
        text: str,
        options: Mapping[str, Any] | None = None,
        *,
        allow_code: bool = False,
    ) -> C: ...
    def make(
        self,
        kind: type[C] | Kind | str,
        text: str,
        options: Mapping[str, Any] | None = None,
        *,
        allow_code: bool = False,
    ) -> C:
        """Make a component from ``name`` or ``name:key=value,...`` and a table of options.

        With ``allow_code`` options may name code that is imported and run; those of a file must not, unless its user
        says so.

        Raises:
            CodeRefusedError: an option runs code, where this is not allowed.
            TopoplanError: the component or an option is unknown, wrong, or given in both places.
        """
        kind = _kind(kind)
        name, text_options = parse_component(text, kind.value)
        cls = cast("type[C]", self._entry(kind, name).guarded)
        table = dict(options or {})
        spelt = {key.replace("-", "_") for key in table}
        for key in text_options:
            if key.replace("-", "_") in spelt:
                raise TopoplanError(f"{kind.value} {text!r}: {key!r} is given twice (here and beside it)")
        return structure(cls, {**table, **text_options}, f"{kind.value} {name}", allow_code=allow_code)

    @overload
    def components(self, kind: Kind | str | None = None) -> list[type[Any]]: ...
    @overload
    def components(self, kind: type[C] | Kind | str | None = None) -> list[type[C]]: ...
    def components(self, kind: type[C] | Kind | str | None = None) -> list[type[C]]:
        """List the usable components, of one kind or all, sorted by kind and name."""
        kinds = {*Kind} if kind is None else {_kind(kind)}
        self._load_waiting(lambda rows: any(row[0] in kinds for row in rows))
        return [
            cast("type[C]", entries[0].guarded)
            for (each, name), entries in self._sorted()
            if each in kinds - {Kind.COMMAND} and self._conflict(each, name) is None
        ]

    def listing(self) -> list[Row]:
        """List all components and commands, conflicting ones included, with the distributions that provide them."""
        self._load_waiting()
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

    def provider(self, component: Registered | type[Registered]) -> Provider:
        """Return where a component or command of this host comes from."""
        cls = component if isinstance(component, type) else type(component)
        for entry in self._known(cls.kind, cls.name):
            if cls in (entry.component, entry.guarded):
                return entry.provider
        raise TopoplanError(f"{cls.kind.value} {cls.name!r} does not belong to this host")

    @property
    def broken(self) -> list[Broken]:
        """What is installed and cannot be used, and why; all plugins are loaded to know."""
        self._load_waiting()
        return self._broken

    @property
    def modules(self) -> Mapping[str, Provider]:
        """The name of a module, or of the package that it is in -> the plugin whose code it holds, of all plugins."""
        self._load_waiting()
        return self._modules

    @property
    def load_seconds(self) -> Mapping[Provider, float]:
        """How long each installed plugin took to be imported, with what it was the first to import."""
        self._load_waiting()
        return self._load_seconds

    @property
    def conflicts(self) -> list[Conflict]:
        """Every name that several plugins claim."""
        self._load_waiting()
        claims = (self._conflict(kind, name) for (kind, name), entries in self._sorted() if len(entries) > 1)
        return [*self._shared_names, *filter(None, claims)]

    @property
    def hook(self) -> pluggy.HookRelay:
        """The hooks, called as pluggy calls them; an observer that raises is reported once, and called no more."""
        return self._manager.hook

    # ── How plugins come in ────────────────────────────────────────────────────────────────────────────

    def _found(self, kind: Kind, name: str) -> list[_Entry]:
        """Return what has this name, once those plugins are loaded that are known to; if none has it, once all are."""
        if not self._known(kind, name):
            self._load_waiting()
        return self._known(kind, name)

    def _known(self, kind: Kind, name: str) -> list[_Entry]:
        """Return what has this name, once the plugins are loaded that are known to have it."""
        if (kind, name) not in self._sought:
            self._sought.add((kind, name))
            self._load_waiting(lambda rows: (kind, name) in rows)
        return self._index.get((kind, name), [])

    def _load_waiting(self, condition: Callable[[Collection[tuple[Kind, str]]], bool] = lambda rows: True) -> None:
        """Load the plugins that wait, in order, of whose components, kinds and names, a condition holds."""
        for provider in list(self._waiting):
            if provider in self._waiting and condition(components_of()[provider.dist]):
                self._load(self._waiting.pop(provider), provider)  # taken out before: it may ask for others

    def _load(self, installed: InstalledPlugin, provider: Provider) -> None:
        """Load and add one entry point; whatever goes wrong becomes a `Broken`."""
        point, started = installed.point, time.perf_counter()
        try:
            check_requirements(installed.dist, installed.requires)
            with printing_aside():
                self._add(point.load(), provider)
        except TopoplanError as error:
            self._record(provider, str(error), "" if error.__cause__ is None else traceback.format_exc())
        except (Exception, SystemExit) as error:  # a plugin may do anything at all while it is imported
            self._record(provider, f"{point.value} does not load: {exception_line(error)}", traceback.format_exc())
        self._load_seconds[provider] = time.perf_counter() - started

    def _record(self, provider: Provider, error: str, details: str) -> None:
        self._broken.append(Broken(**attrs.asdict(provider), error=error, details=details))

    def _add(self, plugin: object, provider: Provider) -> None:
        """Index the components of a plugin, or of a list of them: all of them, or none and a `TopoplanError`."""
        functions: list[object] = []
        if isinstance(plugin, list):
            classes = check_classes(plugin, provider.name)
        else:
            classes, functions = self._register(plugin, provider)
        for cls in classes:
            self._index[cls.kind, cls.name].append(_Entry(cls, provider))
        self._modules.update(dict.fromkeys(modules_of([*classes, *functions]), provider))

    def _register(self, plugin: object, provider: Provider) -> tuple[list[type[Registered]], list[object]]:
        """Register a module or an object; return its components, and the functions that implement its hooks."""
        hooks = hooks_of(plugin)
        key = f"{provider.name} of {provider.dist}" if provider.dist else provider.name
        if self._manager.has_plugin(key):
            raise TopoplanError(f"plugin {key!r}: already added")
        try:
            # Not atomic by itself: it keeps what it registered before its own checks failed.
            self._manager.register(observing_safely(plugin, hooks, key), key)
            return components_from(hooks), list(hooks.values())
        except Exception as error:
            if self._manager.has_plugin(key):
                self._manager.unregister(name=key)
            if isinstance(error, TopoplanError):
                raise
            raise TopoplanError(exception_line(error)) from error

    # ── How questions are answered ─────────────────────────────────────────────────────────────────────

    def _sorted(self) -> list[tuple[tuple[Kind, str], list[_Entry]]]:
        order = list(Kind)
        return sorted(self._index.items(), key=lambda item: (order.index(item[0][0]), item[0][1]))

    def _conflict(self, kind: Kind, name: str) -> Conflict | None:
        entries = self._index[kind, name]
        if len(entries) > 1:
            # Whatever was loaded first: those that are installed, by distribution, and those that were added, in order.
            providers = sorted((entry.provider for entry in entries), key=lambda each: (not each.dist, each.dist))
            return Conflict(subject=f"{kind.value} {name!r}", providers=tuple(providers))
        return next((shared for shared in self._shared_names if entries[0].provider in shared.providers), None)


class _Manager(pluggy.PluginManager):
    def parse_hookimpl_opts(self, plugin: object, name: str) -> Any:  # most of what a module holds was imported
        return super().parse_hookimpl_opts(plugin, name) if marked(plugin, name) else None


def _kind(kind: type[Registered] | Kind | str) -> Kind:
    if isinstance(kind, type):
        return kind.kind
    try:
        return Kind(kind)
    except ValueError:
        raise TopoplanError(f"no kind of component named {kind!r}{nearest(kind, (k.value for k in Kind))}") from None
