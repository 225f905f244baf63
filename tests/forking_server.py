"""A process that has imported torch and Triton, and forks one for each program that it is to run.

Importing them takes longer than most of these programs run. Nothing that the programs differ in is
imported before the fork: neither our own packages nor what reads a variable of the environment.

Run as ``python forking_server.py``: reads a request a line, `{"code", "arguments", "folder",
"environment", "stdout", "stderr"}`, and answers each with the exit code.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from types import ModuleType
from typing import Any

# The last two are what a tensor of a pretended GPU imports with its first operation.
IMPORTED = ("torch", "triton", "torch.distributed.tensor", "torch._dynamo")


def main() -> None:
    """Serve requests until there are no more."""
    # As for a program given by -c: its folder comes first, not this file's.
    sys.path[0] = ""
    for module in IMPORTED:
        importlib.import_module(module)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _run(json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _run(request: dict[str, Any]) -> None:
    """Run a program in this process, which ends with it."""
    code = 1
    try:
        for stream, name in ((0, None), (1, "stdout"), (2, "stderr")):
            path = os.devnull if name is None else request[name]
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT if name else os.O_RDONLY), stream)
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        # In the place of what this process searches before the installed packages.
        sys.path[:2] = ["", *os.environ["PYTHONPATH"].split(os.pathsep)]
        sys.argv = ["-c", *request["arguments"]]
        program = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(request["code"], "<string>", "exec"), program.__dict__)
        code = 0
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            code = ended.code or 0
        else:
            print(ended.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
