"""The kernels that the engine launches for GPT-2 on a GPU, specialised as they are there.

An engine runs on a pretended GPU, and Triton's own binder specialises every launch by its
arguments. So the kernels compiled from here are those that run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any
from unittest.mock import patch

from asv_bench.lab.compiled import require_compiler, target
from asv_bench.lab.pretend_cuda import HOPPER, Launch, Traffic, pretended_cuda

MODEL = "gpt2"


@dataclass(slots=True)
class LaunchedKernel:
    """One compilation that some launch of the engine asks for."""

    name: str
    # What `triton.compile` takes.
    source: Any
    options: Mapping[str, Any]

    @property
    def key(self) -> str:
        """Its name and a hash of all that decides what it compiles to."""
        content = repr((self.source.hash(), sorted(self.options.items())))
        return f"{self.name}-{hashlib.sha256(content.encode()).hexdigest()[:16]}"


def launched_kernels(batch_size: int) -> dict[str, LaunchedKernel]:
    """Every distinct kernel of greedy and sampled decoding and of prefill, by its key.

    They are those of an engine on a Hopper GPU with every bucket of batches up to a size. Raises
    Refused under Triton's interpreter.
    """
    kernels = map(specialised, engine_launches(batch_size, HOPPER))
    return {kernel.key: kernel for kernel in kernels}


@contextmanager
def pretended(gpu: tuple[int, int]) -> Iterator[Traffic]:
    """A pretended GPU of that capability, whatever the process knew of one before it."""
    from kernels.backend import capability

    require_compiler()
    capability.cache_clear()
    with pretended_cuda(gpu) as traffic:
        yield traffic
    capability.cache_clear()


def engine_launches(batch_size: int, gpu: tuple[int, int]) -> list[Launch]:
    """Launches of an engine's captures, fused and not, and of a prefill, in their order."""
    from engine import Engine, EngineConfig, SamplingParams
    from engine.models.registry import RANDOM_CONFIGS

    # A layer behind another launches what all behind it do.
    few_layers = replace(RANDOM_CONFIGS[MODEL], num_layers=2)
    with pretended(gpu) as traffic, patch.dict(RANDOM_CONFIGS, {MODEL: few_layers}):
        for fuse in (True, False):
            engine = Engine(
                EngineConfig(
                    model=f"random:{MODEL}",
                    device="cuda",
                    dtype="float16",
                    max_batch_size=batch_size,
                    num_kv_blocks=4 * batch_size + 16,
                    # One bucket of prefills: all launch the same kernels.
                    prefill_max_tokens=64,
                    fuse=fuse,
                )
            )
            params = SamplingParams(max_new_tokens=2, temperature=1.0, ignore_eos=True)
            # Too long for decode steps to feed it: it is prefilled.
            engine.generate([list(range(1, 20))], params)
        return list(traffic.launches)


def specialised(launch: Launch) -> LaunchedKernel:
    """What a launch has Triton compile at first sight."""
    kernel = launch.kernel
    backend, bind = _binder(kernel)
    options = {**launch.options, "debug": False, "instrumentation_mode": ""}
    bound, specialization, extra = bind(*launch.arguments, **options)
    parsed, signature, constants, attributes = kernel._pack_args(
        backend, options, bound, specialization, extra
    )
    source = _source_class(kernel)(kernel, signature, constants, attributes)
    return LaunchedKernel(launch.name, source, parsed.__dict__)


@cache
def _binder(kernel: Any) -> tuple[Any, Any]:
    """The compiler's backend, and what binds and specialises a kernel's arguments for it."""
    from triton.compiler import make_backend
    from triton.runtime.jit import create_function_from_signature

    backend = make_backend(target())
    return backend, create_function_from_signature(kernel.signature, kernel.params, backend)


def _source_class(kernel: Any) -> Any:
    if kernel.is_gluon():
        from triton.experimental.gluon._runtime import GluonASTSource

        return GluonASTSource
    from triton.compiler import ASTSource

    return ASTSource
