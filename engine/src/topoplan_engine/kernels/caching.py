"""Where compiled kernels are kept: those that a package brought along, then those that this machine has compiled.

A package may hold kernels compiled for any CPU of a platform, in a folder `SHIPPED` beside its modules; `shipping`
writes them.  They are looked up first, and only read.  A kernel that is not there, or does not fit, is looked for where
numba keeps what it compiles (beside the source, in the user's cache, or in ``NUMBA_CACHE_DIR``), then compiled and kept
there.  A folder that cannot be used is left alone: the kernel is compiled, and nothing is kept.

An entry fits if these are the same as when it was compiled:

* numba, llvmlite, the minor version of Python, the platform: what numba's own index asks for, and llvmlite;
* what the kernel was compiled from: the text of its module and of the modules of all kernels that it calls, which are
  compiled into it, and the constants that they use;
* the fields of the named tuples that it is called with.

Processes that need the same kernel at the same time compile it once: who begins holds a lock on a file beside the
cache, and the others wait for what it keeps.  Where a folder knows no locks, each compiles for itself.

Times and folders of files do not matter.  Entries are pickles, as all of numba's.  They lie in the package's own
folder: who can change them there can change the code of the package, too.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import os
import sys
import types
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numpy as np
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.dispatcher import Dispatcher

from topoplan_engine.kernels.deferred import Part
from topoplan_engine.kernels.loading import kept, loaded

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["SHIPPED", "KernelCache", "are_shipped", "shipping"]

#: Folder of a package that holds its compiled kernels.
SHIPPED = "compiled_kernels"
#: A CPU that every machine of the platform is, and its features, as numba says them.
_ANY_CPU = ("generic", "")
#: Settings of numba that change what is compiled, and are no part of its index.
_SETTINGS = ("BOUNDSCHECK", "CPU_FEATURES", "DEBUGINFO", "ENABLE_AVX", "ENABLE_PROFILING", "LOOP_VECTORIZE", "OPT")
_PLAIN = (bool, int, float, complex, str, bytes, tuple, np.generic, np.ndarray, types.NoneType)

#: Files without their endings of the kernels that were called inside `shipping`; None outside.
_called: set[str] | None = None
#: Held while such files are read or written.
_lock: AbstractContextManager[Any] = contextlib.nullcontext()
#: Folder for the locks of kernels that are compiled inside `shipping`; None where processes do not wait for each other.
_turns: Path | None = None


@contextlib.contextmanager
def shipping(lock: AbstractContextManager[Any] | None = None, turns: Path | None = None) -> Iterator[set[str]]:
    """Context manager in which kernels that are compiled are kept in the folders `SHIPPED` of their packages.

    It gives the names of their files, up to the version of Python, which grow as kernels are called.  Numba must
    compile for any CPU: ``NUMBA_CPU_NAME=generic`` when it is imported (`ValueError` otherwise).

    Args:
        lock: of all processes that do this at the same time, which then find each other's kernels: numba replaces an
            index of versions and the file of one version, one after the other.
        turns: a folder of all these processes, with which they compile each kernel once: who needs it waits for whoever
            compiles it.
    """
    global _called, _lock, _turns
    if _ANY_CPU[0] != numba.config.CPU_NAME:
        raise ValueError("NUMBA_CPU_NAME is not generic: kernels would run on this kind of CPU alone")
    _called, _lock, _turns = set(), lock or contextlib.nullcontext(), turns
    try:
        yield _called
    finally:
        _called, _lock, _turns = None, contextlib.nullcontext(), None


def are_shipped() -> bool:
    """Whether packages bring kernels along, or will: this one does, or this runs inside `shipping`."""
    folder = _shipped_folder(__name__)
    return folder is not None and (_called is not None or folder.is_dir())


class KernelCache(FunctionCache):  # type: ignore[misc]
    """Numba's cache of a function's compiled versions, behind those that its package brought along.

    Files are looked at when the function is first called, not when its module is imported.
    """

    def __init__(self, function: Any) -> None:
        self._py_func = function
        self._name = repr(function)
        #: The locked file, from a kernel that is not kept to its being kept.
        self._turn: Any = None
        self.enable()

    @functools.cached_property
    def _impl(self) -> Any:
        """Raises `RuntimeError` where no folder can be written."""
        return self._impl_class(self._py_func)

    @functools.cached_property
    def _cache_path(self) -> str:
        return str(self._impl.locator.get_cache_path())

    @functools.cached_property
    def _cache_file(self) -> Any:
        return IndexDataCacheFile(self._cache_path, self._impl.filename_base, _stamp(self._py_func))

    @functools.cached_property
    def _shipped(self) -> Any:
        """The package's compiled versions; None if it has none, or numba is set to compile otherwise."""
        folder = _shipped_folder(self._py_func.__module__)
        if folder is None or not (_called is not None or folder.is_dir()):
            return None
        function = f"{self._py_func.__module__}.{self._py_func.__qualname__}".replace("<", "").replace(">", "")
        name = f"{function}-{self._py_func.__code__.co_firstlineno}"
        if _called is not None:
            _called.add(name)
        return IndexDataCacheFile(str(folder), f"{name}.{_python()}", _stamp(self._py_func))

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        return (*super()._index_key(sig, codegen), _fields(sig))

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the kept version of the function for a signature; None if there is none that fits."""
        overload = self._load(sig, target_context)
        if overload is None and self._turn is None:
            self._turn = _locked(self)
            if self._turn is not None and (overload := self._load(sig, target_context)) is not None:
                self._end_turn()
        if overload is None:  # it will be compiled
            from topoplan_engine.kernels.frontend import shorten

            _load_array_functions()
            shorten()
        return overload

    def _load(self, sig: Any, target_context: Any) -> Any:
        overload = self._load_shipped(sig, target_context)
        return self._load_kept(sig, target_context) if overload is None and _called is None else overload

    def _load_kept(self, sig: Any, target_context: Any) -> Any:
        try:
            payload = self._cache_file.load(self._index_key(sig, target_context.codegen()))
            return None if payload is None else loaded(target_context, payload)
        except Exception:  # numba can raise anything about a file that was cut off, and the kernel can be compiled
            with contextlib.suppress(OSError, RuntimeError):
                self.flush()
            return None

    def _end_turn(self) -> None:
        if self._turn is not None:
            self._turn.close()
            self._turn = None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a version of the function; do nothing if there is no place for it."""
        if _called is not None:
            if self._shipped is not None:
                Path(self._shipped._cache_path).mkdir(exist_ok=True)
                with _lock:
                    self._shipped.save(self._index_key(sig, data.codegen), kept(data))
            self._end_turn()
            return
        with contextlib.suppress(OSError, RuntimeError):
            if self._impl.check_cachable(data):
                self._impl.locator.ensure_cache_path()
                self._cache_file.save(self._index_key(sig, data.codegen), kept(data))
        self._end_turn()

    def _load_shipped(self, sig: Any, target_context: Any) -> Any:
        if self._shipped is None:
            return None
        _, (platform, *_), *code = self._index_key(sig, target_context.codegen())
        try:
            with _lock:
                payload = self._shipped.load((sig, (platform, *_ANY_CPU), *code))
            return None if payload is None else loaded(target_context, payload)
        except Exception:  # as above
            return None


