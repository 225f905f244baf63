"""Counts and times the functions of any Python of a life, in which it lies as sitecustomize.py.

Each process leaves `PROCESS-TIME.json` beside this file: whether others kept it from its core or
shared its work, or it waits by itself, and of each function of Python its name, file, calls, and
microseconds without other functions. Times are of work where a file `work` lies there. What
profiling makes of a call is measured, and left out. Pythons may be older than the ruler's, and lack
it.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import sys
import threading
import time
from cProfile import Profile
from functools import partial
from types import FunctionType
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_LATE, _WAITS = 0.05, 0.2
"""Of its time: what a process waits for a core on a busy machine, and one that waits by itself."""
_SHORT_S, _READS_S = 0.1, 0.02
"""A process that is so short may have been lucky, and a reader of files waits so long at times."""
_IS_OF_ALL = sys.version_info >= (3, 12)  # a profile is of all threads since then
_IS_OF_WORK = os.path.exists(os.path.join(_HERE, "work"))
_work = time.process_time if _IS_OF_ALL else time.thread_time
_clock = _work if _IS_OF_WORK else time.perf_counter
_of_work = partial(Profile, _work, builtins=False)
_new = _of_work if _IS_OF_WORK else partial(Profile, builtins=False)
_CALLS, _WITHIN = 500, 0.5 if _IS_OF_WORK else 0.3
"""To find out what profiling makes of a call, and how much of that is read within the function."""
_profiles: list[Profile] = []  # one for each thread


def _times() -> tuple[float, float, float]:
    """The time that went by, that of work, and that in which it waited for a core."""
    late = 0.0
    with contextlib.suppress(OSError), open("/proc/self/schedstat") as file:
        late = float(file.read().split()[1]) / 1e9
    return time.perf_counter(), time.process_time(), late


def _begin(*_: object) -> None:
    """Profile the thread that calls this."""
    sys.setprofile(None)
    _profiles.append(_new())
    if len(_profiles) == 1 or not _IS_OF_ALL:
        _profiles[-1].enable()


def _begin_fork() -> None:
    """Leave to the parent what it did before the fork."""
    while _profiles:
        _profiles.pop().disable()
    _begin()


def _exit(code: int) -> None:
    """End a process as a fork does, which does not take Python apart."""
    _leave()
    _end(code)


def _leave() -> None:
    """Write what was seen, once."""
    took, worked, late = (now - then for now, then in zip(_times(), _begun))  # noqa: B905
    is_shared = len(_profiles) > 1
    for profile in _profiles:
        profile.disable()
    entries: list[Any] = [entry for profile in _profiles for entry in profile.getstats()]
    _profiles.clear()
    if not entries:
        return
    import gc
    import json

    is_disturbed = is_shared or late > _LATE * took or took < _SHORT_S
    waits = not is_shared and took - late - worked > max(_READS_S, _WAITS * (took - late))
    # Before Python 3.11 code does not say which class it is of.
    objects = [] if hasattr(_leave.__code__, "co_qualname") else gc.get_objects()
    names = {one.__code__: one.__qualname__ for one in objects if isinstance(one, FunctionType)}
    folders = [f"{one}{os.sep}" for one in (os.environ.get("KVTRAIL_TREE"), *sys.path) if one]
    longer, rows = min(_longer(), _longer_before), []
    for entry in entries:
        file, made = entry.code.co_filename, sum(one.callcount for one in entry.calls or ())
        if not file.startswith(_HERE):
            name = getattr(entry.code, "co_qualname", "") or names.get(entry.code, "")
            path = os.path.abspath(file) if file[:1] != "<" else file
            # As it is called wherever its tree lies.
            within = max((len(one) for one in folders if path.startswith(one)), default=0)
            longest = longer * (_WITHIN * entry.callcount + (1 - _WITHIN) * made)
            own = 1e6 * max(0.0, entry.inlinetime - longest)
            rows.append([name or entry.code.co_name, path[within:], entry.callcount, own])
    with open(os.path.join(_HERE, f"{os.getpid()}-{time.time_ns()}.json"), "w") as left:
        json.dump({"is_disturbed": is_disturbed, "waits": waits, "functions": rows}, left)


def _longer() -> float:
    """Seconds that a call takes longer where it is profiled."""

    def nothing() -> None:
        pass

    def call(_: object = None) -> float:
        begun = _clock()
        for _ in range(_CALLS):
            nothing()
        return _clock() - begun

    plain, profile = min(map(call, range(9))), _new()
    return max(0.0, min(profile.runcall(call) for _ in range(9)) - plain) / _CALLS


if __name__ == "sitecustomize":
    # The one that this hides comes first, if there is one.
    sys.path[:] = [path for path in sys.path if path != _HERE]
    own = sys.modules.pop("sitecustomize")
    with contextlib.suppress(ImportError):
        importlib.import_module("sitecustomize")
    sys.modules.setdefault("sitecustomize", own)
    _end, os._exit = os._exit, _exit  # type: ignore[assignment]
    atexit.register(_leave)
    os.register_at_fork(after_in_child=_begin_fork)
    threading.setprofile(_begin)
    _longer_before = _longer()
    _begun = _times()
    _begin()
