"""The sessions that exist, on which Python and Triton they run, and what the documents say."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from packaging.requirements import Requirement

from asv_bench.session.exit_codes import ExitCode

ROOT = Path(__file__).resolve().parents[2]
QUICK = {"lint", "types", "tests"}
HEAVY = {
    *("bench", "bisect", "bundle", "calibrate", "changes", "codegen", "compare", "counters"),
    *("detectors", "docs", "explain", "fixed", "fleet", "headline", "history", "kernels", "ladder"),
    *("lock", "memcheck", "mutants", "peers", "profile", "report", "run", "scheduler"),
    *("stack", "streaming"),
}


def nox(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name != "NOXSESSION"}
    # No GPU unless a test brings one: the result must not depend on the machine.
    inherited.update({"CUDA_VISIBLE_DEVICES": "", "KVTRAIL_HOST_PYTHON": "", "NO_COLOR": "1"})
    return subprocess.run(
        [sys.executable, "-m", "nox", "-f", str(ROOT / "noxfile.py"), *arguments],
        env={**inherited, **environ},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def listed(**environ: str) -> list[dict[str, Any]]:
    """List the documented sessions; nox refuses a name that does not exist."""
    finished = nox("--list", "--json", "-s", *sorted(QUICK | HEAVY), **environ)
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


@pytest.fixture(scope="module")
def sessions() -> list[dict[str, Any]]:
    return listed()


@pytest.fixture(scope="module")
def noxfile() -> ModuleType:
    """The noxfile as a module; its sessions are registered, and none runs."""
    return importlib.import_module("noxfile")


Ran = tuple[tuple[str, ...], dict[str, Any]]


@pytest.fixture
def run(noxfile, monkeypatch) -> Callable[..., list[Ran]]:
    """What a session runs with such arguments, and how, on a host with a GPU or without one."""
    for name in ("_provide", "_choose_triton"):
        monkeypatch.setattr(noxfile, name, lambda *_: None)

    def of(name: str, *posargs: str, has_gpu: bool = False) -> list[Ran]:
        monkeypatch.setattr(noxfile, "TORCH", SimpleNamespace(has_gpu=has_gpu))
        ran: list[Ran] = []
        session = SimpleNamespace(
            posargs=list(posargs),
            run=lambda *command, **how: ran.append((command, how)),
            log=lambda _: None,
            error=sys.exit,
        )
        given = (session, None) if name in ("kernels", "codegen") else (session,)
        noxfile.nox.registry.get()[name].func(*given)
        return ran

    return of


def test_sessions_are_the_documented_ones_and_quick_ones_run_by_default(sessions):
    assert {session["name"] for session in sessions} == QUICK | HEAVY
    assert all(session["description"] for session in sessions)
    found = re.findall(r"^([*-]) (\w+)", nox("--list").stdout, flags=re.MULTILINE)
    assert {name for _, name in found} == QUICK | HEAVY
    # The stack is no default of its own: the others require it.
    assert {name for mark, name in found if mark == "*"} == QUICK | {"stack"}


@pytest.mark.parametrize("name", ["kernels", "codegen"])
def test_each_triton_where_no_host_lends_one_and_in_ci(sessions, name):
    found = [s["session"] for s in sessions if s["name"] == name]
    assert found == [f"{name}({triton})" for triton in ("locked", "3.6.0", "3.9.0")]
    texts = [(ROOT / path).read_text() for path in (".ci/run", ".github/workflows/cpu.yml")]
    named = re.findall(rf"{name}\([\w.]+\)", "".join(texts))
    # `tests` has the kernels' on the locked Triton.
    assert set(named) == {*found} - {"kernels(locked)"}


def test_the_tritons_are_the_ends_of_what_is_allowed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = map(Requirement, project["optional-dependencies"]["engine"])
    [allowed] = [one.specifier for one in wanted if one.name == "triton"]
    versions = ("3.5.0", "3.6.0", "3.9.0", "3.10.0")
    assert [version in allowed for version in versions] == [False, True, True, False]


@pytest.mark.parametrize("has_gpu", [False, True])
def test_kernel_tests_run_in_several_processes_and_all_where_none_is_named(run, has_gpu):
    options = ["-x", "-k", "kernels"]
    [(command, _)] = run("kernels", *options, has_gpu=has_gpu)
    assert {"--numprocesses=auto", "--dist=loadgroup"} <= set(command)
    paths = command[command.index("tests/kernels") + 1 : -len(options)]
    assert command[-len(options) :] == tuple(options)
    assert bool(paths) == has_gpu
    assert all(re.fullmatch(r"tests/engine/(\w+/)?test_\w*on_gpu\.py", path) for path in paths)
    for start in ("", "./", f"{ROOT}/"):
        named = ("-x", f"{start}tests/kernels/attention/test_append.py::test_it")
        [(command, _)] = run("kernels", *named, has_gpu=has_gpu)
        assert command[-2:] == named
        assert "tests/kernels" not in command


@pytest.mark.parametrize("has_gpu", [False, True])
def test_machine_code_is_checked_anywhere_and_the_rulers_tests_have_a_gpu_alone(run, has_gpu):
    [(command, how)] = run("codegen", "-k", "draw", has_gpu=has_gpu)
    [path] = [word for word in command if word.endswith(".py")]
    assert (ROOT / path).is_file()
    assert command[-2:] == ("-k", "draw")
    assert how["env"] == {"TRITON_INTERPRET": None, "KVTRAIL_REQUIRE": None}
    spread = ["--numprocesses=auto" in command for command, _ in run("tests", has_gpu=has_gpu)]
    assert spread == [not has_gpu, True]


@pytest.mark.parametrize(("name", "line"), [("compare", "compare"), ("ladder", "lab ladder")])
@pytest.mark.parametrize("ci", ["", "true"])
def test_an_answer_fails_a_session_in_ci_only(run, monkeypatch, name, line, ci):
    monkeypatch.setenv("CI", ci)
    codes = [ExitCode.REGRESSION, ExitCode.INCONCLUSIVE, ExitCode.OTHER_RESULT]
    answers = codes if name == "compare" and not ci else []
    [(command, how)] = run(name, "A", "B")
    assert command == ("python", "-m", "asv_bench", *line.split(), "A", "B")
    assert how["success_codes"] == [0, *answers]


def test_memory_is_checked_under_the_sanitizer_that_fails_for_an_error(
    run, noxfile, tmp_path, monkeypatch
):
    with pytest.raises(SystemExit, match="no such name; there are plain, graphs, allocations"):
        run("memcheck", "graphs", "graph", has_gpu=True)
    with pytest.raises(SystemExit, match="needs a GPU"):
        run("memcheck")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match="no compute-sanitizer"):
        run("memcheck", has_gpu=True)
    (tmp_path / "compute-sanitizer").touch(mode=0o755)
    plain, graphs, allocations = run("memcheck", has_gpu=True)
    assert plain[0][:3] == ("python", "-m", "pytest")
    for command, how in (graphs, allocations):
        assert command[: len(noxfile.SANITIZER)] == noxfile.SANITIZER
        assert "--error-exitcode" in command
        # Nothing may pass there that needs a GPU and finds none.
        assert how["env"]["KVTRAIL_REQUIRE"] == "gpu"
    assert "PYTORCH_NO_CUDA_MEMORY_CACHING" not in graphs[1]["env"]
    assert allocations[1]["env"]["PYTORCH_NO_CUDA_MEMORY_CACHING"] == "1"
    assert run("memcheck", "graphs", has_gpu=True) == [graphs]


def test_every_kernel_on_the_gpu_is_watched_with_allocations_of_its_own(noxfile):
    (watched,) = [check.arguments for check in noxfile.CHECKS if check.is_uncached]
    folder = ROOT / "tests/kernels"
    kernels = {path.relative_to(folder).as_posix() for path in folder.rglob("test_*.py")}
    # Of the same kernels, watched one by one, or by graphs with torch's allocator.
    elsewhere = {
        *("test_on_gpu.py", "test_thorough.py", "step/test_step_rows.py"),
        *("attention/test_workspace.py", "attention/test_checks.py", "attention/test_plans.py"),
    }
    torch_only = {
        *("test_backend.py", "test_compilation.py", "test_importing.py", "codegen/test_rules.py"),
        "codegen/test_named_kernels.py",
        *("attention/test_ring_launch.py", "tiles/test_table.py", "tiles/test_launch.py"),
        "tiles/test_linear_tile.py",
    }
    expected = {f"tests/kernels/{name}" for name in kernels - elsewhere - torch_only}
    assert {name for name in watched if name.endswith(".py")} == expected
    paths = [Path(a) for check in noxfile.CHECKS for a in check.arguments if a.startswith("tests")]
    assert all((ROOT / path).exists() for path in paths)


def test_a_hosts_torch_decides_python_and_triton_and_stays_the_only_one(make_host, tmp_path):
    """Offline, beside a host that has everything, the stack succeeds by installing nothing."""
    names = re.findall(r"^([\w.-]+)==([\w.]+)$", (ROOT / ".ci/locks/cpu.txt").read_text(), re.M)
    host = dict(names) | {"triton": "3.6.0", "numpy": "2.5.2"}
    del host["torch"]
    bare = nox("--list", KVTRAIL_HOST_PYTHON=str(make_host("bare", torch=None)))
    assert bare.returncode == 1
    assert re.search(r"^noxfile: .* has no torch; it must name", bare.stderr, re.M)
    python = make_host(others=host)
    by_name = {session["name"]: session for session in listed(KVTRAIL_HOST_PYTHON=str(python))}
    assert by_name["kernels"]["session"] == "kernels(host)"
    assert {by_name[n]["python"] for n in ("stack", "tests", "bench")} == {str(python)}
    # A host's torch may lack what its metadata asks for: pip must not even be asked about it.
    [metadata] = python.parents[1].glob("lib/python*/site-packages/torch-*.dist-info/METADATA")
    metadata.write_text(metadata.read_text() + "Requires-Dist: no-such-package\n")
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}
    words = ("--envdir", str(tmp_path / "nox"), "-s", "stack")
    finished = nox(*words, KVTRAIL_HOST_PYTHON=str(python), **offline)
    assert finished.returncode == 0, finished.stderr
    assert f"torch 2.11.0+cu130 (CUDA 13.0) and Triton 3.6.0 of {python}" in finished.stderr
    [packages] = (tmp_path / "nox" / "stack").glob("lib/python*/site-packages")
    assert not {"torch", "triton", "numpy"} & {path.name for path in packages.iterdir()}


def test_documents_and_ci_name_sessions_that_exist():
    [command] = re.findall(r"^python3 -m venv .* -s tests$", (ROOT / "README.md").read_text(), re.M)
    assert command in (ROOT / ".ci" / "run").read_text().splitlines()
    for pattern in ("README.md", "CONTRIBUTING.md", ".ci/run", ".github/workflows/*.yml"):
        for file in (files := list(ROOT.glob(pattern))):
            named = re.findall(r"nox -s ((?:[a-z]+ ?)+)", file.read_text("utf-8"))
            assert named or file.name == "release.yml", f"{file.name} names no session"
            assert set(" ".join(named).split()) <= QUICK | HEAVY, file.name
        assert files
