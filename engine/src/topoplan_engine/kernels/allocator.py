"""Memory that a search frees and needs again at once stays with the process.

Each simulation allocates some megabytes and frees them.  glibc gives blocks of this size back to the system, which
must clear their pages anew for the next simulation: up to a fifth of its time.
"""

from __future__ import annotations

import ctypes
import functools

__all__ = ["keep_freed_memory"]

#: `mallopt` parameters of glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
#: Bytes of free memory that the process keeps, and of the smallest block that it always gives back.
_KEPT, _LARGE = 256 << 20, 32 << 20


@functools.cache
def keep_freed_memory() -> bool:
    """Let the process keep up to 256 MiB of freed memory; say whether the C library can (glibc alone)."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _KEPT)) and bool(mallopt(_MMAP_THRESHOLD, _LARGE))
