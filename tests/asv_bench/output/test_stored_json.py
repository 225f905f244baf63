"""Stored files that were cut off, altered or are of something else: no reader stumbles."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from mutated_files import WRONG, altered, broken, mutants_of, places

from asv_bench.cli.headline import headline_row, process_at
from asv_bench.errors import BenchError
from asv_bench.git.repository import Repository, commits_in_order
from asv_bench.history.asv_results import dates_of, read_results
from asv_bench.history.change_points import changes_in, points_of
from asv_bench.history.filing import write_published
from asv_bench.history.histories import Histories
from asv_bench.history.sessions import read_ratios, sessions_of
from asv_bench.history.standing import read_answers
from asv_bench.measure.log import Log, Logged
from asv_bench.measure.rounds import two_cells
from asv_bench.output.figure_rows import figure_table
from asv_bench.output.record import REPOSITORY
from asv_bench.output.stored_json import Positive, Text, UnreadableFile, read_stored
from asv_bench.pages.machine_view import read_verdicts
from asv_bench.studies.ladder import ladder_page
from tests.counters import differences, read_baseline
from tests.simulations.commits import SIMULATED, SIMULATED_BENCHMARK, SimulatedCommits
from tests.simulations.noise import Noise

REPORTS = REPOSITORY / "reports"


def read_stored_results(folder: Path) -> int:
    """All that `report`, `history` and `changes` do with results but for drawing."""
    results = read_results(folder)
    for figure in results.figures:
        assert all(sample >= 0 for sample in figure.samples)
    commits = commits_in_order(dates_of(results.figures), Repository(folder))
    for series in {figure.series for figure in results.figures}:
        members = [figure for figure in results.figures if figure.series == series]
        changes_in(points_of(members, commits, {}, sessions_of(members)))
    figure_table(results.figures, "")
    write_published(results, folder, folder.parent / "published")
    return len(results.complaints)


def read_kept(path: Path) -> None:
    log = Log(path)
    machine = SimulatedCommits({"a": 0.0, "b": 0.0}, Noise(), 0)
    source = Logged(machine, log, "gate")
    for _ in range(4):
        measured = source.round(["a", "b"], metrics=[SIMULATED_BENCHMARK])
        [pair] = two_cells("a", "b").pairs([SIMULATED], measured).values()
        assert -1 < pair.log_ratio < 1 or log.restored
        assert pair.base.process_s + pair.head.process_s >= 0
        json.dumps(pair.to_json(), allow_nan=False)


def read_process(path: Path) -> None:
    figures, _ = process_at(path, "")
    headline_row([figures])


def read_counters(path: Path) -> None:
    baseline = read_baseline(path)
    assert baseline is not None
    assert baseline.accepted[-1].why
    list(differences(baseline.steps, {}))


def read_reports(checkout: Path) -> None:
    for verdicts in read_verdicts(Histories.of_checkout(checkout)).values():
        assert all(one.sentence and one.key for one in verdicts)


CHANGE = {
    "benchmark": "a.B.track_c", "params": {"batch": "8"}, "environment": {"python": "3.12"},
    "commit": "a" * 40, "standing": "regression",
    "confirmation": {
        "change": 0.06, "standing": "regression", "verdict": "slower", "reason": "",
        "benchmark": "a.B.track_c(8)", "base": "b" * 40, "head": "a" * 40,
        "effect": 0.05, "interval": [0.04, 0.06], "pairs_used": 8,
    },
}  # fmt: skip
SUMMARY = {"p50": 1.0, "p99": 2.0}
PROCESS = {
    "settings": {"workload": {"name": "scheduler", "batch_size": 1}}, "gpu_state": {"before": None},
    "results": {"modes": {"online": {
        "step_ms": 1.0, "total_tokens_per_s": SUMMARY, "ttft_ms": SUMMARY, "tpot_ms": SUMMARY,
        "itl_ms": SUMMARY, "floor_ms": None, "fraction_of_floor": 0.5,
    }}},
}  # fmt: skip


def stored(folder: Path) -> dict[str, tuple[Path, Callable[[], object]]]:
    """A file of each kind as it should be, and what reads it."""
    asv = folder / "asv"
    (asv / "h200").mkdir(parents=True)
    shutil.copy(REPORTS / "asv" / "benchmarks.json", asv)
    shutil.copy(REPORTS / "asv" / "h200" / "machine.json", asv / "h200")
    for name in ("d556ee65", "b97358d4"):
        [path] = (REPORTS / "asv" / "h200").glob(f"{name}*.json")
        shutil.copy(path, asv / "h200")
    sessions = folder / "sessions" / "h200"
    sessions.mkdir(parents=True)
    shutil.copy(next((REPORTS / "asv-sessions" / "h200").glob("*.json")), sessions / "s.json")
    pages = folder / "pages"
    pages.mkdir()
    shutil.copy(REPORTS / "ladder-cpu-2core.json", pages / "ladder-a.json")
    record = folder / "record" / "reports"
    record.mkdir(parents=True)
    content = json.loads((REPORTS / "verdicts" / "compare-burst-cpu-2core.json").read_text())
    (record / "compare-1.json").write_text(json.dumps(content | {"samples": []}))
    answers = folder / "answers" / "h200" / "a.json"
    answers.parent.mkdir(parents=True)
    answers.write_text(json.dumps({"schema": 1, "changes": [CHANGE]}))
    process = folder / "process.json"
    process.write_text(json.dumps(PROCESS))
    counters = folder / "counters.json"
    shutil.copy(next((REPORTS / "counters").glob("*.json")), counters)
    kept = folder / "kept.jsonl"
    machine = SimulatedCommits({"a": 0.0, "b": 0.0}, Noise(), 0)
    source = Logged(machine, Log(kept), "gate")
    for _ in range(3):
        source.round(["a", "b"])

    return {
        "benchmarks": (asv / "benchmarks.json", lambda: read_stored_results(asv)),
        "machine": (asv / "h200" / "machine.json", lambda: read_stored_results(asv)),
        "result": (next((asv / "h200").glob("d556*")), lambda: read_stored_results(asv)),
        "session": (sessions / "s.json", lambda: read_ratios(sessions.parent, "h200", [])),
        "ladder": (pages / "ladder-a.json", lambda: ladder_page.read_records(pages)),
        "answers": (answers, lambda: read_answers(answers.parent.parent, "h200", [])),
        "record": (record / "compare-1.json", lambda: read_reports(record.parent)),
        "process": (process, lambda: read_process(process)),
        "counters": (counters, lambda: read_counters(counters)),
        "kept pairs": (kept, lambda: read_kept(kept)),
    }


KINDS = (
    "benchmarks", "machine", "result", "session", "ladder", "answers", "record",
     "process", "counters", "kept pairs",
)  # fmt: skip


def mutants(kind: str, original: bytes, count: int) -> Iterator[bytes]:
    """As `mutants_of`; of a file of lines, with something else in one of them."""
    if kind != "kept pairs":
        yield from mutants_of(original, count)
        return
    yield from broken(original, count)
    draws = random.Random(0)
    first, *lines = [json.loads(line) for line in original.splitlines()]
    for _ in range(count):
        number = draws.randrange(len(lines))
        place = draws.choice(list(places(lines[number])))
        changed = [*lines]
        changed[number] = altered(lines[number], place, draws.choice((*WRONG, altered)))
        yield b"".join(json.dumps(line).encode() + b"\n" for line in (first, *changed))


class NamesTheFile(Exception):
    """A reader said in a sentence that a file, or all that there is, cannot be read."""


def named(path: Path, read: Callable[[], object]) -> None:
    """Read, and tell a sentence that names the file from anything else that is raised."""
    try:
        read()
    except BenchError as error:
        sentence = str(error)
        if str(path.parent) not in sentence or not sentence.endswith("."):
            raise
        raise NamesTheFile from error


def survive(kind: str, folder: Path, count: int) -> None:
    path, read = stored(folder)[kind]
    original = path.read_bytes()
    read()
    for mutant in mutants(kind, original, count):
        path.write_bytes(mutant)
        with contextlib.suppress(NamesTheFile):
            named(path, read)


@pytest.mark.parametrize("count", [24, pytest.param(600, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("kind", KINDS)
def test_no_stored_file_makes_its_reader_stumble(kind: str, count: int, tmp_path: Path) -> None:
    survive(kind, tmp_path, count)


def test_every_committed_record_is_read() -> None:
    paths = sorted(REPORTS.rglob("*.json"))
    # What commands of this checkout left, git ignores.
    kept = [path for path in paths if not {"runs", "html", "pages"} & set(path.parts)]
    contents = {path: read_stored(path, "JSON", dict) for path in kept}
    complaints = list(read_results(REPORTS / "asv").complaints)
    for folder in (REPORTS / "asv-sessions").iterdir():
        assert read_ratios(folder.parent, folder.name, complaints)
    wanted = {
        path
        for path in (REPORTS / "verdicts").glob("*.json")
        if contents[path].get("command") in ("compare", "bisect", "fixed")
        and contents[path]["settings"].get("subject") is None
    }
    assert wanted <= read_verdicts(Histories.of_checkout(REPOSITORY)).keys()
    assert complaints == []
    assert ladder_page.read_records(REPORTS)
    assert all(map(read_baseline, (REPORTS / "counters").glob("*.json")))


class Life(msgspec.Struct):
    seconds: Positive
    spilled: int
    name: Text


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"seconds": 1, "spilled": 0, "name": "a"}', None),
        (b'{"seconds": 1, "spilled": 0', "is not JSON"),
        (b"[1]", "is not a JSON object"),
        (b'{"seconds": 1, "name": "a"}', "is not a life: .*spilled"),
        *(
            (b'{"spilled": 0, "name": "a", "seconds": %s}' % value, r"is not a life: .*\$\.seconds")
            for value in (b"NaN", b"Infinity", b"true", b"0", b"1e-320", b"9" * 400, b'"1"')
        ),
        (b'{"seconds": 1, "spilled": true, "name": "a"}', r"\$\.spilled"),
        (b'{"seconds": 1, "spilled": 0, "name": ""}', r"\$\.name"),
    ],
)
def test_a_struct_says_what_a_file_holds(content: bytes, said: str | None, tmp_path: Path) -> None:
    path = tmp_path / "life.json"
    path.write_bytes(content)
    if said is None:
        assert read_stored(path, "a life", Life) == Life(1.0, 0, "a")
        return
    with pytest.raises(UnreadableFile, match=f"^{path} .*{said}"):
        read_stored(path, "a life", Life)
