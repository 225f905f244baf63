"""The flags of `run`: fields of `EngineConfig` and `SamplingParams`, and those of a workload.

Of the engine's fields only what was given is passed on: an engine of another commit has defaults of
its own. To import the engine for its fields would take seconds, and come before `--nvtx`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

_MOST = 1_000_000_000
"""No count of anything is larger; a number of 400 digits is no count."""


def _flag(panel: str, text: str, *names: str, least: int | None = None) -> Any:
    """A flag in a panel of the help; its name is the field's unless names are given."""
    most = None if least is None else _MOST
    return typer.Option(*names, help=text, min=least, max=most, rich_help_panel=panel)


_engine = partial(_flag, "Engine")
_sampling = partial(_flag, "Sampling")
_prompts = partial(_flag, "Prompts")
_feeding = partial(_flag, "Feeding")
_runs = partial(_flag, "Runs and output")

_MODEL = ("--model", "--hf-model-id", "--checkpoint-path")
_ADMISSION = ("--admission", "--prefill-admission-policy")
_LOOK_AHEAD = ("--admission-lookahead", "--prefill-admission-lookahead")
_FORCED_FIFO = ("--force-fifo-every", "--prefill-force-fifo-every")
_NEW_TOKENS = ("--max-new-tokens", "--new-tokens")
_NO_EOS = ("--ignore-eos/--no-ignore-eos", "--no-stop-on-eos/--stop-on-eos")


@dataclass
class EngineFlags:
    """The fields of `EngineConfig`; None: the workload's, else the engine's own default."""

    model: Annotated[str | None, _engine("Hub id, directory, or random:NAME.", *_MODEL)] = None
    device: Annotated[str | None, _engine("auto, cpu, cuda or cuda:N.")] = None
    dtype: Annotated[str | None, _engine("auto, float32, float16 or bfloat16.")] = None
    block_size: Annotated[int | None, _engine("Tokens per KV block.", least=1)] = None
    max_batch_size: Annotated[int | None, _engine("Sequences that run at once.", least=1)] = None
    max_model_len: Annotated[int | None, _engine("Tokens of the longest sequence.")] = None
    num_kv_blocks: Annotated[int | None, _engine("Blocks in the KV cache.")] = None
    prefix_cache: Annotated[bool | None, _engine("Keep blocks of prompts (default: no).")] = None
    decode: Annotated[str | None, _engine("graph (CUDA graphs), eager or auto.")] = None
    fuse: Annotated[bool | None, _engine("Decode with fused kernels where they fit.")] = None
    admission: Annotated[str | None, _engine("fifo, or pack: looks ahead.", *_ADMISSION)] = None
    admission_lookahead: Annotated[int | None, _engine("Requests pack sees.", *_LOOK_AHEAD)] = None
    force_fifo_every: Annotated[int | None, _engine("Rounds of pack.", *_FORCED_FIFO)] = None
    prefill_max_tokens: Annotated[int | None, _engine("Prompt tokens a step at most.")] = None
    prefill_max_batch_size: Annotated[int | None, _engine("Sequences in one prefill.")] = None
    max_active_requests: Annotated[int | None, _engine("Requests that hold a row at once.")] = None
    max_inflight_requests: Annotated[int | None, _engine("Unfinished at most.", least=1)] = None
    decode_first: Annotated[bool | None, _engine("Decode before a step's prefill.")] = None
    steps_in_flight: Annotated[int | None, _engine("Launches ahead of the host.")] = None
    seed: Annotated[int | None, _engine("Seeds random weights and sampling.")] = None
    threads: Annotated[int | None, _engine("Threads of torch's operators on the CPU.")] = None


@dataclass
class SamplingFlags:
    """The fields of `SamplingParams`; None: the workload's, which is greedy and has no end."""

    max_new_tokens: Annotated[int | None, _sampling("New tokens.", *_NEW_TOKENS, least=1)] = None
    temperature: Annotated[float | None, _sampling("Sample with this temperature.")] = None
    top_k: Annotated[int | None, _sampling("Sample among so many tokens; 0: all.")] = None
    top_p: Annotated[float | None, _sampling("Sample among the likeliest up to this sum.")] = None
    ignore_eos: Annotated[bool | None, _sampling("Go on after the end.", *_NO_EOS)] = None


@dataclass
class RunFlags(SamplingFlags, EngineFlags):
    """All flags of `run` but where its record and tables go."""

    bf16: Annotated[bool, _engine("--dtype bfloat16.", "--bf16")] = False
    cuda_graph: Annotated[bool | None, _engine("--decode graph, or eager.")] = None
    paged_attn: Annotated[bool, _engine("There is no other.", "--paged-attn")] = True
    do_sample: Annotated[bool, _sampling("--temperature 1 unless given.", "--do-sample")] = False
    quick: Annotated[bool, _prompts("The workload scaled down to seconds.", "--quick")] = False
    batch: Annotated[int | None, _prompts("--max-batch-size and --num-requests.", least=1)] = None
    num_requests: Annotated[int | None, _prompts("Requests in a run.", least=1)] = None
    prompt_len: Annotated[int | None, _prompts("Tokens of every prompt.", least=1)] = None
    prompt: Annotated[str | None, _prompts("Text of every prompt.")] = None
    prompts: Annotated[list[str] | None, _prompts("Text of one prompt; may be given often.")] = None
    prompt_repeats: Annotated[str | None, _prompts('Repeats, dealt out, such as "1,4".')] = None
    unique_prompts: Annotated[bool, _prompts("Of random tokens.", "--unique-prompts")] = False
    pretok: Annotated[bool, _prompts("Tokenize before the clock starts, or within.")] = True
    pretok_base_token_ids: Annotated[str | None, _prompts('Ids to repeat, such as "1,2".')] = None
    tokenizer_name: Annotated[str | None, _prompts("Tokenizer other than the model's own.")] = None
    tokenize_workers: Annotated[int, _prompts("Threads that tokenize beforehand.", least=0)] = 0
    submit_interval_ms: Annotated[float, _feeding("Mean time between requests.", least=0)] = 0.0
    submit_schedule: Annotated[
        Literal["uniform", "poisson"], _feeding("Gaps between requests.")
    ] = "uniform"
    stream_interval: Annotated[int | None, _feeding("Tokens read at once.", least=1)] = None
    mode: Annotated[Literal["naive", "online", "offline", "all"], _runs("How to submit.")] = (
        "online"
    )
    warmup_runs: Annotated[int, _runs("Unmeasured runs before the others.", least=0)] = 1
    repeat_runs: Annotated[int, _runs("Measured runs.", least=1)] = 3
    keep_prefix_cache_across_runs: Annotated[bool, _runs("Runs share one engine.")] = False
    print_per_run: Annotated[bool, _runs("Print a line for each run.", "--print-per-run")] = False
    nvtx: Annotated[bool, _runs("Name the engine's ranges for profilers.", "--nvtx")] = False
    profile: Annotated[bool, _runs("Trace one more run, unmeasured.", "--profile")] = False
    profile_dir: Annotated[Path | None, _runs("Where traces go (reports/profile).")] = None