def _locked(cache: KernelCache) -> Any:
    """Wait until no other process compiles the function, then return its lock; None where there are no locks."""
    if fcntl is None or (_called is not None and _turns is None):
        return None
    try:
        folder = Path(cache._cache_path) if _turns is None else _turns
        file = (folder / f"{cache._impl.filename_base}.lock").open("ab")
    except (OSError, RuntimeError):
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError:
        file.close()
        return None
    return file


@functools.cache
def _load_array_functions() -> None:
    """Load numba's functions of arrays without SciPy, which takes as long as all else that numba loads for a kernel.

    Numba imports SciPy's linear algebra to see whether it is there.  No kernel here calls it, and numba looks again
    before it compiles one that does.
    """
    from numba.np import linalg

    if "scipy.linalg" in sys.modules or "numba.np.arraymath" in sys.modules or not hasattr(linalg, "ensure_blas"):
        return
    ensure_blas, linalg.ensure_blas = linalg.ensure_blas, lambda: None
    try:
        from numba.np import arraymath
    finally:
        linalg.ensure_blas = ensure_blas
    arraymath.ensure_blas = ensure_blas
    arraymath._HAVE_BLAS = importlib.util.find_spec("scipy") is not None


@functools.cache
def _shipped_folder(module: str) -> Path | None:
    """Return the folder for compiled kernels of a module's package."""
    is_any_cpu = numba.config.CPU_NAME in (None, _ANY_CPU[0])
    if not is_any_cpu or any(f"NUMBA_{name}" in os.environ for name in _SETTINGS):
        return None
    paths = getattr(sys.modules.get(module.partition(".")[0]), "__path__", None)
    return Path(next(iter(paths))) / SHIPPED if paths else None


