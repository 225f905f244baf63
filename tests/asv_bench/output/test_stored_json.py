"""Stored files that were cut off, altered or are of something else: no reader stumbles."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from measured_rounds import pair_of_lives
from mutated_files import broken, mutants_of

from asv_bench.errors import BenchError
from asv_bench.git.repository import Repository, commits_on_line
from asv_bench.history.asv_results import read_ratios, read_results, sessions_of
from asv_bench.history.change_points import changes_in, points_of
from asv_bench.history.histories import Histories
from asv_bench.history.standing import read_answers
from asv_bench.measure.log import Log, Logged
from asv_bench.output.figure_rows import figure_table
from asv_bench.output.record import REPOSITORY
from asv_bench.output.stored_json import Positive, Text, UnreadableFile, read_stored
from asv_bench.pages.machine_view import read_verdicts
from asv_bench.studies.ladder import ladder_page
from tests.counters import read_baseline
from tests.simulations.commits import SIMULATED_BENCHMARK, SimulatedCommits
from tests.simulations.noise import Noise

REPORTS = REPOSITORY / "reports"


def read_stored_results(folder: Path) -> None:
    """All that `report`, `history` and `changes` do with results but for drawing."""
    results = read_results(folder)
    for figure in results.figures:
        assert all(sample >= 0 for sample in figure.samples)
    dates = {figure.commit: figure.committed_ms for figure in results.figures}
    commits, _ = commits_on_line(dates, Repository(folder))
    for series in {figure.series for figure in results.figures}:
        members = [figure for figure in results.figures if figure.series == series]
        changes_in(points_of(members, commits, {}, sessions_of(members)))
    figure_table(results.figures, "")


def read_kept(path: Path) -> None:
    log = Log(path)
    machine = SimulatedCommits({"a": 0.0, "b": 0.0}, Noise(), 0)
    source = Logged(machine, log, "gate")
    for _ in range(4):
        pair = pair_of_lives(source, "a", "b")[SIMULATED_BENCHMARK]
        assert -1 < pair.log_ratio < 1 or log.restored
        assert pair.base.process_s + pair.head.process_s >= 0
        json.dumps(pair.to_json(), allow_nan=False)


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


def stored(folder: Path) -> dict[str, tuple[Path, Callable[[], object]]]:
    """A file of each kind as it should be, and what reads it."""

    def copied(pattern: str, name: str) -> Path:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(next(REPORTS.glob(pattern)), path)
        return path

    asv = folder / "asv"
    record = copied("verdicts/compare-burst-cpu-2core.json", "record/reports/compare-1.json")
    record.write_text(json.dumps(json.loads(record.read_text()) | {"samples": []}))
    answers = copied("headline.json", "answers/h200/a.json")
    answers.write_text(json.dumps({"schema": 1, "changes": [CHANGE]}))
    counters, kept = copied("counters/*.json", "counters.json"), folder / "kept.jsonl"
    source = Logged(SimulatedCommits({"a": 0.0, "b": 0.0}, Noise(), 0), Log(kept), "gate")
    for _ in range(3):
        pair_of_lives(source, "a", "b")
    copied("asv/h200/b97358d4*.json", "asv/h200/b.json")
    found: dict[str, tuple[Path, Callable[[], object]]] = {
        name: (copied(pattern, place), lambda: read_stored_results(asv))
        for name, pattern, place in (
            ("benchmarks", "asv/benchmarks.json", "asv/benchmarks.json"),
            ("machine", "asv/h200/machine.json", "asv/h200/machine.json"),
            ("result", "asv/h200/d556ee65*.json", "asv/h200/a.json"),
        )
    }
    session = copied("asv-sessions/h200/*.json", "sessions/h200/s.json")
    ladder = copied("ladder-cpu-2core.json", "pages/ladder-a.json")
    return found | {
        "session": (session, lambda: read_ratios(folder / "sessions", "h200", [])),
        "ladder": (ladder, lambda: ladder_page.read_records(ladder.parent)),
        "answers": (answers, lambda: read_answers(folder / "answers", "h200", [])),
        "record": (record, lambda: read_reports(record.parent)),
        "counters": (counters, lambda: read_baseline(counters)),
        "kept": (kept, lambda: read_kept(kept)),
    }


KINDS = "benchmarks machine result session ladder answers record counters kept"


@pytest.mark.parametrize("count", [24, pytest.param(600, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("kind", KINDS.split())
def test_no_stored_file_makes_its_reader_stumble(kind: str, count: int, tmp_path: Path) -> None:
    path, read = stored(tmp_path)[kind]
    original = path.read_bytes()
    read()
    # A file of lines is no JSON as a whole.
    spoil = broken if kind == "kept" else mutants_of
    for mutant in spoil(original, count):
        path.write_bytes(mutant)
        said = ""
        try:
            read()
        except BenchError as error:
            said = str(error)
        # Nothing, or a sentence that names the file, or where it lies.
        assert not said or (str(path.parent) in said and said.endswith("."))


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
    name: Text


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"seconds": 1, "name": "a"', "is not JSON"),
        (b"[1]", "is not a JSON object"),
        (b'{"seconds": 1}', "is not a life: .*name"),
        (b'{"seconds": 1, "name": ""}', r"\$\.name"),
        *(
            (b'{"name": "a", "seconds": %s}' % value, r"is not a life: .*\$\.seconds")
            for value in (b"NaN", b"Infinity", b"true", b"0", b"1e-320", b"9" * 400, b'"1"')
        ),
    ],
)
def test_a_struct_says_what_a_file_holds(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "life.json"
    path.write_text('{"seconds": 1, "name": "a"}')
    assert read_stored(path, "a life", Life) == Life(1.0, "a")
    path.write_bytes(content)
    with pytest.raises(UnreadableFile, match=f"^{path} .*{said}"):
        read_stored(path, "a life", Life)
