"""How much memory a process may have, and what needs more than that, refused before it is begun.

A process that takes more than the machine has is killed without a word.  What it may have is the least of the memory
of the machine, the limits of its control groups (containers, jobs), and its own limit of address space; what other
processes hold just now does not count, so that the same command ends in the same way every time.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from topoplan_engine.interrupt import OversizeError

__all__ = ["available_bytes", "check_memory"]

#: Where control groups say how much memory a process may have, of the second and the first version.
_LIMITS = (("", "memory.max"), ("memory", "memory.limit_in_bytes"))
#: What Python, the compiled kernels and the network hold beside what is estimated.
_BASE = 300_000_000


def available_bytes(process: Path = Path("/proc/self"), groups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the bytes that this process may hold at most; None where nothing says so.

    Args:
        process: has ``cgroup``, the control groups of the process.
        groups: where these are.

    Example:
        >>> available_bytes() > 0
        True
    """
    limits = [*_of_groups(process, groups), *_of_process(), *_of_machine()]
    return min(limits, default=None)


def check_memory(what: str, nbytes: int, advice: str) -> None:
    """Refuse what needs more bytes than there are.

    Args:
        what: it is, with its number.
        nbytes: that it needs.
        advice: what would need less.

    Raises:
        OversizeError: there are fewer; a search leaves the candidate out.

    Example:
        >>> check_memory("plan: 1,000 tasks", 208_000, "use fewer devices")
    """
    most = available_bytes()
    if most is not None and nbytes + _BASE > most:
        needed = _gigabytes(nbytes + _BASE)
        raise OversizeError(
            f"{what} take some {needed} of memory, and this process may have {_gigabytes(most)} ({advice})"
        )


def _gigabytes(nbytes: int) -> str:
    return f"{nbytes / 1e9:.1f} GB"


def _of_groups(process: Path, groups: Path) -> list[int]:
    """Return the limits of the control groups of a process, and of those around them."""
    try:
        rows = (process / "cgroup").read_text().splitlines()
    except OSError:
        return []
    limits = []
    for controller, name in _LIMITS:
        for row in rows:
            _, controllers, place = [*row.split(":", 2), "", ""][:3]
            if controller not in controllers.split(","):
                continue
            group = Path(place.lstrip("/"))
            for part in (group, *group.parents):
                limits += _limit(groups / controller / part / name)
    return limits


def _limit(path: Path) -> list[int]:
    """Return the number in a file; nothing where there is none, as for ``max``."""
    try:
        text = path.read_text().strip()
    except OSError:
        return []
    return [int(text)] if re.fullmatch(r"[0-9]{1,18}", text) else []


def _of_process() -> list[int]:
    try:
        import resource
    except ImportError:  # Windows
        return []
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    return [] if soft in (resource.RLIM_INFINITY, -1) else [soft]


def _of_machine() -> list[int]:
    try:
        return [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    except (AttributeError, ValueError, OSError):  # Windows
        return []
