"""Commands of users end with whoever waits for them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from asv_bench.measure import launcher
from asv_bench.measure.processes import Job, LifeFailed, Processes


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Path]:
    """Where a command says that it begun, and then nothing until all that it started is gone."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    held = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    yield pipe
    assert os.read(held, 100) == b"begun\n"
    # Nobody else writes there.
    assert os.read(held, 100) == b""
    os.close(held)


def test_ctrl_c_while_a_command_runs_ends_it_and_nothing_else_is_raised(
    pipe: Path, tmp_path: Path
) -> None:
    interrupted = threading.get_ident(), signal.SIGINT
    threading.Timer(0.5, signal.pthread_kill, interrupted).start()
    job = Job(f"echo begun > {pipe}; sleep 60 > {pipe} & wait", tmp_path, dict(os.environ))
    with pytest.raises(KeyboardInterrupt):
        Processes().run(job, 60)


def test_what_a_command_leaves_behind_ends_also_where_the_ruler_is_gone(pipe: Path) -> None:
    (report, writing), (reading, control) = os.pipe(), os.pipe()
    os.close(report)  # as where the ruler was killed before it was told anything
    words = ("/bin/sh", "-c", f"sleep 60 > {pipe} & echo begun > {pipe}")
    start = (sys.executable, "-I", "-S", launcher.__file__, str(writing), str(reading), "", "")
    subprocess.run([*start, *words], pass_fds=(writing, reading), check=False)
    for descriptor in (writing, reading, control):
        os.close(descriptor)


def test_a_command_runs_on_the_cores_that_it_is_given(tmp_path: Path) -> None:
    core = max(os.sched_getaffinity(0))
    line = "grep Cpus_allowed_list /proc/self/status"
    said = Processes().run(Job(line, tmp_path, dict(os.environ), (core,)), 60).said
    assert said.split() == ["Cpus_allowed_list:", str(core)]


def test_a_command_whose_memory_is_looked_at_ends_in_time_too(tmp_path: Path) -> None:
    with pytest.raises(LifeFailed, match=r"did not end within 0\.1 s: it said nothing"):
        Processes().run(Job("sleep 60", tmp_path, dict(os.environ)), 0.1, looks=True)


def test_nothing_stays_open_of_what_cannot_be_started(tmp_path: Path) -> None:
    """No program, no folder, no line, and no Python to fork lives."""
    before = {*os.listdir("/proc/self/fd")}
    told, line = dict(os.environ), ("python", "bench.py")
    jobs = (
        Job(("nothing",), tmp_path, told),
        Job("true", tmp_path / "nothing", told),
        Job("true", tmp_path, {"NAME": "\0"}),
        Job(line, tmp_path, told | {"PATH": str(tmp_path)}, preload=("json",)),
    )
    for job in jobs:
        processes, held = Processes(), []
        with pytest.raises((LifeFailed, ValueError)) as caught, processes.started(job) as started:
            held.append(started)
        processes.stop()
        assert before.issuperset(os.listdir("/proc/self/fd")), (job, caught.value)
