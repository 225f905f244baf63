"""Named ranges for profilers: NVTX for Nsight, record_function for the torch profiler.

Off unless `KVTRAIL_NVTX=1` is set when the engine is imported. When off, `span` hands back one
shared object whose enter and exit do nothing, so that the decode loop pays two empty calls.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext

RANGE_NAMES = (
    "schedule",
    "block_tables",
    "copies",
    "forward",
    "attention",
    "append",
    "sampling",
    "readback",
)
"""Every range the engine opens."""

ENABLED = os.environ.get("KVTRAIL_NVTX") == "1"

_NOTHING: AbstractContextManager[object] = nullcontext()

if ENABLED:
    import nvtx
    import torch

    class _Span:
        """One range, open in both profilers at once."""

        __slots__ = ("_name", "_record")

        def __init__(self, name: str) -> None:
            self._name = name
            self._record = torch.profiler.record_function(name)

        def __enter__(self) -> None:
            nvtx.push_range(self._name)
            self._record.__enter__()

        def __exit__(self, *exc: object) -> None:
            self._record.__exit__(None, None, None)
            nvtx.pop_range()

    def span(name: str) -> AbstractContextManager[object]:
        """Open the range `name` (one of `RANGE_NAMES`) around a with-block."""
        return _Span(name)

else:

    def span(name: str) -> AbstractContextManager[object]:
        """Do nothing: ranges are off. Set `KVTRAIL_NVTX=1` before importing to turn them on."""
        return _NOTHING
