"""What an engine is built from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.errors import ConfigError

_DEVICES = ("auto", "cpu", "cuda")
_DTYPES = ("auto", "float32", "float16", "bfloat16")
_DECODE_MODES = ("auto", "eager", "graph")
_ADMISSIONS = ("fifo", "pack")
_MOST_IN_FLIGHT = 8  # with a step's two launches, well below what the token ring holds


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Options of an `Engine`.

    Parameters
    ----------
    model
        A hub id, a local directory in Hugging Face format, or `random:NAME` for a built-in
        architecture with seeded weights (no download).
    device
        "auto" (CUDA where there is one, else the CPU), "cpu", "cuda" or "cuda:N".
    dtype
        "auto" (float32 on the CPU; on CUDA the checkpoint's own half type, else float16),
        "float32", "float16" or "bfloat16".
    block_size
        Tokens per KV block, at least 1. On a Hopper GPU multiples of 64 are the fastest: blocks of
        other sizes may have to do with the plain attention kernel.
    max_batch_size
        Sequences that run at once: the rows of the decode state.
    max_model_len
        Longest sequence, prompt and output together, in tokens. The last new token does not count,
        as the model never reads it: a prompt of this very length may have one. None: the model's
        own limit.
    num_kv_blocks
        Blocks in the KV cache. None: room for two full batches of longest sequences, or less
        where memory is short.
    prefix_cache
        Keep finished and running prompts' blocks for reuse by later prompts.
    decode
        "graph" replays one captured CUDA graph a decode step and one a prefill, "eager" launches
        kernel by kernel, "auto" is "graph" on CUDA and "eager" on the CPU.
    fuse
        Decode greedy steps with fused kernels where they run the model: half precision on CUDA.
        False keeps to one kernel an operation, which is slower and what the fused ones are
        compared with.
    admission
        "fifo" admits strictly in order; "pack" looks ahead for prompts that fill the prefill
        budget best.
    admission_lookahead
        How many waiting requests "pack" looks at.
    force_fifo_every
        Every so many admission rounds "pack" admits in order, so that nothing starves.
    prefill_max_tokens
        Prompt tokens computed per step at most; longer prompts are prefilled in chunks.
        None: 8192, which bounds the memory of activations.
    prefill_max_batch_size
        Sequences in one prefill launch at most. None: `max_batch_size`.
    max_active_requests
        Requests that hold a row at once. None: `max_batch_size`.
    max_inflight_requests
        Unfinished requests the engine accepts; `submit` refuses more, `generate` and `stream`
        hold theirs back. None: no limit.
    decode_first
        Launch the decode step before the prefill of the same step rather than after it: running
        requests do not wait for newcomers' prompts.
    steps_in_flight
        Launches whose tokens the host need not have seen when it launches the next: 0 waits for
        every step's tokens. At most 8. None: 3 on CUDA, so that the device never waits for the
        host, and 0 on the CPU, where tokens are there at once.
    seed
        Seeds random weights and the sampling of requests that bring no seed.

    Raises
    ------
    ConfigError
        When a value is outside its range.
    """

    model: str = "random:gpt2-tiny"
    device: str = "auto"
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    block_size: int = 64
    max_batch_size: int = 64
    max_model_len: int | None = None
    num_kv_blocks: int | None = None
    prefix_cache: bool = True
    decode: Literal["auto", "eager", "graph"] = "auto"
    fuse: bool = True
    admission: Literal["fifo", "pack"] = "fifo"
    admission_lookahead: int = 8
    force_fifo_every: int = 4
    prefill_max_tokens: int | None = None
    prefill_max_batch_size: int | None = None
    max_active_requests: int | None = None
    max_inflight_requests: int | None = None
    decode_first: bool = False
    steps_in_flight: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.model, str) or not self.model:
            raise ConfigError(
                f"model is {self.model!r}; it must be a hub id, a directory, or random:NAME."
            )
        if self.device not in _DEVICES and not str(self.device).startswith("cuda:"):
            raise ConfigError(
                f"device is {self.device!r}; it must be 'auto', 'cpu', 'cuda' or 'cuda:N'."
            )
        self._require_one_of("dtype", _DTYPES)
        self._require_one_of("decode", _DECODE_MODES)
        self._require_one_of("admission", _ADMISSIONS)
        for name in ("block_size", "max_batch_size", "admission_lookahead", "force_fifo_every"):
            self._require_positive(name)
        for name in (
            "max_model_len",
            "num_kv_blocks",
            "prefill_max_tokens",
            "prefill_max_batch_size",
            "max_active_requests",
            "max_inflight_requests",
        ):
            if getattr(self, name) is not None:
                self._require_positive(name)
        in_flight = self.steps_in_flight
        if in_flight is not None and not (_is_int(in_flight) and 0 <= in_flight <= _MOST_IN_FLIGHT):
            raise ConfigError(
                f"steps_in_flight is {in_flight!r}; it must be a whole number of 0 to "
                f"{_MOST_IN_FLIGHT}, or None."
            )
        for name in ("prefix_cache", "decode_first", "fuse"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} is {getattr(self, name)!r}; it must be True or False.")
        if not _is_int(self.seed):
            raise ConfigError(f"seed is {self.seed!r}; it must be a whole number.")

    def _require_one_of(self, name: str, allowed: tuple[str, ...]) -> None:
        value = getattr(self, name)
        if value not in allowed:
            raise ConfigError(f"{name} is {value!r}; it must be one of {', '.join(allowed)}.")

    def _require_positive(self, name: str) -> None:
        value = getattr(self, name)
        if not _is_int(value) or value < 1:
            raise ConfigError(f"{name} is {value!r}; it must be a whole number of at least 1.")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
