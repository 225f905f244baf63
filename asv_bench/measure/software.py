"""The software of a variant: what else, beside its files, its lives ran with, and what asked them.

Two commits that are installed one after the other into one environment, or an editable install of
the user's own clone, let both ends of a comparison run the same code: what a Python imports from
elsewhere is looked at, too.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from asv_bench.errors import Refused
from asv_bench.git.repository import short
from asv_bench.measure.command_line import PythonCommand, filled
from asv_bench.measure.processes import Job, LifeFailed, Processes
from asv_bench.measure.trees import Laid
from asv_bench.measure.watched import Python, Watched
from asv_bench.output.redaction import is_secret
from asv_bench.subjects.pinned import digest_of
from asv_bench.subjects.subject_file import SubjectTable
from asv_bench.words import first_of

_QUESTION = """
import sys
sys.path = [folder for folder in sys.path if folder]
import importlib.metadata, importlib.util, json, os
first, *names = sys.argv[1:]
packages, modules = [], {}
for one in importlib.metadata.distributions():
    try:
        origin = one.read_text("direct_url.json")
        packages.append([one.metadata["Name"], one.version, origin, str(one.locate_file(""))])
    except Exception:
        continue
sys.path[:0] = [first] * bool(first)
library = os.path.dirname(os.path.realpath(os.__file__))
for name in names:
    try:
        spec = importlib.util.find_spec(name)
        place = os.path.realpath(spec.origin) if spec and spec.has_location else ""
    except Exception:
        continue
    if place and ("-packages" in place or not place.startswith(library + os.sep)):
        modules[name] = place
with open(os.environ["KVTRAIL_RESULT"], "w") as file:
    json.dump([packages, modules], file)
"""
"""What a Python is asked: its distributions, and from where it would import some modules."""
_PREFIXES = (
    *("CUDA_", "HF_HUB_", "HIP_", "LD_", "MKL_", "NCCL_", "NVIDIA_", "OMP_", "OPENBLAS_"),
    *("PYTHON", "PYTORCH_", "SGLANG_", "TOKENIZERS_", "TORCH", "TRITON_", "VLLM_"),
)
_NAMED = re.compile(r"\bname\s*=\s*['\"]?([\w.-]+)")
_FOLDERS = ("KVTRAIL_TREE", "KVTRAIL_OUT", "KVTRAIL_SUBJECT")
_PACKAGES = ("*", "*/*", "*/*/*")
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?\b")
_SECONDS = 60.0
_LARGE_BYTES = 2**28
_BETWEEN = re.compile(r"[\s'\";&|()]+")
"""Between the words of a line for a shell."""


@dataclass(frozen=True, slots=True)
class Software:
    """What one variant ran with."""

    interpreter: str | None
    """The Python that ran, if one was seen and answers. Folders of the commit are named by their
    variables, as in `$KVTRAIL_OUT/env/bin/python`: they differ between any two commits."""
    packages: Mapping[str, str]
    """The interpreter's distributions and their versions, as `pip freeze` has them, without those
    that setup made of the commit's own files: these are what is measured."""
    variables: Mapping[str, str]
    """Those of the environment that change how such programs run, and those that the subject's file
    sets; none that hold secrets."""
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    """Modules of the variant's files that its lives import from elsewhere, and from where."""
    programs: Mapping[str, str] = field(default_factory=dict)
    """Programs and other files that the command names, each with a hash, but for the commit's own:
    only those are among them that are pinned."""
    made: Collection[str] = ()
    """Those of the packages that setup put into the variant's own folder."""
    client: Software | None = None
    """What asked the server, where there is one."""

    @property
    def hash(self) -> str:
        """Of interpreter, packages and programs, without what setup made of the commit."""
        packages = sorted(one for one in self.packages.items() if one[0] not in self.made)
        content = self.program, packages, sorted(self.programs.items())
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]

    @property
    def program(self) -> str | None:
        """The interpreter's name."""
        return self.interpreter and Path(self.interpreter).name

    def to_json(self) -> dict[str, Any]:
        """The software as JSON-ready values; of the interpreter only its name, of paths nothing."""
        client = self.client and self.client.to_json()
        told = {"interpreter": self.program, "hash": self.hash, "client": client}
        content = {**asdict(self), **told}
        del content["elsewhere"], content["made"]
        return content


