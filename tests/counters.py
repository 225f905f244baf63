"""What decode steps do and kernels compile to, compared exactly with what was accepted.

`python -m tests.counters` counts and compares, on any machine; `--accept WHY` records the counters
as right. They are exact, so any difference is a change of the code, for better or for worse.
`reports/counters` has a file for each Python, torch and Triton, which changes only together with a
sentence that says why. The exit code is 4 where nothing was accepted for those that are installed.
"""

from __future__ import annotations

import gc
import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata, util
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import typer
from rich.console import Console
from rich.progress import track

from asv_bench.__main__ import code_of
from asv_bench.errors import BenchError, MeasurementFailed, Refused
from asv_bench.explain.engine_counts import BLOCK_SIZE, PATHS, run_steps, warm_engine
from asv_bench.git.trees import working_tree
from asv_bench.output.console import make_console, print_table
from asv_bench.output.record import REPOSITORY, write_json
from asv_bench.output.stored_json import Text, read_stored
from asv_bench.output.table import Column, Table
from asv_bench.process.environment import MEASURED_PACKAGES
from asv_bench.session.exit_codes import ExitCode

FOLDER = REPOSITORY / "reports" / "counters"
BATCHES = (1, 8, 64)
# Of the batches between which calls per request are told: both are above any special case of one.
SMALL, LARGE = BATCHES[1], BATCHES[2]
WHAT = {
    "cpu": "the CPU, with torch",
    "graph": "a GPU, one captured graph a step",
    "fused": "a GPU, fused kernels one by one",
    "plain": "a GPU, a kernel an operation",
}
STEP_COLUMNS = (
    Column("what", "path, batch, span", kind="name"),
    Column("operators", "operators"),
    Column("new_tensors", "new", "tensors"),
    Column("new_bytes", "new", "bytes"),
    Column("copies_to_device", "to", "device"),
    Column("copies_to_host", "to", "host"),
    Column("graph_replays", "replays"),
    Column("launches", "launches"),
    Column("engine_python_calls", "engine's", "calls"),
    Column("python_calls", "all", "calls"),
)
"""The other counters of a step are in the file."""
DIFFERENCE_COLUMNS = (
    Column("what", "of", kind="name"),
    Column("counter", "counter", kind="name"),
    *(Column(name, name) for name in ("before", "after", "change")),
)

OF_TORCH = ("operators", "new_tensors", "new_bytes")
OF_TRAFFIC = (
    *(f"{what}_to_{where}" for where in ("device", "host") for what in ("copies", "bytes")),
    "graph_replays",
)
"""Counters that a `MemoryLedger` and the pretended GPU's `Traffic` keep, as they call them."""

StepCounters: TypeAlias = dict[str, int | None]
"""None: not counted, as the pretended GPU calls functions itself."""
Counters: TypeAlias = Mapping[str, Mapping[str, Any]]
"""By what was counted ("cpu, batch 8, step", or a kernel), then by the counter's name."""


class Versions(msgspec.Struct, frozen=True):
    """What counters depend on beside the code."""

    python: str
    torch: str
    triton: str

    @property
    def key(self) -> str:
        """The name of the file that holds the counters of these versions."""
        return f"py{self.python}-torch{self.torch}-triton{self.triton}"


class Acceptance(msgspec.Struct, frozen=True):
    """Why the counters are what they are, since which commit."""

    why: Text
    commit: str | None
    date: Text

    def __str__(self) -> str:
        return f"{(self.commit or 'an unknown commit')[:9]} ({self.date})"


class Baseline(msgspec.Struct, frozen=True):
    """What one file holds; the last acceptance is the newest."""

    schema: Literal[1]
    versions: Versions
    accepted: Annotated[tuple[Acceptance, ...], msgspec.Meta(min_length=1)]
    steps: Counters
    kernels: Counters


def step_table(steps: Mapping[str, Mapping[str, Any]], key: str) -> Table:
    """A row for each path, batch and span of counted steps, under the key of their versions."""
    rows = [
        (name, *(values[column.key] for column in STEP_COLUMNS[1:]))
        for name, values in steps.items()
    ]
    return Table(STEP_COLUMNS, rows, f"what a decode step does ({key})")


