# ruff: noqa: RUF009 (_flag makes a field)
"""The flags of `run`: one for each field of `EngineConfig`, `SamplingParams` and the workload."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, get_type_hints

import typer

from asv_bench.errors import Refused

F = TypeVar("F", bound="RunFlags")
_MOST = 1_000_000_000
"""No count of anything is larger; a number of 400 digits is no count."""


def _flag(default: Any, text: str, *names: str, least: float | None = None) -> Any:
    """A field with its flag: help text, other names as typer takes them, smallest value."""
    return field(default=default, metadata={"help": text, "names": names, "least": least})


@dataclass(frozen=True, kw_only=True)
class EngineFlags:
    """Fields of `EngineConfig`; None is the workload's own value, or the engine's."""

    panel: ClassVar[str] = "Engine"

    model: str | None = _flag(
        None,
        "Hub id, local directory, or random:NAME for a built-in model with seeded weights "
        "(default: random:gpt2 on a GPU, random:gpt2-tiny on a CPU).",
        "--hf-model-id",
    )
    device: str = _flag("auto", "auto, cpu, cuda or cuda:N.")
    dtype: str = _flag("auto", "auto, float32, float16 or bfloat16.")
    block_size: int = _flag(64, "Tokens in a KV block.", least=1)
    max_batch_size: int | None = _flag(None, "Sequences that run at once.", least=1)
    max_model_len: int | None = _flag(None, "Tokens of the longest sequence.", least=1)
    num_kv_blocks: int | None = _flag(None, "Blocks in the KV cache.", least=1)
    prefix_cache: bool = _flag(False, "Reuse prompts' K and V.", " /--no-prefix-cache")
    decode: str = _flag("auto", "auto, eager or graph: one CUDA graph a step.")
    fuse: bool = _flag(True, "Decode with fused kernels where they run the model.")
    admission: str = _flag("fifo", "fifo or pack.", "--prefill-admission-policy")
    admission_lookahead: int | None = _flag(
        None, "Requests that pack looks at.", "--prefill-admission-lookahead", least=1
    )
    force_fifo_every: int | None = _flag(
        None, "Rounds until pack goes in order.", "--prefill-force-fifo-every", least=1
    )
    prefill_max_tokens: int | None = _flag(None, "Prompt tokens computed in a step.", least=1)
    prefill_max_batch_size: int | None = _flag(None, "Sequences prefilled together.", least=1)
    max_active_requests: int | None = _flag(None, "Requests that run at once.", least=1)
    max_inflight_requests: int | None = _flag(None, "Requests submitted and unfinished.", least=1)
    decode_first: bool = _flag(False, "Decode before the prefill of the same step.")
    steps_in_flight: int | None = _flag(
        None, "Launches whose tokens the host need not have seen.", least=0
    )
    seed: int = _flag(0, "Seeds weights, sampling and arrivals.")
    threads: int | None = _flag(
        None, "Threads on a CPU (default: $OMP_NUM_THREADS, or 1).", least=1
    )


@dataclass(frozen=True, kw_only=True)
class SamplingFlags(EngineFlags):
    """Fields of `SamplingParams`."""

    panel: ClassVar[str] = "Sampling"

    max_new_tokens: int | None = _flag(None, "New tokens of a request.", "--new-tokens", least=1)
    temperature: float | None = _flag(None, "Sample, above 0 (default: greedy).", least=0)
    top_k: int | None = _flag(None, "Likeliest tokens to sample among.", least=0)
    top_p: float | None = _flag(None, "Probability to sample among.")
    ignore_eos: bool = _flag(True, "Go on after the EOS token.", "--no-stop-on-eos/--stop-on-eos")


@dataclass(frozen=True, kw_only=True)
class PromptFlags(SamplingFlags):
    """Which requests are submitted."""

    panel: ClassVar[str] = "Prompts"

    quick: bool = _flag(False, "The workload scaled down to seconds on two cores.")
    batch: int | None = _flag(
        None, "Sequences that run at once; as many requests, unless their number is given.", least=1
    )
    num_requests: int | None = _flag(None, "Requests in a run.", least=1)
    prompt_len: int | None = _flag(None, "Tokens of every prompt.", least=1)
    prompt: str | None = _flag(None, "Text of every prompt.")
    prompts: list[str] | None = _flag(
        None, "Text of one prompt, given once for each, or @FILE with one a line."
    )
    prompt_repeats: str | None = _flag(
        None, 'How often the prompt is repeated, dealt to requests in turn, such as "1,4".'
    )
    unique_prompts: bool = _flag(False, "No two requests share a prompt.")
    pretok: bool = _flag(True, "Tokenize before the clock starts, or within.")
    pretok_base_token_ids: str | None = _flag(None, 'Token ids to repeat as prompt, such as "1,2".')
    tokenizer_name: str | None = _flag(None, "Tokenizer to use instead of the model's own.")


@dataclass(frozen=True, kw_only=True)
class FeedFlags(PromptFlags):
    """When requests are submitted, and how their tokens are read."""

    panel: ClassVar[str] = "Feeding"

    submit_interval_ms: float = _flag(0.0, "Mean time between requests.", least=0)
    submit_schedule: str = _flag("uniform", "uniform or poisson gaps between requests.")
    tokenize_workers: int = _flag(0, "Threads that tokenize text.", least=0)
    stream_interval: int | None = _flag(
        None,
        "Tokens handed to a request's reader at a time; timings stay per token "
        "(default: 1 where the workload streams, else tokens are not read).",
        least=1,
    )


@dataclass(frozen=True, kw_only=True)
class RunFlags(FeedFlags):
    """All flags of `run`."""

    panel: ClassVar[str] = "Runs and output"

    mode: str = _flag("online", "naive, online, offline or all.")
    warmup_runs: int = _flag(1, "Unmeasured runs before the others.", least=0)
    repeat_runs: int = _flag(3, "Measured runs.", least=1)
    keep_prefix_cache_across_runs: bool = _flag(
        False, "Runs share one engine and its prefix cache; otherwise each starts empty."
    )
    print_per_run: bool = _flag(False, "Print a line for each measured run.")
    nvtx: bool = _flag(False, "Name the engine's ranges for profilers.")
    profile: bool = _flag(False, "Trace one more run with torch, unmeasured.")
    profile_dir: Path | None = _flag(None, "Where traces go (default: reports/profile).")
    json: Path | None = _flag(
        None, "Where the record goes; - is standard output (default: a new file in reports/runs)."
    )
    markdown: Path | None = _flag(None, "Where the table goes as Markdown; - is standard output.")
    csv: Path | None = _flag(
        None, "Where the table goes as CSV, with raw values; - is standard output."
    )


@dataclass(frozen=True, kw_only=True)
class PresetFlags(RunFlags):
    """Flags of `scheduler` and `streaming`: those of `run`, and older names of some of them."""

    panel: ClassVar[str] = "Other names"

    workload: str | None = _flag(None, "Named workload that the other flags change.")
    checkpoint_path: Path | None = _flag(None, "--model: a local directory.")
    bf16: bool = _flag(False, "--dtype bfloat16.")
    do_sample: bool = _flag(False, "Sample, at --temperature or 1; otherwise greedy.")
    paged_attn: bool = _flag(True, "Attention over KV blocks; there is no other.")
    cuda_graph: bool | None = _flag(None, "--decode graph, or --decode eager.")

    def plain(self) -> RunFlags:
        """The same flags under the names of `run`.

        Raises Refused if a flag cannot be honoured, or contradicts another one.
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


