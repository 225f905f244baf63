"""What a Hopper GPU gives a kernel (CUDA's programming guide and occupancy calculator, 9.0)."""

from __future__ import annotations

MULTIPROCESSORS = 132
"""Of an H100 SXM or an H200."""
SHARED_BYTES = 228 * 1024
"""Shared memory of a multiprocessor."""
RESERVED_BYTES = 1024
"""What the device adds to the shared memory of each program."""
SHARED_UNIT = 128
"""Shared memory is given out in so many bytes."""
MOST_SHARED_BYTES = SHARED_BYTES - RESERVED_BYTES
"""Shared memory that one program can have."""
CLUSTER_SIZES = (1, 2, 4, 8)
"""Programs of a cluster: powers of two, and no more than every Hopper GPU takes."""
GIVEN_SHARED_BYTES = 48 * 1024
"""Shared memory that a launch can have without the kernel's asking."""
