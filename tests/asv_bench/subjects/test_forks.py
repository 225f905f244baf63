"""Lives that are forks: like those from scratch, on their own, and never left behind."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_project import ROOT

from asv_bench.measure.processes import Ended, Job, LifeFailed, Processes
from asv_bench.process.environment import borrowed_paths, measured_environment, search_path
from asv_bench.subjects.own_suite import PRELOAD

FACTS = """
import gc, json, os, signal, sys

facts = {
    "arguments": sys.argv[1:], "name": __name__, "folder": os.getcwd(), "path": sys.path,
    "variables": dict(os.environ), "threads": len(os.listdir("/proc/self/task")),
    "signals": [str(signal.getsignal(one)) for one in (signal.SIGINT, signal.SIGCHLD)],
    "descriptors": sorted(os.listdir("/proc/self/fd")), "group": os.getpgid(0) == os.getpid(),
    "cores": sorted(os.sched_getaffinity(0)), "collects": gc.isenabled(),
    "own": [name for name in sys.modules if name.partition(".")[0] in ("engine", "asv_bench")],
}
had_torch = "torch" in sys.modules

from dataclasses import replace
from asv_bench.workloads.drive import run_workload
from asv_bench.workloads.named import WORKLOADS
from engine import Engine

workload = replace(WORKLOADS["streaming"].quick(), unique_prompts=True)
engine = Engine(workload.engine_config("random:gpt2-tiny", device="cpu"))
facts["digest"] = run_workload(engine, workload, 1000).token_digest
with open("facts.json", "w") as file:
    json.dump({"had_torch": had_torch, "facts": facts}, file)
"""


@pytest.fixture
def processes() -> Iterator[Processes]:
    processes = Processes()
    yield processes
    processes.stop()


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Where the script of a life is written."""
    return tmp_path / "script.py"


def life_of(script: Path, *words: str, preload: Sequence[str] = ("json",), **more: str) -> Job:
    command = (sys.executable, "-P", str(script), *words)
    return Job(command, script.parent, {**measured_environment(), **more}, (), tuple(preload))


def test_a_fork_finds_and_generates_what_a_process_from_scratch_does(
    script: Path, processes: Processes
) -> None:
    path = search_path([str(script.parent / "commit"), str(ROOT), *borrowed_paths()])
    script.write_text(FACTS)
    told = []
    # The engine of one life is not in the next.
    for preload in ((), PRELOAD, PRELOAD):
        processes.run(life_of(script, "-x", "a b", preload=preload, PYTHONPATH=path), 120)
        told.append(json.loads(script.with_name("facts.json").read_text()))
    assert [one["had_torch"] for one in told] == [False, True, True]
    scratch = told[0]["facts"]
    assert (scratch["threads"], scratch["own"]) == (1, [])
    assert [one["facts"] for one in told] == [scratch] * 3


def test_a_module_and_a_line_are_forked_too(tmp_path: Path, processes: Processes) -> None:
    (tmp_path / "bench.py").write_text(
        "import atexit, sys\natexit.register(print, 'last')\n"
        "print(__name__, sys.argv[1:], 'torch' in sys.modules)\n"
    )
    variables = {**measured_environment(), "KVTRAIL_TREE": str(tmp_path), "WHICH": "a b"}
    for line in (
        f'{sys.executable} -m bench "$WHICH" "c d"',
        f'{sys.executable} "$KVTRAIL_TREE/bench.py" "${{WHICH}}" c\\ d',
    ):
        job = Job(line, tmp_path, variables, (), ("torch",))
        assert processes.run(job, 60).said == "__main__ ['a b', 'c d'] True\nlast\n"


@pytest.mark.parametrize("name", ["with_thread", "shadowed"])
def test_what_a_fork_would_not_survive_makes_it_a_process_from_scratch(
    name: str, tmp_path: Path, script: Path, processes: Processes
) -> None:
    servers, own = tmp_path / "servers", tmp_path / "own"
    for folder in (servers, own):
        folder.mkdir()
    thread = "import threading\nthreading.Thread(target=threading.Event().wait).start()"
    (servers / f"{name}.py").write_text(thread if name == "with_thread" else "")
    (servers / "harmless.py").write_text("")
    # The life would find another module of this name.
    (own / "shadowed.py").write_text("")
    names = ("harmless", name)
    script.write_text(f"import sys\nprint(*(n for n in {names} if n in sys.modules))\n")
    said = []
    for preload in names:
        path = search_path([str(own), str(servers)])
        job = life_of(script, preload=[preload], PYTHONPATH=path, KVTRAIL_TREE=str(own))
        said.append(processes.run(job, 60).said.strip())
    assert said == ["harmless", ""]


