"""An `asv.conf.json` as it is measured: one environment of its matrix, and what installs a commit.

asv's own code reads the file, combines the matrix and takes its command lines apart.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from asv_bench.errors import Refused
from asv_bench.packages import require_packages
from asv_bench.subjects.subject_file import Seconds, Words, in_words

_SETUP = Path(__file__).with_name("asv_setup.py")
_VIRTUAL = ("", "virtualenv", "uv")
"""Kinds of environment into which pip installs."""
_VARIABLES = ("env", "env_nobuild")
_WHEEL = "python -m pip wheel -q --no-deps -w {build_cache_dir} {build_dir}"
_INSTALL_WHEEL = "in-dir={env_dir} python -m pip install -q {wheel_file}"
_INSTALL = "in-dir={env_dir} python -m pip install -q {build_dir}"
_PLACES = (
    *("build_cache_dir", "build_dir", "commit", "conf_dir", "env_dir", "env_name", "env_type"),
    *("project", "wheel_file"),
)


class Conf(msgspec.Struct, frozen=True):
    """The keys that are read, as asv's own configuration has them."""

    project: str
    repo: Words
    benchmark_dir: Words
    pythons: tuple[Words, ...]
    matrix: dict[str, Any] | list[tuple[str, Any]]
    exclude: tuple[dict[str, Any], ...]
    include: tuple[dict[str, Any], ...]
    install_timeout: Seconds
    default_benchmark_timeout: Seconds
    repo_subdir: str | None
    environment_type: str | None
    conda_environment_file: str | None
    build_command: str | tuple[str, ...] | None
    install_command: str | tuple[str, ...] | None
    launch_method: str | None


@dataclass(frozen=True)
class AsvConf:
    """An `asv.conf.json` that was read and checked."""

    path: Path
    conf: Conf
    root: Path  # the folder of the repository
    python: str  # the interpreter's version, as the file names it
    interpreter: str  # its path
    requirements: tuple[str, ...]  # what the matrix asks pip for
    variables: dict[str, str]  # what the matrix sets in a life
    only_in_lives: tuple[str, ...]  # names of variables that a setup does not see

    @classmethod
    def read(cls, path: Path) -> AsvConf:
        """Read and check a file.

        Raises Refused where asv is missing, the file is none of asv's, or it asks for what is not
        here.
        """
        require_packages("asv", "asv_runner", "virtualenv")
        from asv.config import Config

        with refusing(f"{path} is no configuration of asv"):
            conf = msgspec.convert(vars(Config.load(str(path))), Conf)
        with refusing(str(path)):
            conf = msgspec.structs.replace(conf, matrix=_tables(dict(conf.matrix)))
            root = (path.resolve().parent / conf.repo).resolve()
            if not root.is_dir():
                raise Refused(
                    f"{path} names the repository {conf.repo!r}, and only one on this machine can "
                    f"be measured; clone it, and name the folder."
                )
            if conf.conda_environment_file not in (None, "IGNORE") and not _is_virtual(conf):
                raise Refused(
                    f"{path} names a conda_environment_file, and kvtrail installs with pip: put "
                    f"what the benchmarks need under matrix."
                )
            chosen, interpreter = _environment(path, conf)
            of_kinds = [
                (kind, name, _text(value))
                for (kind, name), value in chosen.items()
                if name is not None
            ]
            packages = [
                _requirement(name, value) for kind, name, value in of_kinds if kind == "req"
            ]
            found = cls(
                path,
                conf,
                root,
                str(chosen["python", None]),
                interpreter,
                tuple(word for package in packages for word in package),
                {name: value for kind, name, value in of_kinds if kind in _VARIABLES},
                tuple(name for kind, name, _ in of_kinds if kind == "env_nobuild"),
            )
            found._check()
        return found

    def _check(self) -> None:
        from asv.benchmarks import Benchmarks
        from asv.util import interpolate_command

        if not self.suite.is_dir():
            raise ValueError(f"benchmark_dir is {self.conf.benchmark_dir!r}, and no such folder is")
        Benchmarks.check_tree(str(self.suite))
        for line in (*self._build, *self._install):
            if not interpolate_command(line, dict.fromkeys(_PLACES, "x"))[0]:
                raise ValueError(f"{line!r} names no command")

    @property
    def suite(self) -> Path:
        """The folder of the benchmarks."""
        return (self.path.parent / self.conf.benchmark_dir).resolve()

    @property
    def variables_of_lives(self) -> dict[str, str]:
        """What setup and lives are told, beside what kvtrail tells them."""
        return {"ASV": "true", "ASV_PROJECT": self.conf.project, **self.variables}

    @property
    def setup(self) -> str:
        """The line for the shell that makes an environment and installs a commit."""
        told = {
            "interpreter": self.interpreter,
            "requirements": [*self.requirements, *self._built_with],
            "build": self._build,
            "install": self._install,
            "subdir": self.conf.repo_subdir or "",
            "without": self.only_in_lives,
            "timeout_s": self.conf.install_timeout,
        }
        return shlex.join([sys.executable, "-P", str(_SETUP), json.dumps(told)])

    @property
    def setup_timeout_s(self) -> float:
        """Every command has asv's own limit."""
        return self.conf.install_timeout * (2 + len(self._build) + len(self._install))

    @cached_property
    def _build(self) -> Sequence[str]:
        if self.conf.build_command is None:
            # asv builds a wheel always; here only an install_command of the file's own wants it.
            wants = any("{wheel_file}" in line for line in _lines(self.conf.install_command))
            return [_WHEEL] if wants else []
        return _lines(self.conf.build_command)

    @cached_property
    def _install(self) -> Sequence[str]:
        if self.conf.install_command is None:
            return [_INSTALL_WHEEL if self._build else _INSTALL]
        return _lines(self.conf.install_command)

    @property
    def _built_with(self) -> list[str]:
        """What asv has in every environment for the commands, where they use it."""
        lines = " ".join((*self._build, *self._install))
        wanted = ["build"] if "-m build" in lines else []
        project = self.root / "pyproject.toml"
        if ("isolation" in lines or "setup.py" in lines) and project.is_file():
            system = tomllib.loads(project.read_text(encoding="utf-8")).get("build-system", {})
            wanted += system.get("requires", [])
        return wanted

    def sentence(self) -> str:
        """How a commit is installed."""
        asked = self.conf.environment_type
        instead = "" if _is_virtual(self.conf) else f" (the file says {asked})"
        return f"each commit installed for Python {self.python} by pip{instead}"


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """Refuse what asv's own code and checks of values complain of."""
    from asv.util import UserError

    errors = (ValueError, TypeError, LookupError, AttributeError, OSError, RecursionError, re.error)
    try:
        yield
    except Refused:
        raise
    except (UserError, *errors) as error:
        raise Refused(f"{what}: {in_words(str(error))}.") from None


