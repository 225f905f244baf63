# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""What Gluon calls differently from one Triton to the next."""

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

_memory = gl.shared_memory_descriptor

# Renamed by Triton 3.9, 3.7 and 3.9.
copy_tile = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
program_barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier
reinterpret = _memory.reinterpret if hasattr(_memory, "reinterpret") else _memory._reinterpret
