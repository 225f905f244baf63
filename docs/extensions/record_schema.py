"""What the JSON record of a measuring command holds.

The types below say it once. The page, the schema file that the site offers, and the test of real
records are all made from them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct


class Closed(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A part of the record in which every field is named here."""


class Machine(Closed):
    """The machine that measured. Null where a machine has no such part."""

    name: Annotated[str, Meta(description="Reference machine, or `own-` and its hardware.")]
    cpu: Annotated[str, Meta(description="Model of the processor.")]
    cores: Annotated[int, Meta(description="Cores that the operating system shows.")]
    memory_gib: Annotated[float | None, Meta(description="Memory, GiB.")]
    os: Annotated[str, Meta(description="Name and version of the distribution.")]
    kernel: Annotated[str, Meta(description="Release of the kernel.")]
    python: Annotated[str, Meta(description="Version of Python.")]
    torch: Annotated[str | None, Meta(description="Version of torch.")]
    triton: Annotated[str | None, Meta(description="Version of Triton.")]
    numpy: Annotated[str | None, Meta(description="Version of numpy.")]
    cuda: Annotated[str | None, Meta(description="CUDA that torch was built for.")]
    gpu: Annotated[str | None, Meta(description="Name of the first GPU.")]
    gpu_count: Annotated[int, Meta(description="GPUs that CUDA may see.")]
    gpu_memory_gib: Annotated[float | None, Meta(description="Memory of the first GPU, GiB.")]
    driver: Annotated[str | None, Meta(description="Version of the GPU driver.")]
    sm_clock_max_mhz: Annotated[int | None, Meta(description="Highest clock, MHz.")]
    memory_clock_max_mhz: Annotated[int | None, Meta(description="Highest memory clock, MHz.")]
    power_limit_w: Annotated[float | None, Meta(description="Power limit, W.")]
    state: Annotated[dict[str, Any] | None, Meta(description="The GPU's state at the start.")]
    reference: Annotated[bool, Meta(description="Whether git keeps results of this machine.")]
    image: Annotated[str | None, Meta(description="Of the container, as KVTRAIL_IMAGE says.")] = (
        None
    )


class Comparison(Closed):
    """One benchmark, compared between two commits."""

    benchmark: Annotated[str, Meta(description="Name with parameters.")]
    base: Annotated[str, Meta(description="Hash of the older commit.")]
    head: Annotated[str, Meta(description="Hash of the newer commit.")]
    verdict: Annotated[
        Literal[
            "slower",
            "faster",
            "equivalent",
            "inconclusive",
            "failed",
            "void",
            "not measured",
            "same",
        ],
        Meta(description="The answer."),
    ]
    effect: Annotated[float | None, Meta(description="head / base - 1; null without pairs.")]
    interval: Annotated[
        list[float] | None, Meta(description="Confidence interval of the effect: low, high.")
    ]
    confidence: Annotated[float | None, Meta(description="Of the interval, such as 0.95.")]
    p: Annotated[float | None, Meta(description="Exact two-sided p-value of a difference.")]
    equivalence_p: Annotated[
        float | None, Meta(description="Larger p-value of the two tests against the margin.")
    ]
    pairs_used: Annotated[int, Meta(description="Pairs that the verdict rests on.")]
    pairs_discarded: Annotated[int, Meta(description="Pairs thrown away, such as throttled ones.")]
    base_value: Annotated[float | None, Meta(description="Median of the base's processes.")]
    head_value: Annotated[float | None, Meta(description="Median of the head's processes.")]
    reason: Annotated[str, Meta(description="A sentence where the verdict needs one, else empty.")]
    unit: Annotated[str, Meta(description="Of the figures; empty where it is not known.")] = ""
    starts_used: Annotated[
        int | None, Meta(description="Of servers of either end, where each had several pairs.")
    ] = None
    files: Annotated[
        list[int] | None, Meta(description="Of base and head, of `judge`, which pairs nothing.")
    ] = None
    control: Annotated[bool, Meta(description="Whether no change can move the benchmark.")] = False
    test: Annotated[
        Literal[
            "",
            "pooled ranks",
            "separation",
            "rank sum",
            "signed ranks and signs",
            "ranks and Welch",
        ],
        Meta(description="What gave the p-values; empty without pairs and in version 0.1.0."),
    ] = ""
    wilcoxon_p: Annotated[
        float | None, Meta(description="Of the signed-rank test alone; only in version 0.1.0.")
    ] = None


class GpuStates(Closed):
    """The GPU before and after measuring; null without a GPU."""

    before: Annotated[dict[str, Any] | None, Meta(description="Clocks, temperature, power.")]
    after: Annotated[dict[str, Any] | None, Meta(description="The same at the end.")]


class Cell(Closed):
    """What a commit or label ran with, beside its files."""

    interpreter: Annotated[str | None, Meta(description="The Python that ran, if one did.")]
    packages: Annotated[dict[str, str], Meta(description="Its packages and their versions.")]
    variables: Annotated[
        dict[str, str], Meta(description="Variables that change how such programs run; no secrets.")
    ]
    programs: Annotated[
        dict[str, str], Meta(description="Files that the command names, with hashes.")
    ] = {}
    hash: Annotated[
        str, Meta(description="Of interpreter, packages and programs, but what setup made.")
    ] = ""
    client: Annotated[
        dict[str, Any] | None, Meta(description="The same of the server's client; null without.")
    ] = None


class Reading(Closed):
    """The figure of one process, or life."""

    commit: Annotated[str, Meta(description="Full hash, or label.")]
    benchmark: Annotated[str, Meta(description="Name with parameters, or the metric's.")]
    value: Annotated[float, Meta(description="The figure, such as the median of the samples.")]
    samples: Annotated[list[float], Meta(description="Its runs, or windows.")]
    device: Annotated[str, Meta(description="GPUs by UUID, a fleet's slot, `cpu`, or `host`.")]
    started_at: Annotated[float, Meta(description="Seconds since 1970.")]
    process_s: Annotated[float, Meta(description="How long it took, s.")]
    gpu: Annotated[
        dict[str, Any] | None, Meta(description="Clocks and throttling meanwhile; null without.")
    ]
    pairs: Annotated[
        int, Meta(description="Through which its server lived, whose start counts once.")
    ] = 1
    client: Annotated[str, Meta(description="The hash of the server's client; empty without.")] = ""
    build: Annotated[
        int | None, Meta(description="Which of its `builds` ran, from 0; null where it is one.")
    ] = None
    results: Annotated[
        list[str], Meta(description="Of a check for equal results: hashes of its windows' results.")
    ] = []


class Pair(Closed):
    """A sample of `compare`; of `bisect` it is the `pair` of a sample."""

    benchmark: Annotated[str, Meta(description="Name with parameters, or the metric's.")]
    head_first: Annotated[bool, Meta(description="Whether the head ran first.")]
    discarded: Annotated[str | None, Meta(description="Why it does not count; null: it does.")]
    log_ratio: Annotated[
        float, Meta(description="Logarithm of the ratio; above 0 the head is worse.")
    ]
    base: Annotated[Reading, Meta(description="Of the older commit.")]
    head: Annotated[Reading, Meta(description="Of the newer commit.")]
    higher_is_better: Annotated[bool, Meta(description="Whether more is better.")] = False


class Settings(Struct):
    """All options of the command, defaults included. These are of comparisons."""

    subject: Annotated[
        dict[str, Any] | None,
        Meta(description="What is measured: kind, name, text of the file, labels."),
    ] = None
    fixed: Annotated[
        str, Meta(description="A hash of the files that all commits take from the working tree.")
    ] = ""
    margins: Annotated[
        dict[str, float], Meta(description="Of metrics with a margin of their own, as fractions.")
    ] = {}
    heads: Annotated[
        list[dict[str, str]],
        Meta(
            description="Of `compare` of several heads: each by its hash and its `name`, which "
            "stands behind the metric in the name of a benchmark."
        ),
    ] = []


class Host(Closed):
    """A host of a fleet. Readings name its slots: the host's name, and a number behind a slash."""

    machine: Annotated[Machine, Meta(description="Hardware and versions.")]
    slots: Annotated[int, Meta(description="How many lives ran there at once.")]
    taken_out: Annotated[
        str | None, Meta(description="Why it was used no longer; null: it was to the end.")
    ]


