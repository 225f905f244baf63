"""The first `kvtrail.toml` of a repository, by what lies in it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from asv_bench.git.repository import Repository
from asv_bench.subjects.choose import suites_in

_FOREIGN = {"build", "dist", "node_modules", "site-packages", "test", "tests", "vendor"}
"""Folders whose scripts are others', or measure nothing."""
_NO_SCRIPT = re.compile(r"_.*|conftest|setup|test_.*|.*_test")
_SUITE_FOLDER = re.compile(r'"benchmark_dir"\s*:\s*"([^"]*)"')

_TEXT = """\
# What kvtrail measures in this repository: `kvtrail compare HEAD~1 HEAD` reads it.
# Every key is described in the reference "kvtrail.toml" of kvtrail's documentation.

[subject]
name = {name}
# Once for each commit, in its files; what it makes goes to $KVTRAIL_OUT, and is kept.
# Exit code 125 says that this commit cannot be measured.
{setup}
# One life: a fresh process in the commit's files, of which wall time and peak memory are measured.
measure = {measure}
timeout_s = 600
# GPUs that a life needs; 0: it sees none. Without the key it sees what you see.
{devices}
# $KVTRAIL_TREE, $KVTRAIL_OUT, $KVTRAIL_RESULT and $KVTRAIL_LABEL are set; more of your own:
{env}
# Files that are today's at every commit, so that the benchmark does not change with the commit.
{pinned}

# Figures that a life leaves as JSON at $KVTRAIL_RESULT, or prints. A list, or several matches, are
# windows of one life; their median counts.
# [metrics.tpot_ms]
# path = "latency.tpot_ms"
# unit = "ms"
# [metrics.throughput]
# regex = 'throughput: ([0-9.]+) tok/s'
# unit = "tok/s"
# better = "higher"
# margin = 2.0              # per cent that matters

# A server that a client asks, in place of measure:
# [server]
# start = "python -m my_engine.serve --port $KVTRAIL_PORT"
# ready = "http://127.0.0.1:$KVTRAIL_PORT/health"
# [client]
# run = "vllm bench serve --port $KVTRAIL_PORT --save-result --result-filename $KVTRAIL_RESULT"
# preset = "vllm-bench"     # or "sglang-bench", "guidellm", "aiperf"
# windows = 5

# Versions of a dependency in place of commits; setup and measure get $KVTRAIL_LABEL:
# [axis]
# kind = "labels"
# labels = ["4.55.0", "4.56.0", "4.57.0"]

# A trace by torch.profiler, for `kvtrail explain HEAD~1 HEAD`:
# [trace]
# run = "python bench.py --trace $KVTRAIL_TRACE"
"""


_PIP = 'python -m pip install -q --no-deps --target "$KVTRAIL_OUT" .'
_BUILDS = {
    "pyproject.toml": _PIP,
    "setup.py": _PIP,
    "Cargo.toml": 'cargo build --release --target-dir "$KVTRAIL_OUT"',
    "CMakeLists.txt": 'cmake -S . -B "$KVTRAIL_OUT" && cmake --build "$KVTRAIL_OUT" -j',
    "Makefile": "make",
}
"""How commits are built where such a file lies, the first that does."""


def beginning(folder: Path, *, has_gpu: bool) -> str:
    """The text of a `kvtrail.toml` that measures what a repository seems to measure itself.

    `folder` is the repository's; `has_gpu` says whether there is a GPU here.
    """
    setup = next((_BUILDS[name] for name in _BUILDS if (folder / name).is_file()), "")
    env = 'PYTHONPATH = "$KVTRAIL_OUT"' if setup == _PIP else ""
    measure, pinned = _measure(folder)
    return _TEXT.format(
        name=_in_toml(re.sub(r"[^\w.-]+", "-", folder.name).strip(".-") or "subject"),
        setup=f"setup = {_in_toml(setup)}" if setup else '# setup = "make"',
        measure=_in_toml(measure),
        devices="devices = 1" if has_gpu else "# devices = 1",
        env=f"env = {{ {env} }}" if env else '# env = { OMP_NUM_THREADS = "1" }',
        pinned=f"pinned = [{_in_toml(pinned)}]" if pinned else '# pinned = ["bench.py"]',
    )


def _measure(folder: Path) -> tuple[str, str]:
    """The command that measures, and the file of it that should be today's."""
    # Scripts that are called after it before those that lie in such a folder.
    script = min(
        _scripts(folder),
        key=lambda one: (len(one.parts), "bench" not in one.name, str(one)),
        default=None,
    )
    if script is None:
        return "python -c 'sum(range(10**7))'", ""
    program = "python" if script.suffix == ".py" else "sh"
    word = f"./{script}" if str(script).startswith("-") else str(script)
    return shlex.join([program, word]), str(script)


def _scripts(folder: Path) -> Iterator[PurePosixPath]:
    """Scripts whose names say that they measure, of the files that git knows or would add."""
    listed = Repository(folder).names("ls-files", "-z", "-co", "--exclude-standard")
    suites = _suite_folders(folder)
    for path in map(PurePosixPath, listed):
        *folders, name = path.parts
        above = [folder.joinpath(*folders[:depth]) for depth in range(1, len(folders) + 1)]
        if (
            len(folders) <= 1
            and ("bench" in name or any(one.startswith("bench") for one in folders))
            and path.suffix in (".py", ".sh")
            and not _NO_SCRIPT.fullmatch(path.stem)
            and not any(one.startswith(".") for one in path.parts)
            and not _FOREIGN.intersection(folders)
            and not any((one / "pyvenv.cfg").exists() or one in suites for one in above)
            and (folder / path).is_file()
            and not (folder / path).is_symlink()
            and str(path).isprintable()
        ):
            yield path


def _suite_folders(folder: Path) -> set[Path]:
    """The folders of asv's benchmarks, which are no scripts."""
    found: set[Path] = set()
    for suite in suites_in(folder):
        named = _SUITE_FOLDER.search(suite.read_text(encoding="utf-8", errors="replace"))
        found.add(suite.parent / (named[1] if named else "benchmarks"))
    return found


def _in_toml(text: str) -> str:
    """A string of TOML, whose escapes are those of JSON."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
