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


def probe_answer(python: tuple[int, int]) -> str:
    facts = f'"python": [{python[0]}, {python[1]}], "site_directories": ["/x"], "installed": []'
    return f"""echo '{{{facts}, "torch": "2.11.0+cu130", "cuda": "13.0"}}'"""


class TestProbe:
    def test_reads_versions_without_importing_torch(self, make_host):
        python = make_host(others={"triton": "3.6.0", "Some_Thing": "1"})
        host = host_torch.probe(str(python))
        assert (host.torch, host.cuda, host.triton) == ("2.11.0+cu130", "13.0", "3.6.0")
        assert host.python == HERE
        assert host.installed["some-thing"] == "1"
        assert [Path(d).name for d in host.site_directories] == ["site-packages"]
        assert host.executable == str(python), "a resolved link would leave the environment"

    def test_environment_without_torch(self, make_host):
        host = host_torch.probe(str(make_host(torch=None, others={})))
        assert (host.torch, host.cuda, host.triton) == (None, None, None)

    def test_a_checkout_on_the_callers_path_is_not_installed(self, make_host, monkeypatch):
        python = make_host(torch=None)
        other = make_host("other")
        packages = next(other.parents[1].glob("lib/python*/site-packages"))
        monkeypatch.chdir(packages)
        assert host_torch.probe(str(python)).torch is None
        monkeypatch.setenv("PYTHONPATH", str(packages))
        assert host_torch.probe(str(python)).torch is None

    @pytest.mark.parametrize("answer", ["exit 3", "echo no json", probe_answer((3, 10))])
    def test_what_cannot_lend_is_none(self, tmp_path, answer):
        assert host_torch.probe(str(script(tmp_path / "python3", answer))) is None

    def test_missing_interpreter_is_none(self, tmp_path):
        assert host_torch.probe(str(tmp_path / "nothing")) is None


class TestGpuPresent:
    def test_device_node(self, tmp_path):
        node = tmp_path / "nvidia0"
        assert not host_torch.nvidia_gpu_present({"PATH": ""}, node)
        node.touch()
        assert host_torch.nvidia_gpu_present({"PATH": ""}, node)

    @pytest.mark.parametrize("hidden", ["", "-1"])
    def test_hidden_by_the_user(self, tmp_path, hidden):
        node = tmp_path / "nvidia0"
        node.touch()
        assert not host_torch.nvidia_gpu_present({"CUDA_VISIBLE_DEVICES": hidden}, node)

    @pytest.mark.parametrize(
        ("answer", "present"),
        [("echo 'GPU 0: NVIDIA H200'", True), ("echo 'No devices were found'", False)],
    )
    def test_nvidia_smi(self, tmp_path, answer, present):
        script(tmp_path / "nvidia-smi", answer)
        environ = {"PATH": f"{tmp_path}:/bin"}
        assert host_torch.nvidia_gpu_present(environ, tmp_path / "none") is present

    def test_nvidia_smi_that_fails(self, tmp_path):
        script(tmp_path / "nvidia-smi", "echo 'GPU access lost'; exit 9")
        assert not host_torch.nvidia_gpu_present({"PATH": str(tmp_path)}, tmp_path / "none")


class TestCandidates:
    def test_own_interpreter_then_path_then_base(self, tmp_path, monkeypatch):
        script(tmp_path / "python3", "")
        monkeypatch.chdir(tmp_path)
        first = script(tmp_path / "a" / "python3", "")
        second = script(tmp_path / "b" / "python", "")
        base = script(tmp_path / "base" / "bin" / "python3", "")
        path = os.pathsep.join([str(tmp_path / "a"), ".", str(tmp_path / "b"), str(tmp_path / "a")])
        found = host_torch.candidates({"PATH": path}, "/nox/python", str(tmp_path / "base"))
        assert found == ["/nox/python", str(first), str(second), str(base)]


class TestFindTorch:
    def test_no_gpu_means_the_lock(self, make_host):
        source = host_torch.find_torch({}, has_gpu=False, executables=[str(make_host())])
        assert source.host is None
        assert not source.has_gpu
        assert "lock" in source.sentence

    def test_gpu_and_cuda_torch_are_borrowed(self, make_host):
        cpu = make_host("cpu", torch="2.13.0+cpu", cuda=None)
        cuda = make_host("cuda")
        source = host_torch.find_torch({}, has_gpu=True, executables=[str(cpu), str(cuda)])
        assert source.host.executable == str(cuda)
        assert source.sentence == (
            f"torch 2.11.0+cu130 (CUDA 13.0) and Triton 3.6.0 of {cuda} are borrowed, "
            "never replaced"
        )

    def test_own_python_version_is_preferred(self, make_host, tmp_path):
        other = script(tmp_path / "other" / "python3", probe_answer((HERE[0], HERE[1] + 1)))
        same = make_host()
        source = host_torch.find_torch({}, has_gpu=True, executables=[str(other), str(same)])
        assert source.host.executable == str(same)
        alone = host_torch.find_torch({}, has_gpu=True, executables=[str(other)])
        assert alone.host.python == (HERE[0], HERE[1] + 1)

    def test_torch_that_is_too_old_says_so(self, make_host):
        old = make_host(torch="2.10.1+cu128")
        source = host_torch.find_torch({}, has_gpu=True, executables=[str(old)])
        assert source.host.executable == str(old)
        assert source.sentence.endswith("kvtrail needs torch 2.11 or later, so expect failures")

    def test_gpu_without_usable_torch_says_so(self, make_host):
        cpu = make_host(torch="2.13.0+cpu", cuda=None)
        source = host_torch.find_torch({}, has_gpu=True, executables=[str(cpu)])
        assert source.host is None
        assert source.has_gpu
        assert "no Python on PATH has a torch built for CUDA" in source.sentence
        assert "KVTRAIL_HOST_PYTHON" in source.sentence

    def test_named_interpreter_is_used_without_a_gpu(self, make_host):
        python = make_host(torch="2.13.0+cpu", cuda=None)
        environ = {"KVTRAIL_HOST_PYTHON": str(python), "PATH": ""}
        source = host_torch.find_torch(environ, has_gpu=False)
        assert source.host.torch == "2.13.0+cpu"
        assert "CUDA" not in source.sentence

    def test_named_interpreter_without_torch_is_refused(self, make_host):
        environ = {"KVTRAIL_HOST_PYTHON": str(make_host(torch=None))}
        with pytest.raises(host_torch.HostTorchError, match=r"has no torch; it must name"):
            host_torch.find_torch(environ, has_gpu=True)

    def test_named_interpreter_that_is_none_is_refused(self):
        environ = {"KVTRAIL_HOST_PYTHON": "/nowhere/python3"}
        with pytest.raises(host_torch.HostTorchError, match=r"no Python 3\.11 or later"):
            host_torch.find_torch(environ, has_gpu=True)


