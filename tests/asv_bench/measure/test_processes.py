"""Commands of users end with whoever waits for them."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from asv_bench.measure.processes import Job, Processes


def test_ctrl_c_while_a_command_runs_ends_it_and_nothing_else_is_raised(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    # Nobody else writes there: it is at its end once the command and what it started are gone.
    held = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    interrupted = threading.get_ident(), signal.SIGINT
    threading.Timer(0.5, signal.pthread_kill, interrupted).start()
    job = Job(f"echo begun > {pipe}; sleep 60 > {pipe} & wait", tmp_path, dict(os.environ))
    with pytest.raises(KeyboardInterrupt):
        Processes().run(job, 60)
    assert os.read(held, 100) == b"begun\n"
    assert os.read(held, 100) == b""
    os.close(held)
