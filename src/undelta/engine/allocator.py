"""The C library's allocator, told to keep what tensors free.

By default glibc gives blocks of many megabytes back to the system as soon as they are freed, and has the next tensor of
the same size faulted in again, page by page, and zeroed. An iteration allocates the same activations as the one before
it, so up to a third of its time went into that (docs/performance.md). Peak memory is the same.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
KEPT = 2**31 - 1  # bytes at the heap's end; the most that mallopt takes
MAPPED = 2**25  # bytes of a block from which on it is mapped by itself; the most that glibc takes


@cache
def keep_freed_memory() -> bool:
    """Keep it from now on, in the whole process; whether that could be asked for.

    Not where the user has settings of their own for the allocator, nor with another C library than glibc.
    """
    settled = "MALLOC_TRIM_THRESHOLD_" in os.environ or "MALLOC_MMAP_THRESHOLD_" in os.environ
    if settled or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
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
