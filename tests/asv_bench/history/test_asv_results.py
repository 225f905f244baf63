"""Reading asv's result files: what is kept, what is left out, and what is refused."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from stored_figures import store_results

from asv_bench.history.asv_results import Figure, Series, differing, read_results
from asv_bench.output.figure_rows import duration

COLUMNS = ["result", "params", "version", "started_at", "duration", "stats_ci_99_a", "samples"]


DESCRIBED = {
    "decode.Decode.track_step_time": ("seconds", ["model", "batch", "context"]),
    "host.Startup.track_import": ("seconds", []),
}


def write(directory: Path, results: dict[str, list[Any]]) -> Path:
    """A results directory as asv writes it, with two benchmarks of version 1; the file in it."""
    machine = directory / "own-toy"
    store_results(machine, DESCRIBED, results, "a" * 40, 1000, columns=COLUMNS, cpu="a cpu")
    [path] = machine.glob("a*.json")
    return path


STEP = "decode.Decode.track_step_time"
PARAMS = [["'gpt2-tiny'"], ["8", "64"], ["128"]]
STARTUP = "host.Startup.track_import"


def test_values_parameters_and_samples_are_read(tmp_path: Path) -> None:
    row = [[0.002, 0.004], PARAMS, "1", 7, 1.0, None, [[0.001, 0.002, 0.003], [0.004]]]
    write(tmp_path, {STEP: row})
    first, second = read_results(tmp_path).figures
    series = Series(STEP, (("model", "gpt2-tiny"), ("batch", "8"), ("context", "128")))
    assert first == Figure(series, "seconds", "own-toy", "a" * 40, 1000, first.samples, 7)
    assert first.samples == (0.001, 0.002, 0.003)
    assert (first.median, first.spread) == (0.002, pytest.approx(0.25))
    assert second.samples == (0.004,)
    assert math.isnan(second.spread)


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ({STEP: [[math.nan, None], PARAMS, "1", 7]}, [("64", ())]),
        ({STEP: [None, PARAMS, "1", 7]}, [("8", ()), ("64", ())]),
        ({STARTUP: [[0.2], [], "1", 7]}, [(None, (0.2,))]),
        ({STARTUP: [[0.2], [], "0", 7]}, []),
        ({"gone.Gone.track_x": [[1.0], [], "1", 7]}, []),
    ],
    ids=["one skipped", "failed as a whole", "no parameters", "older version", "benchmark gone"],
)
def test_failures_are_kept_and_what_no_benchmark_measures_now_is_not(
    tmp_path: Path, results: dict[str, list[Any]], expected: list[tuple[str | None, Any]]
) -> None:
    write(tmp_path, results)
    found = read_results(tmp_path)
    figures = found.figures
    assert found.complaints == ()
    assert [(dict(one.series.params).get("batch"), one.samples) for one in figures] == expected
    assert all(one.failed == math.isnan(one.median) == (not one.samples) for one in figures)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "is not JSON"),
        ("[]", "is not a JSON object"),
        ('{"results": {}}', "is not a result file of asv"),
        ('{"results": 3, "result_columns": []}', "is not a result file of asv"),
        ('{"version": 1}', "is not a result file of asv: .*version"),
    ],
)
def test_a_file_that_asv_did_not_write_is_named_and_the_rest_is_read(
    tmp_path: Path, content: str, complaint: str
) -> None:
    write(tmp_path, {STEP: [[0.002], [["'gpt2'"], ["8"], ["128"]], "1", 7]})
    (tmp_path / "own-toy" / "bad.json").write_text(content)
    results = read_results(tmp_path)
    [sentence] = results.complaints
    assert re.search(rf"bad\.json {complaint}.*It is left out\.$", sentence)
    assert [figure.samples for figure in results.figures] == [(0.002,)]


@pytest.mark.parametrize("sample", ["0", "-1.5", "NaN", "Infinity", "null", "true", '"2"', "1e999"])
def test_a_sample_that_is_no_time_is_named_and_left_out(tmp_path: Path, sample: str) -> None:
    row = [[0.002], [["'gpt2'"], ["8"], ["128"]], "1", 7, 1.0, None, [[0.001, "SAMPLE", 0.003]]]
    path = write(tmp_path, {STEP: row, STARTUP: [[0.2], [], "1", 7]})
    path.write_text(path.read_text().replace('"SAMPLE"', sample))
    results = read_results(tmp_path)
    [sentence] = results.complaints
    assert f"{path}: a sample of {STEP}(gpt2, 8, 128) is wrong" in sentence
    assert {figure.samples for figure in results.figures} == {(0.001, 0.003), (0.2,)}


def test_a_counter_may_be_zero(tmp_path: Path) -> None:
    write(tmp_path, {STARTUP: [[0], [], "1", 7, 1.0, None, [[0]]]})
    path = tmp_path / "benchmarks.json"
    path.write_text(path.read_text().replace("seconds", "spills"))
    results = read_results(tmp_path)
    assert (results.complaints, results.figures[0].samples) == ((), (0.0,))


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"machine": 3}', '{"machine": ""}'])
def test_a_machine_without_facts_goes_by_its_folders_name(tmp_path: Path, content: str) -> None:
    write(tmp_path, {STARTUP: [[0.2], [], "1", 7]})
    (tmp_path / "own-toy" / "machine.json").write_text(content)
    results = read_results(tmp_path)
    [sentence] = results.complaints
    assert "machine.json" in sentence
    assert [(figure.machine, figure.samples) for figure in results.figures] == [("own-toy", (0.2,))]


def test_sessions_stand_side_by_side_and_the_one_with_the_most_samples_counts(
    tmp_path: Path,
) -> None:
    path = write(tmp_path, {STARTUP: [[0.2], [], "1", 7, 1.0, None, [[0.1, 0.2, 0.3]]]})

    def session(number: int, started: int, *samples: float) -> None:
        content = json.loads(path.read_text())
        content["results"] = {STARTUP: [[0.2], [], "1", started, 1.0, None, [list(samples)]]}
        path.with_stem(f"{path.stem}-{number}").write_text(json.dumps(content))

    session(2, 9, 0.9)
    assert [figure.samples for figure in read_results(tmp_path).figures] == [(0.1, 0.2, 0.3)]
    session(3, 8, 0.4, 0.5, 0.6)
    [figure] = read_results(tmp_path).figures
    assert (figure.samples, figure.started_ms) == ((0.4, 0.5, 0.6), 8)


def test_figures_of_other_environments_are_apart(tmp_path: Path) -> None:
    path = write(tmp_path, {STARTUP: [[0.2], [], "1", 7]})
    for python in ("3.11", "3.12"):
        content = json.loads(path.read_text())
        content |= {"python": python, "params": {"torch": "2.11", "machine": "own-toy"}}
        path.with_stem(f"b-{python}").write_text(json.dumps(content))
    path.unlink()
    results = read_results(tmp_path)
    environments = [figure.environment for figure in results.figures]
    assert len(environments) == 2
    assert {differing(one, environments) for one in environments} == {"python 3.11", "python 3.12"}


def test_durations_are_shown_in_the_unit_that_reads_best() -> None:
    shown = [duration(seconds) for seconds in (2.5, 0.0123, 0.00123, 0.000456, 3e-8)]
    assert shown == ["2.50 s", "12.3 ms", "1.23 ms", "456 µs", "30.0 ns"]
