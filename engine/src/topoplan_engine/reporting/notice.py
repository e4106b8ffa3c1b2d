"""Word of the wait that a user meets on a new machine: kernels are compiled on their first use and then kept.

Commands use different ones, so that there may be a wait more than once, but for no kernel again.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import typer

__all__ = ["compilation_announced"]


def compilation_announced() -> AbstractContextManager[None]:
    """Say on standard error when kernels are compiled, where that happens while the context lasts."""
    from topoplan_engine.kernels.jit import on_compilation

    told = "compiling kernels that this machine has not run before; they are kept (up to 15 s) ..."
    return on_compilation(lambda: typer.echo(told, err=True))
