"""Word of the one wait that a user meets on a new machine: kernels are compiled once and then kept."""

from __future__ import annotations

from contextlib import AbstractContextManager

import typer

__all__ = ["compilation_announced"]


def compilation_announced() -> AbstractContextManager[None]:
    """Say on standard error when kernels are compiled, where that happens while the context lasts."""
    from topoplan.kernels import on_compilation

    return on_compilation(lambda: typer.echo("compiling kernels for this machine, once (about 15 s) ...", err=True))