def installed_versions() -> Versions:
    """Of this process. A build of torch for another device is the same version."""
    torch, triton = (metadata.version(name).split("+")[0] for name in ("torch", "triton"))
    return Versions(".".join(platform.python_version_tuple()[:2]), torch, triton)


def read_baseline(path: Path) -> Baseline | None:
    """The accepted counters, None where there is no such file."""
    return read_stored(path, "a baseline of counters", Baseline) if path.exists() else None


def step_name(path: str, batch: int, part: str) -> str:
    """What a path's counters at one batch are called; `part` is "step" or "block"."""
    return f"{path}, batch {batch}, {part}"


@dataclass(slots=True)
class PythonCalls:
    """Calls of Python functions; a generator that is resumed counts as called."""

    total: int = 0  # of all functions but numpy's
    engine: int = 0  # of functions defined in the files of the engine's packages


@contextmanager
def python_calls() -> Iterator[PythonCalls]:
    """Count calls in this thread, inside the block. The garbage collector is off meanwhile."""
    calls, (numpy, *ours) = PythonCalls(), map(_folder, ("numpy", *MEASURED_PACKAGES))

    def on_event(frame: FrameType, event: str, argument: object) -> None:
        path = frame.f_code.co_filename
        is_end = frame.f_code.co_name == python_calls.__name__ and path == __file__
        # Baselines are not kept for each numpy, so what it calls inside itself is left out.
        if event != "call" or is_end or path.startswith(numpy):
            return
        calls.total += 1
        calls.engine += path.startswith(tuple(ours))

    was_collecting = gc.isenabled()
    gc.disable()
    sys.setprofile(on_event)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        if was_collecting:
            gc.enable()


def _folder(package: str) -> str:
    spec = util.find_spec(package)
    return f"{Path(str(spec and spec.origin)).parent}/"


def count_steps(path: str, batch: int) -> dict[str, StepCounters]:
    """Counters of a steady step, and of a block of them, boundary included, by `step_name`.

    An engine is built and `batch` requests are brought to where they all decode. All are equally
    long, so steps repeat with the block size. What torch does is counted over the steps of one
    block, and Python's calls over the next: of all functions but numpy's own, and the engine's.

    Raises Refused if ranges are on, which add calls, or kernels are interpreted, and
    MeasurementFailed if a step did not deliver one token of each request.
    """
    # It makes torch's modes, which nothing else here waits for.
    from asv_bench.studies.ladder.memory_ledger import MemoryLedger

    def seen_by_torch(steps: int) -> StepCounters:
        traffic.clear()
        with MemoryLedger() as ledger:
            run_steps(engine, batch, steps)
        counted: StepCounters = {name: getattr(ledger, name) for name in OF_TORCH}
        counted |= {name: getattr(traffic, name) for name in OF_TRAFFIC}
        return counted | {"launches": len(traffic.launches)}

    def seen_by_python(steps: int) -> StepCounters:
        with python_calls() as calls:
            run_steps(engine, batch, steps)
        total = calls.total if PATHS[path]["device"] == "cpu" else None
        return {"engine_python_calls": calls.engine, "python_calls": total}

    with warm_engine(path, batch) as (engine, traffic):
        parts = (1, BLOCK_SIZE - 1)
        by_torch, by_python = (list(map(see, parts)) for see in (seen_by_torch, seen_by_python))
    first, rest = (one | other for one, other in zip(by_torch, by_python, strict=True))
    block = {name: None if one is None else one + (rest[name] or 0) for name, one in first.items()}
    return {step_name(path, batch, "step"): first, step_name(path, batch, "block"): block}


def count_all(console: Console) -> dict[str, StepCounters]:
    """Every path at every batch, by `step_name`."""
    todo = [(path, batch) for path in PATHS for batch in BATCHES]
    counted: dict[str, StepCounters] = {}
    for path, batch in track(todo, "counting steps", console=console, transient=True):
        counted |= count_steps(path, batch)
    return counted


def count_kernels(console: Console) -> dict[str, Mapping[str, Any]]:
    """What every kernel compiles to, by its name."""
    from tests.kernels.codegen.every_kernel import compile_all, every_kernel

    console.print("finding what the engine launches")
    compiled, failures = compile_all(every_kernel(), console)
    if failures:
        raise MeasurementFailed("; ".join(failures))
    return {one.name: one.figures for one in compiled}


