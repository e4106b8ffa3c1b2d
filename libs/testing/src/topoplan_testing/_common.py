"""Promises of every component, whatever its kind, and of machines and commands."""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import io
import math
import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import TypeVar

import attrs
import typer

from topoplan.options import describe, structure
from topoplan.plugin.components import CONTRACTS, Command, Component, Kind, Machine, Registered

C = TypeVar("C", bound=Component)

#: Packages that take longer to import than a command that needs none of them.
HEAVY = ("flatbuffers", "networkx", "numba", "scipy", "torch")


def example(component: type[C]) -> C:
    """Make a component with the options that it gives as its example."""
    return structure(component, component.example, f"example of {component.kind.value} {component.name}")


def build_example(component: type[Component]) -> object:
    """Build a component on a problem that suits its example; None for one that builds nothing."""
    import numpy as np

    from topoplan import Estimator, Frontend, Machine, Searcher, Simulator, Topology, TopologyContext
    from topoplan_testing import landscape, reference

    options, rng = example(component), np.random.default_rng(5)
    if isinstance(options, Frontend):
        return options.build(None)
    if isinstance(options, Machine | Simulator):
        return options.build()
    if isinstance(options, Topology):
        cluster = type(options).example_cluster() or reference.cluster(16)
        demand = reference.demand(cluster.n_hosts) if options.follows_demand else None
        return options.build(TopologyContext(cluster=cluster, demand=demand, rng=rng))
    if isinstance(options, Estimator):
        return options.build(reference.graph(), reference.cluster())
    return options.build(landscape.problem(), rng) if isinstance(options, Searcher) else None


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
        default = getattr(defaults, name)
        assert read == default, f"default of {info.key} is {default!r}, but {info.default!r} reads as {read!r}"


def check_component_pickles(component: type[Registered]) -> None:
    """The component can be sent to another process: its class stands at the top of a module."""
    assert pickle.loads(pickle.dumps(component())) == component()


def check_import_is_light(component: type[Registered]) -> None:
    """Importing the plugin loads no heavy package; those belong inside `build` or `app`."""
    module = component.__module__
    loaded = heavy_after_import(module if module.startswith("topoplan.") else module.partition(".")[0])
    assert not loaded, f"importing {module} loads {loaded}; import it inside build or app"


@contextlib.contextmanager
def global_randomness_untouched() -> Iterator[None]:
    """Raise `AssertionError` if numpy's own generator is used meanwhile."""
    import numpy as np

    before = np.random.get_state()  # noqa: NPY002 - it is the global one that must not be used
    yield
    after = np.random.get_state()  # noqa: NPY002
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True)), "np.random's own state has changed"


def check_no_optional_name_is_misspelt(component: type[Component]) -> None:
    """No method or attribute, of the class or of what it builds, is called nearly as an optional one."""
    from topoplan import CostFunction, Search, Simulate

    _assert_optional_names_are_spelt(component, CONTRACTS[component.kind])
    contracts = {Kind.ESTIMATOR: CostFunction, Kind.SEARCHER: Search, Kind.SIMULATOR: Simulate}
    if (contract := contracts.get(component.kind)) and isinstance(built := build_example(component), contract):
        _assert_optional_names_are_spelt(type(built), contract)


def _assert_optional_names_are_spelt(cls: type, contract: type) -> None:
    """Raise `AssertionError` where a name is nearly that of an optional one of the contract, which is not replaced."""
    optional = [name for name in dir(contract) if not name.startswith("_")]
    unused = [name for name in optional if inspect.getattr_static(cls, name) is inspect.getattr_static(contract, name)]
    options = {field.name for field in attrs.fields(cls)} if attrs.has(cls) else ()
    for name in dir(cls):
        if name.startswith("_") or name in options or hasattr(contract, name):
            continue
        close = difflib.get_close_matches(name, unused, n=1, cutoff=0.75)
        assert not close, f"{cls.__name__}.{name} is none of {contract.__name__}'s (did you mean {close[0]!r}?)"


@functools.cache
def heavy_after_import(module: str) -> str:
    """Name the heavy packages that importing ``module`` in a new process loads."""
    script = (
        f"import sys; sys.path[:] = {sys.path!r}; import {module}; "
        f"print(', '.join(name for name in {HEAVY!r} if name in sys.modules))"
    )
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert process.returncode == 0, f"import {module} fails: {process.stderr.strip().splitlines()[-1:]}"
    return process.stdout.strip()


def check_device_is_called_as_its_machine(component: type[Machine]) -> None:
    """Plans write the device's name, and read it as the machine's: both are the same but for their case.

    A machine that says what is inside a host may be called otherwise than its devices, or leave them to the cluster.
    """
    model = example(component).build()
    if not model.nodes:
        name = model.device.name if model.device else "nothing"
        assert name.lower() == component.name, f"the device is called {name!r}, and its machine {component.name!r}"


def check_nodes_are_joined(component: type[Machine]) -> None:
    """Every device of a host reaches every other one and every NIC."""
    model = example(component).build()
    if not model.links:
        assert model.n_devices <= 1, f"{model.n_devices} devices, and no link between them"
        return
    joined_nodes, new_nodes = {0}, [0]
    while new_nodes:
        node = new_nodes.pop()
        for link in model.links:
            for end, far_node in ((link.first, link.second), (link.second, link.first)):
                if end == node and far_node not in joined_nodes:
                    joined_nodes.add(far_node)
                    new_nodes.append(far_node)
    lone_nodes = [place for place in range(len(model.nodes)) if place not in joined_nodes]
    assert not lone_nodes, f"node {lone_nodes[0]} ({model.nodes[lone_nodes[0]]}) is joined to none of the others"


def check_hosts_have_sources(component: type[Machine]) -> None:
    """A machine that says what is inside a host says where that comes from."""
    model = example(component).build()
    assert not model.nodes or model.sources, "no sources (of what is inside a host)"


def check_figures_can_be_true(component: type[Machine]) -> None:
    """Figures are positive and finite, peaks are known in fp32, and shares of a peak are those of a known one."""
    device = example(component).build().device
    if device is None:
        return
    figures = {
        **{field: getattr(device, field) for field in ("memory_bandwidth", "memory", "kernel_overhead")},
        **{f"peak_flops[{precision}]": peak for precision, peak in device.peak_flops.items()},
    }
    for field, value in figures.items():
        assert 0 < value < math.inf, f"{field} is {value}"
    assert "fp32" in device.peak_flops, "no peak in fp32, which models are in unless users say otherwise"
    for precision, share in device.matmul_efficiency.items():
        assert precision in device.peak_flops, f"a share of the peak in {precision}, which is not known"
        assert 0 < share <= 1, f"{share} of the peak in {precision}"


def check_same_machine_twice(component: type[Machine]) -> None:
    """The same options give the same machine."""
    assert example(component).build() == example(component).build()


def check_app_shows_its_help(component: type[Command]) -> None:
    """The application can be made, more than once, and ``--help`` says something and ends well."""
    for _ in range(2):
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            status = typer.main.get_command(component().app()).main(["--help"], component.name, standalone_mode=False)
        assert not status, f"--help ends with status {status}"
        assert "--help" in output.getvalue(), "--help does not list options"
