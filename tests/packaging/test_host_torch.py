"""A GPU machine's torch is found, borrowed and never replaced."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import host_torch

HERE = sys.version_info[:2]
LOCK = "# comment\nasv==0.6.6\nnumpy==2.3.5\ntorch==2.13.0\ntriton==3.7.1\n"


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def probe_answer(minor: int) -> str:
    facts = f'"python": [3, {minor}], "site_directories": ["/x"], "installed": []'
    return f"""echo '{{{facts}, "torch": "2.11.0+cu130", "cuda": "13.0"}}'"""


class TestProbe:
    def test_reads_versions_without_importing_torch(self, make_host):
        python = make_host(others={"triton": "3.6.0", "Some_Thing": "1"})
        host = host_torch.probe(str(python))
        assert (host.torch, host.cuda, host.triton) == ("2.11.0+cu130", "13.0", "3.6.0")
        assert (host.python, host.installed["some-thing"]) == (HERE, "1")
        assert [Path(d).name for d in host.site_directories] == ["site-packages"]
        assert host.executable == str(python), "a resolved link would leave the environment"

    def test_a_checkout_on_the_callers_path_is_not_installed(self, make_host, monkeypatch):
        python = make_host(torch=None, others={})
        [packages] = make_host("other").parents[1].glob("lib/python*/site-packages")
        monkeypatch.chdir(packages)
        monkeypatch.setenv("PYTHONPATH", str(packages))
        host = host_torch.probe(str(python))
        assert (host.torch, host.cuda, host.triton) == (None, None, None)

    @pytest.mark.parametrize("answer", ["exit 3", "echo no json", probe_answer(10), None])
    def test_what_cannot_lend_is_none(self, tmp_path, answer):
        path = tmp_path / "python3"
        if answer:
            script(path, answer)
        assert host_torch.probe(str(path)) is None


@pytest.mark.parametrize(
    ("answer", "present"),
    [
        ("echo 'GPU 0: NVIDIA H200'", True),
        ("echo 'No devices were found'", False),
        ("echo 'GPU access lost'; exit 9", False),
    ],
)
def test_a_gpu_is_present_by_its_node_or_nvidia_smi(tmp_path, answer, present):
    node = tmp_path / "nvidia0"
    script(tmp_path / "nvidia-smi", answer)
    assert host_torch.nvidia_gpu_present({"PATH": f"{tmp_path}:/bin"}, node) is present
    assert not host_torch.nvidia_gpu_present({"PATH": ""}, node)
    node.touch()
    assert host_torch.nvidia_gpu_present({"PATH": ""}, node)
    for hidden in ("", "-1"):
        assert not host_torch.nvidia_gpu_present({"CUDA_VISIBLE_DEVICES": hidden}, node)


def test_candidates_are_the_own_interpreter_then_the_paths_then_the_base(tmp_path, monkeypatch):
    names = ("python3", "a/python3", "b/python", "base/bin/python3")
    _, *found = (script(tmp_path / name, "") for name in names)
    monkeypatch.chdir(tmp_path)
    path = os.pathsep.join([str(tmp_path / "a"), ".", str(tmp_path / "b"), str(tmp_path / "a")])
    asked = host_torch.candidates({"PATH": path}, "/nox/python", str(tmp_path / "base"))
    assert asked == ["/nox/python", *map(str, found)]


class TestFindTorch:
    def test_gpu_and_cuda_torch_are_borrowed_from_the_own_version_first(self, make_host, tmp_path):
        other = script(tmp_path / "other" / "python3", probe_answer(HERE[1] + 1))
        cpu = make_host("cpu", torch="2.13.0+cpu", cuda=None)
        cuda = make_host("cuda")
        tried = [str(other), str(cpu), str(cuda)]
        source = host_torch.find_torch({}, has_gpu=False, executables=tried)
        assert (source.host, source.has_gpu, "lock" in source.sentence) == (None, False, True)
        source = host_torch.find_torch({}, has_gpu=True, executables=tried)
        assert source.host.executable == str(cuda)
        assert source.sentence == (
            f"torch 2.11.0+cu130 (CUDA 13.0) and Triton 3.6.0 of {cuda} are borrowed, "
            "never replaced"
        )
        alone = host_torch.find_torch({}, has_gpu=True, executables=tried[:2])
        assert alone.host.python == (HERE[0], HERE[1] + 1)
        old = make_host("old", torch="2.10.1+cu128")
        source = host_torch.find_torch({}, has_gpu=True, executables=[str(old)])
        assert source.sentence.endswith("kvtrail needs torch 2.11 or later, so expect failures")
        # Without one the sentence says what to do.
        source = host_torch.find_torch({}, has_gpu=True, executables=[str(cpu)])
        assert (source.host, source.has_gpu) == (None, True)
        assert "no Python on PATH has a torch built for CUDA" in source.sentence
        assert "KVTRAIL_HOST_PYTHON" in source.sentence

    def test_named_interpreter_is_used_without_a_gpu_and_refused_without_torch(self, make_host):
        named = make_host(torch="2.13.0+cpu", cuda=None)
        environ = {"KVTRAIL_HOST_PYTHON": str(named), "PATH": ""}
        source = host_torch.find_torch(environ, has_gpu=False)
        assert source.host.torch == "2.13.0+cpu"
        assert "CUDA" not in source.sentence
        for python, words in (
            (make_host("bare", torch=None), r"has no torch; it must name"),
            ("/nowhere/python3", r"no Python 3\.11 or later"),
        ):
            with pytest.raises(host_torch.HostTorchError, match=words):
                host_torch.find_torch({"KVTRAIL_HOST_PYTHON": str(python)}, has_gpu=True)


class TestConstraints:
    def test_host_versions_hold_and_the_lock_fills_in(self, make_host):
        host = host_torch.probe(str(make_host()))
        lines = host_torch.constraints(LOCK, host).splitlines()
        assert lines == ["torch==2.11.0+cu130", "triton==3.6.0", "asv==0.6.6"]
        assert host_torch.constraints(LOCK, None) == LOCK
        # The locked Triton never joins a host without one.
        bare = host_torch.probe(str(make_host("bare", others={})))
        assert "triton" not in host_torch.constraints(LOCK, bare)

    def test_only_what_the_host_does_not_meet_is_asked_for(self, make_host):
        others = {"triton": "3.5.0", "numpy": "2.5.2"}
        host = host_torch.probe(str(make_host(torch="2.9.0", others=others)))
        # Torch is never asked for, whatever its version.
        asked = ["torch>=2.11", "triton>=3.6; sys_platform == 'linux'", "torchy", "numpy>=2.1"]
        assert host_torch.missing_on_host(asked, host) == ["torchy"]
        assert host_torch.missing_on_host(["numpy>=2.6"], host) == ["numpy>=2.6"]
        assert host_torch.missing_on_host(asked, None) == asked


def test_a_session_borrows_what_it_does_not_install_and_pip_leaves_it_alone(
    make_host, tmp_path, monkeypatch
):
    """A session's environment, named by a relative path as nox does."""
    host = host_torch.probe(str(make_host()))
    python = make_host("session", torch=None, others={"mine": "1"})
    monkeypatch.chdir(tmp_path)
    relative = [os.path.relpath(directory) for directory in host.site_directories]
    host_torch.borrow(Path("session"), relative)

    def run(*command: object) -> subprocess.CompletedProcess[str]:
        words = [str(word) for word in command]
        return subprocess.run(words, cwd="/", capture_output=True, text=True, check=False)

    code = "import importlib.metadata as m; print(m.version('torch'), m.version('mine'))"
    assert run(python, "-c", code).stdout == "2.11.0+cu130 1\n"
    (tmp_path / "constraints.txt").write_text(host_torch.constraints(LOCK, host))
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--no-index")
    pip += ("-c", tmp_path / "constraints.txt")
    kept = run(*pip, "torch>=2.11", "numpy>=2.1")
    assert kept.returncode == 0, kept.stderr
    assert "Requirement already satisfied: torch" in kept.stdout
    assert run(*pip, "--upgrade", "torch==2.13.0").returncode != 0
    # What the session has of its own wins.
    [own] = python.parents[1].glob("lib/python*/site-packages")
    (own / "torch.py").write_text("")
    assert run(python, "-c", "import torch; print(torch.__file__)").stdout.startswith(str(own))