def with_flags(flags: type[F]) -> Callable[[Callable[[F], None]], Callable[..., None]]:
    """Make a function of the dataclass `flags` one of its fields, as typer takes a command."""
    kinds = get_type_hints(flags)
    panels = {
        name: owner.panel
        for owner in flags.__mro__
        if issubclass(owner, EngineFlags)
        for name in owner.__annotations__
    }
    parameters = [
        inspect.Parameter(
            entry.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=entry.default,
            annotation=Annotated[kinds[entry.name], _option(entry, panels[entry.name])],
        )
        for entry in fields(flags)
    ]

    def of_fields(body: Callable[[F], None]) -> Callable[..., None]:
        def command(**given: Any) -> None:
            body(flags(**given))

        command.__doc__ = body.__doc__
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {one.name: one.annotation for one in parameters}
        return command

    return of_fields


def _option(entry: Field[Any], panel: str) -> Any:
    """The option of a field; a switch that is off by default has no flag to turn it off."""
    name = entry.name.replace("_", "-")
    is_on_and_off = "bool" in str(entry.type) and entry.default is not False
    return typer.Option(
        f"--{name}/--no-{name}" if is_on_and_off else f"--{name}",
        *entry.metadata["names"],
        help=entry.metadata["help"],
        min=entry.metadata["least"],
        max=None if entry.metadata["least"] is None else _MOST,
        rich_help_panel=panel,
    )
