"""A notice for the wait that a user meets on a new machine: kernels are compiled on their first use, and cached.

Commands use different kernels, so that there may be a wait more than once, but for no kernel again.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import typer

__all__ = ["compilation_announced"]


def compilation_announced() -> AbstractContextManager[None]:
    """Context manager that prints a notice on standard error if a kernel is compiled inside it."""
    from topoplan_engine.kernels.jit import on_compilation

    notice = "compiling kernels that this machine has not run before; they are cached (up to a minute) ..."
    return on_compilation(lambda: typer.echo(notice, err=True))
