"""What the engine raises on purpose to those who use it, in one hierarchy.

Messages are sentences: what was wrong, and what would be right. `KernelArgumentError` is that of
`kernels`, which knows nothing of the engine, and a plain ValueError inside it means a bug.
"""

from __future__ import annotations

from kernels.errors import KernelArgumentError

__all__ = [
    "ConfigError",
    "DeviceError",
    "EngineBusyError",
    "EngineStoppedError",
    "IntegrityError",
    "KernelArgumentError",
    "KvtrailError",
    "ModelError",
    "OutOfBlocksError",
    "QueueFullError",
    "RankError",
    "RequestError",
    "TooLongError",
]


class KvtrailError(Exception):
    """Base of the errors that an engine raises on purpose."""


class ConfigError(KvtrailError, ValueError):
    """An engine option has a value the engine cannot work with."""


class ModelError(KvtrailError, ValueError):
    """A model is unknown, or its files are missing, damaged, inconsistent or unsupported."""


class DeviceError(KvtrailError, RuntimeError):
    """The asked-for device is not there, or cannot do what was asked of it."""


class EngineBusyError(KvtrailError, RuntimeError):
    """A step was asked for in the middle of another call of the engine; nothing was changed."""


class EngineStoppedError(KvtrailError, RuntimeError):
    """A call has failed half-way before: what the engine would say next could be wrong."""


class RankError(KvtrailError, RuntimeError):
    """A rank of an engine on several devices has ended or failed, and with it the engine."""


class RequestError(KvtrailError, ValueError):
    """A request was refused at submit, or text or ids by the tokenizer; nothing was changed."""


class TooLongError(RequestError):
    """A prompt and its new tokens are more than a sequence may have, or than the cache holds."""


class QueueFullError(RequestError):
    """The engine already holds `max_inflight_requests` unfinished requests."""


class OutOfBlocksError(KvtrailError, RuntimeError):
    """Fewer KV blocks are free than were asked for; nothing was changed.

    The scheduler settles every need before it allocates, so users never see this error: a full
    cache makes a request wait, or preempts one.
    """


class IntegrityError(KvtrailError, AssertionError):
    """The KV bookkeeping contradicts itself: a bug in the engine, never in its use."""
