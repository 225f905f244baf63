"""Build engines from settings, warm up, run, and sum the runs up."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from asv_bench.explain.trace import traced
from asv_bench.memory.bandwidth import Bandwidth, read_bandwidth
from asv_bench.memory.floor import describe
from asv_bench.process.environment import TRIAL_VARIABLE
from asv_bench.run.settings import PROFILE_DIR, Settings
from asv_bench.workloads.drive import (
    StreamReader,
    require_complete,
    run_requests,
    settled_garbage,
)
from asv_bench.workloads.run_sample import Mode, RunSample, Summary, latencies_ms, summarize

if TYPE_CHECKING:
    from engine import Engine, SamplingParams

OF_RUNS = {
    "decode_s": "decode_s",
    "total_s": "wall_s",
    "decode_step_ms": "decode_step_ms",
    "decode_tokens_per_s": "decode_tokens_per_s",
    "total_tokens_per_s": "total_tokens_per_s",
}
"""Figures of whole runs, and what a `RunSample` calls them."""


@dataclass(frozen=True, slots=True)
class ModeResult:
    """The measured runs of one mode."""

    mode: Mode
    samples: list[RunSample]
    step_ms: float
    floor_ms: float | None
    delivery_gap_ms: Summary | None

    @property
    def fraction_of_floor(self) -> float | None:
        """The floor over the step time; None without a floor."""
        return None if self.floor_ms is None else self.floor_ms / self.step_ms

    def summaries(self) -> dict[str, Summary]:
        """Figures of whole runs, and TTFT, TPOT, ITL and latency over the requests of all runs."""
        of_runs = {
            name: summarize([getattr(sample, its_name) for sample in self.samples])
            for name, its_name in OF_RUNS.items()
        }
        gaps = {"delivery_gap_ms": self.delivery_gap_ms} if self.delivery_gap_ms else {}
        return {**of_runs, **latencies_ms(self.samples), **gaps}

    def each_run(self) -> dict[str, list[float]]:
        """A figure of each run: milliseconds, and tokens a second of total time."""
        return {
            "step_ms": [sample.decode_step_ms for sample in self.samples],
            "tpot_ms": [
                1e3 * float(np.median(sample.of_requests("tpot"))) for sample in self.samples
            ],
            "ttft_ms": [
                1e3 * float(np.median(sample.of_requests("ttft"))) for sample in self.samples
            ],
            "tokens_per_s": [sample.total_tokens_per_s for sample in self.samples],
        }

    def to_json(self) -> dict[str, Any]:
        """The figures, without the samples they come from."""
        return {
            "step_ms": self.step_ms,
            "floor_ms": self.floor_ms,
            "fraction_of_floor": self.fraction_of_floor,
            "same_tokens_each_run": len({sample.token_digest for sample in self.samples}) == 1,
            **{name: asdict(summary) for name, summary in self.summaries().items()},
        }


class Measurement:
    """Runs of one `Settings`, each on a warm engine."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._engine = self._build()
        self._prompts = settings.plan.build(self._engine.model_config.vocab_size)
        tokenizer = settings.tokenizer
        self._encode = None if tokenizer is None else tokenizer.encode

    def engine_facts(self) -> dict[str, Any]:
        """What was built: the model's sizes, its type, and how it decodes."""
        return {
            **describe(self._engine.model_config),
            "device": str(self._engine.device),
            "dtype": self._dtype,
            "decode": self._engine.decode_mode,
        }

    @cached_property
    def bandwidth(self) -> Bandwidth | None:
        """The device's read bandwidth; None on the CPU."""
        return read_bandwidth(self._settings.device)

    def run_mode(self, mode: Mode, on_run: Callable[[RunSample | None], None]) -> ModeResult:
        """Warm up, then measure one mode; `on_run` gets each run, or None for a warm-up run."""
        settings, flags = self._settings, self._settings.flags
        samples: list[RunSample] = []
        stream: StreamReader | None = None
        # Hidden for all runs, what there is is not searched again before each. An engine that is
        # made anew for each run must not stay hidden: its memory would never be free.
        with nullcontext() if settings.fresh_engine_per_run else settled_garbage():
            for _ in range(flags.warmup_runs):
                self.run_once(mode)
                on_run(None)
            # A life that is only tried gives figures that nobody keeps.
            for _ in range(1 if os.environ.get(TRIAL_VARIABLE) else flags.repeat_runs):
                stream = self._stream()
                samples.append(self.run_once(mode, stream))
                on_run(samples[-1])
        step = statistics.median(sample.step_ms(settings.workload) for sample in samples)
        # A naive run has one sequence in each step, so the floor of a batch is not its floor.
        bandwidth = None if mode == "naive" else self.bandwidth
        floor = settings.workload.floor_ms(self._engine.model_config, self._dtype, bandwidth)
        return ModeResult(mode, samples, step, floor, stream.gaps_ms() if stream else None)

    def run_once(self, mode: Mode, stream: StreamReader | None = None) -> RunSample:
        """Run once, on a new engine if a prefix cache would outlive the run before."""
        settings = self._settings
        if settings.fresh_engine_per_run:
            del self._engine
            self._engine = self._build()
            self._warm_up_fresh_engine()
        sample = run_requests(
            self._engine,
            self._prompts,
            self._sampling_params(),
            mode=mode,
            feed=settings.feed,
            encode=self._encode,
            consumer=stream.receive if stream else None,
        )
        if settings.sampling["ignore_eos"]:
            require_complete(sample, settings.workload)
        return sample

    def trace(self, mode: Mode) -> Path:
        """Run once more under the torch profiler and return the file with its trace."""
        directory = self._settings.flags.profile_dir or PROFILE_DIR
        directory.mkdir(parents=True, exist_ok=True)
        path: Path = directory / f"{self._settings.command}-{mode}-{os.getpid()}.trace.json.gz"
        with traced(self._settings.device, str(path)):
            self.run_once(mode)
        return path

    def _build(self) -> Engine:
        # Not at the top: the engine reads KVTRAIL_NVTX when it is imported.
        import torch

        import engine

        made = engine.Engine(engine.EngineConfig(**self._settings.engine))
        self.engine_threads = torch.get_num_threads()
        return made

    @property
    def _dtype(self) -> str:
        return str(self._engine.dtype).removeprefix("torch.")

    def _stream(self) -> StreamReader | None:
        interval, tokenizer = self._settings.delivery, self._settings.tokenizer
        to_text = partial(tokenizer.decode, skip_special_tokens=False) if tokenizer else None
        return None if interval is None else StreamReader(interval, to_text)

    def _sampling_params(self) -> list[SamplingParams]:
        from engine import SamplingParams

        settings, seed = self._settings, self._settings.flags.seed
        # Each request draws its own numbers, and the same ones in every run.
        return [
            SamplingParams(
                **{**settings.sampling, "max_new_tokens": settings.workload.new_length(index)},
                seed=seed + index if settings.flags.temperature else None,
            )
            for index in range(len(self._prompts))
        ]

    def _warm_up_fresh_engine(self) -> None:
        """Run a prompt that shares no first token with the measured ones."""
        from engine import SamplingParams

        encode = self._encode
        taken = {
            (encode(prompt) if encode and isinstance(prompt, str) else prompt)[0]
            for prompt in self._prompts
        }
        free = min(set(range(self._engine.model_config.vocab_size)) - taken, default=0)
        run_requests(self._engine, [[free]], [SamplingParams(max_new_tokens=2, ignore_eos=True)])
