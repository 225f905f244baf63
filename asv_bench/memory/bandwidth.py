# mypy: disable-error-code="no-untyped-call, no-untyped-def, untyped-decorator"
"""The read bandwidth of this machine's GPU, by which the floor of a step is computed."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

BUFFER_BYTES = 4 * 2**30
REPEATS = 30
WARMUPS = 5
PROGRAMS_PER_SM = 4
TILE = 8192


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

    @triton.jit
    def read_kernel(
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
