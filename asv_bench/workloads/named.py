"""The named workloads: their requests, and the engine settings to measure them with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from asv_bench.errors import Refused
from asv_bench.memory import Bandwidth, ModelConfig, role_bytes

if TYPE_CHECKING:
    from engine import EngineConfig, SamplingParams

BLOCK_SIZE = 64
HELLO = 15496  # "Hello" in GPT-2's vocabulary: the prompt of the write-ups this suite grew from
_MOST_TOKENS = 100_000_000
"""Of a workload: beyond it, lists of prompts fill the memory before anything is measured."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests of fixed lengths, decoded greedily; EOS does not end them.

    `prompt_lengths` are dealt out in turn: request i has `prompt_lengths[i % n]` tokens, and so
    `new_lengths`, of which `new_tokens` is the largest; without them all have `new_tokens`.
    Prompts repeat one token unless `unique_prompts` is set. With `is_streamed` a reader takes each
    token as it comes. `model` is what it is measured with on a GPU, in bfloat16, and `small_model`
    elsewhere; without them the device's own model is.
    """

    name: str
    num_requests: int
    batch_size: int
    prompt_lengths: tuple[int, ...]
    new_tokens: int
    unique_prompts: bool = False
    prefill_batch_size: int | None = None
    is_streamed: bool = False
    new_lengths: tuple[int, ...] = ()
    model: str | None = None
    small_model: str | None = None

    def new_length(self, index: int) -> int:
        """Tokens that request `index` generates."""
        lengths = self.new_lengths or (self.new_tokens,)
        return lengths[index % len(lengths)]

    @property
    def requests(self) -> list[tuple[int, int]]:
        """Tokens of each request's prompt, and new ones."""
        prompts = self.prompt_lengths
        each = range(self.num_requests)
        return [(prompts[index % len(prompts)], self.new_length(index)) for index in each]

    @property
    def max_length(self) -> int:
        """Tokens, prompt and new, of the longest request."""
        return max(self.prompt_lengths) + self.new_tokens

    @property
    def resident(self) -> int:
        """Requests that run at the same time."""
        return min(self.num_requests, self.batch_size)

    @property
    def waves(self) -> int:
        """How often the whole batch is filled and emptied."""
        return -(-self.num_requests // self.batch_size)

    @property
    def steps(self) -> int:
        """Steps of a run: one per token of the longest sequence, for every wave."""
        return max(new for _, new in self.requests) * self.waves

    @property
    def mean_context(self) -> float:
        """Mean tokens that a decode step attends to per sequence, its own token included.

        The t-th decode step of a prompt of p tokens attends to p + t; the first new token comes
        out of the prefill, so of n new tokens t runs from 1 to n - 1. A sequence that has ended
        while others of its wave go on attends to none.
        """
        attended = [(new - 1) * (prompt + new / 2) for prompt, new in self.requests]
        return float(np.mean(attended)) / max(self.new_tokens - 1, 1)

    @property
    def sentence(self) -> str:
        """Its requests in words."""
        lengths = (self.prompt_lengths, self.new_lengths or (self.new_tokens,))
        prompts, new = (" to ".join(map(str, sorted({min(of), max(of)}))) for of in lengths)
        model = f", {self.model}" if self.model else ""
        requests = "1 request" if self.num_requests == 1 else f"{self.num_requests} requests"
        return f"{requests} of {prompts} + {new} tokens, batch {self.batch_size}{model}."

    def prompts(self, vocab_size: int) -> list[list[int]]:
        """Token ids of every request's prompt, the same on each call."""
        if not self.unique_prompts:
            return [[HELLO % vocab_size] * length for length, _ in self.requests]
        generator = np.random.default_rng(0)
        return [generator.integers(0, vocab_size, length).tolist() for length, _ in self.requests]

    def floor_ms(
        self, config: ModelConfig, dtype: str, bandwidth: Bandwidth | None, engine: dict[str, Any]
    ) -> float | None:
        """Milliseconds that reading a decode step's bytes takes; None without a bandwidth."""
        if bandwidth is None:
            return None
        size, mean = self.resident, self.mean_context
        parts = role_bytes(config, dtype=dtype, batch_size=size, mean_context=mean, options=engine)
        return 1e3 * sum(parts.values()) / bandwidth.bytes_per_second

    def engine_settings(self, block_size: int = BLOCK_SIZE) -> dict[str, Any]:
        """`EngineConfig` fields that this workload fixes.

        The cache holds every resident sequence at its full length and one block each beyond,
        so that neither waiting nor preemption is part of the measurement.
        """
        lengths = [self.max_length] * self.resident
        if self.waves == 1:
            # The longest prompt and the longest output need not be of one request.
            lengths = [prompt + new for prompt, new in self.requests]
        return {
            "block_size": block_size,
            "max_batch_size": self.batch_size,
            "max_model_len": self.max_length,
            "num_kv_blocks": sum(-(-length // block_size) + 1 for length in lengths),
            "prefix_cache": False,
            "admission": "fifo",
            "prefill_max_batch_size": self.prefill_batch_size,
        }

    def engine_config(self, model: str, **settings: Any) -> EngineConfig:
        """The `EngineConfig` to measure `model` with; `settings` add to or replace fields."""
        # The engine reads KVTRAIL_NVTX when it is imported, so nothing here imports it earlier.
        from engine import EngineConfig

        own = self.engine_settings(settings.get("block_size", BLOCK_SIZE))
        return EngineConfig(model=model, **{**own, **settings})

    def sampling_params(self, index: int = 0) -> SamplingParams:
        """Of request `index`: greedy, and no stop before the last token."""
        from engine import SamplingParams

        return SamplingParams(max_new_tokens=self.new_length(index), ignore_eos=True)

    def quick(self) -> Workload:
        """The same shape, small enough for a tiny model on a 2-core machine: under a second."""
        requests = min(self.num_requests, 16)
        new_tokens = min(self.new_tokens, 32)
        return replace(
            self,
            name=f"{self.name}-quick",
            num_requests=requests,
            batch_size=min(self.batch_size, requests if self.waves == 1 else 4),
            prompt_lengths=tuple(min(length, 16) for length in self.prompt_lengths),
            new_tokens=new_tokens,
            new_lengths=tuple(
                -(-length * new_tokens // self.new_tokens) for length in self.new_lengths
            ),
        )

    def shaped(
        self,
        requests: int | None,
        batch: int | None,
        prompt_len: int | None,
        new_tokens: int | None,
    ) -> Workload:
        """The same with other sizes; None: its own.

        Raises Refused where all requests together, or a full batch, have too many tokens to hold.
        """
        shaped = replace(
            self,
            num_requests=requests or self.num_requests,
            batch_size=batch or self.batch_size,
            prompt_lengths=(prompt_len,) if prompt_len else self.prompt_lengths,
            new_tokens=new_tokens or self.new_tokens,
            new_lengths=() if new_tokens else self.new_lengths,
        )
        tokens = max(shaped.num_requests, shaped.batch_size) * shaped.max_length
        if tokens > _MOST_TOKENS:
            raise Refused(
                f"{shaped.num_requests:,} requests in batches of {shaped.batch_size:,}, of up to "
                f"{shaped.max_length:,} tokens each, are {tokens:,} tokens; at most "
                f"{_MOST_TOKENS:,} can be held."
            )
        return shaped

    def default_model(self, device: str, *, is_quick: bool = False) -> str:
        """The built-in model that it is measured with on `device`."""
        own = self.model if device.startswith("cuda") and not is_quick else self.small_model
        return own or default_model(device)

    def default_dtype(self, device: str) -> str:
        """The type of the weights that goes with that model, as `EngineConfig` takes it."""
        return "bfloat16" if self.model and device.startswith("cuda") else "auto"


def _mixed() -> Workload:
    """The requests of nano-vllm's public benchmark, as its bench.py draws them with seed 0."""
    random = Random(0)

    def prompt_length() -> int:
        """A length, past the draws of as many tokens up to 10,000.

        What `randint` draws for each, the highest bits of a word until they are a token, is drawn
        for many at once: every command knows this.
        """
        length = drawn = random.randint(100, 1024)
        while drawn:
            words = random.getrandbits(32 * drawn).to_bytes(4 * drawn, "little")
            drawn -= int(np.count_nonzero(np.frombuffer(words, "<u4") >> 18 <= 10_000))
        return length

    # All prompts with their tokens, then new lengths.
    prompts = tuple(prompt_length() for _ in range(256))
    new = tuple(random.randint(100, 1024) for _ in range(256))
    return Workload(
        "mixed",
        256,
        256,
        prompts,
        max(new),
        unique_prompts=True,
        new_lengths=new,
        model="random:qwen3-0.6b",
        small_model="random:qwen3-tiny",
    )


WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload("scheduler", 64, 64, (1,), 512),
        Workload("streaming", 128, 128, (1, 4), 128, prefill_batch_size=128, is_streamed=True),
        Workload("streaming-small", 128, 8, (1, 4), 128, is_streamed=True),
        Workload("wide", 256, 256, (128,), 256, unique_prompts=True),
        Workload("single", 1, 1, (1,), 512, unique_prompts=True),
        *(
            Workload(
                *(f"{model}-{batch}", batch, batch, (128,), new_tokens),
                unique_prompts=True,
                model=f"random:{model}",
                small_model=f"random:{small_model}",
            )
            for model, small_model, new_tokens in (
                ("llama-3.2-1b", "llama-tiny", 256),
                ("qwen3-0.6b", "qwen3-tiny", 256),
                ("qwen3-8b", "qwen3-tiny", 1024),
            )
            for batch in (1, 64, 256)
        ),
        _mixed(),
    )
}
HEADLINE_WORKLOADS = ("scheduler", "streaming", "wide", "single")


def workload_named(name: str) -> Workload:
    """The workload called `name`.

    Raises Refused if there is none; the sentence lists all workloads.
    """
    if name not in WORKLOADS:
        raise Refused(f"there is no workload {name!r}; there are {', '.join(WORKLOADS)}.")
    return WORKLOADS[name]


def workloads_named(names: str) -> list[Workload]:
    """The workloads that a comma-separated list names, each once."""
    return [workload_named(name) for name in dict.fromkeys(map(str.strip, names.split(",")))]


def default_model(device: str) -> str:
    """The built-in model that suits the speed of a device."""
    return "random:gpt2" if device.startswith("cuda") else "random:gpt2-tiny"
