"""The kernels that the engine launches for GPT-2 on a GPU, specialised as they are there.

An engine runs on a pretended GPU, and Triton's own binder specialises every launch by its
arguments. So the kernels compiled from here are those that run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain
from typing import Any
from unittest.mock import patch

from asv_bench.errors import MeasurementFailed
from asv_bench.lab.compiled import require_compiler, target
from asv_bench.lab.pretend_cuda import HOPPER, Launch, Traffic, pretended_cuda

MODEL, DTYPE = "gpt2", "fp16"
_LINEAR = ("N", "K", "BLOCK_M", "BLOCK_N", "BLOCK_K", "SPLIT_K", "X_TILES")
_HEAD = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "X_TILES")
_ATTENTION = ("D", "G", "SERIAL")

# Kernel -> the family of rules it is held to, and the constants that tell its variants apart, in
# the order in which a name shows them.
_KERNELS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "embed_rows": ("rows", ("TILES",)),
    "linear_tiles": ("linear", (*_LINEAR, "EVEN")),
    "linear_stream": ("linear", _LINEAR),
    "linear_row": ("vector", ("N", "K", "BLOCK_N")),
    "row_attention": ("vector", ("K", "HEADS")),
    "ring_attention": ("attention", (*_ATTENTION, "APPEND", "LATE", "STAGES", "SPARE", "CLUSTER")),
    "decode_attention_append": ("attention", _ATTENTION),
    "head_row": ("vector", ("K", "BLOCK_N")),
    "head_tiles": ("head", (*_HEAD, "EVEN")),
    "head_stream": ("head", _HEAD),
    "pick_tokens": ("rows", ("TILES",)),
    "rms_norm_rows": ("rows", ("E",)),
    "gated_rows": ("rows", ("N", "PACKED")),
    "turn_rows": ("rows", ("H", "D")),
    "statistics_rows": ("rows", ("N", "TILES")),
    "add_norm_rows": ("rows", ("E",)),
    "append_rows": ("append", ("H", "D", "ROWS", "COMMON")),
    "decode_attention": ("attention", _ATTENTION),
    "prefill_attention": ("attention", ("D", "G")),
    "draw_rows": ("rows", ("LANES",)),
}
_SHORT = {
    "BLOCK_M": "M",
    "BLOCK_N": "n",
    "BLOCK_K": "k",
    "SPLIT_K": "split",
    "X_TILES": "stats",
    "STAGES": "stages",
    "SPARE": "spare",
    "CLUSTER": "cluster",
    "ROWS": "rows",
}
# Values that go without saying, and the words for False and True.
_UNSAID = {"SPLIT_K": 1, "SPARE": 0, "CLUSTER": 1, "ROWS": 1}
_FLAGS = {
    "COMMON": ("", "common"),
    "EVEN": ("ragged", "even"),
    "SERIAL": ("parallel", "serial"),
    "APPEND": ("cached", "append"),
    "LATE": ("", "late"),
}


@dataclass(slots=True)
class LaunchedKernel:
    """One compilation that some launch of the engine asks for."""

    name: str
    family: str  # which rules it is held to, see `tests/kernels/codegen/rules.py`
    dtype: str
    # What `triton.compile` takes.
    source: Any
    options: Mapping[str, Any]
    # Launched by programmatic dependent launch: it starts before its producers have ended.
    is_dependent: bool
    # Batch buckets whose fused step launches it; empty for a kernel of the unfused path.
    rows: list[int] = field(default_factory=list)


def launched_kernels(batch_sizes: Iterable[int]) -> list[LaunchedKernel]:
    """Every distinct kernel of greedy and sampled decoding and of prefill, on a Hopper GPU.

    An engine of each size is built, with every bucket of batches up to it. Raises MeasurementFailed
    if the engine launches a kernel that no rules are written for, and Refused under Triton's
    interpreter.
    """
    return distinct(chain.from_iterable(engine_launches(size, HOPPER) for size in batch_sizes))


def distinct(launches: Iterable[tuple[Launch, int | None]]) -> list[LaunchedKernel]:
    """Each compilation once, with the buckets that launch it."""
    found: dict[object, LaunchedKernel] = {}
    for launch, rows in launches:
        known = found.setdefault(*_specialised(launch))
        if rows is not None and rows not in known.rows:
            known.rows.append(rows)
    # Those that only their arguments' types and alignment tell apart get a number.
    seen: Counter[str] = Counter()
    for kernel in found.values():
        kernel.rows.sort()
        seen[kernel.name] += 1
        if (count := seen[kernel.name]) > 1:
            kernel.name = f"{kernel.name}-{count}"
    return sorted(found.values(), key=lambda one: one.name)


@contextmanager
def pretended(gpu: tuple[int, int]) -> Iterator[Traffic]:
    """A pretended GPU of that capability, whatever the process knew of one before it."""
    from kernels.backend import capability

    require_compiler()
    capability.cache_clear()
    with pretended_cuda(gpu) as traffic:
        yield traffic
    capability.cache_clear()


def engine_launches(batch_size: int, gpu: tuple[int, int]) -> Iterator[tuple[Launch, int | None]]:
    """Launches of an engine's captures, fused and not, and of a prefill, with their buckets."""
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
        rows: int | None = None
        for launch in traffic.launches:
            if launch.name == "embed_rows":
                rows = launch.grid[0]
            yield launch, rows
            if launch.name == "pick_tokens":
                rows = None


def _specialised(launch: Launch) -> tuple[object, LaunchedKernel]:
    """The launch as Triton specialises it at first sight, after what tells it from others."""
    if launch.name not in _KERNELS:
        raise MeasurementFailed(
            f"the engine launches the kernel {launch.name}, which "
            "asv_bench.lab.launched_kernels does not know: add it there, with the "
            "family of rules that it must keep."
        )
    kernel = launch.kernel
    backend, bind = _binder(kernel)
    options = {**launch.options, "debug": False, "instrumentation_mode": ""}
    bound, specialization, extra = bind(*launch.arguments, **options)
    parsed, signature, constants, attributes = kernel._pack_args(
        backend, options, bound, specialization, extra
    )
    names = kernel.arg_names
    values = {names[place[0]]: value for place, value in constants.items() if len(place) == 1}
    made = parsed.__dict__
    found = LaunchedKernel(
        name=_name(launch.name, values),
        family=_KERNELS[launch.name][0],
        dtype=DTYPE,
        source=_source_class(kernel)(kernel, signature, constants, attributes),
        options=made,
        is_dependent=bool(launch.options.get("launch_pdl")),
    )
    tuned = [made[name] for name in ("num_warps", "num_stages", "launch_pdl")]
    by_place = (sorted(one.items()) for one in (found.source.constants, found.source.attrs))
    return repr((found.name, found.source.signature, *by_place, *tuned)), found


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


def _name(kernel: str, constants: Mapping[str, Any]) -> str:
    parts = [kernel]
    for constant in _KERNELS[kernel][1]:
        value = constants.get(constant)
        if constant in _FLAGS and value is not None:
            parts.append(_FLAGS[constant][value])
        # The kernel of an older commit may lack it.
        elif value not in (None, _UNSAID.get(constant)):
            parts.append(f"{_SHORT.get(constant, constant)}{value}")
    return "-".join(filter(None, parts))
