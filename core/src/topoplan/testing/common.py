"""Promises of every component, whatever its kind."""

from __future__ import annotations

import functools
import pickle
import subprocess
import sys
from typing import Any

import attrs

from topoplan.options import describe, structure
from topoplan.plugin.components import Component, Registered

__all__ = [
    "check_component_pickles",
    "check_default_options_can_be_written",
    "check_every_option_has_help",
    "check_example_is_accepted",
    "check_import_is_light",
    "check_options_are_frozen",
    "check_summary_is_one_line",
    "example_options",
    "heavy_after_import",
]

#: Packages that take longer to import than a command that needs none of them.
HEAVY = ("flatbuffers", "networkx", "numba", "scipy", "torch")


def example_options(component: Component) -> Any:
    """Return the options that a component gives as its example."""
    return structure(component.options, component.example, f"example of {component.kind.value} {component.name}")


def check_options_are_frozen(component: Component) -> None:
    """The options class is a frozen attrs class, and every option has a default."""
    assert attrs.has(component.options), f"{component.options!r} is not an attrs class"
    missing = [field.name for field in attrs.fields(component.options) if field.default is attrs.NOTHING]
    assert not missing, f"options without a default: {', '.join(missing)}"
    options = component.options()
    for field in attrs.fields(component.options):
        try:
            setattr(options, field.name, field.default)
        except attrs.exceptions.FrozenInstanceError:
            continue
        raise AssertionError(f"option {field.name!r} can be changed; use @attrs.frozen")


def check_every_option_has_help(component: Component) -> None:
    """Every option says what it means, as `option(..., help=...)`."""
    silent = [info.key for info in describe(component.options) if not info.help.strip()]
    assert not silent, f"options without help: {', '.join(silent)}"


def check_summary_is_one_line(component: Registered) -> None:
    """The summary is one line of at most 120 characters."""
    text = component.summary
    assert text.strip(), "no summary"
    assert "\n" not in text, "the summary has several lines"
    assert len(text) <= 120, f"the summary has {len(text)} characters"


def check_example_is_accepted(component: Component) -> None:
    """The example consists of known options with values of the right type and range."""
    example_options(component)


def check_default_options_can_be_written(component: Component) -> None:
    """Every default, as `topoplan plugins show` prints it, is read back as the same value."""
    defaults = component.options()
    for info in describe(component.options):
        if not info.default:
            continue
        name = info.key.replace("-", "_")
        read = getattr(structure(component.options, {info.key: info.default}, component.name), name)
        wanted = getattr(defaults, name)
        assert read == wanted, f"default of {info.key} is {wanted!r}, but {info.default!r} reads as {read!r}"


def check_component_pickles(component: Registered) -> None:
    """The component can be sent to another process: its functions stand at the top of a module."""
    assert pickle.loads(pickle.dumps(component)) == component


def check_import_is_light(component: Component) -> None:
    """Importing the plugin loads no heavy package; those belong inside `build`."""
    module = component.options.__module__
    loaded = heavy_after_import(module if module.startswith("topoplan.") else module.partition(".")[0])
    assert not loaded, f"importing {module} loads {loaded}; import it inside build"


@functools.cache
def heavy_after_import(module: str) -> str:
    """Name the heavy packages that importing ``module`` in a new process loads."""
    script = (
        f"import sys; sys.path[:] = {sys.path!r}; import {module}; "
        f"print(', '.join(name for name in {HEAVY!r} if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"import {module} fails: {done.stderr.strip().splitlines()[-1:]}"
    return done.stdout.strip()
