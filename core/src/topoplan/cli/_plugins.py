"""``topoplan plugins``: what is installed, what its options are, and what is wrong with it."""

from __future__ import annotations

import importlib.util
import json
import math
import shutil
import sys
import textwrap
import traceback
import warnings
from typing import TYPE_CHECKING

import typer

from topoplan.errors import PluginError, TopoplanError, nearest

if TYPE_CHECKING:
    from topoplan.plugin.components import Component, Registered
    from topoplan.plugin.host import Host, Provider

#: Seconds of a plugin's import that `topoplan plugins doctor` shows.
_SLOW = 1.0


def register(app: typer.Typer) -> None:
    """Add ``plugins`` with ``show`` and ``doctor``."""
    group = typer.Typer(invoke_without_command=True, rich_markup_mode=None)
    group.callback(help="List components and commands; show their options; find what is broken.")(_list)
    group.command("list", help="List components and commands, as `topoplan plugins` alone does.")(_list)
    group.command("show")(_show)
    group.command("doctor")(_doctor)
    app.add_typer(group, name="plugins")


def _list(
    context: typer.Context,
    kind: str = typer.Option("", "--kind", help="Only components of this kind, e.g. topology."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a table."),
) -> None:
    if context.invoked_subcommand is not None:
        return
    import attrs

    from topoplan.plugin.components import Kind
    from topoplan.plugin.host import Host

    kinds = [each.value for each in Kind]
    if kind and kind not in kinds:
        raise TopoplanError(f"--kind {kind!r}: no such kind (have: {', '.join(kinds)})")
    host = Host.discover()
    listing = [row for row in host.listing() if kind in ("", row.kind)]
    if as_json:
        document = {
            "components": [attrs.asdict(row) for row in listing],
            "broken": [attrs.asdict(broken) for broken in host.broken],
            "conflicts": [attrs.asdict(conflict) for conflict in host.conflicts],
            "disabled": host.disabled,
        }
        typer.echo(json.dumps(document, indent=2))
        return
    rows = [(r.kind, r.name, f"{r.distribution} {r.version}".strip(), r.summary) for r in listing]
    typer.echo(_overview([("KIND", "NAME", "FROM", "SUMMARY"), *rows], _columns()))
    for problem in (*host.broken, *host.conflicts):
        typer.echo(f"warning: {problem}", err=True)
    if host.broken or host.conflicts:
        typer.echo("run `topoplan plugins doctor` for causes and remedies", err=True)


def _show(name: str = typer.Argument(help="A component, e.g. `fattree`, or `topology:fattree`.")) -> None:
    """Show a component and all its options, or say how a command shows its own."""
    from topoplan.plugin.host import Host

    host = Host.discover()
    typer.echo("\n\n".join(_sheet(component, host) for component in _named(host, name)))


def _doctor() -> None:
    """Load every plugin, build the examples; tell warnings, and what is wrong; then exit 1."""
    from topoplan.plugin.host import Host

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        failures = _failures(host := Host.discover())
    rows = host.listing()
    typer.echo(f"{len(rows)} components and commands from {len({row.distribution for row in rows})} distributions")
    for warning in caught:  # of names that are deprecated, for example
        typer.echo(f"WARNING {warning.message} ({warning.filename}:{warning.lineno})")
    for provider, seconds in host.load_seconds.items():
        if seconds >= _SLOW:
            typer.echo(f"SLOW plugin {provider.name!r} ({provider}): {seconds:.1f} s to import, in every command")
            typer.echo("  to fix: import what is heavy inside of build")
    if host.disabled:
        typer.echo(f"disabled: {', '.join(host.disabled)}")
    problems = [(f"BROKEN {broken}", broken.details, remedy(broken.dist, broken.name)) for broken in host.broken]
    for conflict in host.conflicts:
        names = " or ".join(p.dist or p.name for p in conflict.providers)
        problems.append((f"CONFLICT {conflict}", "", f"uninstall {names}, or name one in TOPOPLAN_DISABLE_PLUGINS"))
    for provider, error in failures:
        details = "" if error.__cause__ is None else "".join(traceback.format_exception(error.__cause__))
        problems.append((f"BROKEN {error}", details, remedy(provider.dist, provider.name)))
    for problem, details, fix in problems:
        typer.echo("\n".join([f"\n{problem}", *(f"    {line}" for line in details.rstrip().splitlines())]))
        typer.echo(f"  to fix: {fix}")
    if problems:
        raise typer.Exit(1)
    more = " and build (topoplan.testing checks how they behave)"
    typer.echo(f"all plugins load{more if _has_kit() else ' (with topoplan-testing, this builds their examples, too)'}")


def _named(host: Host, name: str) -> list[type[Registered]]:
    """Return what is called ``kind:name``, or ``name`` of whatever kind."""
    kind, colon, component_name = name.partition(":")
    if colon:
        return [host.get(kind, component_name)]
    kinds = sorted({row.kind for row in host.listing() if row.name in (name, row.kind == "machine" and name.lower())})
    if not kinds:
        names = {row.name for row in host.listing()}
        broken = "".join(f"; {broken}" for broken in host.broken[:2])
        raise TopoplanError(f"no component named {name!r}{nearest(name, names)}{broken}")
    return [host.get(kind, name) for kind in kinds]


def _sheet(component: type[Registered], host: Host) -> str:
    """Lay out one component and its options as text."""
    from topoplan.options import describe
    from topoplan.plugin.components import Component

    head = f"{component.kind.value} {component.name} ({host.provider(component)})\n  {component.summary}"
    if not issubclass(component, Component):
        return f"{head}\n\n  topoplan {component.name} --help shows its options"
    rows = [
        (o.key, f"{o.type} [{o.unit}]" if o.unit else o.type, o.default, f"{o.help} ({o.range})" if o.range else o.help)
        for o in describe(component)
    ]
    if not rows:
        return f"{head}\n\n  no options"
    table = _table([("OPTION", "TYPE", "DEFAULT", "MEANING"), *rows], _columns() - 2)
    return head + "\n\n" + "\n".join(f"  {line}" for line in table.splitlines())


def _columns() -> float:
    """Return the width of the terminal; no limit where the output is read by a program."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else math.inf


def _overview(rows: list[tuple[str, ...]], columns: float) -> str:
    """Lay out the list of components; a narrow terminal leaves out where they come from."""
    whole = _table(rows, math.inf)
    if max(map(len, whole.splitlines())) <= columns:
        return whole
    narrow = _table([(kind, name, summary) for kind, name, _, summary in rows], columns)
    return f"{narrow}\n\n`topoplan plugins --json`, or a wider terminal, shows the packages."


def _table(rows: list[tuple[str, ...]], columns: float) -> str:
    """Align columns; the last one is broken into lines where the terminal is narrow, of 24 columns at least."""
    widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:-1]]
    indent = sum(widths) + 2 * len(widths)
    width = max(columns - indent, 24)
    lines = []
    for row in rows:
        head = "".join(cell.ljust(width) + "  " for cell, width in zip(row, widths, strict=False))
        text = [row[-1]] if len(row[-1]) <= width else textwrap.wrap(row[-1], int(width)) or [""]
        lines += [(head + text[0]).rstrip(), *(" " * indent + more for more in text[1:])]
    return "\n".join(lines)


def _failures(host: Host) -> list[tuple[Provider, PluginError]]:
    """Build the example of every component; return what raised anything but a `TopoplanError`, which a kit judges."""
    if not _has_kit():
        return []
    from topoplan.testing import build_example

    problems = []
    components: list[type[Component]] = host.components()
    for component in components:
        try:
            build_example(component)
        except TopoplanError as error:
            problems += [(host.provider(component), error)] if isinstance(error, PluginError) else []
    return problems


def _has_kit() -> bool:
    """Say whether the conformance kit is installed, which knows a problem that suits each example."""
    return importlib.util.find_spec("topoplan_testing") is not None


def remedy(dist: str, name: str) -> str:
    """Say what to do about a plugin of a distribution; of one under development, where its source is."""
    if not dist:
        return f"install the plugin, or take {name!r} out of TOPOPLAN_PLUGINS"
    disabling = f"or set TOPOPLAN_DISABLE_PLUGINS={name}"
    if source := _source(dist):
        return f"correct it in {source}, where {dist} is being developed, {disabling}"
    return f"upgrade it (pip install -U {dist}), remove it (pip uninstall {dist}), {disabling}"


def _source(dist: str) -> str:
    """Return the folder of a distribution that is installed as editable; empty for others."""
    import importlib.metadata

    try:
        origin = json.loads(importlib.metadata.distribution(dist).read_text("direct_url.json") or "{}")
        return str(origin["url"]).removeprefix("file://") if origin.get("dir_info", {}).get("editable") else ""
    except (importlib.metadata.PackageNotFoundError, ValueError, KeyError, AttributeError):
        return ""
