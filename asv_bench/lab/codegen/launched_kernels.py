"""The kernels that the engine launches on a Hopper GPU, specialised as they are there.

An engine runs GPT-2 on a pretended GPU, and Triton's own binder specialises every launch by its
arguments. So the kernels compiled from here are those that run. The kernels for other GPUs come
from an engine on a pretended Ampere GPU. Attention with heads of 128, which GPT-2 lacks, is
launched by itself. Of other families fused steps of one layer are launched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from asv_bench.errors import MeasurementFailed
from asv_bench.lab.codegen.compiled import require_compiler, target
from asv_bench.lab.counters.pretend_cuda import HOPPER, Launch, Traffic, pretended_cuda

if TYPE_CHECKING:
    from kernels.tiles.variants import KernelVariant

MODEL, DTYPE = "gpt2", "fp16"
AMPERE = (8, 0)
BATCH_SIZES = (256, 1)
"""Engines to build: one with every bucket of `wide`, and that of `single`, whose rows are aligned
otherwise."""
PLAIN_BATCH_SIZE = 256
"""Of the engine on another GPU, whose tiles for single rows are Hopper's own."""
FAMILY_MODELS = ("llama-3.2-1b", "qwen3-0.6b", "qwen3-8b")
"""Built-in models with grouped heads of 64, and with normed heads of 128 behind small and large
maps."""
FAMILY_ROWS = (1, 64, 256)

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
_PLAIN = ("linear_tiles", "decode_attention_append", "head_tiles")
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
# A value's own word in a name; empty where it goes without saying.
_WORDS = {
    **dict.fromkeys([("SPLIT_K", 1), ("SPARE", 0), ("CLUSTER", 1), ("ROWS", 1)], ""),
    ("COMMON", False): "",
    ("LATE", False): "",
    ("COMMON", True): "common",
    ("EVEN", True): "even",
    ("EVEN", False): "ragged",
    ("SERIAL", True): "serial",
    ("SERIAL", False): "parallel",
    ("APPEND", True): "append",
    ("APPEND", False): "cached",
    ("LATE", True): "late",
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


def every_kernel() -> list[LaunchedKernel]:
    """All that this project compiles for a GPU. Raises Refused under Triton's interpreter."""
    from kernels.tiles.variants import kernel_variants

    return [
        *launched_kernels(),
        *plain_kernels(),
        *wide_head_kernels(),
        *family_kernels(),
        # The plain kernels for the heads of other models, which are described and not launched.
        *map(described_kernel, kernel_variants()),
    ]


def launched_kernels(batch_sizes: Iterable[int] = BATCH_SIZES) -> list[LaunchedKernel]:
    """Every distinct kernel of greedy and sampled decoding and of prefill, at every bucket.

    Raises MeasurementFailed if the engine launches a kernel that no rules are written for.
    """
    return _distinct(chain.from_iterable(_launches(size, HOPPER) for size in batch_sizes))


def plain_kernels() -> list[LaunchedKernel]:
    """What other GPUs launch where Hopper has kernels of its own."""
    launches = _launches(PLAIN_BATCH_SIZE, AMPERE)
    return _distinct((one, None) for one, _ in launches if one.name in _PLAIN)


def wide_head_kernels() -> list[LaunchedKernel]:
    """The ring of attention for 32/8 heads of 128, which GPT-2 has not: for 1 to 64 sequences."""
    return _distinct(_wide_head_launches())


def family_kernels(
    models: Iterable[str] = FAMILY_MODELS, rows: Sequence[int] = FAMILY_ROWS
) -> list[LaunchedKernel]:
    """What fused steps of so many rows of Llama-like models launch, on Hopper and on Ampere GPUs.

    On the latter only those of the last model.
    """
    models = tuple(models)
    kernels = _distinct(
        (launch, count)
        for gpu, names in ((HOPPER, models), (AMPERE, models[-1:]))
        for name in names
        for launch, count in _step_launches(name, rows, gpu)
        if gpu == HOPPER or launch.name in _PLAIN
    )
    for kernel in kernels:
        # The types' name tells them from GPT-2's, which may have the same sizes.
        kernel.name, kernel.dtype = f"{kernel.name}-bf16", "bf16"
    return kernels


def described_kernel(variant: KernelVariant) -> LaunchedKernel:
    """A kernel as a launch would specialise it that its description stands for."""
    from triton.compiler import ASTSource

    names = variant.kernel.arg_names
    source = ASTSource(
        fn=variant.kernel,
        signature={name: variant.signature.get(name, "constexpr") for name in names},
        constexprs=variant.constants,
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in variant.divisible},
    )
    options = {"num_warps": variant.num_warps, "num_stages": variant.num_stages}
    dependent = bool(variant.constants.get("PDL"))
    return LaunchedKernel(
        variant.name, variant.family, variant.dtype, source, options, is_dependent=dependent
    )


