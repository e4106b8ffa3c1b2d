"""Kernels from files, loaded without what numba needs to compile one.

Numba makes itself ready to compile before it looks for a file, and again for each: it imports its functions of arrays,
and all others, which takes longer than the kernels of a short command.  It also reads the intermediate code of each
kernel that lies beside the machine code, for others that call it, and imports the modules of all functions that are
compiled into it: of numba's functions of arrays with SciPy's linear algebra, where that is installed.  `loaded` does
what is left; a `LoadedLibrary` reads the intermediate code once a kernel is compiled that calls this one.

Data flow: what `kept` makes of a compiled version is pickled (`topoplan_engine.kernels.caching`), and `loaded` makes a
version of it again.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import numba
import numpy as np
from llvmlite.binding import add_symbol, parse_bitcode
from numba.core import environment as numba_environment
from numba.core import types, utils
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompileResult
from numba.core.errors import NumbaNotImplementedError
from numba.core.runtime import rtsys
from numba.extending import typeof_impl
from numba.np import numpy_support

__all__ = ["LoadedLibrary", "kept", "loaded"]

#: How the names of variables begin that hold an environment, as numba mangles them.
_ENVIRONMENT = "_ZN08NumbaEnv"

_environment_of_module = numba_environment._rebuild_env


def _environment(module: str, constants: list[Any], name: str) -> Any:
    """Return the environment of a function that a kernel was compiled from, without importing a module of numba.

    Only code that runs in Python's interpreter reads what else the module has, and no kernel is such code.
    """
    environment = numba_environment.lookup_environment(name)
    if environment is not None or not module.startswith("numba.") or module in sys.modules:
        return environment or _environment_of_module(module, constants, name)
    environment = numba_environment.Environment({"__name__": module})
    environment.consts[:] = constants
    environment.env_name = name
    numba_environment.Environment._memo[name] = environment
    return environment


# Files of kernels name numba's function, and pickle looks it up when it reads one.
numba_environment._rebuild_env = _environment


# Numba asks twice for the signature of each function that it may compile, by a name that another version may lack.
if hasattr(utils, "pysignature"):
    utils.pysignature = functools.lru_cache(maxsize=1)(utils.pysignature)

_type_of_array = typeof_impl.dispatch(np.ndarray)


@typeof_impl.register(np.ndarray)
def _plain_array_type(array: Any, context: Any) -> Any:
    """Return numba's type of an array; numba would import masked arrays, to see that a plain one is none."""
    if type(array) is not np.ndarray:
        return _type_of_array(array, context)
    try:
        dtype = numpy_support.from_dtype(array.dtype)
    except NumbaNotImplementedError:
        return _type_of_array(array, context)
    return types.Array(dtype, array.ndim, numpy_support.map_layout(array), readonly=not array.flags.writeable)


class LoadedLibrary(JITCodeLibrary):  # type: ignore[misc]
    """A kernel's machine code, and its intermediate code, which is read if it is asked for."""

    _shared_module: Any

    def __init__(self, codegen: Any, name: str, machine_code: bytes, bitcode: bytes) -> None:
        super().__init__(codegen, name)
        self._bitcode = bitcode
        self.enable_object_caching()
        self._set_compiled_object(machine_code)
        self._finalize_final_module()

    def _get_module_for_linking(self) -> Any:
        if self._shared_module is None:
            self._shared_module = parse_bitcode(self._bitcode)
        return self._shared_module


def kept(version: Any) -> tuple[Any, ...]:
    """Return what is kept of a version of a kernel, as `CompileResult._reduce` does.

    Each function that is compiled into it has an environment: a module, and constants for values that go to Python.
    Of those without constants, the name is kept.
    """
    *columns, environments = version._reduce()
    entry_of = {entry.env_name: entry for entry in environments if entry.consts}
    names = [entry.name for entry in version.library._final_module.global_variables if not entry.is_declaration]
    return (*columns, tuple(entry_of.get(name, name) for name in names if name.startswith(_ENVIRONMENT)))


@functools.cache
def _begin(context: Any) -> None:
    """Tell LLVM where the functions of numba's runtime are that are written in C, as `rtsys.initialize` does.

    That one also compiles what is written in LLVM's code, for kernels that are compiled; it is called again for them.
    """
    helpers = getattr(sys.modules.get("numba.core.runtime._nrt_python"), "c_helpers", None)
    if not helpers or numba.config.NRT_STATS:
        rtsys.initialize(context)
        return
    for name, address in helpers.items():
        add_symbol(name if name.startswith("_") else f"NRT_{name}", address)


def loaded(context: Any, payload: tuple[Any, ...]) -> Any:
    """Return the version of a kernel that a file holds (`kept`), as `CompileResult._rebuild` does."""
    library_data, fndesc, environment, signature, objectmode, lifted, annotation, reload_init, environments = payload
    _begin(context)
    for function in reload_init:
        function()
    name, _, codes = library_data
    library = LoadedLibrary(context.codegen(), name, *codes)
    names = (fndesc.llvm_func_name, fndesc.llvm_cpython_wrapper_name)
    library.codegen._engine._defined_symbols.update(names)
    entry_point = context.get_executable(library, fndesc, environment)
    environments_of_others = tuple(entry for entry in environments if not isinstance(entry, str))
    for entry in environments:
        is_name = isinstance(entry, str)
        library.codegen.set_env(entry if is_name else entry.env_name, environment if is_name else entry)
    return CompileResult(
        typing_context=context.typing_context,
        target_context=context,
        entry_point=entry_point,
        typing_error=None,
        type_annotation=annotation,
        signature=signature,
        objectmode=objectmode,
        lifted=lifted,
        fndesc=fndesc,
        library=library,
        call_helper=None,
        environment=environment,
        metadata=None,
        reload_init=reload_init,
        referenced_envs=environments_of_others,  # kept, since the machine code has their addresses
    )
