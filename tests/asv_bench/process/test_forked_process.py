"""Forked processes: like those from scratch, on their own, and never left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_project import ROOT

from asv_bench.process.borrowed_paths import borrowed_paths, search_path
from asv_bench.process.forked_process import SHARED_MODULES, Forkserver, ForkserverGone
from asv_bench.process.threads import measured_environment

FACTS = """
import gc, json, os, signal, sys

facts = {
    "arguments": sys.argv[1:], "name": __name__, "folder": os.getcwd(), "path": sys.path,
    "variables": dict(os.environ), "threads": len(os.listdir("/proc/self/task")),
    "signals": [str(signal.getsignal(one)) for one in (signal.SIGINT, signal.SIGCHLD)],
    "descriptors": sorted(os.listdir("/proc/self/fd")), "group": os.getpgid(0) == os.getpid(),
    "cores": sorted(os.sched_getaffinity(0)), "collects": gc.isenabled(),
}
"""
TOKENS = """
import sys
from dataclasses import replace

own = [name for name in sys.modules if name.partition(".")[0] in ("engine", "kernels", "asv_bench")]
had_torch = "torch" in sys.modules

from asv_bench.workloads.drive import run_workload
from asv_bench.workloads.named import WORKLOADS
from engine import Engine

workload = replace(WORKLOADS["streaming"].quick(), unique_prompts=True)
engine = Engine(workload.engine_config("random:gpt2-tiny", device="cpu"))
digest = run_workload(engine, workload, 1000).token_digest
facts = {"own": own, "had_torch": had_torch, "digest": digest}
"""
TELL = "\njson.dump(facts, open(sys.argv[1], 'w'))\n"


@pytest.fixture
def server() -> Iterator[Forkserver]:
    server = Forkserver(measured_environment())
    yield server
    server.close()


@pytest.fixture
def told(tmp_path: Path, server: Forkserver) -> Callable[..., Any]:
    """Runs a script in a fork, or from scratch, and returns its facts."""

    def tell(code: str, *, shared: Sequence[str] | None, paths: Sequence[str] = ()) -> Any:
        script, answer = tmp_path / "script.py", tmp_path / "facts.json"
        script.write_text("import json, sys\n" + code + TELL)
        answer.unlink(missing_ok=True)
        variables = {
            **measured_environment(),
            "PYTHONPATH": search_path([*paths, *borrowed_paths()]),
            "OF_THIS_LIFE": "1",
        }
        arguments = [str(script), str(answer), "-x", "a b"]
        output = tmp_path / "said.log"
        if shared is None:
            done = subprocess.run(
                [sys.executable, "-P", *arguments],
                env=variables,
                cwd=tmp_path,
                stdin=subprocess.DEVNULL,
                stdout=output.open("w"),
                stderr=subprocess.STDOUT,
                check=False,
                start_new_session=True,
            )
            code_of_end = done.returncode
        else:
            with server.fork(
                arguments, variables, folder=tmp_path, output=output, shared=shared
            ) as process:
                code_of_end = process.wait(120)
        assert code_of_end == 0, output.read_text()
        return json.loads(answer.read_text())

    return tell


def test_a_fork_finds_what_a_process_from_scratch_finds(
    told: Callable[..., Any], tmp_path: Path
) -> None:
    ours = [str(tmp_path / "commit"), str(tmp_path / "ruler")]
    scratch = told(FACTS, shared=None, paths=ours)
    assert scratch["threads"] == 1
    forked = [told(FACTS, shared=shared, paths=ours) for shared in ((), SHARED_MODULES)]
    assert forked == [scratch, scratch]


def test_a_fork_generates_the_tokens_of_a_process_from_scratch(told: Callable[..., Any]) -> None:
    scratch = told(TOKENS, shared=None, paths=[str(ROOT)])
    forked = [told(TOKENS, shared=SHARED_MODULES, paths=[str(ROOT)]) for _ in range(2)]
    assert (scratch["had_torch"], scratch["own"]) == (False, [])
    # The engine of one life is not in the next.
    assert forked == [{**scratch, "had_torch": True}] * 2


def test_forks_find_what_a_function_remembers(told: Callable[..., Any]) -> None:
    code = "import tempfile\nfacts = tempfile.tempdir"
    assert told(code, shared=["tempfile"]) is None
    assert told(code, shared=["tempfile", "tempfile:gettempdir"]) == tempfile.gettempdir()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (
            "with_thread",
            "import threading\nthreading.Thread(target=threading.Event().wait).start()",
        ),
        ("with_engine", "import sys\nsys.modules['engine'] = sys"),
    ],
)
def test_what_a_fork_would_not_survive_makes_it_a_process_from_scratch(
    name: str, content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{name}.py").write_text(content)
    (tmp_path / "harmless.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    script, answer = tmp_path / "script.py", tmp_path / "answer"
    script.write_text(
        "import sys\n"
        f"found = [n for n in ('harmless', '{name}', 'engine') if n in sys.modules]\n"
        "open(sys.argv[1], 'w').write(' '.join(found) or 'nothing')\n"
    )
    server = Forkserver(measured_environment())
    said = []
    for shared in ("harmless", name):
        with server.fork(
            [str(script), str(answer)],
            measured_environment(),
            folder=tmp_path,
            output=tmp_path / "said.log",
            shared=[shared],
        ) as process:
            assert process.wait(60) == 0, (tmp_path / "said.log").read_text()
        said.append(answer.read_text())
    server.close()
    assert said == ["harmless", "nothing"]


def test_the_ends_of_forks_are_told_as_they_are(server: Forkserver, tmp_path: Path) -> None:
    script, output = tmp_path / "script.py", tmp_path / "said.log"
    script.write_text(
        "import os, sys\n"
        "print('to its own file', flush=True)\n"
        "how = sys.argv[1]\n"
        "if how == 'signal': os.kill(os.getpid(), 11)\n"
        "if how == 'raise': raise ArithmeticError('planted')\n"
        "if how == 'exit': sys.exit('a last sentence')\n"
    )
    codes = {}
    for how in ("well", "signal", "raise", "exit"):
        output.unlink(missing_ok=True)
        variables = measured_environment()
        arguments = [str(script), how]
        with server.fork(arguments, variables, folder=tmp_path, output=output) as process:
            codes[how] = process.wait(60)
        assert output.read_text().startswith("to its own file\n")
        assert ("ArithmeticError: planted" in output.read_text()) == (how == "raise")
        assert ("a last sentence" in output.read_text()) == (how == "exit")
    assert codes == {"well": 0, "signal": -11, "raise": 1, "exit": 1}


SLEEPS = """
import os, subprocess, sys, time
child = subprocess.Popen(["sleep", "100"])
with open(sys.argv[1] + ".part", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.rename(sys.argv[1] + ".part", sys.argv[1])
if sys.argv[2] == "long":
    time.sleep(100)
"""


def begin_sleepers(server: Forkserver, folder: Path, number: int, length: str) -> Any:
    (folder / "script.py").write_text(SLEEPS)
    return server.fork(
        [str(folder / "script.py"), str(folder / f"pids-{number}"), length],
        measured_environment(),
        folder=folder,
        output=folder / "said.log",
    )


def pids_in(folder: Path, number: int) -> list[int]:
    deadline = time.monotonic() + 120
    while not (folder / f"pids-{number}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return [int(text) for text in (folder / f"pids-{number}").read_text().split()]


def await_ends(pids: Sequence[int]) -> None:
    """Wait until processes are gone, or dead and not yet reaped by whoever inherited them."""

    def lives(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    deadline = time.monotonic() + 120
    while any(lives(pid) for pid in pids):
        assert time.monotonic() < deadline, f"some of {pids} live on"
        time.sleep(0.01)


def test_what_a_fork_started_ends_with_it(server: Forkserver, tmp_path: Path) -> None:
    with begin_sleepers(server, tmp_path, 0, "short") as process:
        assert process.wait(60) == 0
        await_ends(pids_in(tmp_path, 0))


def test_one_fork_can_be_ended_while_another_lives(server: Forkserver, tmp_path: Path) -> None:
    first = begin_sleepers(server, tmp_path, 1, "long")
    with begin_sleepers(server, tmp_path, 2, "long") as second:
        with first:
            pids = pids_in(tmp_path, 1)
            with pytest.raises(TimeoutError):
                first.wait(0.1)
        await_ends(pids)
        with pytest.raises(TimeoutError):
            second.wait(0.1)
    await_ends(pids_in(tmp_path, 2))


def test_all_forks_end_with_the_server(tmp_path: Path) -> None:
    server = Forkserver(measured_environment())
    with begin_sleepers(server, tmp_path, 3, "long") as process:
        pids = pids_in(tmp_path, 3)
        closing = threading.Timer(0.1, server.close)
        closing.start()
        assert process.wait(30) == -signal.SIGKILL
        closing.join()
    await_ends(pids)
    assert server.has_ended
    with pytest.raises(ForkserverGone):
        begin_sleepers(server, tmp_path, 4, "long")


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_fork_dies_with_a_server_that_is_killed(server: Forkserver, tmp_path: Path) -> None:
    with begin_sleepers(server, tmp_path, 6, "long") as process:
        life, child = pids_in(tmp_path, 6)
        parent = parent_of(life)
        os.kill(parent, signal.SIGKILL)
        with pytest.raises(ForkserverGone):
            process.wait(30)
    await_ends([life, parent])
    os.kill(child, signal.SIGKILL)
    assert server.has_ended


COMMAND = """
import sys, time
from pathlib import Path
from asv_bench.process.forked_process import Forkserver
from asv_bench.process.threads import measured_environment

folder = Path(sys.argv[1])
server = Forkserver(measured_environment())
arguments = [str(folder / "script.py"), str(folder / "pids-5"), "long"]
life = server.fork(arguments, measured_environment(), folder=folder, output=folder / "said.log")
time.sleep(100)
"""


def test_a_command_that_is_killed_leaves_no_process_behind(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SLEEPS)
    command = subprocess.Popen(
        [sys.executable, "-c", COMMAND, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": search_path([str(ROOT), *borrowed_paths()])},
    )
    pids = pids_in(tmp_path, 5)
    server = parent_of(pids[0])
    command.kill()
    command.wait()
    await_ends([*pids, server])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_each_fork_sees_the_gpus_that_its_own_variable_names(
    server: Forkserver, tmp_path: Path
) -> None:
    script, answer = tmp_path / "script.py", tmp_path / "answer"
    script.write_text(
        "import sys\n"
        "is_forked = 'torch' in sys.modules\n"
        "import torch\n"
        "works = torch.cuda.device_count() and torch.ones(3, device='cuda').sum().item()\n"
        "open(sys.argv[1], 'w').write(f'{is_forked} {torch.cuda.device_count()} {works}')\n"
    )
    said = []
    for visible in ("", "0", "", "0"):
        with server.fork(
            [str(script), str(answer)],
            {**measured_environment(), "CUDA_VISIBLE_DEVICES": visible},
            folder=tmp_path,
            output=tmp_path / "said.log",
            shared=SHARED_MODULES,
        ) as process:
            assert process.wait(120) == 0, (tmp_path / "said.log").read_text()
        said.append(answer.read_text())
    assert said == ["True 0 0", "True 1 3.0"] * 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_server_that_has_used_a_gpu_forks_none_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "uses_gpu.py").write_text("import torch\ntorch.cuda.init()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    server = Forkserver(measured_environment())
    script, answer = tmp_path / "script.py", tmp_path / "answer"
    script.write_text(
        "import sys\n"
        "is_forked = 'uses_gpu' in sys.modules\n"
        "import torch\n"
        "works = torch.ones(3, device='cuda').sum().item()\n"
        "open(sys.argv[1], 'w').write(f'{is_forked} {works}')\n"
    )
    with server.fork(
        [str(script), str(answer)],
        measured_environment(),
        folder=tmp_path,
        output=tmp_path / "said.log",
        shared=["uses_gpu"],
    ) as process:
        assert process.wait(120) == 0, (tmp_path / "said.log").read_text()
    server.close()
    assert answer.read_text() == "False 3.0"