def test_what_a_python_reads_at_its_start_and_what_is_installed_later_is_the_lifes_own(
    processes: Processes, script: Path
) -> None:
    site = script.with_name("site")
    site.mkdir()
    (site / "version.py").write_text("VERSION = 1\n")
    script.write_text("import sys, version\nprint(version.VERSION, sys.flags.optimize)\n")

    def said(**more: str) -> str:
        job = life_of(script, preload=["version"], PYTHONPATH=str(site), **more)
        return processes.run(job, 60).said

    assert [said(), said(PYTHONOPTIMIZE="1")] == ["1 0\n", "1 1\n"]
    # As a setup does that installs another version where all commits find it.
    time.sleep(0.02)
    (site / "version.py").unlink()
    (site / "version.py").write_text("VERSION = 10\n")
    assert said() == "10 0\n"


def test_the_ends_of_forks_are_told_as_they_are(processes: Processes, script: Path) -> None:
    for line, code, words in (
        ("sys.stdout.flush(); os.kill(os.getpid(), 11)", -11, "signal 11 ended it: to its own"),
        ("raise ArithmeticError('planted')", 1, "ArithmeticError: planted"),
        ("sys.exit('a last sentence')", 1, "a last sentence"),
        ("sys.exit(7)", 7, "exit code 7"),
    ):
        script.write_text(f"import os, sys\nprint('to its own file')\n{line}")
        with pytest.raises(LifeFailed, match=words) as failed:
            processes.run(life_of(script), 60)
        assert failed.value.code == code
    # Where the process that should fork it cannot begin.
    script.with_name("ends.py").write_text("import os\nprint('away', flush=True)\nos._exit(3)\n")
    with pytest.raises(LifeFailed, match="the process that should fork it ended: away"):
        processes.run(life_of(script, preload=["ends"], PYTHONPATH=str(script.parent)), 60)


SLEEPS = """
import os, subprocess, sys, time
child = subprocess.Popen(["sleep", "100"], start_new_session=True)
with open(sys.argv[1] + ".part", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.rename(sys.argv[1] + ".part", sys.argv[1])
if sys.argv[2] == "long":
    time.sleep(100)
"""


def sleeper(script: Path, number: int, length: str = "long") -> Job:
    script.write_text(SLEEPS)
    return life_of(script, f"pids-{number}", length)


