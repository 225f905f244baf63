"""The asv environment in which commits are measured.

It is one virtual environment without pip that borrows whatever the interpreter running asv can
import, and is pointed at one commit's `engine` and `kernels`. A commit costs one unpacking of two
folders: no network, no index, no build.

asv loads this module as a plugin (`"plugins": [".asv_bench.history.asv_environment"]`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asv import environment, util
from asv.machine import Machine, MachineCollection
from asv.plugins.git import Git

from asv_bench.git.repository import GitError, Repository, git_environment
from asv_bench.git.trees import lay_out
from asv_bench.history.life_results import describe_machine
from asv_bench.process.environment import ENVIRONMENT_TYPE, borrowed_paths, measured_environment
from asv_bench.process.machine import machine_facts

_HOST_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_COMMIT_FILE, _HOST_FILE = "commit.pth", "host_packages.pth"


class HostEnvironment(environment.Environment):  # type: ignore[misc]
    """One borrowing virtual environment whose project is a commit's measured packages."""

    tool_name = ENVIRONMENT_TYPE
    matches_python_fallback = False

    def __init__(
        self,
        conf: Any,
        python: str,
        requirements: dict[str, str],
        tagged_env_vars: dict[tuple[str, str], str],
    ) -> None:
        if not self.matches(python):
            raise environment.EnvironmentUnavailable(
                f"The 'host' environment borrows the packages of the Python that runs asv, which "
                f"is {_HOST_PYTHON}; it cannot provide Python {python}."
            )
        # The base class derives the directory's name from these two before it stores them.
        self._python = python
        self._requirements = requirements
        super().__init__(conf, python, requirements, tagged_env_vars)
        self._base_requirements: dict[str, str] = {}
        self._repository = Repository(Path(conf.repo).absolute())

    @classmethod
    def matches(cls, python: str) -> bool:
        """Whether `python` is the version of the interpreter that runs asv."""
        return python in ("same", _HOST_PYTHON)

    def _path_file(self, name: str) -> Path:
        """A file of paths: they are read in the order of their names, and the first path wins."""
        return Path(self._path) / "lib" / f"python{_HOST_PYTHON}" / "site-packages" / name

    def check_presence(self) -> bool:
        """Whether the environment exists and still borrows from this very interpreter."""
        host = self._path_file(_HOST_FILE)
        is_there = super().check_presence() and host.is_file()
        return is_there and host.read_text() == _path_lines(borrowed_paths())

    def _setup(self) -> None:
        command = [sys.executable, "-m", "venv", "--system-site-packages", "--without-pip"]
        util.check_call([*command, self._path])
        self._path_file(_HOST_FILE).write_text(_path_lines(borrowed_paths()))

    def find_executable(self, executable: str) -> str:
        """Locate an executable; asv only asks whether `pip` is there: Python stands in."""
        found: str = super().find_executable("python" if executable == "pip" else executable)
        return found

    def install_project(self, conf: Any, repo: Any, commit_hash: str) -> None:
        """Make `engine` and `kernels` of `commit_hash` the ones this environment imports."""
        try:
            checkout = lay_out(commit_hash, self._repository, Path(self._path) / "commits")
        except GitError as error:
            raise util.UserError(str(error)) from None
        self._set_installed_commit_hash(None)
        self._path_file(_COMMIT_FILE).write_text(_path_lines([str(checkout)]))
        self._set_installed_commit_hash(commit_hash)
        self._set_commit_hash(commit_hash)

    def run(self, args: Sequence[str], **kwargs: Any) -> Any:
        """Run the environment's Python; see `asv.environment.Environment.run`."""
        variables = measured_environment(kwargs.pop("env", None))
        return self.run_executable("python", list(args), env=variables, **kwargs)


def _path_lines(paths: Sequence[str]) -> str:
    return "".join(f"{path}\n" for path in paths)


def _machine_file_for_asv() -> str:
    entry: dict[str, Any] = {"version": MachineCollection.api_version}
    facts = machine_facts()
    path = Path(__file__).resolve().parents[2] / ".asv" / "machine.json"
    path.parent.mkdir(exist_ok=True)
    util.write_json(str(path), entry | {facts.name: describe_machine(facts)})
    return str(path)


# asv would ask at a terminal what this machine is and keep the answers in the home directory. The
# ruler knows the facts already, and reads them afresh for each run.
MachineCollection.get_machine_file_path = staticmethod(_machine_file_for_asv)
Machine.get_unique_machine_name = staticmethod(lambda: machine_facts().name)

_run_git_of_asv = Git._run_git


def _run_git(asv: Any, args: Sequence[str], cwd: Any = True, **kwargs: Any) -> Any:
    environment = git_environment(kwargs.pop("env", None))
    return _run_git_of_asv(asv, args, cwd, env=environment, **kwargs)


def _tags(asv: Any) -> dict[str, str]:
    tags = Repository(Path(asv._path)).tags()
    return {os.fsencode(tag).decode(errors="replace"): commit for tag, commit in tags.items()}


# asv runs git too: here as the ruler does, for it would follow a hook's GIT_DIR. Of its own it
# takes every tag for a commit's, and asks for it as if no tag's name looked like an option.
Git._run_git = _run_git
Git.get_tags = _tags
