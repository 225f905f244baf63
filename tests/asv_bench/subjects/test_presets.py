"""Files of benchmarks: each benchmark is a metric, in a measured life as in a file to judge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from declared_repository import DeclaredRepository
from measured_rounds import one_life

from asv_bench.errors import MeasurementFailed, NothingMeasured
from asv_bench.measure.figures import Left
from asv_bench.subjects.presets import PRESETS

FILES = Path(__file__).with_name("files")
"""What the programs wrote, shortened; llama-bench's has lines as its documentation shows them."""
SHARED = "test_sum fullname={}::test_sum"
BENCHMARKS: dict[str, dict[str, tuple[str, float]]] = {
    "pytest-benchmark": {
        SHARED.format("test_bench.py"): ("seconds", 1.0216e-05),
        SHARED.format("other/test_bench2.py"): ("seconds", 4.307e-06),
    },
    "pyperf": {"tuple": ("seconds", 1.46941e-08), "list": ("seconds", 3.45137e-08)},
    "hyperfine": {"quick": ("seconds", 6.8358e-04), "sleep 0.01": ("seconds", 1.11396e-02)},
    "google-benchmark": {
        "BM_fill/8": ("seconds", 38.166e-9),
        "BM_ms/threads:2": ("seconds", 9.9878e-4),
    },
    "criterion": {"fib 12": ("ns", 1582.27), "sum/naive/100": ("ns", 3.44874)},
    "llama-bench": {
        "pp512": ("tokens/s", 7136.37),
        "tg128": ("tokens/s", 118.9),
        "tg128 @ d512 n_threads=4": ("tokens/s", 100.0),
        "tg128 @ d512 n_threads=8": ("tokens/s", 101.0),
    },
}


def found_in(path: Path, preset: str) -> dict[str, tuple[str, float]]:
    """The unit and the figure of each benchmark of a file."""
    left = Left(path, preset=preset)
    figures = left.figures(left.listed)
    return {
        name: (left.listed[name].unit, figures.value(name, "median")) for name in figures.values
    }


@pytest.mark.parametrize("preset", BENCHMARKS)
def test_each_benchmark_of_a_file_is_a_metric(preset: str) -> None:
    found = found_in(FILES / f"{preset}.json", preset)
    for name, (unit, value) in BENCHMARKS[preset].items():
        assert found[name] == (unit, pytest.approx(value, rel=2e-4)), name


def test_every_preset_of_benchmarks_has_its_file() -> None:
    assert BENCHMARKS.keys() == {name for name, one in PRESETS.items() if one.layouts}


def written(tmp_path: Path, content: Any, *lines: Any) -> Path:
    path = tmp_path / "left.json"
    path.write_text("\n".join(map(json.dumps, (content, *lines))))
    return path


def test_aggregates_count_where_repetitions_are_not_reported(tmp_path: Path) -> None:
    ran = json.loads((FILES / "google-benchmark.json").read_text())
    of_all = [one for one in ran["benchmarks"] if one["run_type"] == "aggregate"]
    found = found_in(written(tmp_path, {**ran, "benchmarks": of_all}), "google-benchmark")
    assert found["BM_fill/8"] == ("seconds", pytest.approx(38.166e-9, rel=1e-4))


def test_a_benchmark_that_failed_is_no_figure() -> None:
    left = Left(FILES / "google-benchmark.json", preset="google-benchmark")
    absence = left.figures(left.listed).absences["BM_bad"]
    assert absence.has_failed
    assert absence.reason == "it gave 0.0, and only positive figures can be compared."


def test_criterion_leaves_lines_or_a_file_a_benchmark(tmp_path: Path) -> None:
    line = {"reason": "benchmark-complete", "id": "fib/20", "median": {"estimate": 21.5}}
    path = written(tmp_path, line, {"reason": "group-complete", "group_name": "fib"})
    assert found_in(path, "criterion") == {"fib/20": ("ns", 21.5)}
    path = written(tmp_path, {"median": {"point_estimate": 20.0}, "slope": None})
    assert found_in(path, "criterion") == {"benchmark": ("ns", 20.0)}


def test_pyperf_tells_another_unit_and_one_name_for_the_file(tmp_path: Path) -> None:
    content = {"metadata": {"name": "peak", "unit": "byte"}, "benchmarks": [{"runs": []}]}
    content["benchmarks"] = [{"runs": [{"warmups": []}, {"values": [3, 5]}, {"values": [4]}]}]
    assert found_in(written(tmp_path, content), "pyperf") == {"peak": ("bytes", 4.0)}


BENCH = """
    import os, shutil, sys
    shutil.copy({path!r}, os.environ["KVTRAIL_RESULT"])
    """
TABLES = """
    [subject]
    name = "toy"
    measure = "python bench.py"
    preset = "{}"
    """
OWN = """
    [metrics."sleep 0.01"]
    path = "sleep 0.01"
    unit = "seconds"
    margin = 3
    """


def measured(tmp_path: Path, preset: str, own: str = "") -> DeclaredRepository:
    bench = BENCH.format(path=str(FILES / "hyperfine.json"))
    return DeclaredRepository.make(tmp_path / "toy", TABLES.format(preset) + own, bench)


def test_a_measured_command_has_the_metrics_of_its_preset(tmp_path: Path) -> None:
    subject = measured(tmp_path, "hyperfine", OWN).subject
    subject.choose((), None)
    assert [(one.name, one.unit, one.margin) for one in subject.metrics] == [
        ("quick", "seconds", None),
        ("sleep 0.01", "seconds", 0.03),
    ]
    with subject.pairs() as source:
        readings = one_life(source, subject.resolve("HEAD").hash)
    assert readings["quick"].value == pytest.approx(6.8358e-04, rel=1e-4)
    assert len(readings["quick"].samples) == 4


def test_a_file_of_another_program_has_no_metrics(tmp_path: Path) -> None:
    with pytest.raises(NothingMeasured, match=r"left nothing at .* that pyperf writes"):
        measured(tmp_path, "pyperf").subject.choose((), None)


def test_a_life_that_fails_shows_no_benchmarks(tmp_path: Path) -> None:
    toy = measured(tmp_path, "hyperfine")
    toy.commit("raise SystemExit('it broke')", "Break it")
    with pytest.raises(MeasurementFailed, match="it broke"):
        toy.subject.choose((), None)
    subject = toy.subject
    subject.near = ["HEAD~1", "HEAD"]
    subject.choose((), None)
    assert "quick" in [one.name for one in subject.metrics]


def test_requests_that_failed_make_a_command_fail(tmp_path: Path) -> None:
    bench = """
        import json, os
        left = {"completed": 198, "failed": 2, "median_ttft_ms": 20.0}
        json.dump(left, open(os.environ["KVTRAIL_RESULT"], "w"))
        """
    toy = DeclaredRepository.make(tmp_path / "toy", TABLES.format("vllm-bench"), bench)
    with pytest.raises(MeasurementFailed, match="2 of 200 requests failed"):
        toy.prepared()
