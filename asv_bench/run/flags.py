"""The flags of `scheduler` and `streaming`: a dataclass each, which is the command's signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

F = TypeVar("F", bound="SchedulerFlags")

_MODEL = "Model"
_PROMPTS = "Prompts"
_SAMPLING = "Sampling"
_ENGINE = "Engine"
_FEEDING = "Feeding"
_RUNS = "Runs and output"


def _option(name: str, help_text: str, panel: str, **extra: Any) -> Any:
    return typer.Option(name, help=help_text, rich_help_panel=panel, **extra)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerFlags:
    """What `python -m asv_bench scheduler` was asked for, as given."""

    hf_model_id: Annotated[
        str | None,
        _option(
            "--hf-model-id",
            "Hub id, or random:NAME for a built-in model with seeded weights "
            "(default: random:gpt2 on a GPU, random:gpt2-tiny on a CPU).",
            _MODEL,
        ),
    ] = None
    checkpoint_path: Annotated[
        Path | None,
        _option("--checkpoint-path", "Local model directory in Hugging Face format.", _MODEL),
    ] = None
    tokenizer_name: Annotated[
        str | None,
        _option("--tokenizer-name", "Tokenizer to use instead of the model's own.", _MODEL),
    ] = None
    device: Annotated[str, _option("--device", "auto, cpu, cuda or cuda:N.", _MODEL)] = "auto"
    bf16: Annotated[bool, _option("--bf16", "The same as --dtype bfloat16.", _MODEL)] = False
    dtype: Annotated[
        str | None, _option("--dtype", "auto, float32, float16 or bfloat16.", _MODEL)
    ] = None

    workload: Annotated[
        str | None,
        _option("--workload", "Named workload that the other flags change.", _PROMPTS),
    ] = None
    quick: Annotated[
        bool, _option("--quick", "The workload scaled down to seconds on two cores.", _PROMPTS)
    ] = False
    prompt: Annotated[str | None, _option("--prompt", "Text of every prompt.", _PROMPTS)] = None
    prompts: Annotated[
        list[str] | None,
        _option(
            "--prompts",
            "Text of one prompt, given once for each, or @FILE with one a line; dealt in turn.",
            _PROMPTS,
        ),
    ] = None
    pretok: Annotated[
        bool,
        _option("--pretok/--no-pretok", "Tokenize before the clock starts, or within.", _PROMPTS),
    ] = True
    num_requests: Annotated[
        int | None, _option("--num-requests", "Requests in a run.", _PROMPTS, min=1)
    ] = None
    max_new_tokens: Annotated[
        int | None, _option("--max-new-tokens", "New tokens per request.", _PROMPTS, min=1)
    ] = None

    do_sample: Annotated[
        bool, _option("--do-sample", "Sample; otherwise decoding is greedy.", _SAMPLING)
    ] = False
    temperature: Annotated[
        float | None, _option("--temperature", "Needs --do-sample (default: 1).", _SAMPLING)
    ] = None
    top_k: Annotated[int | None, _option("--top-k", "Needs --do-sample.", _SAMPLING)] = None
    top_p: Annotated[float | None, _option("--top-p", "Needs --do-sample.", _SAMPLING)] = None
    stop_on_eos: Annotated[
        bool,
        _option("--stop-on-eos/--no-stop-on-eos", "End a request at the EOS token.", _SAMPLING),
    ] = False
    seed: Annotated[int, _option("--seed", "Seeds weights, sampling, arrivals.", _SAMPLING)] = 0

    max_batch_size: Annotated[
        int | None, _option("--max-batch-size", "Sequences that run at once.", _ENGINE, min=1)
    ] = None
    prefix_cache: Annotated[
        bool, _option("--prefix-cache/--no-prefix-cache", "Reuse prompts' K and V.", _ENGINE)
    ] = False
    keep_prefix_cache_across_runs: Annotated[
        bool,
        _option(
            "--keep-prefix-cache-across-runs",
            "Runs share one engine and its prefix cache; otherwise each starts empty.",
            _ENGINE,
        ),
    ] = False
    paged_attn: Annotated[
        bool,
        _option("--paged-attn/--no-paged-attn", "Attention over KV blocks.", _ENGINE),
    ] = True
    cuda_graph: Annotated[
        bool | None,
        _option(
            "--cuda-graph/--no-cuda-graph",
            "Replay a CUDA graph a step, or launch kernel by kernel "
            "(default: a graph where there is a GPU).",
            _ENGINE,
        ),
    ] = None

    mode: Annotated[str, _option("--mode", "naive, online, offline or all.", _RUNS)] = "online"
    warmup_runs: Annotated[
        int, _option("--warmup-runs", "Unmeasured runs before the others.", _RUNS, min=0)
    ] = 1
    repeat_runs: Annotated[int, _option("--repeat-runs", "Measured runs.", _RUNS, min=1)] = 3
    print_per_run: Annotated[
        bool, _option("--print-per-run", "Print a line for each measured run.", _RUNS)
    ] = False
    nvtx: Annotated[bool, _option("--nvtx", "Name the engine's ranges for profilers.", _RUNS)] = (
        False
    )
    profile: Annotated[
        bool,
        _option("--profile", "Trace one more run, after the measured ones, with torch.", _RUNS),
    ] = False
    profile_dir: Annotated[
        Path | None,
        _option("--profile-dir", "Where traces go (default: reports/profile).", _RUNS),
    ] = None
    json: Annotated[
        Path | None,
        _option("--json", "Where the record goes (default: a new file in reports/runs).", _RUNS),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamingFlags(SchedulerFlags):
    """What `python -m asv_bench streaming` was asked for, as given."""

    prompt_repeats: Annotated[
        str | None,
        _option(
            "--prompt-repeats",
            'How often the prompt is repeated, dealt to the requests in turn, such as "1,4".',
            _PROMPTS,
        ),
    ] = None
    unique_prompts: Annotated[
        bool, _option("--unique-prompts", "No two requests share a prompt.", _PROMPTS)
    ] = False
    pretok_base_token_ids: Annotated[
        str | None,
        _option(
            "--pretok-base-token-ids", 'Token ids to repeat as prompt, such as "1,2".', _PROMPTS
        ),
    ] = None
    tokenize_workers: Annotated[
        int, _option("--tokenize-workers", "Threads that tokenize text.", _FEEDING, min=0)
    ] = 0
    stream_interval: Annotated[
        int,
        _option(
            "--stream-interval",
            "Tokens handed to a request's reader at a time; timings stay per token.",
            _FEEDING,
            min=1,
        ),
    ] = 1
    submit_interval_ms: Annotated[
        float, _option("--submit-interval-ms", "Mean time between requests.", _FEEDING, min=0)
    ] = 0.0
    submit_schedule: Annotated[
        str,
        _option("--submit-schedule", "uniform or poisson gaps between requests.", _FEEDING),
    ] = "uniform"
    prefill_max_batch_size: Annotated[
        int | None,
        _option("--prefill-max-batch-size", "Sequences prefilled together.", _ENGINE, min=1),
    ] = None
    prefill_max_tokens: Annotated[
        int | None,
        _option("--prefill-max-tokens", "Prompt tokens computed per step.", _ENGINE, min=1),
    ] = None
    prefill_admission_policy: Annotated[
        str, _option("--prefill-admission-policy", "fifo or pack.", _ENGINE)
    ] = "fifo"
    prefill_admission_lookahead: Annotated[
        int | None,
        _option("--prefill-admission-lookahead", "Requests that pack looks at.", _ENGINE, min=1),
    ] = None
    prefill_force_fifo_every: Annotated[
        int | None,
        _option("--prefill-force-fifo-every", "Rounds until pack goes in order.", _ENGINE, min=1),
    ] = None
    max_active_requests: Annotated[
        int | None, _option("--max-active-requests", "Requests that hold a row.", _ENGINE, min=1)
    ] = None
    max_inflight_requests: Annotated[
        int | None,
        _option("--max-inflight-requests", "Requests submitted and unfinished.", _FEEDING, min=1),
    ] = None
    decode_first: Annotated[
        bool, _option("--decode-first", "Decode before the prefill of the same step.", _ENGINE)
    ] = False


def add_command(
    app: typer.Typer, name: str, flags: type[F], body: Callable[[F], None], help_text: str
) -> None:
    """Register `body` as a command whose parameters are the fields of the dataclass `flags`."""

    def command(**given: Any) -> None:
        body(flags(**given))

    hints = get_type_hints(flags, include_extras=True)
    parameters = [
        inspect.Parameter(
            entry.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if entry.default is MISSING else entry.default,
            annotation=hints[entry.name],
        )
        for entry in fields(flags)
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = hints
    app.command(name, help=help_text)(command)
