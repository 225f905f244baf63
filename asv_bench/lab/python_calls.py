"""How many Python functions a piece of code calls: exact, and the same in every process."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from types import FrameType

ENGINE_PACKAGES = ("engine", "kernels")
"""Whose calls are counted as the engine's own."""

GENERATED = "<string>"
"""What stands for a file where a function was generated."""

UNCOUNTED_PACKAGES = ("numpy",)
"""Baselines are not kept for each of its versions, so what it calls inside itself is left out."""


@dataclass(slots=True)
class PythonCalls:
    """Calls of Python functions; a generator that is resumed counts as called."""

    total: int = 0  # of all functions but numpy's
    engine: int = 0  # of functions defined in the files of the engine's packages


@contextmanager
def python_calls(
    packages: Sequence[str] = ENGINE_PACKAGES, *, with_generated: bool = False
) -> Iterator[PythonCalls]:
    """Count calls in this thread, inside the block. The garbage collector is off meanwhile.

    Calls of functions of `packages` are the engine's; `with_generated`, so are those of functions
    without a file: constructors of named tuples and dataclasses.
    """
    calls = PythonCalls()
    ours = (*_folders(packages), *((GENERATED,) if with_generated else ()))
    uncounted = _folders(UNCOUNTED_PACKAGES)

    def on_event(frame: FrameType, event: str, argument: object) -> None:
        path = frame.f_code.co_filename
        if event != "call" or path == __file__ or path.startswith(uncounted):
            return
        calls.total += 1
        calls.engine += path.startswith(ours)

    was_collecting = gc.isenabled()
    gc.disable()
    sys.setprofile(on_event)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        if was_collecting:
            gc.enable()


def _folders(packages: Sequence[str]) -> tuple[str, ...]:
    found = (util.find_spec(package) for package in packages)
    return tuple(f"{Path(spec.origin).parent}/" for spec in found if spec and spec.origin)
