"""Where Python imports the code of a commit from, if not from the commit's own files.

Two commits that are installed one after the other into one environment, or an editable install of
the user's own clone, let both ends of a comparison run the same code.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from asv_bench.git.repository import short
from asv_bench.measure.command_line import filled
from asv_bench.measure.processes import Job, LifeFailed, Processes
from asv_bench.measure.software import Software, project_names
from asv_bench.measure.trees import Laid

_PROBE = """
import importlib.util, json, os, sys
names, first = json.loads(sys.argv[1])
sys.path = [first] * bool(first) + [one for one in sys.path if one]
found, library = {}, os.path.dirname(os.path.realpath(os.__file__))
for name in names:
    try:
        spec = importlib.util.find_spec(name)
        place = os.path.realpath(spec.origin) if spec and spec.has_location else ""
    except Exception:
        continue
    if place and ("-packages" in place or not place.startswith(library + os.sep)):
        found[name] = place
print(json.dumps(found))
"""
_PACKAGES = ("*", "*/*", "*/*/*")
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?\b")
_SECONDS = 60.0


def imported_elsewhere(
    interpreter: str, command: str | tuple[str, ...], laid: Laid, job: Job, processes: Processes
) -> dict[str, str]:
    """Modules of a variant's files that its lives would import from elsewhere, and from where.

    A copy among an interpreter's packages counts where the files are packaged under that name.
    `interpreter` is the Python that runs `command`; `job` says where lives run and with what.
    """
    names = _modules(laid.top)
    asked = json.dumps([sorted(names), _first_on_path(command, job)])
    asking = Job((interpreter, "-c", _PROBE, asked), job.folder, job.variables)
    try:
        said = processes.run(asking, _SECONDS).said
        found: dict[str, str] = json.loads(said.strip().rpartition("\n")[2])
    except (LifeFailed, ValueError):
        return {}
    own = [folder.resolve() for folder in (laid.top, laid.out)]
    packaged = project_names(laid.top)
    return {
        name: place
        for name, place in found.items()
        if not any(Path(place).is_relative_to(folder) for folder in own)
        and ("-packages" not in place or name.lower() in packaged)
    }


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


def _first_on_path(command: str | tuple[str, ...], job: Job) -> str:
    """Where Python looks for modules first: beside the script, or in the current folder."""
    try:
        words = shlex.split(command) if isinstance(command, str) else list(command)
    except ValueError:
        return ""
    if {"-P", "-I"}.intersection(words):
        return ""
    if {"-m", "-c"}.intersection(words):
        return str(job.folder)
    named = (filled(word, job.variables) for word in words if word.endswith(".py"))
    scripts = (job.folder / word for word in named)
    return next((str(script.resolve().parent) for script in scripts if script.is_file()), "")
