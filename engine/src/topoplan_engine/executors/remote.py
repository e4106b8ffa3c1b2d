"""What a worker of another machine does with a job: check that it has the same plugins, and run it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from typing import Any

from topoplan.errors import TopoplanError
from topoplan.plugin.host import Host
from topoplan_engine.packing import sendable, unpacked
from topoplan_engine.workers import run_named

__all__ = ["check_versions", "one_at_a_time", "run_remote", "versions_of"]


def versions_of(host: Host) -> tuple[tuple[str, str], ...]:
    """Return the distributions that provide a host's components, with their versions."""
    return tuple(sorted({(row.distribution, row.version) for row in host.listing() if row.version}))


#: A worker process with several threads still computes one job at a time.
one_at_a_time = threading.Lock()


def run_remote(
    plugins: bytes, versions: tuple[tuple[str, str], ...], function: Callable[[Host, Any], Any], name: str, job: Any
) -> tuple[Any, Exception | None]:
    """Run a job in a worker; return its result or its error, which Dask would write into its log."""
    try:
        with one_at_a_time:
            check_versions(plugins, versions)
            return run_named(plugins, function, name, job), None
    except Exception as error:
        return None, sendable(error)


@cache
def check_versions(plugins: bytes, versions: tuple[tuple[str, str], ...]) -> None:
    """Raise `TopoplanError` where this worker's plugins are not those of the process that sends jobs."""
    installed = dict(versions_of(unpacked(plugins)))
    for distribution, version in versions:
        actual = installed.get(distribution, "(not installed)")
        if actual != version:
            raise TopoplanError(
                f"a Dask worker has {distribution} {actual} in place of {version} (install the same versions there)"
            )
