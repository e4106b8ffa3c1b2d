"""How the tests run: the same examples every time, side by side, on plugins that are loaded once.

A run of the whole suite uses a process for each core, eight at most; a run of named files uses one.  ``-n`` of
pytest-xdist overrides this.  Property-based tests try one of five of the examples that they ask for, always the same;
``HYPOTHESIS_PROFILE=thorough`` tries all of them, ``HYPOTHESIS_PROFILE=explore`` new ones.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import functools
import gc
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis.internal.conjecture import providers
from hypothesis.strategies import none

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("thorough", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "repeatable")
settings.load_profile(PROFILE)
if PROFILE == "repeatable" and hasattr(providers, "_get_local_constants"):
    # Constants of all modules that are imported would be tried too: reading these takes seconds, and which they are
    # depends on the tests before.
    providers._get_local_constants = lambda: providers._local_constants

#: Objects after which Python looks for garbage, as in `topoplan` itself: collecting thousands of tests makes many.
gc.set_threshold(100_000)
MOST_PROCESSES = 8
#: Tests that are run by themselves, rather than with all others.
FEW_TESTS = 1000
CONFORMANCE = Path(__file__).parent / "tests" / "test_conformance.py"


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Use all cores for a run that names no file, where pytest-xdist is installed and no other wish was said."""
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if not whole or not config.pluginmanager.hasplugin("xdist") or config.option.numprocesses is not None:
        return
    if not (hasattr(config, "workerinput") or config.option.usepdb or config.option.collectonly):
        config.option.numprocesses = pytest_xdist_auto_num_workers()
        config.option.dist = "worksteal"


def pytest_xdist_auto_num_workers() -> int:
    """Return how many processes ``-n auto`` means."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST_PROCESSES) if cores > 1 else 0


def pytest_configure(config: pytest.Config) -> None:
    """Print as wide as into a file, and share the work of rewriting assertions among processes."""
    if hasattr(config, "workerinput"):
        os.environ.pop("COLUMNS", None)  # of pytest's own terminal
        _rewrite_in_turns(config, int(config.workerinput["workerid"][2:]), config.workerinput["workercount"])


def _rewrite_in_turns(config: pytest.Config, number: int, count: int) -> None:
    """Rewrite assertions of the test files that are this process's share, and keep them as pytest does.

    Each process collects all files, in the same order: in a fresh checkout each would rewrite all of them, which takes
    half of the time of collecting.  A pytest that does this otherwise does it by itself.
    """
    if sys.dont_write_bytecode or config.getoption("assertmode") != "rewrite":
        return
    with contextlib.suppress(AttributeError, ImportError, TypeError):
        from _pytest.assertion import rewrite

        rewrite.traverse_node = ast.walk  # the same nodes, without a generator for each level of each assertion
        state = config.stash[rewrite.assertstate_key]
        folders = [folder for pattern in config.getini("testpaths") for folder in sorted(config.rootpath.glob(pattern))]
        paths = [path for folder in folders for path in sorted(folder.rglob("test_*.py"))]
        for path in paths[number::count]:
            cache = rewrite.get_cache_dir(path)
            kept = cache / f"{path.stem}{rewrite.PYC_TAIL}"
            if rewrite.try_makedirs(cache) and rewrite._read_pyc(path, kept) is None:
                stamp, code = rewrite._rewrite_test(path, config)
                rewrite._write_pyc(state, code, stamp, kept)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Remember what is installed, and the host that has loaded it: a command looks for some ninety plugins, twice.

    So do test files, for which components there are.  Each gets a copy of that host.  Where a test has put folders on
    ``sys.path``, as those do that install a plugin, or asks for a host that is strict, all is read and loaded anew.
    """
    if session.config.pluginmanager.hasplugin("dsession"):  # its workers collect and run the tests
        return
    from topoplan.plugin import entry_points, host

    path, read, discover = list(sys.path), entry_points.installed_plugins, host.Host.discover
    remembered = functools.cache(lambda prefix: tuple(read(prefix)))
    loaded = functools.cache(lambda prefix, *variables: discover(prefix=prefix))

    def installed_plugins(prefix: str = "") -> list[entry_points.InstalledPlugin]:
        return list(remembered(prefix)) if sys.path == path else read(prefix)

    @functools.wraps(discover.__func__)
    def discovered(cls: type[host.Host], strict: bool = False, prefix: str = "") -> host.Host:
        if strict or sys.path != path or host.installed_plugins is not installed_plugins:
            return discover(strict=strict, prefix=prefix)
        return _copied(loaded(prefix, os.environ.get(entry_points.ALLOW), os.environ.get(entry_points.DENY)))

    patch = pytest.MonkeyPatch()
    session.config.add_cleanup(patch.undo)
    for module in (entry_points, host):
        patch.setattr(module, "installed_plugins", installed_plugins)
    patch.setattr(host.Host, "discover", classmethod(discovered))


