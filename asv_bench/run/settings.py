"""The flags of `run`, and the settings of a measurement that they make; what measures by `run`.

Flags are fields of `EngineConfig` and `SamplingParams`, and those of a workload. Of the engine's
fields only what was given is passed on: an engine of another commit has defaults of its own. To
import the engine for its fields would take seconds, and come before `--nvtx`.
"""

from __future__ import annotations

import os
import shlex
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import typer

from asv_bench.errors import Refused
from asv_bench.output.record import REPOSITORY
from asv_bench.process.machine import chosen_device, has_cuda_gpu
from asv_bench.words import numbers_of
from asv_bench.workloads.drive import MODES, Mode, Prompt
from asv_bench.workloads.named import BLOCK_SIZE, WORKLOADS, Workload, workload_named

if TYPE_CHECKING:
    from engine import Tokenizer

NVTX_VARIABLE = "KVTRAIL_NVTX"
"""Turns on the engine's ranges; read when the engine is imported."""
PROFILE_DIR = REPOSITORY / "reports" / "profile"
DEFAULT_TEXT = "Hello"
RULER = "asv_bench"
RUNS = 5
"""Windows of a life, after a warm-up; processes differ more than these do."""
_MOST = 1_000_000_000
"""No count of anything is larger; a number of 400 digits is no count."""


def _flag(panel: str, text: str, *names: str, least: int | None = None) -> Any:
    """A flag in a panel of the help; its name is the field's unless names are given."""
    most = None if least is None else _MOST
    return typer.Option(*names, help=text, min=least, max=most, rich_help_panel=panel)


_engine = partial(_flag, "kvtrail's engine")
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


@dataclass(frozen=True, kw_only=True)
class ModelFlags:
    """Fields of `EngineConfig` that every command takes which measures an engine; see below."""

    model: Annotated[
        str | None, _engine("Hub id, folder or random:NAME (default: the workload's).", *_MODEL)
    ] = None
    dtype: Annotated[str | None, _engine("auto, float32, float16 or bfloat16.")] = None
    tensor_parallel_size: Annotated[int | None, _engine("GPUs that share layers.", least=1)] = None
    quantization: Annotated[str | None, _engine("Round to fp8 or fp8-dynamic.")] = None
    kv_cache_dtype: Annotated[str | None, _engine("Round keys and values to fp8.")] = None

    def engine(self, named: Workload, device: str, *, is_quick: bool) -> dict[str, Any]:
        """The fields as they are asked for, and else the workload's own model and type."""
        own = {"model": named.default_model(device, is_quick=is_quick), "device": device}
        own |= {} if self.model else {"dtype": named.default_dtype(device)}
        return own | given(self, ModelFlags)

    def beside_model(self) -> dict[str, Any]:
        """What is asked for besides the model and its type, which vLLM calls the same."""
        told = given(self, ModelFlags).items()
        return {name: value for name, value in told if name not in ("model", "dtype")}


@dataclass(frozen=True, kw_only=True)
class WorkloadFlags(ModelFlags):
    """The same, and the size of workloads."""

    batch: Annotated[int | None, _engine("Sequences that run at once.", least=1)] = None
    prompt_len: Annotated[int | None, _engine("Tokens of a prompt.", least=1)] = None
    new_tokens: Annotated[int | None, _engine("New tokens of each.", least=1)] = None


@dataclass(frozen=True)
class EngineWorkload(WorkloadFlags):
    """A workload of `workloads.named`, and what is changed of it; None: the workload's own."""

    workload: Annotated[str | None, _engine("A workload of kvtrail's engine.")] = None

    @property
    def named(self) -> Workload:
        """The workload as it is without flags."""
        return workload_named(str(self.workload))

    @property
    def name(self) -> str:
        """In one word, for records and folders: figures of other engines are kept elsewhere."""
        changes = (f"-{name}-{value}" for name, value in self.beside_model().items())
        return f"kvtrail-{self.workload}{''.join(changes)}"

    def options(self) -> list[str]:
        """The options that name it, with their values."""
        return words_of(self, EngineWorkload)

    def line(self) -> str:
        """The command that measures it."""
        words = [sys.executable, "-P", "-m", RULER, "run", self.named.name, "--quiet"]
        words += ["--repeat-runs", str(RUNS), *([] if has_cuda_gpu() else ["--quick"])]
        words += words_of(self, WorkloadFlags)
        return f'{shlex.join(words)} --json "$KVTRAIL_RESULT"'


