"""The flags of `run`: fields of `EngineConfig` and `SamplingParams`, and those of a workload."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, NamedTuple

import typer

from asv_bench.errors import Refused

_MOST = 1_000_000_000
"""No count of anything is larger; a number of 400 digits is no count."""
_UNSET = "(default: the workload's)"


class Flag(NamedTuple):
    """A flag: the type of its value, the value without it, its help."""

    kind: Any
    default: Any
    help: str
    least: float | None = 1  # of a number
    older: str = ""  # names that it also has


PANELS: dict[str, dict[str, Flag]] = {
    # An engine of another commit has defaults of its own: of its fields, only what was given is
    # passed on. To import the engine for its fields would take seconds, and come before --nvtx.
    "Engine": {
        "model": Flag(
            str,
            None,
            "Hub id, directory, or random:NAME (default: random:gpt2 on a GPU, else gpt2-tiny).",
            older="--hf-model-id --checkpoint-path",
        ),
        "device": Flag(str, "auto", "auto, cpu, cuda or cuda:N."),
        "dtype": Flag(str, "auto", "auto, float32, float16 or bfloat16."),
        "block_size": Flag(int, 64, "Tokens per KV block."),
        "max_batch_size": Flag(int, None, f"Sequences that run at once {_UNSET}."),
        "max_model_len": Flag(int, None, f"Tokens of the longest sequence {_UNSET}."),
        "num_kv_blocks": Flag(int, None, f"Blocks in the KV cache {_UNSET}."),
        "prefix_cache": Flag(bool, None, "Keep blocks of prompts for later ones (default: no)."),
        "decode": Flag(str, "auto", "graph (CUDA graphs), eager (kernel by kernel) or auto."),
        "fuse": Flag(bool, True, "Decode with fused kernels where they run the model."),
        "admission": Flag(
            str,
            "fifo",
            "fifo, or pack: looks ahead for prompts that fill the budget.",
            older="--prefill-admission-policy",
        ),
        "admission_lookahead": Flag(
            int, None, "Waiting requests that pack looks at.", older="--prefill-admission-lookahead"
        ),
        "force_fifo_every": Flag(
            int,
            None,
            "Rounds after which pack admits in order.",
            older="--prefill-force-fifo-every",
        ),
        "prefill_max_tokens": Flag(int, None, "Prompt tokens computed per step at most."),
        "prefill_max_batch_size": Flag(int, None, "Sequences in one prefill launch at most."),
        "max_active_requests": Flag(int, None, "Requests that hold a row at once."),
        "max_inflight_requests": Flag(int, None, "Unfinished requests; others are held back."),
        "decode_first": Flag(bool, False, "Launch a step's decode before its prefill."),
        "steps_in_flight": Flag(int, None, "Launches whose tokens the host need not await.", 0),
        "seed": Flag(int, 0, "Seeds random weights and sampling.", None),
        "threads": Flag(int, None, "Threads of torch's operators on the CPU."),
    },
    "Sampling": {
        "max_new_tokens": Flag(int, None, f"Tokens to generate {_UNSET}.", older="--new-tokens"),
        "temperature": Flag(float, None, "Sample with this temperature (default: 0, greedy).", 0),
        "top_k": Flag(int, None, "Sample among so many tokens; 0: all (with a temperature).", 0),
        "top_p": Flag(
            float, None, "Sample among the likeliest up to this sum (with a temperature).", None
        ),
        "ignore_eos": Flag(
            bool,
            None,
            "Go on after the end (default: yes).",
            older="--no-stop-on-eos/--stop-on-eos",
        ),
    },
    "Prompts": {
        "quick": Flag(bool, False, "The workload scaled down to seconds on two cores."),
        "batch": Flag(int, None, "Sequences that run at once, and requests unless given."),
        "num_requests": Flag(int, None, "Requests in a run."),
        "prompt_len": Flag(int, None, "Tokens of every prompt."),
        "prompt": Flag(str, None, "Text of every prompt."),
        "prompts": Flag(list[str], None, "Text of one prompt, given once for each."),
        "prompt_repeats": Flag(str, None, 'Repeats of prompts, dealt out in turn, such as "1,4".'),
        "unique_prompts": Flag(bool, False, "No two requests share a prompt."),
        "pretok": Flag(bool, True, "Tokenize before the clock starts, or within."),
        "pretok_base_token_ids": Flag(str, None, 'Token ids to repeat as prompt, such as "1,2".'),
        "tokenizer_name": Flag(str, None, "Tokenizer to use instead of the model's own."),
    },
    "Feeding": {
        "submit_interval_ms": Flag(float, 0.0, "Mean time between requests.", 0),
        "submit_schedule": Flag(str, "uniform", "uniform or poisson gaps between requests."),
        "tokenize_workers": Flag(int, 0, "Threads that tokenize text.", 0),
        "stream_interval": Flag(
            int,
            None,
            "Tokens handed to a request's reader at a time; timings stay per token "
            "(default: 1 where the workload streams, else tokens are not read).",
        ),
    },
    "Runs and output": {
        "mode": Flag(str, "online", "naive, online, offline or all."),
        "warmup_runs": Flag(int, 1, "Unmeasured runs before the others.", 0),
        "repeat_runs": Flag(int, 3, "Measured runs."),
        "keep_prefix_cache_across_runs": Flag(
            bool, False, "Runs share one engine and its prefix cache; otherwise each starts empty."
        ),
        "print_per_run": Flag(bool, False, "Print a line for each measured run."),
        "nvtx": Flag(bool, False, "Name the engine's ranges for profilers."),
        "profile": Flag(bool, False, "Trace one more run with torch, unmeasured."),
        "profile_dir": Flag(Path, None, "Where traces go (default: reports/profile)."),
        "json": Flag(
            Path, None, "Where the record goes; - is standard output (default: in reports/runs)."
        ),
        "markdown": Flag(Path, None, "Where the table goes as Markdown; - is standard output."),
        "csv": Flag(
            Path, None, "Where the table goes as CSV, with raw values; - is standard output."
        ),
    },
}
PRESET_PANELS = PANELS | {
    "Other names": {
        "bf16": Flag(bool, False, "--dtype bfloat16."),
        "do_sample": Flag(bool, False, "Sample, at --temperature or 1; otherwise greedy."),
        "paged_attn": Flag(bool, True, "Attention over KV blocks; there is no other."),
        "cuda_graph": Flag(bool, None, "--decode graph, or --decode eager."),
    }
}
"""Of `scheduler` and `streaming`, which have older names of some flags."""


class RunFlags(SimpleNamespace):
    """The value of each flag of `run`, by the name of the field."""

    def __init__(self, **given: Any) -> None:
        flags = (one for panel in PANELS.values() for one in panel.items())
        super().__init__(**({name: flag.default for name, flag in flags} | given))


def plain_flags(given: RunFlags) -> RunFlags:
    """Flags of a preset under the names of `run`.

    Raises Refused if a flag cannot be honoured, or contradicts another one.
    """
    flags = RunFlags(**vars(given))
    if not flags.paged_attn:
        raise Refused("--no-paged-attn cannot be had: the engine has no other attention.")
    if flags.bf16 and flags.dtype not in ("auto", "bfloat16"):
        raise Refused(f"--bf16 and --dtype {flags.dtype} contradict each other; give one.")
    if flags.temperature is not None and not flags.do_sample:
        raise Refused("--temperature has no effect on greedy decoding; add --do-sample.")
    if flags.temperature == 0:
        raise Refused("--temperature must be above 0 to sample; leave out --do-sample.")
    if flags.bf16:
        flags.dtype = "bfloat16"
    if flags.do_sample:
        flags.temperature = flags.temperature or 1.0
    if flags.cuda_graph is not None:
        flags.decode = "graph" if flags.cuda_graph else "eager"
    for name in PRESET_PANELS["Other names"]:
        delattr(flags, name)
    return flags


def with_flags(
    panels: dict[str, dict[str, Flag]],
) -> Callable[[Callable[[RunFlags], None]], Callable[..., None]]:
    """Make a function of `RunFlags` one of single flags, as typer takes a command."""
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=flag.default,
            annotation=_annotation(name, flag, panel),
        )
        for panel, flags in panels.items()
        for name, flag in flags.items()
    ]

    def of_flags(body: Callable[[RunFlags], None]) -> Callable[..., None]:
        def command(**given: Any) -> None:
            body(RunFlags(**given))

        command.__doc__ = body.__doc__
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {one.name: one.annotation for one in parameters}
        return command

    return of_flags


def _annotation(name: str, flag: Flag, panel: str) -> Any:
    """What typer makes an option of; a switch that is off by default has no flag to turn it off."""
    word = name.replace("_", "-")
    is_number = flag.kind in (int, float)
    is_on_and_off = flag.kind is bool and flag.default is not False
    option = typer.Option(
        f"--{word}/--no-{word}" if is_on_and_off else f"--{word}",
        *flag.older.split(),
        help=flag.help,
        min=flag.least if is_number else None,
        max=_MOST if is_number and flag.least is not None else None,
        rich_help_panel=panel,
    )
    return Annotated[flag.kind if flag.default is not None else flag.kind | None, option]
