"""Every kernel that this project compiles for a GPU, found and compiled on all cores.

Beside those that the engine launches for GPT-2 on a Hopper GPU at every bucket: the kernels for
other GPUs come from an engine on a pretended Ampere GPU, attention with heads of 128, which GPT-2
lacks, is launched by itself, and of other families fused steps of one layer are, in 16 and in 8
bits, and over a cache of 8 bits. The plain kernels for the heads of other models are described, and
not launched.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from triton.compiler import ASTSource

from asv_bench.errors import MeasurementFailed
from asv_bench.lab.launched_kernels import (
    CompiledKernel,
    compile_kernel,
    engine_launches,
    pretended,
    require_compiler,
)
from asv_bench.lab.pretend_cuda import HOPPER, Launch
from engine.fused.step import FusedDecode
from engine.kv.memory import KVCache
from engine.models.decoder import Decoder
from engine.models.registry import RANDOM_CONFIGS
from engine.models.weights import is_linear, parameter_shapes, scales_of
from engine.transport.device_rows import DeviceRows
from engine.transport.token_slots import TokenSlots
from kernels.attention.arguments import FusedArguments
from kernels.attention.fused import fused_attention
from kernels.attention.operations import kv_append, paged_attention_prefill
from kernels.linear.fp8 import FP8, GROUP
from kernels.tiles.variants import KernelVariant, kernel_variants
from tests.kernels.codegen.named_kernels import NamedKernel, distinct, engine_kernels

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
FP8_MODELS = ("qwen3-8b", "llama-3.2-1b", "gpt2")
FP8_ROWS = (1, 8, 64, 256)
_FP8 = (
    "linear_tiles",
    "linear_row",
    "row_stream",
    "linear_stream",
    "halve_rows",
    "dequantized_rows",
)
_PLAIN = ("linear_tiles", "decode_attention_append", "head_tiles")
_known: list[NamedKernel] = []
"""In a worker: every kernel."""


def every_kernel() -> list[NamedKernel]:
    """All that this project compiles for a GPU. Raises Refused under Triton's interpreter."""
    return [
        *engine_kernels(BATCH_SIZES),
        *plain_kernels(),
        *wide_head_kernels(),
        *family_kernels(),
        *fp8_kernels(),
        *fp8_cache_kernels(),
        *map(described_kernel, kernel_variants()),
    ]


def plain_kernels() -> list[NamedKernel]:
    """What other GPUs launch where Hopper has kernels of its own."""
    launches = engine_launches(PLAIN_BATCH_SIZE, AMPERE)
    return distinct((one, None) for one in launches if one.name in _PLAIN)


def wide_head_kernels() -> list[NamedKernel]:
    """The ring of attention for 32/8 heads of 128, which GPT-2 has not: for 1 to 64 sequences."""
    return distinct(_wide_head_launches())


def family_kernels(
    models: Iterable[str] = FAMILY_MODELS, rows: Sequence[int] = FAMILY_ROWS
) -> list[NamedKernel]:
    """What fused steps of so many rows of Llama-like models launch, on Hopper and on Ampere GPUs.

    On the latter only those of the last model.
    """
    models = tuple(models)
    kernels = distinct(
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


def fp8_kernels(
    models: Iterable[str] = FP8_MODELS, rows: Sequence[int] = FP8_ROWS
) -> list[NamedKernel]:
    """What fused steps launch for maps of eight bits: with a scale for each row, and in blocks.

    And by rows that are rounded, too.
    """
    kernels = []
    of_rows: dict[str, Any] = {"in_blocks": False, "rounds_rows": True}
    for kind, options, known in (
        ("fp8", {"in_blocks": False}, _FP8),
        ("fp8-blocks", {"in_blocks": True}, _FP8),
        ("fp8-dynamic", of_rows, ("linear_stream", "halve_rows")),
    ):
        found = distinct(
            (launch, count)
            for name in models
            for launch, count in _step_launches(name, rows, HOPPER, **options)
            if launch.name in known
        )
        for kernel in found:
            kernel.name += "-" + kind
            kernel.dtype = "bf16"
        kernels += found
    return kernels


def fp8_cache_kernels(
    models: Iterable[str] = FP8_MODELS, rows: Sequence[int] = FP8_ROWS
) -> list[NamedKernel]:
    """What attends over a cache of eight bits, and appends to one.

    In fused steps, and, for other GPUs and where nothing is fused, the plain kernels.
    """
    models = tuple(models)
    found = [
        (launch, count)
        for name in models
        for launch, count in _step_launches(name, rows, HOPPER, fp8_cache=True)
        if launch.name == "ring_attention"
    ]
    found += [(launch, None) for name in models for launch in _plain_launches(name, max(rows))]
    kernels = distinct(found)
    for kernel in kernels:
        kernel.name += "-fp8-cache"
        kernel.dtype = "fp8" if kernel.family == "append" else "bf16"
    return kernels


def described_kernel(variant: KernelVariant) -> NamedKernel:
    """A kernel as a launch would specialise it that its description stands for."""
    names = variant.kernel.arg_names
    source = ASTSource(
        fn=variant.kernel,
        signature={name: variant.signature.get(name, "constexpr") for name in names},
        constexprs=variant.constants,
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in variant.divisible},
    )
    options = {"num_warps": variant.num_warps, "num_stages": variant.num_stages}
    dependent = bool(variant.constants.get("PDL"))
    return NamedKernel(
        variant.name, source, options, variant.family, variant.dtype, is_dependent=dependent
    )