@dataclass(frozen=True)
class EngineFlags(ModelFlags):
    """The fields of `EngineConfig`; None: the workload's, else the engine's own default."""

    device: Annotated[str | None, _engine("auto, cpu, cuda or cuda:N.")] = None
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
    mixed_prefill_tokens: Annotated[int | None, _engine("Tokens with a step in a launch.")] = None
    prefill_max_batch_size: Annotated[int | None, _engine("Sequences in one prefill.")] = None
    max_active_requests: Annotated[int | None, _engine("Requests that hold a row at once.")] = None
    max_inflight_requests: Annotated[int | None, _engine("Unfinished at most.", least=1)] = None
    decode_first: Annotated[bool | None, _engine("Decode before a step's prefill.")] = None
    steps_in_flight: Annotated[int | None, _engine("Launches ahead of the host.")] = None
    speculative: Annotated[str | None, _engine("prompt-lookup: draft tokens.")] = None
    seed: Annotated[int | None, _engine("Seeds random weights and sampling.")] = None
    threads: Annotated[int | None, _engine("Threads of torch's operators on the CPU.")] = None


@dataclass(frozen=True)
class SamplingFlags:
    """The fields of `SamplingParams`; None: the workload's, which is greedy and has no end."""

    max_new_tokens: Annotated[int | None, _sampling("New tokens.", *_NEW_TOKENS, least=1)] = None
    temperature: Annotated[float | None, _sampling("Sample with this temperature.")] = None
    top_k: Annotated[int | None, _sampling("Sample among so many tokens; 0: all.")] = None
    top_p: Annotated[float | None, _sampling("Sample among the likeliest up to this sum.")] = None
    ignore_eos: Annotated[bool | None, _sampling("Go on after the end.", *_NO_EOS)] = None


@dataclass(frozen=True)
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
    mode: Annotated[Literal[Mode, "all"], _runs("How to submit.")] = "online"
    warmup_runs: Annotated[int, _runs("Unmeasured runs before the others.", least=0)] = 1
    repeat_runs: Annotated[int, _runs("Measured runs.", least=1)] = 3
    keep_prefix_cache_across_runs: Annotated[bool, _runs("Runs share one engine.")] = False
    print_per_run: Annotated[bool, _runs("Print a line for each run.", "--print-per-run")] = False
    nvtx: Annotated[bool, _runs("Name the engine's ranges for profilers.", "--nvtx")] = False
    profile: Annotated[bool, _runs("Trace one more run, unmeasured.", "--profile")] = False
    profile_dir: Annotated[Path | None, _runs("Where traces go (reports/profile).")] = None


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting of a measurement."""

    command: str
    flags: RunFlags
    # The requests; it has a workload's name only if it is exactly that workload.
    workload: Workload
    prompts: list[Prompt] | None  # None: the workload's own
    engine: dict[str, Any]  # fields of `EngineConfig`, the device decided
    sampling: dict[str, Any]  # fields of `SamplingParams`
    tokenizer: Tokenizer | None  # None unless prompts are text
    due_s: list[float]  # of each request in the online mode
    modes: tuple[Mode, ...]  # in the order in which they are measured
    note: str  # what to know of the prompts, or ""

    @property
    def delivery(self) -> int | None:
        """Tokens that the reader of a request gets at a time; None without readers."""
        return self.flags.stream_interval or (1 if self.workload.is_streamed else None)

    def to_json(self) -> dict[str, Any]:
        """Every setting as JSON-ready values."""
        flags = asdict(self.flags).items()
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
    device = chosen_device(flags.device or "auto")
    if flags.nvtx:
        os.environ[NVTX_VARIABLE] = "1"
    asked = flags.engine(base, device, is_quick=flags.quick) | given(flags, EngineFlags)
    if flags.quick:
        base = base.quick()
    requests, batch = flags.num_requests or flags.batch, flags.max_batch_size or flags.batch
    base = base.shaped(requests, batch, flags.prompt_len, flags.max_new_tokens)
    texts = _texts(flags)
    tokenizer = _load_tokenizer(flags, asked["model"]) if texts else None
    workload, prompts = _prompted(base, flags, texts, tokenizer)
    named = (*WORKLOADS.values(), *(one.quick() for one in WORKLOADS.values()))
    if prompts is not None or workload not in named:
        workload = replace(workload, name="custom")

    engine = workload.engine_settings(flags.block_size or BLOCK_SIZE)
    if flags.prefix_cache:
        # Twice the room: the prefix cache keeps blocks of finished requests.
        engine["num_kv_blocks"] *= 2
    engine |= asked | {"device": device}
    if flags.bf16:
        engine["dtype"] = "bfloat16"
    if flags.cuda_graph is not None:
        engine["decode"] = "graph" if flags.cuda_graph else "eager"
    sampling: dict[str, Any] = {"max_new_tokens": workload.new_tokens, "ignore_eos": True}
    sampling |= {"temperature": 1.0} if flags.do_sample else {}
    return Settings(
        command=command,
        flags=flags,
        workload=workload,
        prompts=prompts,
        engine=engine,
        sampling=sampling | given(flags, SamplingFlags),
        tokenizer=tokenizer,
        due_s=_due_s(flags, workload.num_requests),
        modes=tuple(mode for mode in MODES if flags.mode in (mode, "all")),
        note=""
        if tokenizer or not texts
        else "The model has no tokenizer: each word of a prompt stands for one token.",
    )


def given(flags: Any, kind: type[ModelFlags | SamplingFlags]) -> dict[str, Any]:
    """The flags of a kind that have a value."""
    values = {field.name: getattr(flags, field.name) for field in fields(kind)}
    return {name: value for name, value in values.items() if value is not None}


def words_of(flags: Any, kind: type[ModelFlags]) -> list[str]:
    """The same as they are typed."""
    told = given(flags, kind)
    return [word for name in told for word in (f"--{name.replace('_', '-')}", str(told[name]))]


def _refuse_what_cannot_be(flags: RunFlags) -> None:
    if (flags.submit_interval_ms or flags.max_inflight_requests) and flags.mode != "online":
        raise Refused(
            "--submit-interval-ms and --max-inflight-requests are about requests that arrive "
            f"while others run; choose --mode online, not {flags.mode}."
        )
    others = _texts(flags) or flags.prompt_repeats or flags.pretok_base_token_ids
    if flags.prompt_len and others:
        raise Refused("--prompt-len says how long prompts are, which other flags say, too.")
    if flags.pretok_base_token_ids and _texts(flags):
        raise Refused("--pretok-base-token-ids leaves no text to submit.")


def _texts(flags: RunFlags) -> list[str]:
    """What prompts are made of where they are text."""
    is_text = not flags.pretok or flags.tokenizer_name is not None
    texts = [*(flags.prompts or ()), *([] if flags.prompt is None else [flags.prompt])]
    texts = texts or ([DEFAULT_TEXT] if is_text else [])
    for text in texts:
        # Bytes of the command line that are not UTF-8 arrive as lone surrogates.
        if not text.strip() or any("\ud800" <= character <= "\udfff" for character in text):
            raise Refused(f"the prompt {text!r} is no UTF-8 text of at least one word.")
    return texts


def _load_tokenizer(flags: RunFlags, model: str) -> Tokenizer | None:
    """The engine's tokenizer of that name, or of the model; None where that has none."""
    # Not at the top: the engine reads KVTRAIL_NVTX when it is imported.
    import engine

    loaded = engine.load_tokenizer(flags.tokenizer_name or model)
    if loaded is not None:
        # The files are read on first use, which must come before the threads that share them.
        loaded.encode("")
    elif flags.tokenizer_name or not flags.pretok:
        raise Refused(
            f"no tokenizer comes with {flags.tokenizer_name or model!r}; name with "
            f"--tokenizer-name a directory, a tokenizer.json or a hub id that has one."
        )
    return loaded


