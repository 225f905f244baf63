"""kvtrail's engine: requests in, tokens out, over a paged KV cache."""

from __future__ import annotations

try:
    # Not the module alone: that of an editable install is found behind a package that hides ours.
    from kernels import KernelArgumentError
    from kernels.namesake import warn_of_namesake
except ImportError as error:
    raise ImportError(
        "engine needs kvtrail's own package 'kernels', but another package of that name comes "
        "first on sys.path, probably Hugging Face's: run `pip uninstall kernels`, or give kvtrail "
        "an environment of its own."
    ) from error

from engine.async_engine import AsyncEngine
from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import (
    ConfigError,
    DeviceError,
    EngineBusyError,
    EngineStoppedError,
    IntegrityError,
    KvtrailError,
    ModelError,
    OutOfBlocksError,
    QueueFullError,
    RankError,
    RequestError,
    TooLongError,
)
from engine.kv.blocks import KVBlockManager
from engine.models.registry import load_tokenizer
from engine.parallel.memory import RankMemory
from engine.requests.async_stream import AsyncStream
from engine.requests.params import SamplingParams
from engine.requests.request import Completion, Timeline, TokenEvent, TokenLogprobs
from engine.requests.run import TokenStream
from engine.requests.token_batch import TokenBatch
from engine.scheduling.load import EngineLoad
from engine.text.chat import ChatTemplate
from engine.text.tokenizer import TextStream, Tokenizer

__all__ = [
    "AsyncEngine",
    "AsyncStream",
    "ChatTemplate",
    "Completion",
    "ConfigError",
    "DeviceError",
    "Engine",
    "EngineBusyError",
    "EngineConfig",
    "EngineLoad",
    "EngineStoppedError",
    "IntegrityError",
    "KVBlockManager",
    "KernelArgumentError",
    "KvtrailError",
    "ModelError",
    "OutOfBlocksError",
    "QueueFullError",
    "RankError",
    "RankMemory",
    "RequestError",
    "SamplingParams",
    "TextStream",
    "Timeline",
    "TokenBatch",
    "TokenEvent",
    "TokenLogprobs",
    "TokenStream",
    "Tokenizer",
    "TooLongError",
    "load_tokenizer",
]

warn_of_namesake()