def _python() -> str:
    return f"{sys.implementation.cache_tag}{getattr(sys, 'abiflags', '')}"


def _fields(sig: Any) -> tuple[Any, ...]:
    """Return the names of the fields of all named tuples in a signature: numba's types compare their classes alone."""
    return tuple(
        (getattr(getattr(kind, "instance_class", None), "_fields", ()), _fields(kind.types))
        for kind in sig
        if hasattr(kind, "types")
    )


def _stamp(function: Any) -> str:
    """Return a checksum of all that a kernel is compiled from, but its arguments."""
    modules, constants = _compiled_from(function)
    texts = sorted(_checksum(module) for module in modules)
    return hashlib.sha256(repr((_versions(), texts, sorted(constants))).encode()).hexdigest()


@functools.cache
def _versions() -> tuple[str, str]:
    return llvmlite.__version__, np.__version__.partition(".")[0]


@functools.cache
def _checksum(module: str) -> str:
    path = getattr(sys.modules[module], "__file__", None)
    return hashlib.sha256(Path(path).read_bytes()).hexdigest() if path else ""


def _compiled_from(function: Any) -> tuple[set[str], set[str]]:
    """Return the modules of a kernel and of all that it calls, and the constants that these use."""
    modules: set[str] = set()
    constants: set[str] = set()
    queue, kernels = [function], {function}
    while queue:
        caller = queue.pop()
        modules.add(caller.__module__)
        for name, value in _named(caller):
            if isinstance(value, Dispatcher | Part):
                if value.py_func not in kernels:
                    kernels.add(value.py_func)
                    queue.append(value.py_func)
            elif isinstance(value, _PLAIN):
                constants.add(f"{name}={value.tolist() if isinstance(value, np.ndarray) else value!r}")
            elif isinstance(value, type) and _may_differ(value.__module__, caller):
                modules.add(value.__module__)
    return modules, constants


def _named(function: Any) -> Iterator[tuple[str, Any]]:
    """Give names that a function uses with their values: globals, enclosed variables, attributes of modules."""
    names, codes = set[str](), [function.__code__]
    while codes:
        code = codes.pop()
        names.update(code.co_names)
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    enclosed = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    values = {name: function.__globals__[name] for name in names if name in function.__globals__}
    values |= {name: cell.cell_contents for name, cell in enclosed}
    yield from values.items()
    for value in values.values():
        if isinstance(value, types.ModuleType) and _may_differ(value.__name__, function):
            yield from ((name, vars(value)[name]) for name in names if name in vars(value))


def _may_differ(module: str, function: Any) -> bool:
    """Whether a module is of the function's own package or of this project: those whose versions are in no stamp."""
    package = module.partition(".")[0]
    return package == function.__module__.partition(".")[0] or package.startswith("topoplan")
