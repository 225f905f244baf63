"""What an engine is built from."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from engine.errors import ConfigError
from engine.numbers import is_truth_value, whole_number

_DEVICES = ("auto", "cpu", "cuda")
_DTYPES = ("auto", "float32", "float16", "bfloat16")
_DECODE_MODES = ("auto", "eager", "graph")
_ADMISSIONS = ("fifo", "pack")
_MOST_TOKENS = 2**31 - 1
_CACHE_DTYPES = ("auto", "fp8")
_QUANTIZATIONS = ("fp8", "fp8-dynamic")
_MOST_IN_FLIGHT = 8  # with a step's two launches, well below the slots of a row's tokens
_MOST_THREADS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Options of an `Engine`.

    Numbers and truth values may be numpy's; they are kept as Python's own.

    Parameters
    ----------
    model
        A hub id, a local directory in Hugging Face format, or `random:NAME` for a built-in
        architecture with seeded weights (no download). A `Path` is a local directory, whatever
        it is called, and is kept as a string.
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
        own limit. Within the sliding window of its layers no window is needed, and what has none is
        faster.
    num_kv_blocks
        Blocks in the KV cache. None: room for two full batches of longest sequences, or less
        where memory is short.
    prefix_cache
        Keep finished and running prompts' blocks for reuse by later prompts.
    decode
        "graph" replays one captured CUDA graph a decode step and one a prefill, "eager" launches
        kernel by kernel, "auto" is "graph" on CUDA and "eager" on the CPU.
    fuse
        Decode with fused kernels where they run the model: in half precision on CUDA, with widths
        that are multiples of 64. False keeps to one kernel an operation, which is slower and what
        the fused ones are compared with.
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
    mixed_prefill_tokens
        Tokens of a launch that prompts share with a decode step of the running requests, where both
        are to be done: who runs waits for a piece of the newcomers' prompts, and weights are read
        once. One of them is of each running request, and half of them at least are of prompts.
        Where prompts of `prefill_max_tokens` or more are to be computed, they take launches of so
        many tokens until fewer are left: in pieces they would keep most rows from running. After
        the end of one of a few requests the next launch waits for the last, as whoever got the
        answer may send another prompt. 0: each has a launch of its own. Not with `decode_first`.
        None: 320 on a GPU where it holds weights of 8 GB or more, whose steps take milliseconds,
        and else 0.
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
        host, or 1 with `mixed_prefill_tokens`, since a newcomer's prompt waits for all of them;
        and 0 on the CPU, where tokens are there at once.
    seed
        Seeds random weights and the sampling of requests that bring no seed.
    threads
        Threads of torch's operators on the CPU, for the whole process. None: half of the cores
        that the process may use, at least 1 and at most 4, unless `OMP_NUM_THREADS` or
        `torch.set_num_threads` has set fewer than there are cores. With more threads than idle
        cores a step takes many times as long; on an idle machine large models are faster with more.
        With several ranks each has so many; None: they share that number.
    tensor_parallel_size
        Ranks that have a part of every layer each, on a device of their own: with `device` "cuda"
        the first GPUs, with "cuda:N" those from it on. The others than the first are processes that
        the engine starts and `Engine.close` ends. On the CPU they share it, which is for tests. The
        heads of the model must divide into so many equal parts.
    quantization
        "fp8" keeps the weights of the blocks' linear maps as e4m3, with a scale for each row: they
        are rounded when they are loaded. Embeddings, norms, biases and the output head stay in
        `dtype`, and so do activations. "fp8-dynamic" keeps the same weights, and on Hopper, in
        bfloat16, also rounds to e4m3 what they are multiplied by: each row of activations by its
        largest number. Tensor cores then do half the work in prefills, and in steps of several
        rows. None keeps weights as the checkpoint has them, which may be e4m3 already.
    speculative
        "prompt-lookup" drafts tokens: what followed a sequence's last three tokens when they stood
        in it before. A launch then computes drafts beside the last tokens, and takes as many tokens
        as the model would have chosen anyway, also where it draws them. Drafts pause where they
        have not saved time of late. While requests run that ask for penalties or logprobs, or
        prompts are computed, there are none.
    kv_cache_dtype
        "fp8" keeps keys and values as e4m3, with scales for each layer and KV head, so that a block
        takes half the bytes of one of 16 bits. The scales are the checkpoint's, or else measured
        when the engine is built, in one prefill of random tokens that are always the same. "auto"
        keeps keys and values in `dtype`.

    Raises
    ------
    ConfigError
        When a value is outside its range.
    """

    model: str | os.PathLike[str] = "random:gpt2-tiny"
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
    mixed_prefill_tokens: int | None = 0
    prefill_max_batch_size: int | None = None
    max_active_requests: int | None = None
    max_inflight_requests: int | None = None
    decode_first: bool = False
    steps_in_flight: int | None = None
    seed: int = 0
    threads: int | None = None
    tensor_parallel_size: int = 1
    quantization: Literal["fp8", "fp8-dynamic"] | None = None
    kv_cache_dtype: Literal["auto", "fp8"] = "auto"
    speculative: Literal["prompt-lookup"] | None = None

    def __post_init__(self) -> None:
        self._keep("model", _model_name(self.model))
        if not isinstance(self.device, str) or not (
            self.device in _DEVICES or self.device.startswith("cuda:")
        ):
            raise ConfigError(
                f"device is {self.device!r}; it must be 'auto', 'cpu', 'cuda' or 'cuda:N'."
            )
        self._require_one_of("dtype", _DTYPES)
        self._require_one_of("decode", _DECODE_MODES)
        self._require_one_of("admission", _ADMISSIONS)
        self._require_one_of("kv_cache_dtype", _CACHE_DTYPES)
        if self.speculative is not None and not _is_one_of(self.speculative, ("prompt-lookup",)):
            raise ConfigError(
                f"speculative is {self.speculative!r}; it must be 'prompt-lookup', or None for no "
                "drafts."
            )
        if self.quantization is not None and not _is_one_of(self.quantization, _QUANTIZATIONS):
            raise ConfigError(
                f"quantization is {self.quantization!r}; it must be 'fp8' or 'fp8-dynamic', or "
                "None for weights as the checkpoint has them."
            )
        for name in (
            "block_size",
            "max_batch_size",
            "admission_lookahead",
            "force_fifo_every",
            "tensor_parallel_size",
        ):
            self._keep_positive(name)
        for name in (
            "max_model_len",
            "num_kv_blocks",
            "prefill_max_tokens",
            "prefill_max_batch_size",
            "max_active_requests",
            "max_inflight_requests",
        ):
            if getattr(self, name) is not None:
                self._keep_positive(name)
        self._keep_within("steps_in_flight", 0, _MOST_IN_FLIGHT)
        self._keep_within("mixed_prefill_tokens", 0, _MOST_TOKENS)
        self._keep_within("threads", 1, _MOST_THREADS)
        for name in ("prefix_cache", "decode_first", "fuse"):
            if not is_truth_value(getattr(self, name)):
                raise ConfigError(f"{name} is {getattr(self, name)!r}; it must be True or False.")
            self._keep(name, bool(getattr(self, name)))
        if self.decode_first and self.mixed_prefill_tokens:
            raise ConfigError(
                "decode_first launches a step before prompts, and mixed_prefill_tokens both "
                "together; give one of them."
            )
        seed = whole_number(self.seed)
        if seed is None:
            raise ConfigError(f"seed is {self.seed!r}; it must be a whole number.")
        self._keep("seed", seed)

    def _require_one_of(self, name: str, allowed: tuple[str, ...]) -> None:
        value = getattr(self, name)
        if not _is_one_of(value, allowed):
            raise ConfigError(f"{name} is {value!r}; it must be one of {', '.join(allowed)}.")

    def _keep_positive(self, name: str) -> None:
        number = whole_number(getattr(self, name))
        if number is None or number < 1:
            raise ConfigError(
                f"{name} is {getattr(self, name)!r}; it must be a whole number of at least 1."
            )
        self._keep(name, number)

    def _keep_within(self, name: str, least: int, most: int) -> None:
        value = getattr(self, name)
        number = whole_number(value)
        if value is not None and (number is None or not least <= number <= most):
            raise ConfigError(
                f"{name} is {value!r}; it must be a whole number of {least} to {most}, or None."
            )
        self._keep(name, number)

    def _keep(self, name: str, value: str | int | None) -> None:
        object.__setattr__(self, name, value)


def _is_one_of(value: object, allowed: tuple[str, ...]) -> bool:
    return isinstance(value, str) and value in allowed


def _model_name(model: object) -> str:
    """The name, or the path of a directory in such words that it is taken for nothing else."""
    if isinstance(model, str) and model:
        return model
    path = os.fspath(model) if isinstance(model, os.PathLike) else None
    if not isinstance(path, str):
        raise ConfigError(f"model is {model!r}; it must be a hub id, a directory, or random:NAME.")
    is_plain = os.path.isabs(path) or path.startswith((".", "~"))
    return path if is_plain else os.path.join(".", path)