def pids_in(folder: Path, number: int) -> list[int]:
    deadline = time.monotonic() + 120
    while not (folder / f"pids-{number}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return [int(text) for text in (folder / f"pids-{number}").read_text().split()]


def await_ends(pids: Sequence[int]) -> None:
    """Wait until processes are gone, or dead and not yet reaped by whoever inherited them.

    Not for as long as a life sleeps that nobody ends.
    """
    deadline = time.monotonic() + 60
    while any(stat_of(pid)[0] != "Z" for pid in pids):
        assert time.monotonic() < deadline, f"some of {pids} live on"
        time.sleep(0.01)


def stat_of(pid: int) -> list[str]:
    """State and parent of a process; "Z" of one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["Z"]


def server_of(life: int) -> int:
    """The launcher of a life has a parent that forks."""
    return int(stat_of(int(stat_of(life)[1]))[1])


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_forks_end_with_what_forks_them(processes: Processes, script: Path, how: str) -> None:
    with ThreadPoolExecutor(2) as pool:
        ran: list[Future[Ended]] = [
            pool.submit(processes.run, sleeper(script, number), 100) for number in (4, 5)
        ]
        pids = [*pids_in(script.parent, 4), *pids_in(script.parent, 5)]
        server = server_of(pids[0])
        if how == "stopped":
            processes.stop()
        else:
            os.kill(server, signal.SIGKILL)
        for one in ran:
            with pytest.raises(LifeFailed, match="signal 9 ended it"):
                one.result(60)
    await_ends([*pids, server])
    if how == "stopped":
        with pytest.raises(LifeFailed, match="measuring was stopped"):
            processes.run(sleeper(script, 6), 100)
    else:
        # Another one forks what comes, and what a life leaves behind ends with it.
        processes.run(sleeper(script, 7, "short"), 60)
        await_ends(pids_in(script.parent, 7))
        with pytest.raises(LifeFailed, match=r"did not end within 0\.5 s"):
            processes.run(sleeper(script, 8), 0.5)


COMMAND = """
import sys
from pathlib import Path
from asv_bench.measure.processes import Job, Processes
from asv_bench.process.environment import measured_environment

words = (sys.executable, "script.py", "pids-9", "long")
Processes().run(Job(words, Path.cwd(), measured_environment(), (), ("json",)), 100)
"""


def test_a_command_that_is_killed_leaves_no_process_behind(script: Path) -> None:
    script.write_text(SLEEPS)
    env = {**os.environ, "PYTHONPATH": search_path([str(ROOT), *borrowed_paths()])}
    command = subprocess.Popen([sys.executable, "-c", COMMAND], cwd=script.parent, env=env)
    pids = pids_in(script.parent, 9)
    server = server_of(pids[0])
    command.kill()
    command.wait()
    await_ends([*pids, server])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_each_fork_sees_its_own_gpus_and_none_comes_of_a_server_that_has_used_one(
    processes: Processes, script: Path
) -> None:
    script.with_name("uses_gpu.py").write_text("import torch\ntorch.cuda.init()\n")
    script.write_text(
        "import sys\n"
        "is_forked = 'torch' in sys.modules\n"
        "import torch\n"
        "works = torch.cuda.device_count() and torch.ones(3, device='cuda').sum().item()\n"
        "print(is_forked, torch.cuda.device_count(), works)\n"
    )
    for visible, preload, said in (
        *(("", PRELOAD, "True 0 0\n"), ("0", PRELOAD, "True 1 3.0\n")) * 2,
        ("0", ("uses_gpu",), "False 1 3.0\n"),
    ):
        more = {"CUDA_VISIBLE_DEVICES": visible, "PYTHONPATH": str(script.parent)}
        assert processes.run(life_of(script, preload=preload, **more), 120).said == said


IN_TURNS = """
    import json, os, random, sys, time
    pipes = os.environ.get("KVTRAIL_TURNS")
    own, other = [os.open(one, os.O_RDWR) for one in pipes.split(":")] if pipes else (None, None)
    windows, worked = [], []
    for _ in range(8):
        if own is not None and os.read(own, 1) == b"!":
            own = None
        begun = time.monotonic()
        time.sleep(0.001)
        windows.append({value} * (1 + random.uniform(-0.001, 0.001)))
        worked.append((begun, time.monotonic()))
        if own is not None:
            os.write(other, b"+")
    with open(os.environ["KVTRAIL_RESULT"], "w") as file:
        json.dump({{"step_ms": windows, "is_forked": 1 + ("decimal" in sys.modules)}}, file)
    with open("{log}", "a") as file:
        print(json.dumps([pipes, worked]), file=file)
    """


def test_lives_of_a_file_are_forks_that_take_turns(kvtrail: Any, declared, tmp_path: Path) -> None:
    log = tmp_path / "worked.jsonl"
    tables = f"""
        [subject]
        name = "toy"
        measure = "{sys.executable} bench.py"
        preload = ["decimal"]
        turns = true
        [metrics]
        step_ms = {{path = "step_ms", unit = "ms"}}
        is_forked = {{path = "is_forked"}}
        """
    benches = (IN_TURNS.format(value=value, log=log) for value in (5.0, 5.3))
    made = declared(tables, *benches)
    said = kvtrail(made, "compare", "HEAD~1", "HEAD", "--metric", "step_ms")
    assert said.verdicts == {"step_ms": "slower"}, said.text
    forked = said.record["results"]["others"]["is_forked"].values()
    assert {value for values in forked for value in values} == {2}
    lives = [json.loads(line) for line in log.read_text().splitlines()]
    # The first life of each commit works alone, and so do those that are profiled at the end.
    paired, are_alone = 2 * len(said.record["samples"]), [pipes is None for pipes, _ in lives]
    assert are_alone[: 2 + paired] == [True, True, *[False] * paired]
    assert all(are_alone[2 + paired :])
    windows = sorted(window for _, worked in lives for window in worked)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(windows))
