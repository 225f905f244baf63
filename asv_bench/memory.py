"""What a decode step owes to memory: the read bandwidth of this GPU, and the floor of the step.

The floor is the bytes that each part of a step must read, which follow from the sizes alone.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

from asv_bench.errors import Refused

if TYPE_CHECKING:
    from engine.models.spec import DecoderSpec

BUFFER_BYTES = 4 * 2**30
REPEATS = 30
WARMUPS = 5
PROGRAMS_PER_SM = 4
TILE = 8192
BYTES_PER_ELEMENT = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Read bandwidth in bytes per second, with the time of every pass in milliseconds."""

    bytes_per_second: float
    buffer_bytes: int
    pass_ms: list[float]


def read_bandwidth(device: str) -> Bandwidth | None:
    """Time a kernel that only reads a buffer far larger than any cache; take the median pass.

    At most a quarter of the free memory is taken. None on the CPU, where no floor is claimed.
    """
    if not device.startswith("cuda"):
        return None
    import torch
    import triton
    import triton.language as tl

    @triton.jit  # type: ignore[untyped-decorator]
    def read_kernel(  # type: ignore[no-untyped-def]
        data,  # float32 [tiles * TILE_SIZE]
        sums,  # float32 [programs]
        tiles,
        TILE_SIZE: tl.constexpr,
    ):
        """Each program sums every `programs`-th tile, so that the compiler keeps all reads."""
        program = tl.program_id(0)
        programs = tl.num_programs(0)
        # 64-bit: several GB are more elements than 32 bits can count.
        lanes = data + program.to(tl.int64) * TILE_SIZE + tl.arange(0, TILE_SIZE)
        stride = programs.to(tl.int64) * TILE_SIZE
        total = tl.zeros([TILE_SIZE], tl.float32)
        for _ in range(program, tiles, programs):
            total += tl.load(lanes)
            lanes += stride
        tl.store(sums + program, tl.sum(total))

    free, _ = torch.cuda.mem_get_info(device)
    tiles = min(BUFFER_BYTES, free // 4) // (4 * TILE)
    data = torch.zeros(tiles * TILE, dtype=torch.float32, device=device)
    programs = torch.cuda.get_device_properties(device).multi_processor_count * PROGRAMS_PER_SM
    sums = torch.empty(programs, dtype=torch.float32, device=device)

    def read() -> None:
        read_kernel[(programs,)](data, sums, tiles, TILE_SIZE=TILE, num_warps=8)

    with torch.cuda.device(data.device):
        pass_ms = device_ms(read, REPEATS, warmups=WARMUPS)
    size = data.numel() * data.element_size()
    return Bandwidth(1e3 * size / statistics.median(pass_ms), size, pass_ms)


def device_ms(
    call: Callable[[], object],
    readings: int,
    *,
    warmups: int,
    before: Callable[[], object] = lambda: None,
) -> list[float]:
    """Milliseconds of some calls on the device's clock, after others; `before` each, something."""
    import torch

    times: list[float] = []
    for _ in range(warmups + readings):
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before()
        begun.record()
        call()
        ended.record()
        ended.synchronize()
        times.append(begun.elapsed_time(ended))
    return times[warmups:]


@dataclass(frozen=True)
class GPT2Shape:
    """Sizes of the GPT-2 that the anchors were measured on (124M parameters), and its parts.

    Names are those of `engine.models.spec.DecoderSpec`. Engines of older commits know GPT-2 alone,
    and their configs do not say what layers are made of.
    """

    vocab_size: int = 50257
    num_layers: int = 12
    num_heads: int = 12
    num_kv_heads: int = 12
    head_dim: int = 64
    hidden_size: int = 768
    inner_size: int = 3072
    norm: str = "layer"
    is_gated: bool = False
    qk_norm: bool = False
    attention_in_bias: bool = True
    attention_out_bias: bool = True
    feed_forward_bias: bool = True


ModelConfig: TypeAlias = "DecoderSpec | GPT2Shape"
"""What decides how many bytes a step reads."""


class Role(StrEnum):
    """The parts of a step that read weights or cached tokens, in the order of a layer."""

    ATTENTION_IN = "attention in"
    ATTENTION = "attention, append"
    ATTENTION_OUT = "attention out"
    FEED_FORWARD_IN = "feed-forward in"
    FEED_FORWARD_OUT = "feed-forward out"
    HEAD = "head"


KERNEL_ROLES = {
    **dict.fromkeys(("ring_attention", "row_attention", "decode_attention_append"), Role.ATTENTION),
    **dict.fromkeys(("head_row", "head_stream", "head_tiles"), Role.HEAD),
}
"""Kernels of a fused step that have one role each; `row_attention` does what lies before it too."""
_MAPS = (Role.ATTENTION_OUT, Role.FEED_FORWARD_IN, Role.FEED_FORWARD_OUT, Role.ATTENTION_IN)
"""Linear maps, in the order in which they follow attention."""
_MAP_KERNELS = re.compile(r"^linear_(row|tiles|stream)$|nvjet|gemm|xmma|cutlass", re.IGNORECASE)
"""Kernels of linear maps, those of cuBLAS too, whose role follows from their place."""


def kernel_roles(names: Iterable[str]) -> Iterator[Role | None]:
    """The role of each kernel of fused steps, in the order in which they ran; None: it has none."""
    place = len(_MAPS) - 1
    for name in names:
        role = KERNEL_ROLES.get(name)
        if role is not None:
            place = 0 if role is Role.ATTENTION else len(_MAPS) - 1
        elif _MAP_KERNELS.search(name):
            role, place = _MAPS[place], (place + 1) % len(_MAPS)
        yield role


def role_bytes(
    config: ModelConfig,  # the model's sizes
    *,
    dtype: str,  # "float32", "float16" or "bfloat16", of all that is not kept in eight bits
    batch_size: int,  # sequences in the step
    mean_context: float,  # tokens that a sequence attends to, the new one included
    options: Mapping[str, Any] = {},  # the engine's, which say what it keeps in eight bits
) -> dict[Role, float]:
    """Bytes that each part must read in a decode step: weights once, each sequence's K and V.

    The head is read whole. Of the embeddings only one row a sequence is read, which is left out,
    and a tied head is not counted twice. Raises Refused if the dtype is none of the three.
    """
    if dtype not in BYTES_PER_ELEMENT:
        raise Refused(f"dtype must be one of {', '.join(BYTES_PER_ELEMENT)}, not {dtype!r}.")

    def has(part: str) -> Any:
        return getattr(config, part, getattr(GPT2Shape, part))

    hidden, inner, query = config.hidden_size, config.inner_size, config.num_heads * config.head_dim
    key_value = 2 * config.num_kv_heads * config.head_dim
    # A norm's weights are read with those of the map behind it.
    norm = hidden * (2 if has("norm") == "layer" else 1)
    head_norms = has("qk_norm") * 2 * config.head_dim
    gates = 2 if has("is_gated") else 1
    size = BYTES_PER_ELEMENT[dtype]
    of_cached = 1 if options.get("kv_cache_dtype") == "fp8" else size
    windows = [getattr(config, "window", lambda _: None)(at) for at in range(config.num_layers)]
    seen = statistics.fmean(min(mean_context, one or mean_context) for one in windows)
    cached = batch_size * seen * key_value * of_cached / size
    behind = hidden * getattr(config, "output_norms", False)
    # Of linear maps, weights and all else; of what attends there are no weights.
    layer = {
        Role.ATTENTION_IN: (query + key_value, hidden, has("attention_in_bias"), norm),
        Role.ATTENTION: (0, 0, 0, head_norms + cached),
        Role.ATTENTION_OUT: (hidden, query, has("attention_out_bias"), behind),
        Role.FEED_FORWARD_IN: (gates * inner, hidden, has("feed_forward_bias"), norm),
        Role.FEED_FORWARD_OUT: (hidden, inner, has("feed_forward_bias"), behind),
    }
    of_weight = 1 if options.get("quantization") or getattr(config, "quantization", None) else size
    found = {
        role: config.num_layers * (of_weight * rows * columns + size * (rows * bias + rest))
        for role, (rows, columns, bias, rest) in layer.items()
    }
    return {**found, Role.HEAD: size * (config.vocab_size * hidden + norm)}
