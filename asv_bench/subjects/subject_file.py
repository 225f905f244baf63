"""`kvtrail.toml`: what a user measures in a repository, and how."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Annotated, Literal, NamedTuple, TypeAlias

import msgspec

from asv_bench.errors import Refused
from asv_bench.measure.command_line import PythonCommand, check_address, filled
from asv_bench.measure.samples import Metric

FILE_NAME = "kvtrail.toml"
POINT = "KVTRAIL_POINT"

_NAME = r"^(?!\.*\Z)[\w.-]+\Z"
_WORDS = r"^[^\x00-\x1f\x7f]+\Z"
_PRINTED = r"^[^\x00-\x1f\x7f]*\Z"
_TEXT = r"^[^\x00]*\Z"
_LINE = r"^(?=\s*\S)[^\x00]*\Z"
_MODULE = r"^[^\W\d]\w*(\.[^\W\d]\w*)*(:[^\W\d]\w*)?\Z"
_VARIABLE = r"^[^=\x00]+\Z"
_TAKE = r"^(median|min|mean|p[1-9][0-9]?)\Z"
_MEANT = {
    _NAME: "of letters, digits, `_`, `-` and dots, and not of dots alone",
    _WORDS: "in one line, without control characters and not empty",
    _PRINTED: "in one line, without control characters",
    _TEXT: "without NUL characters",
    _LINE: "that is not blank, without NUL characters",
    _MODULE: "that names a module, such as torch.nn, or one of its functions behind a colon",
    _TAKE: "that is median, min, mean, or a percentile from p1 to p99",
    _VARIABLE: "that can be a variable's name: not empty, without `=` and NUL characters",
}
"""What each pattern means, for the sentence where a text does not match it."""

Seconds: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=31_536_000)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Name: TypeAlias = Annotated[str, msgspec.Meta(pattern=_NAME, max_length=60)]
Words: TypeAlias = Annotated[str, msgspec.Meta(pattern=_WORDS)]
Text: TypeAlias = Annotated[str, msgspec.Meta(pattern=_TEXT)]
Line: TypeAlias = Annotated[str, msgspec.Meta(pattern=_LINE)]
Module: TypeAlias = Annotated[str, msgspec.Meta(pattern=_MODULE)]
Variable: TypeAlias = Annotated[str, msgspec.Meta(pattern=_VARIABLE)]


class TomlTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of the file; a key that it does not know is an error."""


class SubjectTable(TomlTable, frozen=True):
    """`[subject]`: the repository, and the command that is one life.

    Attributes
    ----------
    name
        In one word, for records and folders.
    repository
        From the file's own folder: the git repository, or a folder in one, where commands then run.
    setup
        A line for the shell that builds or installs a commit, once.
    measure
        A line for the shell that is one life; none where a server and a client are measured.
    builds
        How often `setup` builds a commit, each time in a folder of another path length and with an
        environment of another size. Lives take them in turn; a change is one that all of them show.
    timeout_s
        Seconds after which a life, or a run of the client, is ended.
    setup_timeout_s
        Seconds after which a setup is ended.
    devices
        GPUs that a life needs; 0: it sees none. Without the key it sees what the user sees.
    cores
        CPU cores that a life may use; 0: all.
    env
        Variables for setup and lives, in which $KVTRAIL_OUT and the like are replaced.
    pinned
        Paths that are the working tree's at every commit, from the folder of `repository`.
    preload
        Modules, none of the commit's, that one Python imports once for all lives, which are forks
        of it: `measure` is then `python SCRIPT` or `python -m MODULE`, with nothing for a shell.
    turns
        Whether the two lives of a pair run at the same time and take turns, as $KVTRAIL_TURNS says.
    """

    name: Name
    repository: Text = "."
    setup: Text = ""
    measure: Text = ""
    builds: Annotated[int, msgspec.Meta(ge=1, le=30)] = 1
    timeout_s: Seconds = 600.0
    setup_timeout_s: Seconds = 3600.0
    devices: Count | None = None
    cores: Count = 0
    env: dict[Variable, Text] = {}
    pinned: tuple[Text, ...] = ()
    preload: tuple[Module, ...] = ()
    turns: bool = False

    def __post_init__(self) -> None:
        if self.preload and PythonCommand.of(self.measure, {}) is None:
            raise ValueError(
                f"preload needs measure to start one script or module of Python, as in `python "
                f"bench.py`, without what a shell would do; it is {self.measure!r}"
            )
        if self.builds > 1 and not self.setup.strip():
            raise ValueError("builds needs setup, the line that builds a commit")
        msgspec.structs.force_setattr(self, "pinned", _normal(self.pinned))


