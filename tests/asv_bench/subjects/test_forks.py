"""Lives that are forks: like those from scratch, on their own, and never left behind."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_project import ROOT

from asv_bench.measure.command_line import PythonCommand
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
def processes() -> Iterator[Processes]:
    processes = Processes()
    yield processes
    processes.stop()


def life_of(script: Path, *words: str, preload: Sequence[str] = ("json",), **more: str) -> Job:
    command = (sys.executable, "-P", str(script), *words)
    return Job(command, script.parent, {**measured_environment(), **more}, (), tuple(preload))


@pytest.fixture
def told(tmp_path: Path, processes: Processes) -> Callable[..., Any]:
    """Runs a script in a fork, or from scratch, and returns its facts."""

    def tell(code: str, *, preload: Sequence[str] = (), paths: Sequence[str] = ()) -> Any:
        script, answer = tmp_path / "script.py", tmp_path / "facts.json"
        script.write_text("import json, sys\n" + code + TELL)
        path = search_path([*paths, *borrowed_paths()])
        job = life_of(script, str(answer), "-x", "a b", preload=preload, PYTHONPATH=path)
        processes.run(job, 120)
        return json.loads(answer.read_text())

    return tell


def test_a_fork_finds_what_a_process_from_scratch_finds(
    told: Callable[..., Any], tmp_path: Path
) -> None:
    ours = [str(tmp_path / "commit"), str(tmp_path / "ruler")]
    scratch = told(FACTS, paths=ours)
    assert scratch["threads"] == 1
    forked = [told(FACTS, preload=preload, paths=ours) for preload in (("json",), PRELOAD)]
    assert forked == [scratch, scratch]


def test_a_fork_generates_the_tokens_of_a_process_from_scratch(told: Callable[..., Any]) -> None:
    scratch = told(TOKENS, paths=[str(ROOT)])
    forked = [told(TOKENS, preload=PRELOAD, paths=[str(ROOT)]) for _ in range(2)]
    assert (scratch["had_torch"], scratch["own"]) == (False, [])
    # The engine of one life is not in the next.
    assert forked == [{**scratch, "had_torch": True}] * 2


def test_forks_find_what_a_function_remembers(told: Callable[..., Any]) -> None:
    code = "import tempfile\nfacts = tempfile.tempdir"
    assert told(code, preload=["tempfile"]) is None
    assert told(code, preload=["tempfile", "tempfile:gettempdir"]) == tempfile.gettempdir()


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


@pytest.mark.parametrize(
    "line",
    [
        *("make bench", "python", "python -c pass", "python a.py > out", "cd x && python a.py"),
        *("X=1 python a.py", "python a.py *.json", "python a.py '$X'", "python `name`"),
        "python 'a",
    ],
)
def test_what_a_shell_would_do_is_no_script(line: str) -> None:
    assert PythonCommand.of(line, {}) is None


@pytest.mark.parametrize("name", ["with_thread", "shadowed"])
def test_what_a_fork_would_not_survive_makes_it_a_process_from_scratch(
    name: str, tmp_path: Path, processes: Processes
) -> None:
    servers, own = tmp_path / "servers", tmp_path / "own"
    for folder in (servers, own):
        folder.mkdir()
    thread = "import threading\nthreading.Thread(target=threading.Event().wait).start()"
    (servers / f"{name}.py").write_text(thread if name == "with_thread" else "")
    (servers / "harmless.py").write_text("")
    # The life would find another module of this name.
    (own / "shadowed.py").write_text("")
    script = tmp_path / "script.py"
    names = ("harmless", name)
    script.write_text(f"import sys\nprint(*(n for n in {names} if n in sys.modules))\n")
    said = []
    for preload in names:
        path = search_path([str(own), str(servers)])
        job = life_of(script, preload=[preload], PYTHONPATH=path, KVTRAIL_TREE=str(own))
        said.append(processes.run(job, 60).said.strip())
    assert said == ["harmless", ""]


def test_what_a_python_reads_at_its_start_and_what_is_installed_later_is_the_lifes_own(
    processes: Processes, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "version.py").write_text("VERSION = 1\n")
    script = tmp_path / "life" / "script.py"
    script.parent.mkdir()
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


def test_the_ends_of_forks_are_told_as_they_are(processes: Processes, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\n"
        "print('to its own file')\n"
        "how = sys.argv[1]\n"
        "if how == 'signal': sys.stdout.flush(); os.kill(os.getpid(), 11)\n"
        "if how == 'raise': raise ArithmeticError('planted')\n"
        "if how == 'exit': sys.exit('a last sentence')\n"
        "if how == 'code': sys.exit(7)\n"
    )
    ended = processes.run(life_of(script, "well"), 60)
    assert ended.said == "to its own file\n"
    assert ended.peak_rss_bytes > 1_000_000
    for how, code, words in (
        ("signal", -11, "signal 11 ended it: to its own file"),
        ("raise", 1, "ArithmeticError: planted"),
        ("exit", 1, "a last sentence"),
        ("code", 7, "exit code 7"),
    ):
        with pytest.raises(LifeFailed, match=words) as failed:
            processes.run(life_of(script, how), 60)
        assert failed.value.code == code


SLEEPS = """
import os, subprocess, sys, time
child = subprocess.Popen(["sleep", "100"], start_new_session=True)
with open(sys.argv[1] + ".part", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.rename(sys.argv[1] + ".part", sys.argv[1])
if sys.argv[2] == "long":
    time.sleep(100)
"""


def sleeper(folder: Path, number: int, length: str = "long") -> Job:
    (folder / "script.py").write_text(SLEEPS)
    return life_of(folder / "script.py", str(folder / f"pids-{number}"), length)


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


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_what_a_fork_started_ends_with_it(processes: Processes, tmp_path: Path) -> None:
    processes.run(sleeper(tmp_path, 0, "short"), 60)
    await_ends(pids_in(tmp_path, 0))


def test_one_fork_can_be_ended_while_another_lives(processes: Processes, tmp_path: Path) -> None:
    with processes.started(sleeper(tmp_path, 2)) as second:
        with processes.started(sleeper(tmp_path, 1)) as first:
            pids = pids_in(tmp_path, 1)
            assert not first.has_ended()
        await_ends(pids)
        kept = pids_in(tmp_path, 2)
        assert not second.has_ended()
    await_ends(kept)
    with pytest.raises(LifeFailed, match=r"did not end within 0\.5 s"):
        processes.run(sleeper(tmp_path, 3), 0.5)


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_forks_end_with_what_forks_them(processes: Processes, tmp_path: Path, how: str) -> None:
    def run(number: int) -> Ended:
        return processes.run(sleeper(tmp_path, number), 100)

    with ThreadPoolExecutor(2) as pool:
        ran: list[Future[Ended]] = [pool.submit(run, number) for number in (4, 5)]
        pids = [*pids_in(tmp_path, 4), *pids_in(tmp_path, 5)]
        # The launcher of a life, whose parent forks.
        server = parent_of(parent_of(pids[0]))
        launcher = parent_of(server)
        if how == "stopped":
            processes.stop()
        else:
            os.kill(server, signal.SIGKILL)
        for one in ran:
            with pytest.raises(LifeFailed, match="signal 9 ended it"):
                one.result(60)
    await_ends([*pids, server, launcher])
    if how == "stopped":
        with pytest.raises(LifeFailed, match="measuring was stopped"):
            run(6)
    else:
        # Another one forks what comes.
        processes.run(sleeper(tmp_path, 7, "short"), 60)


def test_a_life_that_a_killed_server_was_still_asked_for_is_forked_by_another(
    processes: Processes, tmp_path: Path
) -> None:
    with processes.started(sleeper(tmp_path, 9)):
        server = parent_of(parent_of(pids_in(tmp_path, 9)[0]))
        launcher = parent_of(server)
        # Until its launcher has seen it, nobody knows that a server has ended.
        os.kill(launcher, signal.SIGSTOP)
        os.kill(server, signal.SIGKILL)
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(processes.run, sleeper(tmp_path, 10, "short"), 60)
            time.sleep(0.2)
            os.kill(launcher, signal.SIGCONT)
            asked.result(60)


def test_a_server_that_cannot_begin_is_named(processes: Processes, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("")
    (tmp_path / "ends.py").write_text("import os\nprint('gone away', flush=True)\nos._exit(3)\n")
    job = life_of(script, preload=["ends"], PYTHONPATH=str(tmp_path))
    with pytest.raises(LifeFailed, match="the process that should fork it ended: gone away"):
        processes.run(job, 60)


COMMAND = """
import sys
from pathlib import Path
from asv_bench.measure.processes import Job, Processes
from asv_bench.process.environment import measured_environment

folder = Path(sys.argv[1])
words = (sys.executable, str(folder / "script.py"), str(folder / "pids-8"), "long")
Processes().run(Job(words, folder, measured_environment(), (), ("json",)), 100)
"""


def test_a_command_that_is_killed_leaves_no_process_behind(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SLEEPS)
    command = subprocess.Popen(
        [sys.executable, "-c", COMMAND, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": search_path([str(ROOT), *borrowed_paths()])},
    )
    pids = pids_in(tmp_path, 8)
    server = parent_of(parent_of(pids[0]))
    command.kill()
    command.wait()
    await_ends([*pids, server])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_each_fork_sees_the_gpus_that_its_own_variable_names(
    processes: Processes, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "is_forked = 'torch' in sys.modules\n"
        "import torch\n"
        "works = torch.cuda.device_count() and torch.ones(3, device='cuda').sum().item()\n"
        "print(is_forked, torch.cuda.device_count(), works)\n"
    )
    said = [
        processes.run(life_of(script, preload=PRELOAD, CUDA_VISIBLE_DEVICES=visible), 120).said
        for visible in ("", "0", "", "0")
    ]
    assert said == ["True 0 0\n", "True 1 3.0\n"] * 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_server_that_has_used_a_gpu_forks_none_from_it(
    processes: Processes, tmp_path: Path
) -> None:
    (tmp_path / "uses_gpu.py").write_text("import torch\ntorch.cuda.init()\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "is_forked = 'uses_gpu' in sys.modules\n"
        "import torch\n"
        "print(is_forked, torch.ones(3, device='cuda').sum().item())\n"
    )
    job = life_of(script, preload=["uses_gpu"], PYTHONPATH=str(tmp_path))
    assert processes.run(job, 120).said == "False 3.0\n"


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
    said = kvtrail(made.toy, "compare", "HEAD~1", "HEAD", "--metric", "step_ms")
    assert said.verdicts == {"step_ms": "slower"}, said.text
    forked = said.record["results"]["others"]["is_forked"].values()
    assert {value for values in forked for value in values} == {2}
    lives = [json.loads(line) for line in log.read_text().splitlines()]
    # The first life of each commit works alone.
    assert [pipes is None for pipes, _ in lives] == [True, True, *[False] * (len(lives) - 2)]
    windows = sorted(window for _, worked in lives for window in worked)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(windows))