def cell_of(
    watched: Watched, laid: Laid, told: Mapping[str, str], processes: Processes, table: SubjectTable
) -> Software:
    """The software of a variant whose first life was watched, and of what asked its server."""
    python, asking = watched.python(), watched.python(asks=True)
    found = software_of(python, laid, told, processes, table.env)
    programs, of_client = (
        dict(_files_in(job, laid, table.pinned, watched.begun)) if job else {}
        for job in (watched.first, watched.client)
    )
    if watched.client is None:
        return replace(found, programs=programs)
    # On a busy machine a short life may not be seen.
    called = PythonCommand.of(watched.client.command, watched.client.variables)
    if asking is None and called is not None:
        asking = Python.of(called, watched.client)
    is_apart = asking is not None and (python is None or python.program != asking.program)
    client = software_of(asking, laid, {}, processes, is_apart=is_apart)
    return replace(found, programs=programs, client=replace(client, programs=of_client))


def _files_in(
    job: Job, laid: Laid, pinned: Sequence[str], begun: float
) -> Iterator[tuple[str, str]]:
    """The files that a command names, each with a hash.

    Left out are the commit's own that are not pinned, what its setup made, what was written since
    the life began, and large files.
    """
    line = job.command
    for word in _BETWEEN.split(line) if isinstance(line, str) else line:
        word, path = filled(word, job.variables), job.variables.get("PATH", os.defpath)
        called = shutil.which(word, path=path) if "/" not in word else None
        place = Path(os.path.normpath(job.folder / (called or word)))
        with suppress(OSError, ValueError, Refused):
            if _lies_in(place, laid.top):
                inside = [one for one in pinned if _lies_in(place, laid.top / one)]
                yield from [(one, digest_of(laid.top / one)) for one in inside]
            elif not _lies_in(place, laid.out) and place.is_file():
                state = place.stat()
                if state.st_size < _LARGE_BYTES and state.st_mtime < begun:
                    yield place.name, digest_of(place.resolve())


def software_of(
    python: Python | None,
    laid: Laid,
    told: Mapping[str, str],
    processes: Processes,
    own: Collection[str] = (),
    *,
    is_apart: bool = False,
) -> Software:
    """The software of a life that ran this Python, and that was told these variables.

    `own` are the variables that the subject's file sets. With `is_apart` the Python is that of a
    client alone, so that a release of the project in it is a part of the client.
    """
    # Folders are this machine's, and of no meaning on another.
    folders = {name: told.get(name, "") for name in _FOLDERS}
    variables = {
        name: _named(value, folders)
        for name, value in sorted(told.items())
        if (name.startswith(_PREFIXES) or name in own)
        and name not in _FOLDERS
        and not is_secret(name, value)
    }
    answer = None if python is None else _answer(python, laid, processes)
    if python is None or answer is None:
        return Software(None, {}, variables)
    named = project_names(laid.top)
    seen = set() if is_apart else named | project_names(laid.tree)
    packages: dict[str, str] = {}
    made: list[str] = []
    for name, version, origin, place in answer[0]:
        # Of two with one name, the first is imported.
        if name and version and _canonical(name) not in seen:
            seen.add(_canonical(name))
            if not any(_lies_in(one, laid.top) for one in (place, _built_from(origin))):
                packages[name] = version
                made += [name] if _lies_in(place, laid.out) else []
    elsewhere = {
        name: place
        for name, place in answer[1].items()
        if not (_lies_in(place, laid.top) or _lies_in(place, laid.out))
        # A copy among packages counts where the files are packaged under that name.
        and ("-packages" not in place or name.lower() in named)
    }
    program = _named(python.program, folders)
    return Software(program, packages, variables, elsewhere, made=tuple(made))


def other_packages(base: Software, head: Software) -> Iterator[tuple[str, str | None, str | None]]:
    """Each package of which two variants have other versions; None: it is not there.

    There is none where no Python was seen at one of them.
    """
    if base.interpreter and head.interpreter:
        for name in sorted({*base.packages, *head.packages}, key=str.lower):
            before, after = base.packages.get(name), head.packages.get(name)
            if before != after:
                yield name, before, after


