"""Turn flags into the settings of a measurement, or refuse them in a sentence."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from asv_bench.errors import Refused
from asv_bench.output.record import REPOSITORY
from asv_bench.process.machine import chosen_device
from asv_bench.run.flags import PANELS, RunFlags
from asv_bench.workloads.drive import Feed
from asv_bench.workloads.named import HELLO, WORKLOADS, Workload, workload_named
from asv_bench.workloads.prompts import (
    DEFAULT_TEXT,
    PromptPlan,
    from_ids,
    from_text,
    from_workload,
    load_tokenizer,
    read_numbers,
    require_text,
)
from asv_bench.workloads.run_sample import MODES, Mode

if TYPE_CHECKING:
    from engine import Tokenizer

SCHEDULES = ("uniform", "poisson")
NVTX_VARIABLE = "KVTRAIL_NVTX"
"""Turns on the engine's ranges; read when the engine is imported."""
PROFILE_DIR = REPOSITORY / "reports" / "profile"


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting of a measurement."""

    command: str
    flags: RunFlags
    device: str  # "cpu" or a CUDA device, with "auto" decided
    # The requests; it has a workload's name only if it is exactly that workload.
    workload: Workload
    engine: dict[str, Any]  # fields of `EngineConfig`
    sampling: dict[str, Any]  # fields of `SamplingParams`
    plan: PromptPlan
    # Tokenizes prompts and turns streamed ids into text; None where neither is asked for.
    tokenizer: Tokenizer | None
    feed: Feed  # due times and limits of the online mode
    modes: tuple[Mode, ...]  # in the order in which they are measured

    @property
    def delivery(self) -> int | None:
        """Tokens that the reader of a request gets at a time; None without readers."""
        return self.flags.stream_interval or (1 if self.workload.is_streamed else None)

    @property
    def fresh_engine_per_run(self) -> bool:
        """Whether each run needs a new engine, since a prefix cache outlives a run."""
        return bool(self.flags.prefix_cache) and not self.flags.keep_prefix_cache_across_runs

    def to_json(self) -> dict[str, Any]:
        """Every setting as JSON-ready values."""
        flags = vars(self.flags).items()
        return {
            "workload": {**asdict(self.workload), "mean_context": self.workload.mean_context},
            "engine": self.engine,
            "sampling": self.sampling,
            "modes": list(self.modes),
            "flags": {name: str(one) if isinstance(one, Path) else one for name, one in flags},
        }


def settle(name: str, flags: RunFlags, command: str = "run") -> Settings:
    """The settings to measure the workload called `name`.

    With `--nvtx` the engine, which must not be imported yet, gets its named ranges.

    Raises Refused if a flag cannot be honoured, alone or beside the others.
    """
    base = workload_named(name)
    _refuse_what_cannot_be(flags)
    device = chosen_device(flags.device)
    if flags.decode == "graph" and not device.startswith("cuda"):
        flag = "--decode graph" if command == "run" else "--cuda-graph"
        raise Refused(
            f"{flag} needs a GPU and the device is {device!r}; leave it out, or choose "
            f"--device cuda."
        )
    if flags.nvtx:
        os.environ[NVTX_VARIABLE] = "1"
    model = flags.model or base.default_model(device, is_quick=flags.quick)
    tokenizer, named = None, flags.tokenizer_name
    if _wants_text(flags):
        tokenizer = load_tokenizer(named or model, is_required=bool(named))
    if flags.quick:
        base = base.quick()
    requests = flags.num_requests or flags.batch
    batch = flags.max_batch_size or flags.batch
    base = base.shaped(requests, batch, flags.prompt_len, flags.max_new_tokens)
    plan = _plan(flags, base, tokenizer)
    workload = _shaped(base, plan)
    return Settings(
        command=command,
        flags=flags,
        device=device,
        workload=workload,
        engine=_engine_fields(flags, workload, device) | {"model": model, "device": device},
        sampling={"max_new_tokens": workload.new_tokens, "ignore_eos": True}
        | _given(flags, "Sampling"),
        plan=plan,
        tokenizer=tokenizer,
        feed=_feed(flags, workload),
        modes=tuple(mode for mode in MODES if flags.mode in (mode, "all")),
    )


def _given(flags: RunFlags, panel: str) -> dict[str, Any]:
    """The flags of a panel that have another value than without them."""
    values = {name: getattr(flags, name) for name in PANELS[panel]}
    return {name: one for name, one in values.items() if one != PANELS[panel][name].default}


def _refuse_what_cannot_be(flags: RunFlags) -> None:
    modes = (*MODES, "all")
    if flags.mode not in modes:
        raise Refused(f"--mode is {flags.mode!r}; it must be one of {', '.join(modes)}.")
    if flags.submit_schedule not in SCHEDULES:
        allowed, found = ", ".join(SCHEDULES), flags.submit_schedule
        raise Refused(f"--submit-schedule is {found!r}; it must be one of {allowed}.")
    if flags.keep_prefix_cache_across_runs and not flags.prefix_cache:
        raise Refused("--keep-prefix-cache-across-runs needs --prefix-cache.")
    if not flags.temperature:
        why = "has no effect on greedy decoding; sample, too (--temperature)."
        _refuse_given(flags, ("top_k", "top_p"), why)
    if flags.admission == "fifo":
        pack = ("admission_lookahead", "force_fifo_every")
        _refuse_given(flags, pack, "belongs to --admission pack.")
    if flags.profile_dir and not flags.profile:
        raise Refused("--profile-dir says where traces go; add --profile to make one.")
    if flags.nvtx and util.find_spec("nvtx") is None:
        raise Refused("--nvtx needs the package nvtx; install it or leave the flag out.")
    ranges = sys.modules.get("engine.worker.ranges")
    if flags.nvtx and ranges is not None and not ranges.ENABLED:
        raise Refused("--nvtx comes too late: the engine was imported without its ranges.")
    if flags.mode != "online":
        arriving = ["submit_interval_ms", "submit_schedule", "max_inflight_requests"]
        arriving += [] if flags.pretok else ["tokenize_workers"]
        why = "is about requests that arrive while others run; choose --mode online"
        _refuse_given(flags, arriving, f"{why}, not {flags.mode}.")
    if flags.submit_schedule == "poisson" and flags.submit_interval_ms == 0:
        raise Refused("--submit-schedule poisson needs --submit-interval-ms above 0.")
    if flags.batch is not None and flags.max_batch_size is not None:
        raise Refused("--batch and --max-batch-size both say how many sequences run at once.")
    if flags.prompt is not None and flags.prompts:
        raise Refused("--prompt and --prompts both say what is submitted; give one of them.")
    others = _wants_text(flags) or flags.prompt_repeats or flags.pretok_base_token_ids
    if flags.prompt_len is not None and others:
        raise Refused("--prompt-len says how long prompts are, which other flags say, too.")
    if flags.pretok_base_token_ids is not None:
        if flags.prompt is not None or flags.prompts:
            raise Refused("--pretok-base-token-ids and --prompt both say what is submitted.")
        if _wants_text(flags):
            raise Refused("--pretok-base-token-ids leaves nothing to tokenize.")


def _refuse_given(flags: RunFlags, names: Sequence[str], why: str) -> None:
    """Refuse flags that differ from their defaults."""
    without = RunFlags()
    for name in names:
        if getattr(flags, name) != getattr(without, name):
            raise Refused(f"--{name.replace('_', '-')} {why}")


def _wants_text(flags: RunFlags) -> bool:
    """Whether a flag asks for text rather than token ids."""
    named = flags.prompt is not None or bool(flags.prompts) or flags.tokenizer_name is not None
    return named or flags.tokenize_workers > 0 or not flags.pretok


def _plan(flags: RunFlags, workload: Workload, tokenizer: Tokenizer | None) -> PromptPlan:
    repeats = workload.prompt_lengths
    if flags.prompt_repeats is not None:
        repeats = read_numbers("--prompt-repeats", flags.prompt_repeats, least=1)
    dealt = [repeats[index % len(repeats)] for index in range(workload.num_requests)]
    unique = workload.unique_prompts or flags.unique_prompts
    if flags.pretok_base_token_ids is not None:
        ids = read_numbers("--pretok-base-token-ids", flags.pretok_base_token_ids, least=0)
        return from_ids([list(ids) * times for times in dealt], unique=unique)
    if _wants_text(flags):
        workers = flags.tokenize_workers
        if tokenizer is None and (workers or not flags.pretok):
            raise Refused(
                f"--{'tokenize-workers' if workers else 'no-pretok'} is about text, and the model "
                f"has no tokenizer; name one with --tokenizer-name."
            )
        texts = flags.prompts or [DEFAULT_TEXT if flags.prompt is None else flags.prompt]
        require_text(texts)
        return from_text(
            [" ".join([texts[at % len(texts)]] * times) for at, times in enumerate(dealt)],
            tokenizer,
            unique=unique,
            pretok=flags.pretok,
            workers=workers,
        )
    if repeats == workload.prompt_lengths and unique == workload.unique_prompts:
        return from_workload(workload)
    return from_ids([[HELLO] * times for times in dealt], unique=unique, wraps=True)


def _shaped(base: Workload, plan: PromptPlan) -> Workload:
    """The workload that the flags make of `base`; "custom" unless it equals a named one."""
    shape = from_workload(base).lengths
    named = (*WORKLOADS.values(), *(workload.quick() for workload in WORKLOADS.values()))
    if plan.lengths == shape and base in named:
        return base
    lengths = base.prompt_lengths if plan.lengths == shape else plan.lengths
    return replace(base, name="custom", prompt_lengths=lengths)


def _engine_fields(flags: RunFlags, workload: Workload, device: str) -> dict[str, Any]:
    settings = workload.engine_settings(flags.block_size)
    if flags.prefix_cache:
        # Twice the room: the prefix cache keeps blocks of finished requests.
        settings["num_kv_blocks"] *= 2
    settings |= _given(flags, "Engine")
    if flags.dtype == "auto" and flags.model is None:
        settings["dtype"] = workload.default_dtype(device)
    return settings


def _feed(flags: RunFlags, workload: Workload) -> Feed:
    count, interval = workload.num_requests, flags.submit_interval_ms / 1e3
    gaps = np.full(count, interval)
    if flags.submit_schedule == "poisson":
        gaps = np.random.default_rng(flags.seed).exponential(interval, count)
    due = np.cumsum(gaps) - gaps[0]
    workers = 0 if flags.pretok else flags.tokenize_workers
    return Feed(due.tolist(), flags.max_inflight_requests, workers)