@pytest.fixture(scope="session", autouse=True)
def light_imports_share_a_process(request: pytest.FixtureRequest) -> Iterator[None]:
    """Look in one process which packages of plugins import nothing heavy, where many tests ask: one second each.

    It imports one after the other, as long as nothing heavy came along; the others are imported alone.
    """
    if request.session.testscollected < FEW_TESTS:
        yield
        return
    from topoplan.plugin.host import Host
    from topoplan_testing import _common

    alone = _common.heavy_after_import

    @functools.cache
    def light_imports() -> set[str]:
        host = Host.discover()
        modules = {host.get(row.kind, row.name).__module__ for row in host.listing()}
        packages = sorted(name if name.startswith("topoplan.") else name.partition(".")[0] for name in modules)
        script = (
            f"import sys; sys.path[:] = {sys.path!r}\n"
            f"for package in {packages!r}:\n"
            f"    __import__(package)\n"
            f"    if {{*{_common.HEAVY!r}}} & {{*sys.modules}}: break\n"
            f"    print(package)"
        )
        ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        return set(ended.stdout.split())

    @functools.wraps(alone)
    def heavy_after_import(module: str) -> str:
        return "" if module in light_imports() else alone(module)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_common, "heavy_after_import", heavy_after_import)
        yield


def _copied(host: Any) -> Any:
    """Return a host of its own with the same components and hooks: what is added to it is in no other one."""
    copied = type(host)()
    for name, value in vars(host).items():
        if name != "_manager":
            setattr(copied, name, copy.copy(value))
    copied._index = defaultdict(list, {key: list(entries) for key, entries in host._index.items()})
    for name, plugin in host._manager.list_name_plugin():
        copied._manager._name2plugin[name] = plugin
    for name, caller in vars(host._manager.hook).items():
        for implementation in caller.get_hookimpls():
            getattr(copied._manager.hook, name)._add_hookimpl(implementation)
    return copied


def pytest_collection_finish() -> None:
    """Look for garbage among what tests make alone, and not among all tests."""
    _try_nothing()
    gc.collect()
    gc.freeze()


@given(none())
def _try_nothing(value: None) -> None:
    """Have Hypothesis register what it does once in each process: it looks for garbage, which takes seconds later."""


@pytest.hookimpl(tryfirst=True, specname="pytest_collection_modifyitems")
def pytest_cases_by_day(items: list[pytest.Item]) -> None:
    """Mark as slow all but some cases of a test with the mark ``by_day``: the first, the last, and some between."""
    cases = defaultdict(list)
    for item in items:
        if item.get_closest_marker("by_day") is not None and item.get_closest_marker("slow") is None:
            cases[item.nodeid.partition("[")[0]].append(item)
    for several in cases.values():
        (count,) = several[0].get_closest_marker("by_day").args
        kept = {round(step * (len(several) - 1) / max(count - 1, 1)) for step in range(count)}
        for number, item in enumerate(several):
            if number not in kept and len(several) > count:
                item.add_marker(pytest.mark.slow)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Check a component once: not by its package's own test where the test of all that is installed runs too."""
    central = {_case(item) for item in items if item.path == CONFORMANCE and "-check_" in item.name}
    central |= {case.partition("-")[2] for case in central}  # some packages leave the kind out
    plugins = config.rootpath / "plugins"
    twice = {item for item in items if item.path.is_relative_to(plugins) and _case(item) in central}
    if twice:
        config.hook.pytest_deselected(items=list(twice))
        items[:] = [item for item in items if item not in twice]
    if PROFILE == "repeatable":
        for function in {
            getattr(item.obj, "__func__", item.obj) for item in items if isinstance(item, pytest.Function)
        }:
            _fewer_examples(function)


def _case(item: pytest.Item) -> str:
    """Return the name of one case of a test, such as ``searcher-mcmc-check_candidates_can_be_built``; else ''."""
    return item.name.partition("[")[2].removesuffix("]")


def _fewer_examples(function: Any) -> None:
    """Have a property-based test try one of five examples, but at least ten (or what it asks for, if that is less)."""
    asked = getattr(function, "_hypothesis_internal_use_settings", None)
    if asked is not None:
        count = max(min(10, asked.max_examples), asked.max_examples // 5)
        function._hypothesis_internal_use_settings = settings(asked, max_examples=count)
