"""`memcheck`: what counts as clean, and what must not."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from asv_bench.cli import memcheck
from asv_bench.cli.memcheck import CHECKS, Check, Outcome, read_outcome, run_check, total
from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.output.record import REPOSITORY

SANITIZED = Check("sanitized", ("tests",), is_sanitized=True)
CLEAN = "3 passed\n========= ERROR SUMMARY: 0 errors\n"


def _report(directory: Path, **counts: int) -> Path:
    attributes = " ".join(f'{key}="{value}"' for key, value in counts.items())
    path = directory / "report.xml"
    path.write_text(f"<testsuites><testsuite {attributes}></testsuite></testsuites>")
    return path


def test_counts_are_read_from_the_report(tmp_path):
    report = _report(tmp_path, tests=10, failures=2, errors=1, skipped=3)
    outcome = read_outcome(CHECKS[0], report, "")
    assert outcome == Outcome(4, 3, 3)
    assert not outcome.is_clean


def test_a_run_without_errors_is_clean(tmp_path):
    report = _report(tmp_path, tests=3)
    assert read_outcome(SANITIZED, report, CLEAN).is_clean


@pytest.mark.parametrize(
    ("counts", "output"),
    [
        ({"tests": 3}, CLEAN.replace("0 errors", "2 errors")),
        ({"tests": 3}, "killed before its summary"),
        ({"tests": 0}, CLEAN),
        ({"tests": 3, "skipped": 3}, CLEAN),
        ({"tests": 3, "failures": 1}, CLEAN),
    ],
    ids=["memory errors", "no summary", "no test", "all skipped", "a failure"],
)
def test_anything_else_is_not(tmp_path, counts, output):
    report = _report(tmp_path, **counts)
    assert not read_outcome(SANITIZED, report, output).is_clean


def test_a_run_that_left_no_report_is_not_clean(tmp_path):
    assert not read_outcome(CHECKS[0], tmp_path / "missing.xml", CLEAN).is_clean


def test_every_kernel_on_the_gpu_is_watched_with_allocations_of_its_own():
    (watched,) = [check.arguments for check in CHECKS if check.is_uncached]
    folder = REPOSITORY / "tests/kernels"
    kernels = {path.relative_to(folder).as_posix() for path in folder.rglob("test_*.py")}
    elsewhere = {
        "test_on_gpu.py",  # Watched with torch's allocator, as it captures graphs.
        "step/test_step_rows.py",  # Steps of kernels that are watched one by one.
        "test_thorough.py",  # Random shapes of the same kernels, too many to watch.
        "attention/test_workspace.py",  # Of memory that decode attention takes, watched as it does.
        "attention/test_checks.py",  # What is refused launches nothing.
        "attention/test_plans.py",  # Launches what the operations launch, which are watched.
    }
    torch_only = {
        "test_backend.py",
        "test_compilation.py",
        "tiles/test_table.py",
        "test_importing.py",
        "attention/test_ring_launch.py",
        "tiles/test_launch.py",
        "tiles/test_linear_tile.py",
    }
    expected = kernels - elsewhere - torch_only
    watched_files = {name for name in watched if name.endswith(".py")}
    assert watched_files == {f"tests/kernels/{name}" for name in expected}


def test_every_graph_is_watched_where_it_can_be_captured():
    """With torch's own allocator; by name left out where each tensor has one of its own."""
    cached, uncached = (
        next(one.arguments for one in CHECKS if one.is_sanitized and one.is_uncached is alone)
        for alone in (False, True)
    )
    left_out = re.findall(r"not (\S+)", uncached[uncached.index("-k") + 1])
    for path in (REPOSITORY / "tests/kernels").rglob("test_*.py"):
        place = path.relative_to(REPOSITORY).as_posix()
        tests = re.split(r"^def (?=test_)", path.read_text("utf-8"), flags=re.MULTILINE)
        capturing = [test.split("(")[0] for test in tests if "torch.cuda.graph(" in test]
        assert not capturing or place in cached, place
        if place in uncached:
            assert all(any(word in name for word in left_out) for name in capturing), place


@pytest.fixture
def some_tests(tmp_path, monkeypatch):
    """A repository of five tests, of which one fails and one is skipped, and what ran where."""
    (tmp_path / "test_numbers.py").write_text(
        """
import os, pytest
from pathlib import Path

@pytest.mark.parametrize("number", range(5))
def test_number(number):
    with Path("ran").open("a") as ran:
        print(number, os.getpid(), os.environ["KVTRAIL_REQUIRE"], file=ran)
    assert number != 3
    if number == 4:
        pytest.skip("four")
"""
    )
    monkeypatch.setattr(memcheck, "REPOSITORY", tmp_path)
    return tmp_path / "ran"


