"""How parts of kernels are compiled: to intermediate code of LLVM, and no further.

A part (`topoplan_engine.kernels.jit.part`) belongs to the kernels that call it, and is never called from Python.  Numba
would write machine code for it all the same, and optimize it together with all that it calls at every level of calls: a
third of the time that it takes to compile the simulator.  Here a part is simplified by itself, once; what it calls is
linked where a kernel needs it, and optimized and translated there.

Data flow: `pipeline` has the steps of numba but for the last ones; `_PartLowering` puts what numba has lowered into a
`PartLibrary`, and makes it known to kernels that call the part.  They link with it as with any other library.
"""

from __future__ import annotations

from typing import Any

from llvmlite.binding import Linkage
from numba import _dynfunc
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import DefaultPassBuilder
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.typed_passes import (
    IRLegalization,
    NativeLowering,
    NoPythonBackend,
    NoPythonSupportedFeatureValidation,
)

__all__ = ["PartLibrary", "pipeline"]


class PartLibrary(JITCodeLibrary):  # type: ignore[misc]
    """Intermediate code of a part, and the libraries of what it calls."""

    _shared_module: Any

    def finalize(self) -> None:
        """Say that nothing is added any more."""
        self._raise_if_finalized()
        for library in self._linking_libraries:
            self._reload_init.update(library._reload_init)
        self._finalize_dynamic_globals()
        self._finalized = True

    def _optimize_functions(self, module: Any) -> None:
        """Simplify what was lowered, as numba does, but with one manager of passes for all functions."""
        module.data_layout = self._codegen._data_layout
        passes, builder = self._codegen._function_pass_manager()
        for function in module.functions:
            if not function.is_declaration:
                passes.run(function, builder)

    def _get_module_for_linking(self) -> Any:
        """Return the code of the part and of all that it calls."""
        self._ensure_finalized()
        if self._shared_module is None:
            module = self._final_module.clone()
            for library in _called(self):
                linked = (
                    library._final_module if isinstance(library, PartLibrary) else library._get_module_for_linking()
                )
                module.link_in(linked, preserve=True)
            for function in module.functions:
                if not function.is_declaration and function.linkage == Linkage.external:
                    function.linkage = "linkonce_odr"
            self._shared_module = module
        return self._shared_module


def _called(part: PartLibrary) -> list[Any]:
    """Return the libraries of all that a part calls, directly or by other parts, each once."""
    libraries: dict[Any, None] = {}
    queue = list(part._linking_libraries)
    while queue:
        library = queue.pop()
        if library not in libraries:
            libraries[library] = None
            if isinstance(library, PartLibrary):
                queue += library._linking_libraries
    return list(libraries)


@register_pass(mutates_CFG=True, analysis_only=False)
class _PartLowering(NativeLowering):  # type: ignore[misc]
    """Lowering of a part to intermediate code."""

    _name = "topoplan_part_lowering"

    def run_pass(self, state: Any) -> bool:
        """Lower, and make the part known to the kernels that call it."""
        library = state.library = PartLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        lowered = state["cr"]
        name = lowered.fndesc.qualname.rpartition(".")[2]
        # Numba tells functions apart by such an object; its address is none, for there is nothing to call.
        handle = _dynfunc.make_function(lowered.fndesc.lookup_module(), name, name, 0, lowered.env, (library,))
        state.targetctx.insert_user_function(handle, lowered.fndesc, [library])
        state.reload_init.extend(library._reload_init)
        state["cr"] = lowered._replace(cfunc=handle)
        return True


def pipeline(state: Any) -> Any:
    """Return the steps in which a part is compiled: numba's own, but for the last ones."""
    steps = PassManager("topoplan_part")
    steps.passes.extend(DefaultPassBuilder.define_untyped_pipeline(state).passes)
    steps.passes.extend(DefaultPassBuilder.define_typed_pipeline(state).passes)
    steps.add_pass(NoPythonSupportedFeatureValidation, "ensure features that are in use are in a valid form")
    steps.add_pass(IRLegalization, "ensure IR is legal prior to lowering")
    steps.add_pass(_PartLowering, "lower a part")
    steps.add_pass(NoPythonBackend, "nopython mode backend")
    steps.finalize()
    return steps
