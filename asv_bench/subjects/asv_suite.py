"""Any asv suite as the subject, by its `asv.conf.json`.

A commit is installed into an environment of its own, as asv would, once; its lives run the suite's
benchmarks of today through asv's runner. So each benchmark is a metric, of which lower is better.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from asv_bench.compare.catalog import Entry, entries_of
from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.history.asv_selection import names_with_parameters
from asv_bench.packages import require_packages
from asv_bench.process.samples import CommitUnusable
from asv_bench.subjects.declared import DeclaredSubject
from asv_bench.subjects.pinned import digest_of
from asv_bench.subjects.processes import Job, LifeFailed, Processes
from asv_bench.subjects.subject_file import MetricTable, SubjectTable, SubjectText
from asv_bench.subjects.trees import SUBJECT

_SCRIPT = Path(__file__).with_name("asv_life.py")
_LISTING_SECONDS = 600.0
_INSTALL = "in-dir={env_dir} python -m pip install -q {build_dir}"
_PREFIX = re.compile(r"(in-dir|return-code|\w+)=(\S*)\s+")


class AsvSuite(DeclaredSubject):
    """The benchmarks of an asv suite, in the commits of its repository.

    Parameters
    ----------
    path
        An asv.conf.json.

    Raises
    ------
    Refused
        If asv is missing, or the file is none of asv's or of another repository.
    """

    is_portable = False

    def __init__(self, path: Path) -> None:
        require_packages("asv", "asv_runner")
        from asv.config import Config
        from asv.util import UserError

        try:
            conf = Config.load(str(path))
        except (UserError, OSError, ValueError) as error:
            raise Refused(f"{path} is no configuration of asv: {error}.") from None
        folder = path.resolve().parent
        root = (folder / (conf.repo or "")).resolve()
        if not conf.repo or not root.is_dir():
            raise Refused(
                f"{path} names the repository {conf.repo!r}, and only one on this machine can be "
                f"measured; clone it, and name the folder."
            )
        self._suite = folder / conf.benchmark_dir
        self._conf = conf
        self._versions: dict[str, str] = {}
        name = re.sub(r"[^\w.-]", "-", conf.project)
        text = SubjectText(
            SubjectTable(
                name=name,
                setup=_setup(conf),
                measure="true",
                setup_timeout_s=float(conf.install_timeout) * 5,
                env={
                    "PYTHONDONTWRITEBYTECODE": "1",
                    SUBJECT: str(folder),
                    **_variables(conf.matrix),
                },
            )
        )
        super().__init__(root, text, source=path.read_text(encoding="utf-8"))

    def choose(self, patterns: Sequence[str], devices: str | None) -> None:
        """See `DeclaredSubject`: patterns are looked for in names with parameters.

        Raises
        ------
        Refused
            If no benchmark is called so.
        MeasurementFailed
            If HEAD cannot be installed, or its benchmarks cannot be imported.
        """
        suite = self._folder() / self._suite.name
        shutil.copytree(self._suite, suite, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        known = self._discovered(suite)
        entries = [
            entry
            for entry in known
            if any(re.search(pattern, entry.name) for pattern in patterns or (".",))
        ]
        if not entries:
            shown = ", ".join(entry.name for entry in known[:6])
            raise Refused(
                f"no benchmark is called {' or '.join(patterns)}; there are {len(known)}, such as "
                f"{shown}."
            )
        identifiers = json.dumps({entry.name: entry.identifier for entry in entries})
        metrics = {entry.name: MetricTable(path=entry.name, unit=entry.unit) for entry in entries}
        # On the line, not among the variables: a setup does not depend on it.
        line = f"KVTRAIL_BENCHMARKS={shlex.quote(identifiers)} {self._runner('run', suite)}"
        table = msgspec.structs.replace(self._text.subject, measure=line)
        self._declare(SubjectText(table, metrics=metrics))
        super().choose((), devices)

    def version(self, metric: str) -> str:
        """See `DeclaredSubject`: what asv makes of the benchmark's code."""
        return self._versions.get(metric) or super().version(metric)

    @property
    def fixed(self) -> str:
        """See `Subject`: of the benchmarks."""
        return digest_of(self._suite)

    def sentence(self) -> str:
        """See `Subject`."""
        names = ", ".join(metric.name for metric in self.metrics[:4])
        more = len(self.metrics) - 4
        also = f" and {more} more" if more > 0 else ""
        return f"measuring {names}{also} of the asv suite of {self.name}, each commit installed"

    def to_json(self) -> dict[str, Any]:
        """See `Subject`."""
        return {"kind": "asv", "name": self.name, "file": self._source}

    def _runner(self, verb: str, suite: Path) -> str:
        """A line that runs asv's runner, the one that is installed here, in a commit's Python."""
        runner = self._folder() / "runner"
        if not runner.exists():
            import asv_runner

            shutil.copytree(Path(asv_runner.__file__).parent, runner / "asv_runner")
        words = ("-P", str(_SCRIPT), verb, str(suite))
        return f'PYTHONPATH={runner} "$KVTRAIL_OUT/env/bin/python" {shlex.join(words)}'

    def _discovered(self, suite: Path) -> list[Entry]:
        """The benchmarks that the suite has with the commit of HEAD."""
        processes = Processes()
        trees = self._trees(self.variant, processes)
        with tempfile.TemporaryDirectory(prefix="kvtrail-") as scratch:
            listed = Path(scratch) / "benchmarks.json"
            try:
                laid = trees.lay_out(self.resolve("HEAD").hash)
                command = f"{self._runner('list', suite)} {shlex.quote(str(listed))}"
                job = Job(command, laid.tree, laid.environment(self._text.subject))
                processes.run(job, _LISTING_SECONDS)
            except CommitUnusable as error:
                raise MeasurementFailed(f"the suite cannot be listed: {error}") from None
            except LifeFailed as error:
                raise MeasurementFailed(f"the suite cannot be imported: {error}") from None
            described = json.loads(listed.read_text())
        self._versions = {
            name: one["version"]
            for one in described
            for name in names_with_parameters(one["name"], one["params"])
        }
        return entries_of(described)


