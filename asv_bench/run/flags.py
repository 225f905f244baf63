"""The flags of `run`: a dataclass for each thing that they fill, and a flag for each field."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, get_type_hints

import typer

from asv_bench.errors import Refused

F = TypeVar("F", bound="RunFlags")


@dataclass(frozen=True)
class Flag:
    """What the command line says of a field, beside its type and its default.

    `names` are other names of the flag, as `typer.Option` takes them.
    """

    help: str
    names: tuple[str, ...] = ()
    least: float | None = None


def _flag(text: str, *names: str, least: float | None = None) -> Any:
    return Flag(text, names, least)


@dataclass(frozen=True, kw_only=True)
class EngineFlags:
    """Fields of `EngineConfig`; None leaves one to the workload, or to the engine."""

    panel: ClassVar[str] = "Engine"

    model: Annotated[
        str | None,
        _flag(
            "Hub id, local directory, or random:NAME for a built-in model with seeded weights "
            "(default: random:gpt2 on a GPU, random:gpt2-tiny on a CPU).",
            "--hf-model-id",
        ),
    ] = None
    device: Annotated[str, _flag("auto, cpu, cuda or cuda:N.")] = "auto"
    dtype: Annotated[str, _flag("auto, float32, float16 or bfloat16.")] = "auto"
    block_size: Annotated[int, _flag("Tokens in a KV block.", least=1)] = 64
    max_batch_size: Annotated[int | None, _flag("Sequences that run at once.", least=1)] = None
    max_model_len: Annotated[int | None, _flag("Tokens of the longest sequence.", least=1)] = None
    num_kv_blocks: Annotated[int | None, _flag("Blocks in the KV cache.", least=1)] = None
    prefix_cache: Annotated[bool, _flag("Reuse prompts' K and V.", " /--no-prefix-cache")] = False
    decode: Annotated[str, _flag("auto, eager or graph: one CUDA graph a step.")] = "auto"
    fuse: Annotated[bool, _flag("Decode with fused kernels where they run the model.")] = True
    admission: Annotated[str, _flag("fifo or pack.", "--prefill-admission-policy")] = "fifo"
    admission_lookahead: Annotated[
        int | None,
        _flag("Requests that pack looks at.", "--prefill-admission-lookahead", least=1),
    ] = None
    force_fifo_every: Annotated[
        int | None,
        _flag("Rounds until pack goes in order.", "--prefill-force-fifo-every", least=1),
    ] = None
    prefill_max_tokens: Annotated[
        int | None, _flag("Prompt tokens computed in a step.", least=1)
    ] = None
    prefill_max_batch_size: Annotated[
        int | None, _flag("Sequences prefilled together.", least=1)
    ] = None
    max_active_requests: Annotated[int | None, _flag("Requests that hold a row.", least=1)] = None
    max_inflight_requests: Annotated[
        int | None, _flag("Requests submitted and unfinished.", least=1)
    ] = None
    decode_first: Annotated[bool, _flag("Decode before the prefill of the same step.")] = False
    steps_in_flight: Annotated[
        int | None, _flag("Launches whose tokens the host need not have seen.", least=0)
    ] = None
    seed: Annotated[int, _flag("Seeds weights, sampling and arrivals.")] = 0


@dataclass(frozen=True, kw_only=True)
class SamplingFlags(EngineFlags):
    """Fields of `SamplingParams`."""

    panel: ClassVar[str] = "Sampling"

    max_new_tokens: Annotated[int | None, _flag("New tokens of a request.", least=1)] = None
    temperature: Annotated[float | None, _flag("Sample, above 0 (default: greedy).", least=0)] = (
        None
    )
    top_k: Annotated[int | None, _flag("Likeliest tokens to sample among.", least=0)] = None
    top_p: Annotated[float | None, _flag("Probability to sample among.")] = None
    ignore_eos: Annotated[
        bool, _flag("Go on after the EOS token.", "--no-stop-on-eos/--stop-on-eos")
    ] = True


@dataclass(frozen=True, kw_only=True)
class PromptFlags(SamplingFlags):
    """What is submitted."""

    panel: ClassVar[str] = "Prompts"

    quick: Annotated[bool, _flag("The workload scaled down to seconds on two cores.")] = False
    num_requests: Annotated[int | None, _flag("Requests in a run.", least=1)] = None
    prompt: Annotated[str | None, _flag("Text of every prompt.")] = None
    prompts: Annotated[
        list[str] | None,
        _flag("Text of one prompt, given once for each, or @FILE with one a line."),
    ] = None
    prompt_repeats: Annotated[
        str | None,
        _flag('How often the prompt is repeated, dealt to requests in turn, such as "1,4".'),
    ] = None
    unique_prompts: Annotated[bool, _flag("No two requests share a prompt.")] = False
    pretok: Annotated[bool, _flag("Tokenize before the clock starts, or within.")] = True
    pretok_base_token_ids: Annotated[
        str | None, _flag('Token ids to repeat as prompt, such as "1,2".')
    ] = None
    tokenizer_name: Annotated[str | None, _flag("Tokenizer to use instead of the model's own.")] = (
        None
    )


@dataclass(frozen=True, kw_only=True)
class FeedFlags(PromptFlags):
    """When it is submitted, and who reads the tokens."""

    panel: ClassVar[str] = "Feeding"

    submit_interval_ms: Annotated[float, _flag("Mean time between requests.", least=0)] = 0.0
    submit_schedule: Annotated[str, _flag("uniform or poisson gaps between requests.")] = "uniform"
    tokenize_workers: Annotated[int, _flag("Threads that tokenize text.", least=0)] = 0
    stream_interval: Annotated[
        int | None,
        _flag(
            "Tokens handed to a request's reader at a time; timings stay per token "
            "(default: 1 where the workload streams, else nobody reads).",
            least=1,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class RunFlags(FeedFlags):
    """Everything that `run` takes."""

    panel: ClassVar[str] = "Runs and output"

    mode: Annotated[str, _flag("naive, online, offline or all.")] = "online"
    warmup_runs: Annotated[int, _flag("Unmeasured runs before the others.", least=0)] = 1
    repeat_runs: Annotated[int, _flag("Measured runs.", least=1)] = 3
    keep_prefix_cache_across_runs: Annotated[
        bool, _flag("Runs share one engine and its prefix cache; otherwise each starts empty.")
    ] = False
    print_per_run: Annotated[bool, _flag("Print a line for each measured run.")] = False
    nvtx: Annotated[bool, _flag("Name the engine's ranges for profilers.")] = False
    profile: Annotated[bool, _flag("Trace one more run with torch, unmeasured.")] = False
    profile_dir: Annotated[Path | None, _flag("Where traces go (default: reports/profile).")] = None
    json: Annotated[
        Path | None, _flag("Where the record goes (default: a new file in reports/runs).")
    ] = None
    markdown: Annotated[
        Path | None, _flag("Where the table goes as Markdown; - is standard output.")
    ] = None
    csv: Annotated[
        Path | None, _flag("Where the table goes as CSV, with raw values; - is standard output.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class PresetFlags(RunFlags):
    """Flags of `scheduler` and `streaming`: those of `run`, and the spellings of the write-ups."""

    panel: ClassVar[str] = "As the write-ups spell it"

    workload: Annotated[str | None, _flag("Named workload that the other flags change.")] = None
    checkpoint_path: Annotated[Path | None, _flag("--model: a local directory.")] = None
    bf16: Annotated[bool, _flag("--dtype bfloat16.")] = False
    do_sample: Annotated[bool, _flag("Sample, at --temperature or 1; otherwise greedy.")] = False
    paged_attn: Annotated[bool, _flag("Attention over KV blocks; there is no other.")] = True
    cuda_graph: Annotated[bool | None, _flag("--decode graph, or --decode eager.")] = None

    def plain(self) -> RunFlags:
        """The same in the spelling of `run`.

        Raises
        ------
        Refused
            If one of the write-ups' flags cannot be honoured, or contradicts another one.
        """
        if not self.paged_attn:
            raise Refused(
                "--no-paged-attn cannot be had: the engine keeps K and V in blocks and has no "
                "other attention."
            )
        if self.bf16 and self.dtype not in ("auto", "bfloat16"):
            raise Refused(f"--bf16 and --dtype {self.dtype} contradict each other; give one.")
        if self.model and self.checkpoint_path:
            raise Refused("--hf-model-id and --checkpoint-path both name a model; give one.")
        if self.checkpoint_path and not self.checkpoint_path.is_dir():
            raise Refused(f"--checkpoint-path {self.checkpoint_path} is not a directory.")
        if not self.do_sample and self.temperature is not None:
            raise Refused("--temperature has no effect on greedy decoding; add --do-sample.")
        if self.do_sample and self.temperature == 0:
            raise Refused("--temperature must be above 0 to sample; leave out --do-sample.")
        plain = {entry.name: getattr(self, entry.name) for entry in fields(RunFlags)}
        flags = RunFlags(**plain)
        if self.checkpoint_path:
            flags = replace(flags, model=str(self.checkpoint_path))
        if self.bf16:
            flags = replace(flags, dtype="bfloat16")
        if self.do_sample:
            flags = replace(flags, temperature=self.temperature or 1.0)
        if self.cuda_graph is not None:
            flags = replace(flags, decode="graph" if self.cuda_graph else "eager")
        return flags


def add_command(
    app: typer.Typer, name: str, flags: type[F], body: Callable[[F], None], help_text: str
) -> None:
    """Register `body` as a command whose parameters are the fields of the dataclass `flags`."""

    def command(**given: Any) -> None:
        body(flags(**given))

    hints = get_type_hints(flags, include_extras=True)
    defaults = {entry.name: entry.default for entry in fields(flags)}
    panels = {
        name: owner.panel
        for owner in flags.__mro__
        if issubclass(owner, EngineFlags)
        for name in owner.__annotations__
    }
    options = {
        name: _option(name, hints[name], default, panels[name])
        for name, default in defaults.items()
    }
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=default,
                annotation=options[name],
            )
            for name, default in defaults.items()
        ]
    )
    command.__annotations__ = options
    app.command(name, help=help_text)(command)


def _option(name: str, hint: Any, default: object, panel: str) -> Any:
    """A field's type with its option of the command line; what is off needs no flag for off."""
    kind, flag = hint.__origin__, hint.__metadata__[0]
    spelled = name.replace("_", "-")
    is_on_and_off = kind in (bool, bool | None) and default is not False
    option = typer.Option(
        f"--{spelled}/--no-{spelled}" if is_on_and_off else f"--{spelled}",
        *flag.names,
        help=flag.help,
        min=flag.least,
        rich_help_panel=panel,
    )
    return Annotated[kind, option]