def _prompted(
    base: Workload, flags: RunFlags, texts: list[str], tokenizer: Tokenizer | None
) -> tuple[Workload, list[Prompt] | None]:
    """The workload with prompts as flags say, and those that it does not make itself."""
    repeats = base.prompt_lengths
    if flags.prompt_repeats is not None:
        repeats = _whole_numbers("--prompt-repeats", flags.prompt_repeats, least=1)
    dealt = [repeats[index % len(repeats)] for index in range(base.num_requests)]
    unique = base.unique_prompts or flags.unique_prompts
    lengths = repeats
    prompts: list[Prompt] | None = None
    if flags.pretok_base_token_ids is not None:
        ids = _whole_numbers("--pretok-base-token-ids", flags.pretok_base_token_ids, least=0)
        prompts = [[*ids] * times for times in dealt]
        lengths = tuple(len(ids) * times for times in dealt)
    elif texts:
        repeated = [" ".join([texts[at % len(texts)]] * times) for at, times in enumerate(dealt)]
        lengths = tuple(len(text.split()) for text in repeated)
        if tokenizer is not None:
            with ThreadPoolExecutor(flags.tokenize_workers or 1) as pool:
                encoded = list(pool.map(tokenizer.encode, repeated))
            lengths = tuple(map(len, encoded))
            prompts = [*(encoded if flags.pretok else repeated)]
    workload = replace(base, prompt_lengths=lengths, unique_prompts=unique)
    return workload, None if flags.unique_prompts else prompts


def _whole_numbers(flag: str, text: str, *, least: int) -> tuple[int, ...]:
    what = f"whole numbers of at least {least}, separated by commas"
    found = numbers_of(flag, text, what, lambda one: one >= least and one.is_integer())
    return tuple(map(int, found))


def _due_s(flags: RunFlags, requests: int) -> list[float]:
    interval = flags.submit_interval_ms / 1e3
    if flags.submit_schedule == "uniform":
        return [interval * index for index in range(requests)]
    gaps = np.random.default_rng(flags.seed or 0).exponential(interval, requests)
    due: list[float] = (np.cumsum(gaps) - gaps[0]).tolist()
    return due