def differences(base: Software, head: Software) -> list[str]:
    """Sentences where two variants ran with other packages, or other clients asked them."""
    moved = _moves(other_packages(base, head))
    said = [f"Base and head ran with other packages: {first_of(moved, 8)}."] if moved else []
    if asked := asked_otherwise(base, head):
        said.append(f"Other clients asked base and head: {first_of(asked, 8)}.")
    return said


def asked_otherwise(base: Software, head: Software) -> list[str]:
    """What differs between the clients of two variants, and not between these."""
    if base.client is None or head.client is None:
        return []
    moved = _moves(other_packages(base, head))
    return [one for one in other_client(base.client, head.client) if one not in moved]


def other_client(before: Software, after: Software) -> list[str]:
    """What differs between two clients, in words."""
    moved = _moves(other_packages(before, after))
    if before.program != after.program:
        moved.insert(0, f"{before.program or 'no Python'} → {after.program or 'no Python'}")
    others = before.programs.items() ^ after.programs.items()
    return moved + [f"another {name}" for name in sorted({name for name, _ in others})]


def _moves(packages: Iterable[tuple[str, str | None, str | None]]) -> list[str]:
    return [f"{name} {before or 'none'} → {after or 'none'}" for name, before, after in packages]


def _named(value: str, folders: Mapping[str, str]) -> str:
    """A text with the variable of each folder in place of the folder."""
    for name, folder in folders.items():
        for one in (folder, os.path.realpath(folder)) if folder else ():
            value = value.replace(one, f"${name}")
    return value


def _answer(
    python: Python, laid: Laid, processes: Processes
) -> tuple[list[list[str | None]], dict[str, str]] | None:
    """What a Python says to the question; None where it does not answer."""
    asked = (_QUESTION, python.first_on_path, *sorted(_modules(laid.top)))
    words = (python.program, "-W", "ignore", "-c", *asked)
    told: tuple[list[list[str | None]], dict[str, str]] | None = None
    with suppress(LifeFailed, ValueError):
        told = processes.answer(Job(words, laid.tree, python.variables), _SECONDS)
    return told


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()


def _lies_in(path: str | Path | None, folder: Path) -> bool:
    return path is not None and any(
        Path(path).is_relative_to(one) for one in (folder, folder.resolve())
    )


def _built_from(origin: str | None) -> str | None:
    """The folder that a distribution was built from, as pip notes it; a wheel may be anybody's."""
    with suppress(ValueError, LookupError, TypeError):
        told = json.loads(origin or "")
        address = urlsplit(told["url"])
        if address.scheme == "file" and "archive_info" not in told:
            return unquote(address.path)
    return None


def project_names(folder: Path) -> set[str]:
    """What the files of a commit call the distribution that is built of them, as a module is."""
    names: set[str] = set()
    for file in ("setup.cfg", "setup.py"):
        with suppress(OSError):
            names |= set(_NAMED.findall((folder / file).read_text(errors="replace")))
    with suppress(OSError, ValueError, AttributeError):
        content = tomllib.loads((folder / "pyproject.toml").read_text(errors="replace"))
        for table in (content, content.get("tool", {})):
            names |= {str(table.get(key, {}).get("name")) for key in ("project", "poetry")}
    return set(map(_canonical, names))


def same_code(cells: Mapping[str, Software]) -> list[str]:
    """A sentence for each place outside their own files from which commits import a module."""
    users: dict[str, dict[str, None]] = {}
    for name, software in cells.items():
        if commit := _COMMIT.match(name):
            for module, place in software.elsewhere.items():
                users.setdefault(f"{module} from {place}", {})[short(commit[0])] = None
    return [
        f"The Python of {' and '.join(commits)} imports {what}, not from the commit's own files: "
        f"other commits may run the same code. Install each commit into $KVTRAIL_OUT, and let "
        f"PYTHONPATH in env lead there."
        for what, commits in users.items()
    ]


def _modules(top: Path) -> set[str]:
    """Modules and packages that are importable from a folder of the tree."""
    inits = [path for depth in _PACKAGES for path in top.glob(f"{depth}/__init__.py")]
    packages = {init.parent for init in inits}
    alone = [path.stem for folder in (top, top / "src") for path in folder.glob("*.py")]
    found = {one.name for one in packages if one.parent not in packages} | {*alone}
    return {name for name in found if name.isidentifier()}
