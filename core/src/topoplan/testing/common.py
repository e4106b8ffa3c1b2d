"""Promises of every component, whatever its kind."""

from __future__ import annotations

import functools
import pickle
import subprocess
import sys
from typing import TypeVar

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
    "example",
    "heavy_after_import",
]

C = TypeVar("C", bound=Component)

#: Packages that take longer to import than a command that needs none of them.
HEAVY = ("flatbuffers", "networkx", "numba", "scipy", "torch")


def example(component: type[C]) -> C:
    """Make a component with the options that it gives as its example."""
    return structure(component, component.example, f"example of {component.kind.value} {component.name}")


def check_options_are_frozen(component: type[Component]) -> None:
    """The class is a frozen attrs class, and every option has a default."""
    missing = [field.name for field in attrs.fields(component) if field.default is attrs.NOTHING]
    assert not missing, f"options without a default: {', '.join(missing)}"
    options = component()
    for field in attrs.fields(component):
        try:
            setattr(options, field.name, field.default)
        except attrs.exceptions.FrozenInstanceError:
            continue
        raise AssertionError(f"option {field.name!r} can be changed; use @attrs.frozen")


def check_every_option_has_help(component: type[Component]) -> None:
    """Every option says what it means, as `option(..., help=...)`."""
    silent = [info.key for info in describe(component) if not info.help.strip()]
    assert not silent, f"options without help: {', '.join(silent)}"


def check_summary_is_one_line(component: type[Registered]) -> None:
    """The summary is one line of at most 120 characters."""
    text = component.summary
    assert text, "no summary (the first line of the docstring)"
    assert not (component.__doc__ or "").strip().partition("\n")[2].partition("\n")[0].strip(), (
        "the summary has several lines (leave one empty after the first of the docstring)"
    )
    assert len(text) <= 120, f"the summary has {len(text)} characters"


def check_example_is_accepted(component: type[Component]) -> None:
    """The example consists of known options with values of the right type and range."""
    example(component)


def check_default_options_can_be_written(component: type[Component]) -> None:
    """Every default, as `topoplan plugins show` prints it, is read back as the same value."""
    defaults = component()
    for info in describe(component):
        if not info.default:
            continue
        name = info.key.replace("-", "_")
        read = getattr(structure(component, {info.key: info.default}, component.name), name)
        wanted = getattr(defaults, name)
        assert read == wanted, f"default of {info.key} is {wanted!r}, but {info.default!r} reads as {read!r}"


def check_component_pickles(component: type[Registered]) -> None:
    """The component can be sent to another process: its class stands at the top of a module."""
    assert pickle.loads(pickle.dumps(component())) == component()


def check_import_is_light(component: type[Component]) -> None:
    """Importing the plugin loads no heavy package; those belong inside `build`."""
    module = component.__module__
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
