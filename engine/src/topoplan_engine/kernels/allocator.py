"""Memory that a search frees and needs again at once stays with the process.

Each simulation allocates some megabytes and frees them, on many hosts some hundred.  glibc gives large blocks back to
the system, which must clear their pages anew for the next simulation: up to half of its time.
"""

from __future__ import annotations

import ctypes
import functools

__all__ = ["keep_freed_memory"]

#: `mallopt` parameters of glibc's malloc.h.  Blocks of 32 MiB and more are mapped one by one whatever the threshold
#: of mapping is; only where none may be mapped are they kept, too.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_NEVER, _NONE = -1, 0


@functools.cache
def keep_freed_memory() -> bool:
    """Let the process keep the memory that it has freed; say whether the C library can (glibc alone)."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _NEVER)) and bool(mallopt(_MMAP_MAX, _NONE))