def _normal(paths: Sequence[str]) -> tuple[str, ...]:
    """Pinned paths, each in one way of writing it, without those below another."""
    found: list[str] = []
    for path in paths:
        normal = posixpath.normpath(path)
        if normal == ".":
            raise ValueError(
                f"pinned names {path!r}, which is every file, so that all commits would be alike; "
                f"name the files that measure"
            )
        if normal.startswith("/") or {"..", ".git"}.intersection(path.split("/")):
            raise ValueError(f"pinned names {path!r}; give paths of files within the repository")
        found.append(normal)
    return tuple(
        path
        for path in dict.fromkeys(found)
        if not any(str(parent) in found for parent in PurePosixPath(path).parents)
    )


class MetricTable(TomlTable, frozen=True):
    """`[metrics.NAME]`: where a life leaves a figure, as a number or as one for each window.

    Attributes
    ----------
    path
        Keys from the outermost in, with dots between, into the JSON of $KVTRAIL_RESULT.
    regex
        With one group, searched for in what the life printed. Either this or `path` is given.
    unit
        A word to print behind values.
    better
        Which of two values is better.
    margin
        The difference that matters, in per cent; without the key the command's.
    take
        What of several windows is the life's figure: median, min, mean, or a percentile as p95.
    control
        Whether no change can move it: where it moves, every verdict of the session is void.
    """

    path: str = ""
    regex: str = ""
    unit: Annotated[str, msgspec.Meta(pattern=_PRINTED)] = ""
    better: Literal["lower", "higher"] = "lower"
    margin: Annotated[float, msgspec.Meta(ge=0.1, le=50)] | None = None
    take: Annotated[str, msgspec.Meta(pattern=_TAKE)] = "median"
    control: bool = False

    def __post_init__(self) -> None:
        if bool(self.path) == bool(self.regex):
            raise ValueError("a metric needs either path or regex")
        if self.regex and (groups := _compiled(self.regex).groups) != 1:
            raise ValueError(f"{self.regex!r} has {groups} groups; it needs one")


def _compiled(regex: str) -> re.Pattern[str]:
    try:
        return re.compile(regex)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{regex!r} is no regular expression: {error}") from None


def _served(requests: str, tokens: str, **times: str) -> dict[str, MetricTable]:
    """Metrics of a client: the paths of its two rates, and of times in milliseconds."""
    return {
        **{name: MetricTable(path, unit="ms") for name, path in times.items()},
        "request_throughput": MetricTable(requests, unit="requests/s", better="higher"),
        "output_throughput": MetricTable(tokens, unit="tokens/s", better="higher"),
    }


_VLLM = _served(
    "request_throughput",
    "output_throughput",
    ttft_ms="median_ttft_ms",
    tpot_ms="median_tpot_ms",
    itl_ms="median_itl_ms",
    itl_p99_ms="p99_itl_ms",
)
_GUIDELLM = "benchmarks.0.metrics"
PRESETS = MappingProxyType(
    {
        "vllm-bench": _VLLM,
        "sglang-bench": _VLLM,
        "guidellm": _served(
            f"{_GUIDELLM}.requests_per_second.successful.mean",
            f"{_GUIDELLM}.output_tokens_per_second.successful.mean",
            ttft_ms=f"{_GUIDELLM}.time_to_first_token_ms.successful.median",
            tpot_ms=f"{_GUIDELLM}.time_per_output_token_ms.successful.median",
            itl_ms=f"{_GUIDELLM}.inter_token_latency_ms.successful.median",
        ),
        "aiperf": _served(
            "request_throughput.avg",
            "output_token_throughput.avg",
            ttft_ms="time_to_first_token.p50",
            itl_ms="inter_token_latency.p50",
        ),
    }
)
"""Where the clients that people use leave their figures, by the `preset` of `[client]`."""


class Requests(NamedTuple):
    """Where a client's JSON says what became of its requests; of several paths the first counts.

    `completed`, `failed` and `asked` are paths of numbers of requests.
    """

    completed: tuple[str, ...]
    failed: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    errors: str = ""  # the path of a list with a text, or an object, for each failure
    printed: str = ""  # a regular expression for the number of requests that the client prints


