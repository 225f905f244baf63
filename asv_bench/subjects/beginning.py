"""The first `kvtrail.toml` of a repository, by what lies in it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

_TEXT = """\
# What kvtrail measures in this repository: `kvtrail compare HEAD~1 HEAD` reads it.
# Every key is described in the reference "kvtrail.toml" of kvtrail's documentation.

[subject]
name = "{name}"
# Once for each commit, in its files; what it makes goes to $KVTRAIL_OUT, and is kept.
# Exit code 125 says that this commit cannot be measured.
{setup}
# One life: a fresh process in the commit's files, of which wall time and peak memory are measured.
measure = "{measure}"
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


def beginning(folder: Path, *, has_gpu: bool) -> str:
    """The text of a `kvtrail.toml` that measures what a repository seems to measure itself.

    Parameters
    ----------
    folder
        The repository's.
    has_gpu
        Whether there is a GPU here.
    """
    setup, env = _setup(folder)
    measure, pinned = _measure(folder)
    return _TEXT.format(
        name=re.sub(r"[^\w.-]+", "-", folder.name) or "subject",
        setup=f'setup = "{setup}"' if setup else '# setup = "make"',
        measure=measure,
        devices="devices = 1" if has_gpu else "# devices = 1",
        env=f"env = {{ {env} }}" if env else '# env = { OMP_NUM_THREADS = "1" }',
        pinned=f'pinned = ["{pinned}"]' if pinned else '# pinned = ["bench.py"]',
    )


def _setup(folder: Path) -> tuple[str, str]:
    """How commits are built, and the variables under which a life finds what was built."""
    if (folder / "pyproject.toml").is_file() or (folder / "setup.py").is_file():
        line = "python -m pip install -q --no-deps --target $KVTRAIL_OUT ."
        return line, 'PYTHONPATH = "$KVTRAIL_OUT"'
    if (folder / "Cargo.toml").is_file():
        return "cargo build --release --target-dir $KVTRAIL_OUT", ""
    if (folder / "CMakeLists.txt").is_file():
        return "cmake -S . -B $KVTRAIL_OUT && cmake --build $KVTRAIL_OUT -j", ""
    if (folder / "Makefile").is_file():
        return "make", ""
    return "", ""


def _measure(folder: Path) -> tuple[str, str]:
    """The command that measures, and the file of it that should be today's."""
    scripts = _scripts(folder)
    if scripts:
        script = scripts[0].relative_to(folder).as_posix()
        program = "python" if script.endswith(".py") else "sh"
        return f"{program} {script}", script
    return "python -c 'sum(range(10**7))'", ""


def _scripts(folder: Path) -> Sequence[Path]:
    """Scripts whose names say that they measure, those nearest the top first."""
    found = [
        path
        for pattern in ("*bench*", "*/*bench*", "bench*/*")
        for path in sorted(folder.glob(pattern))
        if path.is_file() and path.suffix in (".py", ".sh") and not path.name.startswith(".")
    ]
    return [path for path in found if " " not in path.name and "test" not in path.parts]