def _tables(matrix: dict[str, Any]) -> dict[str, Any]:
    """A matrix whose tables are tables, as asv's code takes for granted."""
    for name in {"req", *_VARIABLES} & matrix.keys():
        if not isinstance(matrix[name] or {}, dict):
            raise ValueError(f"matrix.{name} is {matrix[name]!r}; it must be names with values")
        matrix[name] = matrix[name] or {}
    return matrix


def _is_virtual(conf: Conf) -> bool:
    return (conf.environment_type or "") in _VIRTUAL


def _environment(path: Path, conf: Conf) -> tuple[dict[tuple[str, str | None], Any], str]:
    """The first combination of the matrix whose interpreter is here, and where that is."""
    from asv.environment import iter_matrix

    known: dict[str, str | None] = {}
    for chosen in iter_matrix(conf.environment_type or "virtualenv", conf.pythons, conf):
        python = str(chosen["python", None])
        if python not in known:
            known[python] = _interpreter(python)
        if interpreter := known[python]:
            return chosen, interpreter
    if not known:
        raise Refused(f"{path}: pythons, matrix and exclude leave no environment to measure in.")
    raise Refused(
        f"{path} is for Python {', '.join(known)}, of which none runs here; install one so that "
        f"`python{next(iter(known))}` starts it, or name another under pythons."
    )


def _interpreter(python: str) -> str | None:
    """Where an interpreter lies that asv calls so; None where none starts."""
    if python in (f"{sys.version_info.major}.{sys.version_info.minor}", "same"):
        return sys.executable
    found = shutil.which(python if python.startswith("pypy") else f"python{python}")
    if found is None:
        return None
    # A launcher of pyenv is there for versions that it then does not start.
    tried = subprocess.run([found, "-c", ""], capture_output=True, check=False)
    return None if tried.returncode else found


def _lines(commands: str | Sequence[str] | None) -> Sequence[str]:
    if not commands:
        return []
    return [commands] if isinstance(commands, str) else commands


def _requirement(name: str, version: str) -> list[str]:
    """What pip is told of a package and a version, which may be a comparison such as ">=2"."""
    *options, package = shlex.split(name.removeprefix("pip+"))
    is_compared = not version or version[0] in "<>=!~"
    return [*options, f"{package}{version}" if is_compared else f"{package}=={version}"]


def _text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"matrix gives {value!r} where a text must stand")
    return str(value)