def _wide_head_launches() -> Iterator[tuple[Launch, int | None]]:
    """Fused attention by itself, at every batch size up to 64."""
    query_heads, kv_heads, head_dim, block_size = 32, 8, 128, 64
    with pretended(HOPPER) as traffic:
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
    name: str,
    batches: Sequence[int],
    gpu: tuple[int, int],
    *,
    in_blocks: bool | None = None,
    rounds_rows: bool = False,
    fp8_cache: bool = False,
) -> Iterator[tuple[Launch, int]]:
    """Launches of fused steps of one layer of a built-in model in bfloat16, with their rows.

    With `in_blocks`, the layer's maps are of eight bits, and scaled in blocks or by rows.
    """
    config, most, columns, block_size = RANDOM_CONFIGS[name], max(batches), 8, 64
    config = replace(config, num_layers=1, max_positions=columns * block_size)
    make: dict[str, Any] = {"device": torch.device("cuda", 0), "dtype": torch.bfloat16}
    with pretended(gpu) as traffic:
        shapes = parameter_shapes(config)
        weights = {name: torch.empty(shape, **make) for name, shape in shapes.items()}
        if in_blocks is not None:
            for name in filter(is_linear, shapes):
                rows, columns = shapes[name]
                groups = columns // GROUP if in_blocks else 1
                weights[name] = weights[name].to(FP8)
                weights[scales_of(name)] = torch.empty(groups, rows, device=make["device"])
        model = Decoder(config, weights, rounds_rows=rounds_rows)
        heads = config.num_kv_heads, block_size, config.head_dim
        scales = torch.empty(1, 2, heads[0], device=make["device"]) if fp8_cache else None
        cache = KVCache(1, most * columns, *heads, **make, scales=scales)
        tables = np.zeros((most, columns), dtype=np.int32)
        fused = FusedDecode(
            model, cache, DeviceRows(tables, make["device"]), TokenSlots(most, make["device"])
        )
        for count in batches:
            traffic.launches.clear()
            fused.step(count)
            if in_blocks is not None:
                made = model.blocks[0].feed_forward.out
                made(torch.empty(count, made.weight.shape[1], **make))
            yield from ((launch, count) for launch in traffic.launches)


def _plain_launches(name: str, rows: int) -> Iterator[Launch]:
    """The plain kernels of attention over a cache of eight bits and of appending to it."""
    from kernels.attention.decode import launch_decode
    from kernels.attention.decode_append import launch_fused

    config, block_size = RANDOM_CONFIGS[name], 64
    query_heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
    device = torch.device("cuda", 0)
    with pretended(HOPPER) as traffic:
        half: Any = {"dtype": torch.bfloat16, "device": device}
        whole: Any = {"dtype": torch.int32, "device": device}
        scales = torch.empty(1, 2, kv_heads, device=device)
        cache = KVCache(1, 4, kv_heads, block_size, head_dim, scales=scales, **half)
        keys, values, of_heads = cache.layer(0)
        query = torch.empty(rows, query_heads, head_dim, **half)
        key = torch.empty(rows, kv_heads, head_dim, **half)
        tables, lengths = torch.zeros(rows, 16, **whole), torch.zeros(rows, **whole)
        out = torch.empty(query.shape, **half)
        kv_append(keys, values, key, key, lengths, lengths, scales=of_heads)
        starts = torch.zeros(rows + 1, **whole)
        paged_attention_prefill(query, keys, values, tables, lengths, starts, scales=of_heads)
        for serial in (False, True):
            launch_decode(query, keys, values, tables, lengths, 0.1, out, of_heads, serial=serial)
            launch_fused(
                FusedArguments(
                    torch.empty(rows, (query_heads + 2 * kv_heads) * head_dim, **half),
                    keys,
                    values,
                    tables,
                    lengths,
                    lengths,
                    out.flatten(1),
                    0.1,
                    None,
                    of_heads,
                ),
                True,
                serial=serial,
            )
        yield from traffic.launches


def compile_all(
    kernels: Sequence[NamedKernel], console: Console
) -> tuple[list[CompiledKernel], list[str]]:
    """Compile kernels on all cores; returns those that compile, and a sentence of each other.

    Raises Refused under Triton's interpreter.
    """
    require_compiler()
    # Workers know the kernels, which cannot be sent to them, because they are forked.
    with ProcessPoolExecutor(
        len(os.sched_getaffinity(0)), get_context("fork"), _known.extend, (kernels,)
    ) as workers:
        # They start here, before the thread that shows progress, which a fork would cut off.
        results = workers.map(_compiled_or_why, range(len(kernels)))
        done = list(track(results, "compiling", len(kernels), console=console, transient=True))
    failures = [one for one in done if isinstance(one, str)]
    return [one for one in done if not isinstance(one, str)], failures


def _compiled_or_why(place: int) -> CompiledKernel | str:
    try:
        return compile_kernel(_known[place])
    except MeasurementFailed as error:
        return str(error)
