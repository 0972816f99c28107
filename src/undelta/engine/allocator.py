"""The C library's allocator, told to keep what tensors free.

glibc gives memory at the heap's end back to the system when enough of it is free, and the next tensors there are
faulted in again, page by page, and zeroed. An iteration allocates the same activations as the one before it, and up to
a fifth of its time went into that (docs/performance.md).
"""

from __future__ import annotations

import ctypes
import os
from functools import cache

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
KEPT = 2**31 - 1  # bytes at the heap's end; the most that mallopt takes
MAPPED = 2**25  # bytes at or above which a block is mapped by itself; the most that glibc takes
USERS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_MAX_")


@cache
def keep_freed_memory() -> bool:
    """Make glibc keep freed memory for the rest of the process; return whether it agreed.

    It is not asked where the user has settings of their own for the allocator.
    """
    if any(name in os.environ for name in USERS) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    try:
        library = ctypes.CDLL(None)
        if not hasattr(library, "gnu_get_libc_version"):
            return False
        mallopt = library.mallopt
    except (OSError, TypeError, AttributeError):  # Windows has no such handle
        return False
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    return bool(mallopt(M_MMAP_THRESHOLD, MAPPED)) and bool(mallopt(M_TRIM_THRESHOLD, KEPT))