def broken_rules(steps: Counters) -> Iterator[str]:
    """Sentences about what must hold of a steady step, whatever a baseline says."""
    for path in PATHS:
        few, many = (steps[step_name(path, batch, "step")] for batch in (SMALL, LARGE))
        calls = (many["engine_python_calls"] - few["engine_python_calls"]) / (LARGE - SMALL)
        # The batch chooses tiles of fused kernels, and each kind of tile has its own launcher.
        if path != "fused" and calls:
            yield (
                f"the engine calls {calls:g} Python functions for each request in a steady step "
                f"({WHAT[path]}), where it must call none"
            )
        for place, why in (
            ("device", "must not"),
            ("host", "must not: the device writes its tokens there itself"),
        ):
            if copies := many[f"copies_to_{place}"]:
                yield f"a steady step copies to the {place} {copies} times ({WHAT[path]}); it {why}"


def differences(before: Counters, after: Counters) -> Iterator[tuple[str, str, Any, Any, str]]:
    """Rows of `DIFFERENCE_COLUMNS`: counters that differ, in the order of before, then new ones.

    A side is None where it does not have the counter.
    """
    for what in dict.fromkeys((*before, *after)):
        sides = before.get(what, {}), after.get(what, {})
        for counter in dict.fromkeys((*sides[0], *sides[1])):
            old, new = (side.get(counter) for side in sides)
            if old != new:
                change = "new" if old is None else "gone" if new is None else "other"
                if isinstance(old, int) and isinstance(new, int):
                    change = f"{new - old:+,}"
                yield what, counter, old, new, change


def counters(
    accept: Annotated[
        str | None, typer.Option(metavar="WHY", help="Record the counters as right, and why.")
    ] = None,
    steps_only: Annotated[
        bool, typer.Option("--steps-only", help="Leave out the kernels, which take the longest.")
    ] = False,
) -> None:
    """Count what decode steps do and what kernels compile to, and compare with what was accepted.

    It exits with 4 where nothing was accepted for this Python, torch and Triton.
    """
    if accept is not None and not accept.strip():
        raise Refused("--accept must say why the counters are right as they are now.")
    if accept is not None and steps_only:
        raise Refused("--accept records steps and kernels together; leave out --steps-only.")
    console, versions = make_console(), installed_versions()
    path = FOLDER / f"{versions.key}.json"
    # Before anything is counted, so that a file that cannot be read costs no time.
    known = read_baseline(path)
    steps = count_all(console)
    print_table(console, step_table(steps, versions.key))
    kernels = {} if steps_only else count_kernels(console)
    if broken := list(broken_rules(steps)):
        raise MeasurementFailed("; ".join(broken) + ".")
    if accept is not None:
        today = datetime.now(UTC).date().isoformat()
        acceptance = Acceptance(accept.strip(), working_tree(REPOSITORY).label, today)
        accepted = (*(known.accepted if known else ()), acceptance)
        # One counter a line, so that git shows what changed.
        baseline = Baseline(1, versions, accepted, steps, kernels)
        write_json(path, msgspec.to_builtins(baseline), indent=1)
        console.print(f"accepted: {path}")
        return
    if known is None:
        console.print(
            f"nothing was accepted yet for {versions.key}, so there is nothing to compare with; "
            'record these counters with --accept "why".'
        )
        raise typer.Exit(ExitCode.INCONCLUSIVE)
    found = [*differences(known.steps, steps)]
    found += [] if steps_only else differences(known.kernels, kernels)
    newest = known.accepted[-1]
    if found:
        print_table(console, Table(DIFFERENCE_COLUMNS, found, "counters that changed"))
        raise MeasurementFailed(
            f'{len(found)} counters differ from what {newest} accepted ("{newest.why}"); where '
            'that is meant, record it with --accept "why".'
        )
    total = sum(map(len, (*steps.values(), *kernels.values())))
    console.print(f"all {total} counters are as {newest} accepted them")


if __name__ == "__main__":
    try:
        typer.run(counters)
    except BenchError as error:
        make_console(stderr=True).print(f"error: {error}")
        raise SystemExit(code_of(error)) from None