class TestConstraints:
    def test_without_a_host_they_are_the_lock(self):
        assert host_torch.constraints(LOCK, None) == LOCK

    def test_host_versions_hold_and_the_lock_fills_in(self, make_host):
        host = host_torch.probe(str(make_host()))
        lines = host_torch.constraints(LOCK, host).splitlines()
        assert lines == ["torch==2.11.0+cu130", "triton==3.6.0", "asv==0.6.6"]

    def test_locked_triton_never_joins_a_host_without_one(self, make_host):
        host = host_torch.probe(str(make_host(others={})))
        assert "triton" not in host_torch.constraints(LOCK, host)

    def test_only_what_the_host_does_not_meet_is_asked_for(self, make_host):
        host = host_torch.probe(str(make_host(others={"triton": "3.6.0", "numpy": "2.5.2"})))
        asked = ["torch>=2.11", "triton>=3.6; sys_platform == 'linux'", "torchy", "numpy>=2.1"]
        assert host_torch.missing_on_host(asked, host) == ["torchy"]
        assert host_torch.missing_on_host(["numpy>=2.6"], host) == ["numpy>=2.6"]
        assert host_torch.missing_on_host(asked, None) == asked

    def test_torch_is_never_asked_for_whatever_its_version(self, make_host):
        host = host_torch.probe(str(make_host(torch="2.9.0", others={"triton": "3.5.0"})))
        assert host_torch.missing_on_host(["torch>=2.11", "triton>=3.6"], host) == []

    @pytest.mark.parametrize(
        ("requirement", "name"),
        [("Foo_Bar>=1", "foo-bar"), ("a.b[x]; marker", "a-b"), (" torch ", "torch")],
    )
    def test_requirement_name(self, requirement, name):
        assert host_torch.requirement_name(requirement) == name

    def test_requirement_without_a_name_is_refused(self):
        with pytest.raises(ValueError, match="must start with a package name"):
            host_torch.requirement_name(">=1")


class TestBorrow:
    @pytest.fixture
    def session(self, make_host, tmp_path, monkeypatch) -> Path:
        """A session's environment, named by a relative path as nox does, that borrowed."""
        host = host_torch.probe(str(make_host()))
        make_host("session", torch=None, others={"mine": "1"})
        monkeypatch.chdir(tmp_path)
        relative = [os.path.relpath(directory) for directory in host.site_directories]
        host_torch.borrow(Path("session"), relative)
        return tmp_path / "session" / "bin" / "python3"

    def ask(self, python: Path, code: str) -> str:
        command = [str(python), "-c", code]
        return subprocess.run(
            command, cwd="/", capture_output=True, text=True, check=True
        ).stdout.strip()

    def test_session_sees_the_hosts_torch(self, session):
        code = "import importlib.metadata as m; print(m.version('torch'), m.version('mine'))"
        assert self.ask(session, code) == "2.11.0+cu130 1"

    def test_what_the_session_installs_wins(self, session):
        [own] = session.parents[1].glob("lib/python*/site-packages")
        (own / "torch").mkdir()
        (own / "torch" / "__init__.py").write_text("")
        code = "import torch; print(torch.__file__)"
        assert self.ask(session, code).startswith(str(own))

    def pip(self, session: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pip", "--python", str(session), "install", "--no-index"]
        return subprocess.run(
            [*command, *arguments], capture_output=True, text=True, check=False, cwd="/"
        )

    def test_pip_leaves_the_borrowed_torch_alone(self, session, tmp_path):
        host = host_torch.probe(str(tmp_path / "host" / "bin" / "python3"))
        file = tmp_path / "constraints.txt"
        file.write_text(host_torch.constraints(LOCK, host))
        kept = self.pip(session, "-c", str(file), "torch>=2.11", "numpy>=2.1")
        assert kept.returncode == 0, kept.stderr
        assert "Requirement already satisfied: torch" in kept.stdout
        refused = self.pip(session, "-c", str(file), "--upgrade", "torch==2.13.0")
        assert refused.returncode != 0
