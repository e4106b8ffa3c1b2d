"""Where a file names the component, or the cluster, that an error is about.

Errors of components begin with the kind and the name of what is wrong: ``searcher stated: tp: expected integer``.  Who
wrote it in a file of many tables has to know the file and the table: ``plans.toml: planner[1]: searcher[0]`` goes in
front.  What was typed on a command line has no such place.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from topoplan.errors import TopoplanError

__all__ = ["located", "locating"]


def located(error: TopoplanError, source: str) -> TopoplanError:
    """Put a place in front of an error, unless it is there; the error stays of its kind.

    Args:
        error: what is wrong.
        source: file and table; empty for none.

    >>> print(located(TopoplanError("no searcher named 'mcm'"), "plans.toml: searcher[0]"))
    plans.toml: searcher[0]: no searcher named 'mcm'
    """
    if source and not str(error).startswith(source):
        error.args = TopoplanError(f"{source}: {error}").args
    return error


@contextmanager
def locating(source: str) -> Iterator[None]:
    """Put a place in front of the errors raised meanwhile.

    >>> with locating("plans.toml: model"):
    ...     raise TopoplanError("no frontend named 'alexnex'")
    Traceback (most recent call last):
    topoplan.errors.TopoplanError: plans.toml: model: no frontend named 'alexnex'
    """
    try:
        yield
    except TopoplanError as error:
        located(error, source)
        raise