def _setup(conf: Any) -> str:
    """The lines for the shell that make an environment and install a commit, as asv would."""
    places = {
        "env_dir": "$KVTRAIL_OUT/env",
        "env_name": "env",
        "env_type": "virtualenv",
        "conf_dir": f"${SUBJECT}",
        "build_dir": "$KVTRAIL_TREE" + (f"/{conf.repo_subdir}" if conf.repo_subdir else ""),
        "build_cache_dir": "$KVTRAIL_OUT/wheels",
        "wheel_file": "$KVTRAIL_OUT/wheels/*.whl",
        "commit": "$KVTRAIL_LABEL",
        "project": conf.project,
    }
    build, install = _lines(conf.build_command), _lines(conf.install_command)
    if not install:
        install = [_INSTALL] if not build else ["python -m pip install -q {wheel_file}"]
    requirements = _requirements(conf.matrix)
    required = [f"python -m pip install -q {shlex.join(requirements)}"] if requirements else []
    return " && ".join(
        (
            f'{shlex.quote(sys.executable)} -m venv "$KVTRAIL_OUT/env"',
            'export PATH="$KVTRAIL_OUT/env/bin:$PATH"',
            'mkdir -p "$KVTRAIL_OUT/wheels"',
            *required,
            *(_line(line, places) for line in (*build, *install)),
        )
    )


def _lines(commands: str | list[str] | None) -> list[str]:
    if not commands:
        return []
    return [commands] if isinstance(commands, str) else list(commands)


def _line(line: str, places: dict[str, str]) -> str:
    """One of asv's command lines for a shell: its placeholders, and the settings before it."""
    for name, value in places.items():
        quoted = value if "*" in value else f'"{value}"'
        line = line.replace(f"{{{name}}}", quoted)
    before, folder = "", places["build_dir"]
    while found := _PREFIX.match(line):
        name, value = found.groups()
        line = line[found.end() :]
        if name == "in-dir":
            folder = value.strip('"')
        elif name != "return-code":
            before += f"{name}={value} "
    return f'(cd "{folder}" && {before}{line})'


def _variables(matrix: dict[str, Any]) -> dict[str, str]:
    """The variables that asv's matrix sets; of several values the first."""
    tables = [matrix.get(key, {}) for key in ("env", "env_nobuild")]
    firsts = {name: values[0] for table in tables for name, values in table.items() if values}
    return {name: value for name, value in firsts.items() if value is not None}


def _requirements(matrix: dict[str, Any]) -> list[str]:
    """What asv's matrix asks pip for; of several versions the first."""
    wanted = matrix.get("req", {} if {"env", "env_nobuild"} & matrix.keys() else matrix)
    found = []
    for name, versions in wanted.items():
        version = versions[0] if isinstance(versions, list) and versions else versions
        if version is not None:
            package = name.removeprefix("pip+")
            found.append(f"{package}=={version}" if version else package)
    return found