@pytest.mark.parametrize("jobs", [2, 9])
def test_every_test_of_a_check_runs_once_whatever_the_jobs(some_tests, jobs, capsys):
    outcome = run_check(Check("five", ("test_numbers.py",)), jobs)
    assert (outcome.passed, outcome.failed, outcome.skipped) == (3, 1, 1)
    assert not outcome.is_clean
    ran = [line.split() for line in some_tests.read_text().splitlines()]
    assert sorted(number for number, _, _ in ran) == [str(number) for number in range(5)]
    assert len({process for _, process, _ in ran}) == min(jobs, 5)
    # Nothing may pass there that needs a GPU and finds none.
    assert {required for _, _, required in ran} == {"gpu"}
    assert "assert 3 != 3" in capsys.readouterr().err


def test_only_the_tests_that_a_check_names_are_run(some_tests):
    outcome = run_check(Check("two", ("test_numbers.py", "-k", "[1] or [2]")), 2)
    assert (outcome.passed, outcome.failed, outcome.is_clean) == (2, 0, True)


def test_a_check_without_tests_is_not_clean(some_tests, capsys):
    assert not run_check(Check("none", ("test_numbers.py", "-k", "no_such")), 2).is_clean
    assert not run_check(Check("missing", ("test_missing.py",)), 2).is_clean
    assert "file or directory not found" in capsys.readouterr().err


def test_each_process_of_a_sanitized_check_has_its_sanitizer(some_tests, monkeypatch):
    sanitizer = some_tests.with_name("compute-sanitizer")
    sanitizer.write_text('#!/bin/sh\nshift 2\n"$@"\necho "========= ERROR SUMMARY: 1 error"\n')
    sanitizer.chmod(0o755)
    monkeypatch.setenv("PATH", str(some_tests.parent), prepend=":")
    check = Check("sanitized", ("test_numbers.py",), is_sanitized=True)
    assert run_check(check, 2).memory_errors == 2


def test_a_share_without_a_summary_spoils_the_whole():
    clean, killed = Outcome(5, 0, 1, 0), Outcome(4, 1, 0)
    assert total([clean, killed]) == Outcome(9, 1, 1, 0)
    assert not total([clean, killed]).is_clean
    assert total([killed]).memory_errors is None


def test_every_path_that_is_checked_exists():
    paths = [Path(a) for check in CHECKS for a in check.arguments if a.startswith("tests")]
    assert paths
    assert all((memcheck.REPOSITORY / path).exists() for path in paths)


@pytest.fixture
def any_machine(monkeypatch, tmp_path):
    """One that passes for a GPU host with the sanitizer."""
    sanitizer = tmp_path / "compute-sanitizer"
    sanitizer.touch(mode=0o755)
    monkeypatch.setattr(memcheck, "has_cuda_gpu", lambda: True)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")


def _outcomes(path: Path) -> list[str]:
    return [check["name"] for check in json.loads(path.read_text())["results"]["checks"]]


def test_what_came_out_before_an_interruption_is_kept(any_machine, monkeypatch, tmp_path, capsys):
    def interrupted(check: Check, jobs: int) -> Outcome:
        if check is CHECKS[-1]:
            raise KeyboardInterrupt
        return Outcome(5, 0, 0, None, 61.0)

    monkeypatch.setattr(memcheck, "run_check", interrupted)
    with pytest.raises(KeyboardInterrupt):
        memcheck.memcheck(json=tmp_path / "record.json")
    assert _outcomes(tmp_path / "record.json") == [check.name for check in CHECKS[:-1]]
    assert f"{CHECKS[0].name}: clean, 5 passed after 61 s" in capsys.readouterr().out


def test_a_check_can_be_run_alone(any_machine, monkeypatch, tmp_path):
    outcome = Outcome(5, 0, 0, 1, 1.0)
    monkeypatch.setattr(memcheck, "run_check", lambda check, jobs: outcome)
    with pytest.raises(MeasurementFailed, match=CHECKS[1].name):
        memcheck.memcheck(only="repeats", json=tmp_path / "record.json")
    assert _outcomes(tmp_path / "record.json") == [CHECKS[1].name]
    with pytest.raises(Refused, match="'kernels and engine'"):
        memcheck.memcheck(only="no such check")


def test_a_machine_that_cannot_is_refused(monkeypatch):
    monkeypatch.setattr(memcheck, "has_cuda_gpu", lambda: False)
    with pytest.raises(Refused, match="needs a GPU"):
        memcheck.memcheck()
    monkeypatch.setattr(memcheck, "has_cuda_gpu", lambda: True)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Refused, match="no compute-sanitizer"):
        memcheck.memcheck()