class Results(Struct):
    """Figures derived from the samples. Each command adds its own; these are `compare`'s."""

    answer: Annotated[str | None, Meta(description="The whole answer in a line.")] = None
    comparisons: Annotated[
        list[Comparison], Meta(description="One entry a benchmark, in the order asked for.")
    ] = []
    exit_code: Annotated[int | None, Meta(description="The command's exit code.")] = None
    of_build: Annotated[
        str | None,
        Meta(
            description="A sentence where each commit was built once; empty where that is not so."
        ),
    ] = None
    outcome: Annotated[str | None, Meta(description="The exit code in a word.")] = None
    repeat: Annotated[
        str | None, Meta(description="The command that measures it again, with hashes for names.")
    ] = None
    cells: Annotated[
        dict[str, Cell], Meta(description="Of a subject: what each commit or label ran with.")
    ] = {}
    others: Annotated[
        dict[str, dict[str, list[float]]],
        Meta(description="Figures that were not judged: by metric, and by commit or label."),
    ] = {}
    why: Annotated[
        list[str],
        Meta(description="Sentences about what differs besides time, where the head is slower."),
    ] = []
    pools: Annotated[
        dict[str, int], Meta(description="Earlier differences that a benchmark was judged with.")
    ] = {}
    hosts: Annotated[
        dict[str, Host], Meta(description="Of a fleet: the hosts that measured, by name.")
    ] = {}
    checks: Annotated[
        list[dict[str, Any]],
        Meta(
            description="Of each check: `verdict` (same, differs, unstable or inconclusive), "
            "`what` differed first, and in how many `lives` of either end."
        ),
    ] = []
    gate: Annotated[str | None, Meta(description="Verdicts with an exit code of their own.")] = None
    interrupted: Annotated[bool, Meta(description="Whether the run was cut short.")] = False
    seconds: Annotated[float | None, Meta(description="How long measuring took, s.")] = None


class Record(Closed):
    """What every measuring command leaves behind."""

    schema: Annotated[int, Meta(description="Version of this format.")]
    command: Annotated[str, Meta(description="The command's name.")]
    argv: Annotated[list[str], Meta(description="Its arguments, without folders of the machine.")]
    started: Annotated[str, Meta(description="Date and time in UTC, ISO 8601.")]
    commit: Annotated[str | None, Meta(description="The commit checked out; null outside git.")]
    dirty: Annotated[bool, Meta(description="Whether the working tree differed from it.")]
    changed: Annotated[list[str], Meta(description="Paths that differed.")]
    machine: Annotated[Machine, Meta(description="Hardware and versions.")]
    gpu_state: Annotated[GpuStates, Meta(description="The GPU before and after.")]
    settings: Annotated[Settings, Meta(description="All options, defaults included.")]
    notes: Annotated[list[str], Meta(description="Sentences to know when reading the figures.")]
    results: Annotated[Results, Meta(description="Figures derived from the samples.")]
    samples: Annotated[list[dict[str, Any]], Meta(description="Every raw sample.")]
    threads: Annotated[int, Meta(description="Threads of each measured process.")] = 1
    surroundings: Annotated[
        dict[str, Any] | None, Meta(description="What else the machine did before.")
    ] = None
    warnings: Annotated[list[str], Meta(description="Why figures may be doubtful.")] = []


_NAMES: dict[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
}
PARTS = (Record, Machine, GpuStates, Settings, Results, Comparison, Cell, Host, Pair, Reading)


def schema() -> dict[str, Any]:
    """The record as a JSON Schema, and what a comparison has among its samples."""
    (record, _), parts = msgspec.json.schema_components(
        (Record, Pair), ref_template="#/$defs/{name}"
    )
    return {**record, "$defs": parts}


def markdown() -> str:
    """A section and a table for each part of the record."""
    return "\n".join(_section(part) for part in PARTS)


def _section(part: type[Struct]) -> str:
    rows = ["| field | type | meaning |", "| --- | --- | --- |"]
    for name, hint in get_type_hints(part, include_extras=True).items():
        kind, meta = get_args(hint)
        rows.append(f"| `{name}` | {_type_name(kind)} | {meta.description} |")
    return "\n".join([f"## {part.__name__}", "", part.__doc__ or "", "", *rows, ""])


def is_part(kind: Any) -> bool:
    """Whether a type has a section of its own."""
    return isinstance(kind, type) and issubclass(kind, Struct)


def _type_name(kind: Any) -> str:
    origin = get_origin(kind)
    if kind in _NAMES:
        return _NAMES[kind]
    if origin is Literal:
        return ", ".join(f'`"{value}"`' for value in get_args(kind))
    if origin is list:
        return f"array of {_type_name(get_args(kind)[0])}"
    if origin is dict:
        of = get_args(kind)[1]
        return f"object of {_type_name(of)}" if is_part(of) else "object"
    if origin is None:
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    return " or ".join(_type_name(one) for one in get_args(kind))
