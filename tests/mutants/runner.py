"""Plants mutants one after the other in a copy of the tree and runs the tests that must fail."""

from __future__ import annotations

import json
import os
import platform
import queue
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from .mutant import Mutant, MutantError

COPIED = ("engine", "kernels", "asv_bench", "tests", "pyproject.toml")
TIMEOUT_S = 120
"""A mutant may loop for ever; one that does is noticed."""
_ALL_TESTS_TIMEOUT_S = 900
_WORKER = Path(__file__).with_name("worker.py")

_TESTS_FAILED, _TESTS_PASSED, _NO_TESTS = 1, 0, 5

Result = Literal["killed", "survived", "error"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a mutant: the test that noticed it, or why none could."""

    mutant: Mutant
    result: Result
    what: str
    seconds: float


class Tree:
    """A copy of the repository, in which one mutant at a time is planted."""

    def __init__(self, repository: Path, folder: Path) -> None:
        self._folder = folder
        self._workers: dict[str, subprocess.Popen[str]] = {}
        for name in COPIED:
            source = repository / name
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(source, folder / name, ignore=ignored)
            elif source.exists():
                shutil.copy(source, folder / name)

    def close(self) -> None:
        """End what serves the tests."""
        for worker in self._workers.values():
            worker.communicate()

    @contextmanager
    def planted(self, mutant: Mutant) -> Iterator[None]:
        """The fault stands in the copy inside this block.

        Raises
        ------
        MutantError
            When it cannot be planted.
        """
        path = self._folder / mutant.file
        if not path.exists():
            raise MutantError(f"there is no {mutant.file}")
        sound = path.read_text(encoding="utf-8")
        path.write_text(mutant.planted_in(sound), encoding="utf-8")
        try:
            yield
        finally:
            path.write_text(sound, encoding="utf-8")

    def pytest(self, check: str, arguments: Sequence[str], timeout_s: float) -> Ended:
        """Run pytest in the copy, in the environment that `check` is for; see `Mutant`."""
        if check not in self._workers:
            self._workers[check] = subprocess.Popen(
                [sys.executable, str(_WORKER)],
                cwd=self._folder,
                env=self._environment(check),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        worker = self._workers[check]
        output = self._folder / f"{check}.out"
        request = {
            "arguments": [*_PYTEST, *(("-m", check) if check == "thorough" else ()), *arguments],
            "timeout_s": timeout_s,
            "output": str(output),
        }
        if worker.stdin is None or worker.stdout is None:
            raise RuntimeError("the worker was started without pipes")
        worker.stdin.write(json.dumps(request) + "\n")
        worker.stdin.flush()
        code: int | None = json.loads(worker.stdout.readline())
        return Ended(code, output.read_text(encoding="utf-8"))

    def _environment(self, check: str) -> dict[str, str]:
        """Nothing of the copied tree is imported from elsewhere."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(self._folder),
            # Compiled files are told apart by their second, which two mutants may share.
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
        }
        if platform.machine() == "x86_64":
            # As tests/conftest.py has it, which comes too late where a worker has numpy already.
            environment["OPENBLAS_CORETYPE"] = "Sandybridge"
        for variable in ("TRITON_INTERPRET", "KVTRAIL_REQUIRE"):
            environment.pop(variable, None)
        if check == "gpu":
            environment["KVTRAIL_REQUIRE"] = "gpu"
        elif check != "codegen":
            environment |= {"TRITON_INTERPRET": "1", "KVTRAIL_REQUIRE": "interpreter"}
        return environment


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended; `code` is None where it was stopped after the time limit."""

    code: int | None
    output: str


def run_mutants(
    repository: Path,
    mutants: Sequence[Mutant],
    jobs: int,
    on_outcome: Callable[[Outcome], None],
) -> list[Outcome]:
    """Run every mutant, `jobs` at a time, each job in a copy of its own."""
    with TemporaryDirectory(prefix="kvtrail-mutants-") as scratch:
        trees: queue.SimpleQueue[Tree] = queue.SimpleQueue()
        for job in range(jobs):
            folder = Path(scratch, str(job))
            folder.mkdir()
            trees.put(Tree(repository, folder))

        def run_one(mutant: Mutant) -> Outcome:
            tree = trees.get()
            try:
                outcome = try_mutant(tree, mutant)
            finally:
                trees.put(tree)
            on_outcome(outcome)
            return outcome

        try:
            with ThreadPoolExecutor(jobs) as pool:
                return list(pool.map(run_one, mutants))
        finally:
            while not trees.empty():
                trees.get().close()


def unmutated_failure(repository: Path, mutants: Iterable[Mutant]) -> str | None:
    """Run all tests that mutants name on the tree as it is; the output if any of them fails.

    A test that fails anyway would notice every mutant.
    """
    by_check: dict[str, set[str]] = {}
    names: set[str] = set()
    for mutant in mutants:
        by_check.setdefault(mutant.check, set()).update(mutant.tests)
        names |= {mutant.only} if mutant.check == "codegen" else set()
    with TemporaryDirectory(prefix="kvtrail-mutants-") as scratch:
        tree = Tree(repository, Path(scratch))
        try:
            for check, tests in sorted(by_check.items()):
                # To compile every kernel would take minutes.
                only = ["-k", " or ".join(sorted(names))] if check == "codegen" else []
                ended = tree.pytest(check, [*only, *sorted(tests)], _ALL_TESTS_TIMEOUT_S)
                if ended.code != _TESTS_PASSED:
                    return ended.output or f"no end after {_ALL_TESTS_TIMEOUT_S} s"
        finally:
            tree.close()
    return None


def try_mutant(tree: Tree, mutant: Mutant) -> Outcome:
    """Plant one mutant, run what must notice it, and take it out again."""
    started = time.perf_counter()
    try:
        with tree.planted(mutant):
            result, what = _try_tests(tree, mutant)
    except MutantError as error:
        result, what = "error", str(error)
    return Outcome(mutant, result, what, time.perf_counter() - started)


_PYTEST = ("-q", "-x", "--no-header", "-p", "no:cacheprovider")


def _try_tests(tree: Tree, mutant: Mutant) -> tuple[Result, str]:
    selection = ["-k", mutant.only] if mutant.only else []
    ended = tree.pytest(mutant.check, [*selection, *mutant.tests], TIMEOUT_S)
    if ended.code is None:
        return "killed", f"no end after {TIMEOUT_S} s"
    if ended.code < 0:
        return "killed", f"the process died of signal {-ended.code}"
    if ended.code == _TESTS_PASSED:
        return "survived", " ".join([*selection, *mutant.tests])
    if ended.code == _TESTS_FAILED:
        failed = [line for line in ended.output.splitlines() if line.startswith("FAILED ")]
        if failed:
            return "killed", failed[0].removeprefix("FAILED ").split(" - ")[0]
    if ended.code == _NO_TESTS:
        return "error", f"no test is selected by {' '.join([*selection, *mutant.tests])}"
    lines = [line for line in ended.output.splitlines() if line.strip()]
    return "error", f"pytest could not run: {' | '.join(lines[-3:])}"
