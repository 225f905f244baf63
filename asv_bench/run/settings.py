"""From flags to a measurement: every flag is honoured, or refused in a sentence."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, fields, replace
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np

from asv_bench.errors import Refused
from asv_bench.output.record import REPOSITORY
from asv_bench.process.machine import chosen_device
from asv_bench.run.flags import SchedulerFlags, StreamingFlags
from asv_bench.workloads.drive import Feed
from asv_bench.workloads.named import WORKLOADS, Workload, default_model, workload_named
from asv_bench.workloads.prompts import (
    DEFAULT_TEXT,
    PromptPlan,
    from_text,
    from_token_ids,
    from_workload,
    read_numbers,
    read_texts,
)
from asv_bench.workloads.run_sample import MODES, Mode
from asv_bench.workloads.tokenizer import PromptTokenizer, load_tokenizer, model_tokenizer

SCHEDULES = ("uniform", "poisson")
NVTX_VARIABLE = "KVTRAIL_NVTX"
"""Turns on the engine's ranges; read when the engine is imported."""
PROFILE_DIR = REPOSITORY / "reports" / "profile"


@dataclass(frozen=True, slots=True)
class Settings:
    """A measurement, decided down to the last option.

    Attributes
    ----------
    command, flags
        What was asked for.
    device
        "cpu" or a CUDA device, with "auto" decided.
    workload
        Shape of the requests; named only where it is exactly that workload.
    engine, sampling
        Fields of `EngineConfig` and of `SamplingParams`.
    plan
        The prompts.
    tokenizer
        Tokenizes prompts and turns streamed ids into text; None where neither is asked for.
    feed
        Due times and limits of the online mode.
    modes
        The modes to measure, in order.
    """

    command: str
    flags: SchedulerFlags
    device: str
    workload: Workload
    engine: dict[str, Any]
    sampling: dict[str, Any]
    plan: PromptPlan
    tokenizer: PromptTokenizer | None
    feed: Feed
    modes: tuple[Mode, ...]

    @property
    def fresh_engine_per_run(self) -> bool:
        """Whether each run needs an engine of its own, since a prefix cache outlives a run."""
        return self.flags.prefix_cache and not self.flags.keep_prefix_cache_across_runs

    def to_json(self) -> dict[str, Any]:
        """Every setting as JSON-ready values."""
        shape = {entry.name: getattr(self.workload, entry.name) for entry in fields(self.workload)}
        given = {entry.name: getattr(self.flags, entry.name) for entry in fields(self.flags)}
        return {
            "workload": {**shape, "mean_context": self.workload.mean_context},
            "engine": self.engine,
            "sampling": self.sampling,
            "modes": list(self.modes),
            "flags": {
                name: str(value) if isinstance(value, Path) else value
                for name, value in given.items()
            },
        }


def settle(command: str, flags: SchedulerFlags) -> Settings:
    """Decide every option of a measurement.

    With `--nvtx` the engine that this process imports from now on has its ranges.

    Raises
    ------
    Refused
        If a flag cannot be honoured, alone or beside the others.
    """
    _refuse_what_cannot_be(flags)
    device = chosen_device(flags.device)
    if flags.cuda_graph and not device.startswith("cuda"):
        raise Refused(
            f"--cuda-graph needs a GPU and the device is {device!r}; leave it out, or choose "
            f"--device cuda."
        )
    if flags.nvtx:
        os.environ[NVTX_VARIABLE] = "1"
    model = _model(flags, device)
    tokenizer = load_tokenizer(flags.tokenizer_name) if flags.tokenizer_name else None
    if tokenizer is None and _wants_text(flags):
        tokenizer = model_tokenizer(model)
    base = workload_named(flags.workload or command)
    if flags.quick:
        base = base.quick()
    base = replace(
        base,
        num_requests=flags.num_requests or base.num_requests,
        batch_size=flags.max_batch_size or base.batch_size,
        new_tokens=flags.max_new_tokens or base.new_tokens,
    )
    plan = _plan(flags, base, tokenizer)
    workload = _shaped(base, plan)
    return Settings(
        command=command,
        flags=flags,
        device=device,
        workload=workload,
        engine=_engine_fields(flags, workload, model, device),
        sampling=_sampling_fields(flags, workload),
        plan=plan,
        tokenizer=tokenizer,
        feed=_feed(flags, workload),
        modes=tuple(mode for mode in MODES if flags.mode in (mode, "all")),
    )


