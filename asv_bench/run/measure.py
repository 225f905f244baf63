"""Build engines from settings, warm up, run, and sum the runs up."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from asv_bench.explain.trace import traced
from asv_bench.memory.bandwidth import Bandwidth, read_bandwidth
from asv_bench.memory.floor import describe
from asv_bench.process.environment import TRIAL_VARIABLE
from asv_bench.run.settings import PROFILE_DIR, Settings
from asv_bench.workloads.drive import (
    Prompt,
    StreamReader,
    require_complete,
    run_requests,
    settled_garbage,
)
from asv_bench.workloads.run_sample import Mode, RunSample, Summary, latencies_ms, summarize

if TYPE_CHECKING:
    from engine import Engine, SamplingParams

# The label of each figure, its digits after the point, and what a `RunSample` calls it if it is one
# of a whole run; in the order they are printed.
FIGURES = {
    "decode_s": ("decode time, s", 3, "decode_s"),
    "total_s": ("total time, s", 3, "wall_s"),
    "decode_step_ms": ("decode step, ms", 3, "decode_step_ms"),
    "decode_tokens_per_s": ("throughput, tokens/s of decode time", 1, "decode_tokens_per_s"),
    "total_tokens_per_s": ("throughput, tokens/s of total time", 1, "total_tokens_per_s"),
    "ttft_ms": ("TTFT, ms", 2, ""),
    "tpot_ms": ("TPOT, ms", 3, ""),
    "itl_ms": ("ITL, ms", 3, ""),
    "latency_ms": ("latency, ms", 1, ""),
    "delivery_gap_ms": ("gap between deliveries, ms", 3, ""),
}


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
            for name, (_, _, its_name) in FIGURES.items()
            if its_name
        }
        gaps = {"delivery_gap_ms": self.delivery_gap_ms} if self.delivery_gap_ms else {}
        return {**of_runs, **latencies_ms(self.samples), **gaps}

    def each_run(self) -> dict[str, list[float]]:
        """A figure of each run: milliseconds, and tokens a second of total time."""
        return {
            "step_ms": [sample.decode_step_ms for sample in self.samples],
            "tpot_ms": [1e3 * float(np.median(one.of_requests("tpot"))) for one in self.samples],
            "ttft_ms": [1e3 * float(np.median(one.of_requests("ttft"))) for one in self.samples],
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
        self._settings, flags = settings, settings.flags
        # A prefix cache outlives a run.
        self._is_fresh = bool(flags.prefix_cache) and not flags.keep_prefix_cache_across_runs
        self._engine = self._build()
        vocab_size = self._engine.model_config.vocab_size
        own = settings.workload.prompts
        self._prompts: list[Prompt] = settings.prompts or [*own(vocab_size)]

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
        with nullcontext() if self._is_fresh else settled_garbage():
            for _ in range(flags.warmup_runs):
                self.run_once(mode)
                on_run(None)
            # A life that is only tried gives figures that nobody keeps.
            for _ in range(1 if os.environ.get(TRIAL_VARIABLE) else flags.repeat_runs):
                stream = StreamReader(settings.delivery) if settings.delivery else None
                samples.append(self.run_once(mode, stream))
                on_run(samples[-1])
        step = statistics.median(sample.step_ms(settings.workload) for sample in samples)
        # A naive run has one sequence in each step, so the floor of a batch is not its floor.
        bandwidth = None if mode == "naive" else self.bandwidth
        floor = settings.workload.floor_ms(self._engine.model_config, self._dtype, bandwidth)
        return ModeResult(mode, samples, step, floor, stream.gaps_ms() if stream else None)

    def run_once(self, mode: Mode, stream: StreamReader | None = None) -> RunSample:
        """Run once, on a new engine if a prefix cache would outlive the run before."""
        from engine import SamplingParams

        settings = self._settings
        if self._is_fresh:
            del self._engine
            self._engine = self._build()
            # Warm, and with too short a prompt to be found again.
            warm = SamplingParams(max_new_tokens=2, ignore_eos=True)
            run_requests(self._engine, [[0]], [warm])
        sample = run_requests(
            self._engine,
            self._prompts,
            self._sampling_params(),
            mode=mode,
            due_s=settings.due_s,
            max_inflight=settings.flags.max_inflight_requests,
            encode=None if settings.tokenizer is None else settings.tokenizer.encode,
            consumer=None if stream is None else stream.receive,
        )
        if settings.sampling["ignore_eos"]:
            require_complete(sample, settings.workload)
        return sample

    def trace(self, mode: Mode) -> Path:
        """Run once more under the torch profiler and return the file with its trace."""
        directory = self._settings.flags.profile_dir or PROFILE_DIR
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{self._settings.command}-{mode}-{os.getpid()}.trace.json.gz"
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

    def _sampling_params(self) -> list[SamplingParams]:
        from engine import SamplingParams

        settings, seed = self._settings, self._settings.flags.seed or 0
        # Each request draws its own numbers, and the same ones in every run.
        return [
            SamplingParams(
                **{**settings.sampling, "max_new_tokens": settings.workload.new_length(index)},
                seed=seed + index if settings.sampling.get("temperature") else None,
            )
            for index in range(len(self._prompts))
        ]
