"""A process that has torch and Triton imported already, and forks one pytest after the other.

Importing them takes longer than most mutants take to be noticed. Nothing that a mutant can change
is imported before the fork.

Run as ``python worker.py``: reads a request a line, `{"arguments", "timeout_s", "output"}`, and
answers each with pytest's exit code, the negative of the signal it died of, or null after the time
limit.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time


def main() -> None:
    """Serve requests until there are no more."""
    # This file's folder holds no module for the tests to find.
    del sys.path[0]
    import hypothesis  # noqa: F401
    import numpy  # noqa: F401
    import pytest  # noqa: F401
    import torch  # noqa: F401
    import triton  # noqa: F401

    for line in sys.stdin:
        request = json.loads(line)
        code = _forked(request["arguments"], request["timeout_s"], request["output"])
        print(json.dumps(code), flush=True)


def _forked(arguments: list[str], timeout_s: float, output: str) -> int | None:
    child = os.fork()
    if child == 0:
        _run(arguments, output)
    limit = time.monotonic() + timeout_s
    while time.monotonic() < limit:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _run(arguments: list[str], output: str) -> None:
    """Run pytest in this process, which ends with it."""
    code = 3
    try:
        os.setsid()
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(file, stream)
        import pytest

        code = int(pytest.main(arguments))
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