def _refuse_what_cannot_be(flags: SchedulerFlags) -> None:
    _one_of("--mode", flags.mode, (*MODES, "all"))
    _one_of("--dtype", flags.dtype, (None, "auto", "float32", "float16", "bfloat16"))
    if not flags.paged_attn:
        raise Refused(
            "--no-paged-attn cannot be had: the engine keeps K and V in blocks and has no other "
            "attention."
        )
    if flags.bf16 and flags.dtype not in (None, "bfloat16"):
        raise Refused(f"--bf16 and --dtype {flags.dtype} contradict each other; give one.")
    if flags.hf_model_id and flags.checkpoint_path:
        raise Refused("--hf-model-id and --checkpoint-path both name a model; give one.")
    if flags.checkpoint_path and not flags.checkpoint_path.is_dir():
        raise Refused(f"--checkpoint-path {flags.checkpoint_path} is not a directory.")
    if flags.keep_prefix_cache_across_runs and not flags.prefix_cache:
        raise Refused("--keep-prefix-cache-across-runs needs --prefix-cache.")
    if not flags.do_sample:
        for name in ("temperature", "top_k", "top_p"):
            if getattr(flags, name) is not None:
                raise Refused(
                    f"--{name.replace('_', '-')} has no effect on greedy decoding; add "
                    f"--do-sample or leave it out."
                )
    elif flags.temperature is not None and flags.temperature <= 0:
        raise Refused("--temperature must be above 0 to sample; leave out --do-sample for greedy.")
    if flags.profile_dir and not flags.profile:
        raise Refused("--profile-dir says where traces go; add --profile to make one.")
    if flags.nvtx and util.find_spec("nvtx") is None:
        raise Refused("--nvtx needs the package nvtx; install it or leave the flag out.")
    ranges = sys.modules.get("engine.running.ranges")
    if flags.nvtx and ranges is not None and not ranges.ENABLED:
        raise Refused("--nvtx comes too late: the engine was imported without its ranges.")
    if isinstance(flags, StreamingFlags):
        _refuse_streaming(flags)


def _refuse_streaming(flags: StreamingFlags) -> None:
    if flags.mode != "online":
        for name, asked_for in (
            ("submit_interval_ms", flags.submit_interval_ms > 0),
            ("submit_schedule", flags.submit_schedule != "uniform"),
            ("max_inflight_requests", flags.max_inflight_requests is not None),
            ("tokenize_workers", flags.tokenize_workers > 0 and not flags.pretok),
        ):
            if asked_for:
                raise Refused(
                    f"--{name.replace('_', '-')} is about requests that arrive while others run; "
                    f"choose --mode online, not {flags.mode}."
                )
    _one_of("--submit-schedule", flags.submit_schedule, SCHEDULES)
    if flags.submit_schedule == "poisson" and flags.submit_interval_ms == 0:
        raise Refused("--submit-schedule poisson needs --submit-interval-ms above 0.")
    _one_of("--prefill-admission-policy", flags.prefill_admission_policy, ("fifo", "pack"))
    if flags.prefill_admission_policy == "fifo":
        for name in ("prefill_admission_lookahead", "prefill_force_fifo_every"):
            if getattr(flags, name) is not None:
                raise Refused(
                    f"--{name.replace('_', '-')} belongs to --prefill-admission-policy pack."
                )
    if flags.pretok_base_token_ids is not None:
        if flags.prompt is not None or flags.prompts:
            raise Refused("--pretok-base-token-ids and --prompt both say what is submitted.")
        if not flags.pretok or flags.tokenize_workers or flags.tokenizer_name:
            raise Refused("--pretok-base-token-ids leaves nothing to tokenize.")


def _wants_text(flags: SchedulerFlags) -> bool:
    """Whether anything that was asked for is about text rather than ids."""
    workers = isinstance(flags, StreamingFlags) and flags.tokenize_workers > 0
    named = flags.prompt is not None or bool(flags.prompts) or flags.tokenizer_name is not None
    return named or workers or not flags.pretok


def _model(flags: SchedulerFlags, device: str) -> str:
    if flags.checkpoint_path:
        return str(flags.checkpoint_path)
    return flags.hf_model_id or default_model("cuda" if device.startswith("cuda") else "cpu")


