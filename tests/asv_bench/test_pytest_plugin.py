"""The fixture `regression` in the test suite of a user."""

from __future__ import annotations

import json
import os
import shutil
import tomllib
from pathlib import Path

import pytest
from declared_repository import DeclaredRepository, in_ms
from fresh_python import ROOT, fresh_python

pytest_plugins = ("pytester",)
PLUGIN = "asv_bench.pytest_plugin"
BENCH = """
    import json, os, random
    step = {} * random.uniform(0.999, 1.001)
    left = {{"step": step, "out": {}}}
    json.dump(left, open(os.environ["KVTRAIL_RESULT"], "w"))
    """
CHECK = '\n[check.out]\npath = "out"\n'


def test_pytest_finds_it_and_starts_as_fast_as_without_it() -> None:
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert told["entry-points"]["pytest11"] == {"kvtrail": PLUGIN}
    assert not [one for one in told["dependencies"] if one.startswith("pytest")]
    code = f"""
import json, sys, pytest
before = set(sys.modules)
import {PLUGIN}
print(json.dumps(sorted(set(sys.modules) - before)))
"""
    done = fresh_python("-c", code)
    assert json.loads(done.stdout) == ["asv_bench", PLUGIN], done.stderr


class Suite:
    """A repository with a bench.py and a folder of tests, which runs pytest in a process."""

    def __init__(self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
        self._pytester = pytester
        # As it is installed: a checkout has one lock for all that is measured from it.
        installed = pytester.path / "installed"
        ignored = shutil.ignore_patterns("__pycache__", "studies")
        shutil.copytree(ROOT / "asv_bench", installed / "asv_bench", ignore=ignored)
        monkeypatch.setenv("PYTHONPATH", str(installed))
        for name in ("HOME", "XDG_STATE_HOME"):
            monkeypatch.setenv(name, str(pytester.path))
        for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"):
            monkeypatch.delenv(name, raising=False)
        self.repository = DeclaredRepository.make(
            pytester.path / "toy", in_ms("step") + CHECK, BENCH.format(10, 1)
        )
        # Another program's file of settings may lie above.
        (self.repository.root / "pytest.ini").write_text("[pytest]\n")

    def run(self, body: str, *options: str, is_committed: bool = False) -> pytest.RunResult:
        tests = self.repository.root / "tests" / "test_speed.py"
        tests.parent.mkdir(exist_ok=True)
        tests.write_text(body)
        if is_committed:
            self.repository.change("tests")
        os.chdir(self.repository.root)
        return self._pytester.runpytest_subprocess("-p", PLUGIN, "-ra", *options)

    def write(self, step: float, out: int = 1) -> None:
        """Change the working tree only."""
        (self.repository.root / "bench.py").write_text(
            "\n".join(map(str.strip, BENCH.format(step, out).splitlines()))
        )


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Suite:
    return Suite(pytester, monkeypatch)


@pytest.mark.thorough
def test_a_tree_that_holds_the_same_passes_and_what_is_refused_is_no_verdict(suite: Suite) -> None:
    done = suite.run(
        """
import pytest

def test_same(regression):
    results = regression()
    assert results["answer"] == "step: same"

def test_no_such_commit(regression):
    regression("nowhere")

def test_no_such_choice(regression):
    with pytest.raises(ValueError, match="it takes skip, warn or fail"):
        regression(inconclusive="ignore")
""",
        is_committed=True,
    )
    done.assert_outcomes(passed=2, failed=1)
    done.stdout.fnmatch_lines(["E*RuntimeError: kvtrail compare ended with exit code 2."])
    done.stdout.fnmatch_lines(["E*error: git knows no commit called 'nowhere' in*"])


@pytest.mark.thorough
def test_a_slower_working_tree_fails_with_the_text_of_the_comparison(suite: Suite) -> None:
    suite.write(12)
    before = suite.repository.git("status", "--porcelain")
    done = suite.run("def test_speed(regression):\n    regression(base='main', margin=5)\n")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["step: slower (+*, same result", "*against*", "*record: *"])
    done.stdout.fnmatch_lines(["FAILED tests/test_speed.py::test_speed - Failed: step: slower (+*"])
    assert "def test_speed" not in done.stdout.str()
    assert suite.repository.git("status", "--porcelain") == f"{before}\n?? tests/"


@pytest.mark.thorough
def test_another_result_fails_and_a_wide_margin_passes(suite: Suite) -> None:
    suite.write(10.2, 2)
    body = """
def test_result(regression):
    regression()

def test_wide(regression):
    assert regression(subject="speed.toml", margin=20)["comparisons"][0]["verdict"] == "equivalent"
"""
    tables = (suite.repository.root / "kvtrail.toml").read_text()
    (suite.repository.root / "speed.toml").write_text(tables.removesuffix(CHECK))
    done = suite.run(body)
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(
        ["step: equivalent (+*, other result", "out: other result, it was 1*"]
    )


@pytest.mark.thorough
def test_what_is_inconclusive_is_skipped_and_may_warn_or_fail(suite: Suite) -> None:
    suite.write("10 * (1 + os.getpid() % 2)")
    body = """
import pytest

@pytest.mark.parametrize("inconclusive", ["skip", "warn", "fail"])
def test_speed(regression, inconclusive):
    regression(pairs=7, margin=1, metric=["step"], inconclusive=inconclusive)
"""
    done = suite.run(body)
    done.assert_outcomes(skipped=1, passed=1, failed=1, warnings=1)
    done.stdout.fnmatch_lines(["SKIPPED*step: inconclusive (*"])


@pytest.mark.thorough
def test_a_test_that_takes_too_long_ends_what_it_measures_and_its_lock(
    suite: Suite,
) -> None:
    suite.write(12)
    body = """
import signal
import pytest

def test_speed(regression):
    def end(*_):
        raise TimeoutError
    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, 3)
    with pytest.raises(TimeoutError):
        regression(margin=0.1, metric="wall_s", pairs=10_000)
    signal.signal(signal.SIGALRM, before)
    with pytest.raises(pytest.skip.Exception, match="Time is up"):
        regression(margin=0.1, metric="wall_s", pairs=10_000, minutes=0.05)
"""
    suite.run(body).assert_outcomes(passed=1)


@pytest.mark.thorough
def test_workers_of_xdist_measure_one_after_the_other(suite: Suite, tmp_path: Path) -> None:
    suite.write(10.01)
    body = """
import pytest

@pytest.mark.parametrize("number", range(2))
def test_speed(regression, number):
    regression(margin=20)
"""
    suite.run(body, "-n", "2").assert_outcomes(passed=2)
