"""Kernels compiled ahead of their first launch, several at a time.

Triton compiles a kernel when it is first launched, one after another and on one core. Here launches
are only noted first, and what Triton has not compiled before is compiled in processes of its own,
which fill Triton's cache on disk; the launches that come later find it there. The processes never
touch a GPU. Whatever fails here is left to the first launch.

Importing this module does not import Triton.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from types import SimpleNamespace
from typing import Any

_TIMEOUT_S = 300
_RUN = "from kernels.compilation import main; main()"


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
    processes = min(len(missing), len(os.sched_getaffinity(0)))
    if processes < 2:
        return
    target = driver.active.get_current_target()
    request = {
        "target": [target.backend, target.arch, target.warp_size],
        "processes": processes,
        "kernels": [[one.module, one.name, one.specialization] for one in missing],
    }
    path = os.pathsep.join(os.path.abspath(folder) for folder in sys.path)
    try:
        subprocess.run(
            [sys.executable, "-P", "-c", _RUN],
            input=json.dumps(request),
            text=True,
            env={**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return


def main() -> None:
    """Compile what standard input lists: import everything once, then fork."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    request = json.load(sys.stdin)
    target = GPUTarget(*request["target"])
    for module in {module for module, _, _ in request["kernels"]}:
        import_module(module)
    # In place of Triton's own driver, which would look for a GPU.
    driver.set_active(
        SimpleNamespace(get_current_device=lambda: 0, get_current_target=lambda: target)
    )
    with multiprocessing.get_context("fork").Pool(request["processes"]) as pool:
        for _ in pool.imap_unordered(_compile, request["kernels"]):
            pass


def _compile(kernel: tuple[str, str, str]) -> None:
    module, name, specialization = kernel
    try:
        getattr(sys.modules[module], name).preload(specialization)
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