# As its releases have named it, the latest first.
_TOTALS = ("metrics.request_totals", "request_totals", "run_stats.requests_made")
REQUESTS = MappingProxyType(
    {
        # Older releases do not count failures.
        "vllm-bench": Requests(("completed",), ("failed",), ("num_prompts",), "errors"),
        # Its file holds no number of requests, and with --output-details an error for each.
        "sglang-bench": Requests(
            ("completed",), ("failed",), ("num_prompts",), "errors", r"\bnum_prompts=([0-9]{1,9})\b"
        ),
        "guidellm": Requests(
            tuple(f"benchmarks.0.{place}.successful" for place in _TOTALS),
            tuple(f"benchmarks.0.{place}.errored" for place in _TOTALS),
        ),
        "aiperf": Requests(
            ("request_count.avg",), ("error_request_count.avg",), errors="error_summary"
        ),
    }
)
"""Where they say what became of requests."""


class ReadyTable(TomlTable, frozen=True):
    """`ready = { regex = "..." }`: what the server prints when it is ready."""

    regex: Line

    def __post_init__(self) -> None:
        _compiled(self.regex)


class ServerTable(TomlTable, frozen=True):
    """`[server]`: a program that is started for each life, and asked by a client.

    Attributes
    ----------
    start
        A line for the shell, whose server listens at $KVTRAIL_PORT.
    ready
        An address that answers when the server is ready, or { regex = "..." } of what it prints.
    ready_timeout_s
        Seconds after which a server that is not ready has failed.
    url
        In place of `start`: the address of a server that is there already, in which $KVTRAIL_LABEL
        is replaced, as in `ready`, which is not needed then.
    pairs_per_start
        Pairs that the servers of both ends live through, asked in turns; each start counts once.
    """

    start: Line | None = None
    ready: Words | ReadyTable | None = None
    ready_timeout_s: Seconds = 300.0
    url: Words | None = None
    pairs_per_start: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 1

    def __post_init__(self) -> None:
        if (self.start is None) == (self.url is None):
            raise ValueError("a server needs either start or url")
        if self.ready is None and self.url is None:
            raise ValueError("a server that is started needs ready, to know when to ask it")
        if self.url and (isinstance(self.ready, ReadyTable) or self.pairs_per_start > 1):
            raise ValueError(
                "a server with a url is not started: it prints nothing for ready to find, and "
                "pairs_per_start is not for it"
            )
        if self.url:
            check_address(self.url, "url", "KVTRAIL_LABEL")
        if isinstance(self.ready, str):
            check_address(self.ready, "ready", "KVTRAIL_LABEL" if self.url else "KVTRAIL_PORT")


class ClientTable(TomlTable, frozen=True):
    """`[client]`: what asks the server, `windows` times in a life after `warmup` unmeasured runs.

    Attributes
    ----------
    run
        A line for the shell.
    warmup
        Runs of it that do not count.
    windows
        Runs of it that do.
    preset
        A client that people use, whose figures need no tables of their own.
    points
        Texts by name, by each of which $KVTRAIL_POINT in `run` is replaced in turn: points of load,
        whose metrics are called ttft_ms@NAME.
    """

    run: Line
    warmup: Count = 1
    windows: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 5
    preset: str = ""
    points: dict[Name, Text] = {}

    def __post_init__(self) -> None:
        if self.points and filled(self.run, {POINT: ""}) == self.run:
            raise ValueError("points need a run that holds $KVTRAIL_POINT, where each is put")
        if self.preset and self.preset not in PRESETS:
            raise ValueError(f"preset is {self.preset!r}; there are {', '.join(PRESETS)}")


class AxisTable(TomlTable, frozen=True):
    """`[axis]`: along what is compared.

    Attributes
    ----------
    kind
        Commits of the repository, or labels.
    labels
        At least two, in their order.
    """

    kind: Literal["commits", "labels"] = "commits"
    labels: tuple[Words, ...] = ()

    def __post_init__(self) -> None:
        if len(set(self.labels)) < len(self.labels):
            raise ValueError("a label stands twice in labels")
        if self.kind == "labels" and len(self.labels) < 2:
            raise ValueError('kind = "labels" needs labels, at least two, in their order')


