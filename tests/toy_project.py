"""A small project with a history, measured by the real ruler through the real asv.

Its engine is one number, so a test can tell by a figure which commit's engine was measured.
"""

from __future__ import annotations

import compileall
import functools
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

TOY_BENCHMARK = '''
"""Figures that tell which engine was measured, by which process."""

import os

from .sharing import CommitBenchmark, SharesRuns, shared, tracked


class Toy(SharesRuns, batch=[8]):
    def run(self, batch):
        import asv_bench.process.environment
        import engine

        threads, process = int(os.environ["OMP_NUM_THREADS"]), os.getpid()
        told = {"ruler": asv_bench.RULER, "threads": threads}
        return {"step": engine.STEP, "process": process, **told}

    track_step = shared("step", "")
    track_process = shared("process", "", unit="pid")
    track_ruler = shared("ruler", "", unit="ruler")
    track_threads = shared("threads", "", unit="threads")


class Broken(CommitBenchmark):
    @tracked()
    def track_failure(self):
        raise ArithmeticError("planted failure")
'''


@dataclass(frozen=True)
class ToyProject:
    """A checkout at `root` whose `commits`, oldest first, have the engine's number 1, 2, 3, ..."""

    root: Path
    commits: list[str]

    def git(self, *arguments: str) -> str:
        """Run git in the project."""
        return git(self.root, *arguments)

    def commit(self, message: str) -> str:
        """Commit everything; return the hash."""
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", message)
        return self.git("rev-parse", "HEAD").strip()

    def set_engine(self, number: float) -> None:
        """Make the working tree's engine this number."""
        (self.root / "engine" / "__init__.py").write_text(f"STEP = {number}\n")


def make_project(root: Path, commits: int = 3, *, measures: bool = True) -> ToyProject:
    """A toy project at `root` with so many commits, all of the same second.

    Where nothing `measures` it, it needs no ruler of its own.
    """
    root.mkdir(parents=True)
    git(root, "init", "--quiet", "--initial-branch=main")
    ruler = root / "asv_bench" / "__init__.py"
    if measures:
        _compile_ruler()
        shutil.copytree(ROOT / "asv_bench", ruler.parent, ignore=_other_benchmarks)
        (ruler.parent / "benchmarks" / "toy.py").write_text(TOY_BENCHMARK)
        # Its engine needs no torch, which takes longer to import than all else.
        sharing = ruler.parent / "subjects" / "own_suite.py"
        sharing.write_text(re.sub(r' +"(torch|triton).*",\n', "", sharing.read_text()))
        counting = ruler.parent / "explain" / "engine_counts.py"
        ended = "if __name__ == '__main__':\n    raise SystemExit('a toy runs no operators')\n"
        counting.write_text(counting.read_text().replace("import sys\n", f"import sys\n{ended}", 1))
    else:
        ruler.parent.mkdir()
    shutil.copy(ROOT / "asv.conf.json", root)
    (root / ".gitignore").write_text(".asv/\nreports/\n__pycache__/\n")
    (root / "kernels").mkdir()
    (root / "kernels" / "__init__.py").write_text("")
    (root / "engine").mkdir()
    project = ToyProject(root, [])
    for number in range(1, commits + 1):
        project.set_engine(number)
        # Today's ruler says 7; the commits' own rulers say other things, and must not be asked.
        told = 7 if number == commits else 100 + number
        ruler.write_text(f"__version__ = '0'\nRULER = {told}\n")
        project.commits.append(project.commit(f"step {number} <b>"))
    return project


def run_ruler(root: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`kvtrail` at a root, whose own working tree lies on the path, as a trap."""
    own = {"PYTHONPATH": str(root), "KVTRAIL_MACHINE": "toy", "NO_COLOR": "1"}
    return subprocess.run(
        [sys.executable, "-m", "asv_bench", *arguments],
        cwd=root,
        env=os.environ | own | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def _other_benchmarks(folder: str, names: list[str]) -> list[str]:
    """The benchmarks of the engine, which a toy has not."""
    if Path(folder).name != "benchmarks":
        return []
    return [name for name in names if name not in ("__init__.py", "sharing.py", "__pycache__")]


@functools.cache
def _compile_ruler() -> None:
    """So that copies of it have its bytecode, and no process compiles hundreds of modules."""
    if not sys.dont_write_bytecode:
        compileall.compile_dir(ROOT / "asv_bench", quiet=1)


def git(root: Path, *arguments: str, given: str = "") -> str:
    """Run git in `root`, as nobody in particular, at one fixed moment; it reads what is given."""
    moment = "1750000000 +0000"
    identity = {
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "toy",
        "GIT_AUTHOR_EMAIL": "toy@localhost",
        "GIT_AUTHOR_DATE": moment,
        "GIT_COMMITTER_NAME": "toy",
        "GIT_COMMITTER_EMAIL": "toy@localhost",
        "GIT_COMMITTER_DATE": moment,
    }
    done = subprocess.run(
        ["git", "-c", "maintenance.auto=false", *arguments],
        cwd=root,
        env=os.environ | identity,
        input=given,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout
