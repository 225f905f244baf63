"""kvtrail's engine: requests in, tokens out, over a paged KV cache."""

from __future__ import annotations

from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import (
    ConfigError,
    DeviceError,
    IntegrityError,
    KernelArgumentError,
    KvtrailError,
    ModelError,
    OutOfBlocksError,
    QueueFullError,
    RequestError,
)
from engine.request import Completion, Timeline, TokenEvent
from engine.sampling_params import SamplingParams
from kernels.namesake import warn_of_namesake

__all__ = [
    "Completion",
    "ConfigError",
    "DeviceError",
    "Engine",
    "EngineConfig",
    "IntegrityError",
    "KernelArgumentError",
    "KvtrailError",
    "ModelError",
    "OutOfBlocksError",
    "QueueFullError",
    "RequestError",
    "SamplingParams",
    "Timeline",
    "TokenEvent",
]

warn_of_namesake()