class TraceTable(TomlTable, frozen=True):
    """`[trace]`: a command that leaves a trace of what is measured, which `explain` reads.

    Attributes
    ----------
    run
        A line for the shell that runs in place of `measure`, or of the client where there is a
        server. It leaves a Chrome trace, such as torch.profiler's, at $KVTRAIL_TRACE: a file,
        gzipped or not, or a folder of them.
    """

    run: Line


class SubjectText(TomlTable, frozen=True):
    """All tables of a file."""

    subject: SubjectTable
    metrics: dict[Words, MetricTable] = {}
    server: ServerTable | None = None
    client: ClientTable | None = None
    axis: AxisTable = AxisTable()
    trace: TraceTable | None = None

    def __post_init__(self) -> None:
        if (self.server is None) != (self.client is None):
            raise ValueError("a server needs a client, and a client a server")
        if self.client and not self.client.points and POINT in self.client.run:
            raise ValueError("run in [client] holds $KVTRAIL_POINT, and there are no points")
        if bool(self.subject.measure.strip()) == bool(self.server):
            raise ValueError("give either measure in [subject], or [server] and [client]")
        if self.subject.turns and not (self.metrics and self.subject.measure.strip()):
            raise ValueError("turns needs measure, and metrics, of which a life gives the windows")
        if taken := self.metrics.keys() & {one.name for one in (*BUILT_IN, READY, RSS_GROWTH)}:
            raise ValueError(
                f"{min(taken)} is measured of every subject; call the metric otherwise"
            )


BUILT_IN = (
    Metric("wall_s", "seconds"),
    Metric("peak_rss_bytes", "bytes"),
    Metric("peak_gpu_bytes", "bytes"),
    Metric("cpu_s", "seconds"),
)
"""Metrics that every subject has."""
OF_WINDOWS = ("wall_s", "cpu_s")
"""Those of each run of a client; the first is compared where nothing is declared."""
READY, RSS_GROWTH = Metric("ready_s", "seconds"), Metric("rss_growth_bytes", "bytes")
"""Those of a server."""
COLD, WARM = Metric("ready_s@cold", "seconds"), Metric("ready_s@warm", "seconds")
COMPILER_CACHES = (
    *("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "CUDA_CACHE_PATH"),
    *("VLLM_CACHE_ROOT", "FLASHINFER_WORKSPACE_BASE", "TILELANG_CACHE_DIR", "DG_JIT_CACHE_DIR"),
    *("JAX_COMPILATION_CACHE_DIR", "NUMBA_CACHE_DIR"),
)
"""Variables that say where compilers keep what they made."""
ASKED_FOR = (Metric("instructions", ""), Metric("cycles", ""), COLD, WARM)
"""Those that are measured only where `--metric` gives the whole name."""


@dataclass(frozen=True, slots=True)
class SubjectFile:
    """A file that was read: where it lies, and its text for the record."""

    path: Path
    text: str
    content: SubjectText

    @classmethod
    def read(cls, path: Path) -> SubjectFile:
        """Read and check a file.

        Raises Refused where it cannot be read or is no such file; the sentence names the place.
        """
        try:
            # Some editors put a mark of the encoding before the text.
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise Refused(f"{path} cannot be read: {reason}.") from None
        try:
            content = msgspec.toml.decode(text, type=SubjectText)
        except RecursionError:
            raise Refused(f"{path}: its values are nested too deeply.") from None
        except (msgspec.MsgspecError, ValueError) as error:
            raise Refused(f"{path}: {in_words(str(error))}.") from None
        return cls(path.resolve(), text, content)

    @property
    def root(self) -> Path:
        """The folder that `repository` names."""
        return (self.path.parent / self.content.subject.repository).resolve()


def file_around(folder: Path) -> Path | None:
    """The nearest `kvtrail.toml` in a folder or those around it; None where there is none."""
    around = (parent / FILE_NAME for parent in (folder, *folder.parents))
    return next((path for path in around if path.is_file()), None)


def in_words(message: str) -> str:
    """A message of msgspec in words; its places, as `$.metrics[...]`, are tables of the file."""
    for pattern, meant in _MEANT.items():
        message = message.replace(f"`str` matching regex {pattern!r}", f"a text {meant}")
    text, found, place = message.removesuffix(".").partition(" - at `")
    if not found:
        return text
    where = place.replace("key` in `", "a key of ").replace("$.", "").replace("$", "").rstrip("`")
    return f"{text}, in {where.replace('[...]', '.NAME')}"
