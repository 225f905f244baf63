"""Build engines from settings, warm up, run, sum the runs up; print tables, write the record."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from asv_bench.explain.trace import traced
from asv_bench.memory import Bandwidth, read_bandwidth
from asv_bench.output.console import Progress
from asv_bench.output.record import Record, require_writable
from asv_bench.output.table import Cell, Column, Row, Table, digits, percent
from asv_bench.process.environment import TRIAL_VARIABLE
from asv_bench.run.settings import PROFILE_DIR, Settings
from asv_bench.session.options import Outputs
from asv_bench.words import counted
from asv_bench.workloads import drive
from asv_bench.workloads.drive import Mode, Prompt, RunSample

if TYPE_CHECKING:
    from engine import Engine

_SIZES = (
    *("vocab_size", "num_layers", "num_heads", "num_kv_heads"),
    *("head_dim", "hidden_size", "inner_size"),
)
OF_RUNS = ("decode_s", "wall_s", "decode_step_ms", "decode_tokens_per_s", "total_tokens_per_s")
"""Figures of whole runs, as a `RunSample` calls them."""
_REQUESTS = 32
"""Whose ids the record keeps, at most."""
# In the order in which they are printed, below each other.
FIGURES = (
    Column("decode_s", "decode time, s", show=digits(3)),
    Column("wall_s", "total time, s", show=digits(3)),
    Column("decode_step_ms", "decode step, ms", show=digits(3)),
    Column("decode_tokens_per_s", "throughput, tokens/s of decode time", show=digits(1)),
    Column("total_tokens_per_s", "throughput, tokens/s of total time", show=digits(1)),
    Column("ttft_ms", "TTFT, ms", show=digits(2)),
    Column("tpot_ms", "TPOT, ms", show=digits(3)),
    Column("itl_ms", "ITL, ms", show=digits(3)),
    Column("latency_ms", "latency, ms", show=digits(1)),
    Column("delivery_gap_ms", "gap between deliveries, ms", show=digits(3)),
    Column("step_ms", "step, ms (total time / tokens each)", show=digits(3)),
    Column("floor_ms", "floor of a step, ms", show=digits(3)),
    Column("fraction_of_floor", "fraction of floor", show=percent(1)),
)


def measure_and_report(settings: Settings, files: Outputs) -> None:
    """Measure every mode of `settings`, print its tables, write its record."""
    flags, console = settings.flags, files.console
    require_writable((flags.profile_dir or PROFILE_DIR) / "trace" if flags.profile else None)
    record = Record(settings.command, settings.to_json())
    if settings.note:
        record.notes.append(settings.note)
        console.print(settings.note)
    record.look_around(console, [settings.engine["device"]])

    modes: dict[str, dict[str, Any]] = {}
    name = settings.workload.name
    total = len(settings.modes) * (flags.warmup_runs + flags.repeat_runs)
    what = f"{name}, {counted(record.threads, 'thread')}: building the engine"
    with Progress(console, what, total, "runs") as progress:
        measurement = Measurement(settings)
        record.results["engine"] = measurement.engine_facts
        record.threads = measurement.engine_threads

        for mode in settings.modes:
            progress.show(what=f"{name}: {mode}")
            samples: list[RunSample] = []
            for sample in measurement.runs(mode):
                progress.advance()
                if sample is None:
                    continue
                samples.append(sample)
                record.samples.append(sample.to_json())
                if flags.print_per_run:
                    console.print(
                        f"run {len(record.samples)} {mode}: {sample.generated_tokens} tokens in "
                        f"{sample.wall_s:.3f} s, decode {sample.decode_s:.3f} s"
                    )
            modes[mode] = measurement.figures(mode, samples)
            # Of each run, tokens a second of total time.
            figures = {
                "step_ms": [one.decode_step_ms for one in samples],
                "tpot_ms": [1e3 * float(np.median(one.of_requests("tpot"))) for one in samples],
                "ttft_ms": [1e3 * float(np.median(one.of_requests("ttft"))) for one in samples],
                "tokens_per_s": [one.total_tokens_per_s for one in samples],
                "tokens": [one.token_digest for one in samples],
            }
            record.results.setdefault("runs", figures)
            record.results.setdefault("ids", measurement.ids(samples[0]))
    bandwidth = measurement.bandwidth
    record.results |= {"read_bandwidth": bandwidth and asdict(bandwidth), "modes": modes}

    # Who reads a stream sees its slow tokens, so percentiles count.
    columns = ("p50", "mean") if settings.delivery is None else ("p50", "p95", "p99", "mean")
    machine = record.machine.gpu or record.machine.cpu
    title = f"{name} on {machine}, {counted(record.threads, 'thread')}"
    files.show(*(mode_table(f"{title}, {mode}", modes[mode], columns) for mode in modes))
    console.print(f"record: {record.write(files.json)}")
    if flags.profile:
        for mode in settings.modes:
            console.print(f"trace: {measurement.trace(mode)}")


def mode_table(title: str, figures: Mapping[str, Any], columns: tuple[str, ...]) -> Table:
    """The figures of one mode; `columns` are names of `drive.summarize`."""
    rows: list[Row] = []
    for one in FIGURES:
        figure = figures.get(one.key)
        values = [figure[name] for name in columns] if isinstance(figure, dict) else [figure]
        row = [Cell(value, text=one.text_of(Cell(value)).plain) for value in values]
        if figure is not None:
            rows.append((one.title, *row, *[Cell(None, text="")] * (len(columns) - len(row))))
    shown = (Column("figure", "figure", kind="text"), *(Column(name, name) for name in columns))
    return Table(shown, rows, title)


class Measurement:
    """Runs of one `Settings`, each on a warm engine."""

    def __init__(self, settings: Settings) -> None:
        self._settings, flags = settings, settings.flags
        # A prefix cache outlives a run.
        self._is_fresh = bool(flags.prefix_cache) and not flags.keep_prefix_cache_across_runs
        self._engine = engine = self._build()
        self.engine_facts = {  # the model's sizes, its type, and how it decodes
            **{name: getattr(engine.model_config, name) for name in _SIZES},
            "device": str(engine.device),
            "dtype": self._dtype,
            "decode": engine.decode_mode,
        }
        own = settings.workload.prompts
        self._prompts: list[Prompt] = settings.prompts or [*own(engine.model_config.vocab_size)]
        self.bandwidth: Bandwidth | None = None
        self._reader: drive.StreamReader | None = None  # of the last run

    def runs(self, mode: Mode) -> Iterator[RunSample | None]:
        """Warm up and measure one mode: each run, or None for a warm-up run."""
        flags = self._settings.flags
        # A life that is only tried gives figures that nobody keeps.
        measured = 1 if os.environ.get(TRIAL_VARIABLE) else flags.repeat_runs
        # Hidden for all runs, what there is is not searched again before each. An engine that is
        # made anew for each run must not stay hidden: its memory would never be free.
        with nullcontext() if self._is_fresh else drive.settled_garbage():
            for _ in range(flags.warmup_runs):
                self.run_once(mode)
                yield None
            for _ in range(measured):
                yield self.run_once(mode)

    def figures(self, mode: Mode, samples: Sequence[RunSample]) -> dict[str, Any]:
        """The figures of one mode's runs together."""
        workload, engine = self._settings.workload, self._settings.engine
        step = statistics.median(sample.step_ms(workload) for sample in samples)
        self.bandwidth = self.bandwidth or read_bandwidth(engine["device"])
        # A naive run has one sequence in each step, so the floor of a batch is not its floor.
        bandwidth = None if mode == "naive" else self.bandwidth
        floor = workload.floor_ms(self._engine.model_config, self._dtype, bandwidth, engine)
        # Each reads its part of the weights and the cache. Older engines have none.
        ranks: list[Any] = getattr(self._engine, "rank_memory", list)()
        floor = floor and floor / max(1, len(ranks))
        of_runs = {name: [getattr(sample, name) for sample in samples] for name in OF_RUNS}
        gaps = {"delivery_gap_ms": self._reader.gaps_ms()} if self._reader else {}
        return {
            "step_ms": step,
            "floor_ms": floor,
            "fraction_of_floor": None if floor is None else floor / step,
            "same_tokens_each_run": len({sample.token_digest for sample in samples}) == 1,
            **{name: drive.summarize(values) for name, values in of_runs.items()},
            **drive.latencies_ms(samples),
            **gaps,
            **({"ranks": list(map(asdict, ranks))} if len(ranks) > 1 else {}),
        }

    def run_once(self, mode: Mode) -> RunSample:
        """Run once, on a new engine if a prefix cache would outlive the run before."""
        from engine import SamplingParams

        settings, seed = self._settings, self._settings.flags.seed or 0
        # Each request draws its own numbers, and the same ones in every run.
        params = [
            SamplingParams(
                **{**settings.sampling, "max_new_tokens": settings.workload.new_length(index)},
                seed=seed + index if settings.sampling.get("temperature") else None,
            )
            for index in range(len(self._prompts))
        ]
        self._reader = drive.StreamReader(settings.delivery) if settings.delivery else None
        if self._is_fresh:
            if hasattr(self._engine, "rank_memory"):
                # Processes of its ranks must not live on beside those of the next.
                self._engine.close()
            del self._engine
            self._engine = self._build()
            # Warm, and with too short a prompt to be found again.
            warm = SamplingParams(max_new_tokens=2, ignore_eos=True)
            drive.run_requests(self._engine, [[0]], [warm])
        sample = drive.run_requests(
            self._engine,
            self._prompts,
            params,
            mode=mode,
            due_s=settings.due_s,
            max_inflight=settings.flags.max_inflight_requests,
            encode=None if settings.tokenizer is None else settings.tokenizer.encode,
            consumer=None if self._reader is None else self._reader.receive,
        )
        if settings.sampling["ignore_eos"]:
            drive.require_complete(sample, settings.workload)
        return sample

    def ids(self, sample: RunSample) -> dict[str, Any]:
        """What requests from all places of a batch generated, as faults may be of some rows."""
        step = -(-len(self._prompts) // _REQUESTS)
        return {
            "model": self._settings.engine["model"],
            "seed": self._settings.flags.seed or 0,
            **{name: self.engine_facts[name] for name in ("dtype", "device")},
            "prompts": self._prompts[::step],
            "generated": [trace.token_ids for trace in sample.traces[::step]],
        }

    def trace(self, mode: Mode) -> Path:
        """Run once more under the torch profiler and return the file with its trace."""
        directory = self._settings.flags.profile_dir or PROFILE_DIR
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{self._settings.command}-{mode}-{os.getpid()}.trace.json.gz"
        with traced(self._settings.engine["device"], str(path)):
            self.run_once(mode)
        return path

    def _build(self) -> Engine:
        # Not at the top: the engine reads KVTRAIL_NVTX when it is imported.
        import torch

        import engine

        made = engine.Engine(engine.EngineConfig(**self._settings.engine))
        self.engine_threads = torch.get_num_threads()
        self._dtype = str(made.dtype).removeprefix("torch.")
        return made
