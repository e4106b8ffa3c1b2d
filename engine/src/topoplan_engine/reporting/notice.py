"""A notice for the wait that a user meets on a new machine: kernels are compiled on their first use, and cached.

Commands use different kernels, so that there may be a wait more than once, but for no kernel again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import typer

__all__ = ["compilation_announced"]

_NOTICE = "compiling kernels that this machine has not run before; they are cached (up to a minute) ..."


@contextmanager
def compilation_announced(
    simulators: Sequence[str] = (), is_first: Callable[[], bool] = lambda: True
) -> Iterator[None]:
    """Context manager that prints a notice on standard error if a kernel is compiled inside it.

    Args:
        simulators: those that will be called, e.g. ``fluid:level=stepped``: with the first kernel that is compiled, a
            second process begins to compile theirs.
        is_first: asked then; of several processes that work together, the one prints that answers yes.
    """
    from topoplan_engine.kernels.jit import on_compilation

    with ExitStack() as stack:

        def announce() -> None:
            from topoplan_engine.reporting.ahead import ahead

            if is_first():
                typer.echo(_NOTICE, err=True)
            stack.enter_context(ahead(simulators))

        stack.enter_context(on_compilation(announce))
        yield
