"""What a rank holds."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from engine.worker.worker import Worker


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Memory of one rank, in bytes.

    Attributes
    ----------
    rank
        Which one it is.
    process
        The id of its process.
    device
        Where its part of the model lies.
    weights
        Of that part; copies that fused kernels read are left out.
    cache
        Of its part of the KV cache.
    peak
        The most that tensors took on its GPU, or on the CPU its process.
    """

    rank: int
    process: int
    device: str
    weights: int
    cache: int
    peak: int

    @classmethod
    def of(cls, rank: int, worker: Worker) -> RankMemory:
        """Of a rank of this process."""
        device = worker.rows.device
        return cls(
            rank,
            os.getpid(),
            str(device),
            worker.runner.weight_bytes,
            worker.runner.cache.num_bytes,
            torch.cuda.max_memory_allocated(device) if device.type == "cuda" else _peak_rss(),
        )


def _peak_rss() -> int:
    """Of this process, since it began or since someone began to count anew."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) << 10