def _plan(
    flags: SchedulerFlags, workload: Workload, tokenizer: PromptTokenizer | None
) -> PromptPlan:
    repeats, base_ids, workers = workload.prompt_lengths, None, 0
    unique = workload.unique_prompts
    if isinstance(flags, StreamingFlags):
        workers = flags.tokenize_workers
        unique = unique or flags.unique_prompts
        if flags.prompt_repeats is not None:
            repeats = read_numbers("--prompt-repeats", flags.prompt_repeats, least=1)
        if flags.pretok_base_token_ids is not None:
            base_ids = read_numbers("--pretok-base-token-ids", flags.pretok_base_token_ids, least=0)
    count = workload.num_requests
    if base_ids is not None:
        return from_token_ids(base_ids, repeats, count, unique=unique)
    if _wants_text(flags):
        if tokenizer is None and (workers or not flags.pretok):
            raise Refused(
                f"--{'tokenize-workers' if workers else 'no-pretok'} is about text, and the model "
                f"has no tokenizer; name one with --tokenizer-name."
            )
        return from_text(
            read_texts(flags.prompt, flags.prompts) or [DEFAULT_TEXT],
            repeats,
            count,
            unique=unique,
            encode=None if tokenizer is None else tokenizer.encode,
            pretok=flags.pretok,
            workers=workers,
        )
    if repeats == workload.prompt_lengths and unique == workload.unique_prompts:
        return from_workload(workload)
    words = from_text(
        [DEFAULT_TEXT], repeats, count, unique=unique, encode=None, pretok=True, workers=0
    )
    return replace(words, note=None)


def _shaped(base: Workload, plan: PromptPlan) -> Workload:
    """The workload that is really submitted, named only where it is exactly that workload."""
    shape = from_workload(base).lengths
    named = (*WORKLOADS.values(), *(workload.quick() for workload in WORKLOADS.values()))
    if plan.lengths == shape and base in named:
        return base
    lengths = base.prompt_lengths if plan.lengths == shape else plan.lengths
    return replace(base, name="custom", prompt_lengths=lengths)


def _engine_fields(
    flags: SchedulerFlags, workload: Workload, model: str, device: str
) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "model": model,
        "device": device,
        "dtype": "bfloat16" if flags.bf16 else flags.dtype or "auto",
        "decode": {None: "auto", True: "graph", False: "eager"}[flags.cuda_graph],
        "seed": flags.seed,
        **workload.engine_settings(),
    }
    if flags.prefix_cache:
        settings["prefix_cache"] = True
        # As much room again for what the cache keeps of finished requests.
        settings["num_kv_blocks"] *= 2
    if isinstance(flags, StreamingFlags):
        optional = {
            "prefill_max_batch_size": flags.prefill_max_batch_size,
            "prefill_max_tokens": flags.prefill_max_tokens,
            "admission_lookahead": flags.prefill_admission_lookahead,
            "force_fifo_every": flags.prefill_force_fifo_every,
            "max_active_requests": flags.max_active_requests,
            "max_inflight_requests": flags.max_inflight_requests,
        }
        settings |= {name: value for name, value in optional.items() if value is not None}
        settings |= {
            "admission": flags.prefill_admission_policy,
            "decode_first": flags.decode_first,
        }
    return settings


def _sampling_fields(flags: SchedulerFlags, workload: Workload) -> dict[str, Any]:
    sampling: dict[str, Any] = {
        "max_new_tokens": workload.new_tokens,
        "ignore_eos": not flags.stop_on_eos,
    }
    if flags.do_sample:
        sampling["temperature"] = 1.0 if flags.temperature is None else flags.temperature
        sampling["top_k"] = flags.top_k or 0
        sampling["top_p"] = 1.0 if flags.top_p is None else flags.top_p
    return sampling


def _feed(flags: SchedulerFlags, workload: Workload) -> Feed:
    count = workload.num_requests
    if not isinstance(flags, StreamingFlags):
        return Feed(due_s=[0.0] * count)
    interval = flags.submit_interval_ms / 1e3
    gaps = np.full(count, interval)
    if flags.submit_schedule == "poisson":
        gaps = np.random.default_rng(flags.seed).exponential(interval, count)
    due = np.cumsum(gaps) - gaps[0]
    return Feed(
        due_s=due.tolist(),
        max_inflight=flags.max_inflight_requests,
        workers=0 if flags.pretok else flags.tokenize_workers,
    )


def _one_of(flag: str, value: Any, allowed: tuple[Any, ...]) -> Any:
    if value not in allowed:
        names = ", ".join(str(entry) for entry in allowed if entry)
        raise Refused(f"{flag} is {value!r}; it must be one of {names}.")
    return value
