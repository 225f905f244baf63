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
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import msgspec

from asv_bench.errors import Refused, require_packages
from asv_bench.subjects.toml_values import Seconds, Words, in_words

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


class AsvConf:
    """An `asv.conf.json` that was read and checked.

    Raises Refused where asv is missing, the file is none of asv's, or it asks for what is not here.
    """

    def __init__(self, path: Path) -> None:
        require_packages("asv", "asv_runner", "virtualenv")
        from asv.config import Config

        with refusing(f"{path} is no configuration of asv"):
            conf = msgspec.convert(vars(Config.load(str(path))), Conf)
        with refusing(str(path)):
            self.conf = conf = msgspec.structs.replace(conf, matrix=_tables(dict(conf.matrix)))
            self.suite = (path.parent / conf.benchmark_dir).resolve()
            self.root = (path.resolve().parent / conf.repo).resolve()
            """The folder of the repository."""
            chosen, self._interpreter = _environment(path, conf)
            self.python = str(chosen.pop(("python", None)))
            given = [(kind, name, _text(value)) for (kind, name), value in chosen.items() if name]
            self._requirements = [
                word for kind, name, text in given if kind == "req" for word in _asked(name, text)
            ]
            self.variables = {name: text for kind, name, text in given if kind in _VARIABLES}
            # A setup does not see them.
            self._only_in_lives = [name for kind, name, _ in given if kind == "env_nobuild"]
            self._check(path)

    def _check(self, path: Path) -> None:
        from asv.benchmarks import Benchmarks
        from asv.util import interpolate_command

        conf = self.conf
        if not self.root.is_dir():
            raise Refused(
                f"{path} names the repository {conf.repo!r}, and only one on this machine can "
                f"be measured; clone it, and name the folder."
            )
        is_virtual = (conf.environment_type or "") in _VIRTUAL
        if conf.conda_environment_file not in (None, "IGNORE") and not is_virtual:
            raise Refused(
                f"{path} names a conda_environment_file, and kvtrail installs with pip: put "
                f"what the benchmarks need under matrix."
            )
        if not self.suite.is_dir():
            raise ValueError(f"benchmark_dir is {conf.benchmark_dir!r}, and no such folder is")
        Benchmarks.check_tree(str(self.suite))
        for line in self.commands:
            if not interpolate_command(line, dict.fromkeys(_PLACES, "x"))[0]:
                raise ValueError(f"{line!r} names no command")

    @property
    def setup(self) -> str:
        """The line for the shell that makes an environment and installs a commit."""
        # What asv has in every environment for the commands, where they use it.
        lines, project = " ".join(self.commands), self.root / "pyproject.toml"
        built_with = ["build"] if "-m build" in lines else []
        if ("isolation" in lines or "setup.py" in lines) and project.is_file():
            system = tomllib.loads(project.read_text(encoding="utf-8")).get("build-system", {})
            built_with += system.get("requires", [])
        told = {
            "interpreter": self._interpreter,
            "requirements": [*self._requirements, *built_with],
            "commands": self.commands,
            "subdir": self.conf.repo_subdir or "",
            "without": self._only_in_lives,
            "timeout_s": self.conf.install_timeout,
        }
        return shlex.join([sys.executable, "-P", str(_SETUP), json.dumps(told)])

    @cached_property
    def commands(self) -> Sequence[str]:
        """What builds and installs a commit, asv's own commands where the file has none."""
        build, install = _lines(self.conf.build_command), _lines(self.conf.install_command)
        if self.conf.build_command is None and any("{wheel_file}" in line for line in install):
            # asv builds a wheel always; here only an install_command of the file's own wants it.
            build = [_WHEEL]
        if self.conf.install_command is None:
            install = [_INSTALL_WHEEL if build else _INSTALL]
        return [*build, *install]


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


def _environment(path: Path, conf: Conf) -> tuple[dict[tuple[str, str | None], Any], str]:
    """The first combination of the matrix whose interpreter is here, and where that is."""
    from asv.environment import iter_matrix

    known: dict[str, None] = {}
    for chosen in iter_matrix(conf.environment_type or "virtualenv", conf.pythons, conf):
        python = str(chosen["python", None])
        known[python] = None
        if interpreter := _started(python):
            return dict(chosen), interpreter
    if not known:
        raise Refused(f"{path}: pythons, matrix and exclude leave no environment to measure in.")
    raise Refused(
        f"{path} is for Python {', '.join(known)}, of which none runs here; install one so that "
        f"`python{next(iter(known))}` starts it, or name another under pythons."
    )


@cache
def _started(python: str) -> str | None:
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


def _asked(name: str, version: str) -> list[str]:
    """What pip is told of a package and a version, which may be a comparison such as ">=2"."""
    *options, package = shlex.split(name.removeprefix("pip+"))
    is_compared = not version or version[0] in "<>=!~"
    return [*options, f"{package}{version}" if is_compared else f"{package}=={version}"]


def _text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"matrix gives {value!r} where a text must stand")
    return str(value)