def _distinct(launches: Iterable[tuple[Launch, int | None]]) -> list[LaunchedKernel]:
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
def _pretended(gpu: tuple[int, int]) -> Iterator[Traffic]:
    """A pretended GPU of that capability, whatever the process knew of one before it."""
    from kernels.backend import capability

    require_compiler()
    capability.cache_clear()
    with pretended_cuda(gpu) as traffic:
        yield traffic
    capability.cache_clear()


def _wide_head_launches() -> Iterator[tuple[Launch, int | None]]:
    """Fused attention by itself, at every batch size up to 64."""
    import torch

    from kernels.attention.fused import fused_attention

    query_heads, kv_heads, head_dim, block_size = 32, 8, 128, 64
    with _pretended(HOPPER) as traffic:
        half: Any = {"dtype": torch.float16, "device": "cuda"}
        whole: Any = {"dtype": torch.int32, "device": "cuda"}
        for rows in range(1, 65):
            caches = torch.empty(2, 1, kv_heads, block_size, head_dim, **half)
            positions = torch.zeros(rows, **whole)
            fused_attention(
                torch.empty(rows, (query_heads + 2 * kv_heads) * head_dim, **half),
                caches[0],
                caches[1],
                torch.zeros(rows, 16, **whole),
                positions,
                positions,
                torch.empty(rows, query_heads * head_dim, **half),
                scale=head_dim**-0.5,
                pdl=True,
            )
        yield from ((launch, None) for launch in traffic.launches)


def _step_launches(
    name: str, batches: Sequence[int], gpu: tuple[int, int]
) -> Iterator[tuple[Launch, int]]:
    """Launches of fused steps of one layer of a built-in model in bfloat16, with their rows."""
    import numpy as np
    import torch

    from engine.fused.step import FusedDecode
    from engine.kv.memory import KVCache
    from engine.models.decoder import Decoder
    from engine.models.registry import RANDOM_CONFIGS
    from engine.models.weights import parameter_shapes
    from engine.transport.device_rows import DeviceRows
    from engine.transport.token_slots import TokenSlots

    config, most, columns, block_size = RANDOM_CONFIGS[name], max(batches), 8, 64
    config = replace(config, num_layers=1, max_positions=columns * block_size)
    make: dict[str, Any] = {"device": torch.device("cuda", 0), "dtype": torch.bfloat16}
    with _pretended(gpu) as traffic:
        shapes = parameter_shapes(config)
        model = Decoder(
            config, {name: torch.empty(shape, **make) for name, shape in shapes.items()}
        )
        heads = config.num_kv_heads, block_size, config.head_dim
        cache = KVCache(1, most * columns, *heads, **make)
        tables = np.zeros((most, columns), dtype=np.int32)
        fused = FusedDecode(
            model, cache, DeviceRows(tables, make["device"]), TokenSlots(most, make["device"])
        )
        for rows in batches:
            traffic.launches.clear()
            fused.step(rows)
            yield from ((launch, rows) for launch in traffic.launches)


def _launches(batch_size: int, gpu: tuple[int, int]) -> Iterator[tuple[Launch, int | None]]:
    """Launches of an engine's captures, fused and not, and of a prefill, with their buckets."""
    from engine import Engine, EngineConfig, SamplingParams
    from engine.models.registry import RANDOM_CONFIGS

    # A layer behind another launches what all behind it do.
    few_layers = replace(RANDOM_CONFIGS[MODEL], num_layers=2)
    with _pretended(gpu) as traffic, patch.dict(RANDOM_CONFIGS, {MODEL: few_layers}):
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
            "asv_bench.lab.codegen.launched_kernels does not know: add it there, with the "
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
        # The kernel of an older commit may lack it.
        if (value := constants.get(constant)) is not None:
            number = f"{_SHORT.get(constant, constant)}{value}"
            parts.append(_WORDS.get((constant, value), number))
    return "-".join(filter(None, parts))
