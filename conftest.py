"""How the tests run: the same examples every time, side by side, on kernels that are compiled once.

A run of the whole suite uses a process for each core, eight at most; a run of named files uses one.  ``-n`` of
pytest-xdist overrides this.  Property-based tests try two of five of the examples that they ask for, always the same;
``HYPOTHESIS_PROFILE=thorough`` tries all of them, ``HYPOTHESIS_PROFILE=explore`` new ones.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from numba.core.dispatcher import Dispatcher

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("thorough", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "repeatable")
settings.load_profile(PROFILE)

#: Objects after which Python looks for garbage, as in `topoplan` itself: collecting thousands of tests makes many.
gc.set_threshold(100_000)
MOST_PROCESSES = 8
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
    """Let processes that run side by side wait for each other's kernels, and print as wide as into a file."""
    if hasattr(config, "workerinput"):
        os.environ.pop("COLUMNS", None)  # of pytest's own terminal
        _compile_once(Path(config.option.basetemp).parent / "kernels")


def _compile_once(folder: Path) -> None:
    """Hold a lock for each function while numba looks for it on disk, compiles and keeps it."""
    try:
        import fcntl
    except ImportError:  # not on this system: then some are compiled twice
        return
    folder.mkdir(exist_ok=True)
    compile_one, held = Dispatcher.compile, set[str]()

    @contextlib.contextmanager
    def lock(name: str) -> Iterator[None]:
        if name in held:
            yield
            return
        with (folder / name).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            held.add(name)
            try:
                yield
            finally:
                held.remove(name)

    def compile_locked(self: Any, signature: Any) -> Any:
        with lock(f"{self.py_func.__module__}.{self.py_func.__qualname__}".replace("<locals>", "_")):
            return compile_one(self, signature)

    Dispatcher.compile = compile_locked


@pytest.fixture(scope="session", autouse=True)
def installed_plugins_are_read_once() -> Iterator[None]:
    """Remember what is installed, for each search for plugins reads some seventy distributions, and a command has two.

    Where a test has put folders on ``sys.path``, as those do that install a plugin, all is read anew.
    """
    from topoplan.plugin import entry_points, host

    path, read = list(sys.path), entry_points.installed_plugins
    remembered = functools.cache(lambda prefix: tuple(read(prefix)))

    def installed_plugins(prefix: str = "") -> list[entry_points.InstalledPlugin]:
        return list(remembered(prefix)) if sys.path == path else read(prefix)

    with pytest.MonkeyPatch.context() as patch:
        for module in (entry_points, host):
            patch.setattr(module, "installed_plugins", installed_plugins)
        yield


def pytest_collection_finish() -> None:
    """Look for garbage among what tests make alone, and not among all tests."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Check a component once: not by its package's own test where the test of all that is installed runs too."""
    central = {item.name for item in items if item.path == CONFORMANCE}
    plugins = config.rootpath / "plugins"
    twice = {item for item in items if item.name in central and item.path.is_relative_to(plugins)}
    if twice:
        config.hook.pytest_deselected(items=list(twice))
        items[:] = [item for item in items if item not in twice]
    if PROFILE == "repeatable":
        for function in {
            getattr(item.obj, "__func__", item.obj) for item in items if isinstance(item, pytest.Function)
        }:
            _fewer_examples(function)


def _fewer_examples(function: Any) -> None:
    """Have a property-based test try two of five examples, but at least ten (or what it asks for, if that is less)."""
    asked = getattr(function, "_hypothesis_internal_use_settings", None)
    if asked is not None:
        count = max(min(10, asked.max_examples), asked.max_examples * 2 // 5)
        function._hypothesis_internal_use_settings = settings(asked, max_examples=count)
