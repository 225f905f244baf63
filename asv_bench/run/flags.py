"""The flags of `run`: fields of `EngineConfig` and `SamplingParams`, and those of a workload."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, NamedTuple

import typer

from asv_bench.errors import Refused

_MOST = 1_000_000_000
"""No count of anything is larger; a number of 400 digits is no count."""
_KINDS = {"bool": bool, "int": int, "float": float, "str": str, "Literal": str}
_NAMES = {
    "model": "--hf-model-id --checkpoint-path",
    "admission": "--prefill-admission-policy",
    "admission_lookahead": "--prefill-admission-lookahead",
    "force_fifo_every": "--prefill-force-fifo-every",
    "max_new_tokens": "--new-tokens",
    "ignore_eos": "--no-stop-on-eos/--stop-on-eos",
}
"""Older names of flags."""
_LEAST = {"steps_in_flight": 0, "seed": None, "top_k": 0, "temperature": 0, "top_p": None}
"""The smallest value of a field of the engine's, where it is not 1."""
_UNSET = {
    "model": "(default: random:gpt2 on a GPU, random:gpt2-tiny on a CPU).",
    "max_batch_size": "(default: the workload's).",
    "prefix_cache": "(default: no).",
    "admission_lookahead": "(with pack).",
    "force_fifo_every": "(with pack).",
    "max_new_tokens": "(default: the workload's).",
    "temperature": "(default: 0).",
    "top_k": "(with a temperature).",
    "top_p": "(with a temperature).",
    "ignore_eos": "(default: yes).",
}
"""Fields without a value unless their flag is given, and what the help says of that."""


class Flag(NamedTuple):
    """The type of a flag's value, the value without it, its help and the smallest number."""

    kind: Any
    default: Any
    help: str
    least: float | None = None


def engine_flags(owner: str) -> dict[str, Flag]:
    """A flag for each field of `EngineConfig` or `SamplingParams`.

    The fields are read in the source of the engine that would be imported, of whatever commit: its
    import takes seconds, needs torch, and must come after --nvtx. Where it cannot be read there are
    none, as commands that measure another one are no worse for it.
    """
    try:
        spec = find_spec("engine")
        face = Path(spec.origin or "") if spec is not None else Path()
        (module,) = (
            str(line.module)
            for line in _parsed(face)
            if isinstance(line, ast.ImportFrom) and owner in [name.name for name in line.names]
        )
        source = face.parent.joinpath(*module.split(".")[1:]).with_suffix(".py")
        classes = [node for node in _parsed(source) if isinstance(node, ast.ClassDef)]
        (made,) = (node for node in classes if node.name == owner)
    except (OSError, SyntaxError, ValueError):
        return {}
    return _flags_of(made)


def _parsed(path: Path) -> list[ast.stmt]:
    return ast.parse(path.read_text(encoding="utf-8")).body


def _flags_of(owner: ast.ClassDef) -> dict[str, Flag]:
    """The help of a field is its first sentence in the class's docstring."""
    docstring = ast.get_docstring(owner) or ""
    flags: dict[str, Flag] = {}
    for line in owner.body:
        if not isinstance(line, ast.AnnAssign):
            continue
        name = ast.unparse(line.target)
        kind = _KINDS.get(re.split(r"\W", ast.unparse(line.annotation))[0])
        # A request draws by the engine's seed and its own number.
        if kind is None or (name == "seed" and owner.name == "SamplingParams"):
            continue
        found = re.search(rf"^{name}\n((?:    .*\n?)+)", docstring, re.MULTILINE)
        said = " ".join(found[1].split()).partition(". ")[0].rstrip(".") if found else ""
        least = _LEAST.get(name, 1) if kind in (int, float) else None
        if name in _UNSET:
            flags[name] = Flag(kind, None, f"{said} {_UNSET[name]}", least)
        else:
            flags[name] = Flag(kind, getattr(line.value, "value", None), f"{said}.", least)
    return flags


PANELS: dict[str, dict[str, Flag]] = {
    "Engine": engine_flags("EngineConfig"),
    "Sampling": engine_flags("SamplingParams"),
    "Prompts": {
        "quick": Flag(bool, False, "The workload scaled down to seconds on two cores."),
        "batch": Flag(int, None, "Sequences that run at once, and requests unless given.", 1),
        "num_requests": Flag(int, None, "Requests in a run.", 1),
        "prompt_len": Flag(int, None, "Tokens of every prompt.", 1),
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
            1,
        ),
    },
    "Runs and output": {
        "mode": Flag(str, "online", "naive, online, offline or all."),
        "warmup_runs": Flag(int, 1, "Unmeasured runs before the others.", 0),
        "repeat_runs": Flag(int, 3, "Measured runs.", 1),
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

    def __getattr__(self, name: str) -> None:
        """A field that this engine lacks is one that was not given."""
        if name.startswith("_"):
            raise AttributeError(name)


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
    is_on_and_off = flag.kind is bool and flag.default is not False
    option = typer.Option(
        f"--{word}/--no-{word}" if is_on_and_off else f"--{word}",
        *_NAMES.get(name, "").split(),
        help=flag.help,
        min=flag.least,
        max=None if flag.least is None else _MOST,
        rich_help_panel=panel,
    )
    return Annotated[flag.kind if flag.default is not None else flag.kind | None, option]
