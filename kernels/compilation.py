"""Kernels compiled ahead of their first launch, several at a time.

Triton compiles a kernel when it is first launched, one after another and on one core. Here launches
are only noted first, and what Triton has not compiled before is compiled by forks of this process,
which fill Triton's cache on disk; the launches that come later find it there. The forks never touch
a GPU. Whatever fails here is left to the first launch.

Importing this module does not import Triton.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

_PATIENCE_S = 60
"""Seconds without a compiled kernel after which the forks are taken to be stuck."""


@dataclass(frozen=True, slots=True)
class WantedKernel:
    """A kernel that has to be compiled, or loaded, before it can be launched.

    Attributes
    ----------
    module, name
        Where the kernel is defined.
    specialization
        The arguments' types and constants, in Triton's own words.
    is_stored
        Whether Triton's cache on disk has it.
    """

    module: str
    name: str
    specialization: str
    is_stored: bool


def wanted_kernels(launch: Callable[[], object]) -> list[WantedKernel]:
    """What `launch` would compile or load, each once. These kernels are not launched, others are.

    So whatever it computes is worthless, and it must not harm.
    """
    from triton import knobs

    wanted: dict[tuple[str, str, str], WantedKernel] = {}

    def note(*, fn: Any, compile: dict[str, Any], **_: object) -> bool:
        kernel = fn.module, fn.name, compile["specialization_data"]
        # A layer launches what the one before it did, and looking a kernel up takes its time.
        if kernel not in wanted:
            is_stored = _is_stored(fn.jit_function, compile, json.loads(kernel[2])["options"])
            wanted[kernel] = WantedKernel(*kernel, is_stored)
        return True

    before = knobs.runtime.jit_cache_hook
    knobs.runtime.jit_cache_hook = note
    try:
        launch()
    finally:
        knobs.runtime.jit_cache_hook = before
    return list(wanted.values())


def compile_in_parallel(wanted: Iterable[WantedKernel]) -> None:
    """Put those of the kernels into Triton's cache that it lacks, on all cores, and wait."""
    from triton.runtime import driver

    missing = list(dict.fromkeys(kernel for kernel in wanted if not kernel.is_stored))
    forks = min(len(missing), len(os.sched_getaffinity(0)))
    if forks < 2:
        return
    device, target = driver.active.get_current_device(), driver.active.get_current_target()
    # What Triton's own driver knows, for processes in which that driver must not ask the GPU.
    known = SimpleNamespace(
        get_current_device=lambda: device,
        get_current_target=lambda: target,
        launcher_cls=getattr(driver.active, "launcher_cls", None),
    )
    try:
        # Python warns of forks beside threads: a lock held by another thread is never released in
        # the fork. The patience is for that.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            pool = multiprocessing.get_context("fork").Pool(forks, _begin_fork, (known,))
        with pool:
            compiled = pool.imap_unordered(_compile, missing)
            for _ in missing:
                compiled.next(_PATIENCE_S)
    except (AssertionError, OSError, multiprocessing.TimeoutError):
        # A daemon of multiprocessing may have no children, a system no more processes.
        return


def _begin_fork(driver_that_is_known: SimpleNamespace) -> None:
    from triton.runtime import driver

    driver.set_active(driver_that_is_known)
    # The caller's handlers are Python, which a process that is stuck does not run.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _compile(kernel: WantedKernel) -> None:
    """Fill Triton's cache with the kernel, and with the C code that launches it (Triton 3.6)."""
    from triton.runtime import driver

    try:
        compiled = getattr(sys.modules[kernel.module], kernel.name).preload(kernel.specialization)
        driver.active.launcher_cls(compiled.src, compiled.metadata)
    except Exception:  # a compiler raises whatever it likes, and will again at the first launch
        return


def _is_stored(kernel: Any, compile: dict[str, Any], options: dict[str, Any]) -> bool:
    """Whether Triton's cache on disk has the kernel, looked up as `triton.compile` does."""
    from triton._C.libtriton import get_cache_invalidating_env_vars
    from triton.runtime.cache import get_cache_key, get_cache_manager

    backend = kernel.device_caches[compile["device"]][3]
    # JSON knows no tuples, by whose text options are told apart.
    options = {name: tuple(v) if isinstance(v, list) else v for name, v in options.items()}
    source = kernel.ASTSource(
        kernel, compile["signature"], compile["constants"], compile["configs"][0]
    )
    key = get_cache_key(
        source, backend, backend.parse_options(options), env_vars=get_cache_invalidating_env_vars()
    )
    group = get_cache_manager(sha256(key.encode()).hexdigest())
    return bool(group.get_group(f"{source.name[:150]}.json"))
