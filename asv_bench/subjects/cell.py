"""The cell of a measurement: what else, beside its files, a life ran with."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from string import Template
from typing import Any

from asv_bench.output.redaction import is_secret
from asv_bench.subjects.processes import Job, LifeFailed, Processes

_LISTING = (
    "import json, importlib.metadata as m;"
    "print(json.dumps({d.metadata['Name']: d.version for d in m.distributions()}))"
)
_PREFIXES = (
    *("CUDA_", "HF_HUB_", "HIP_", "LD_", "MKL_", "NCCL_", "NVIDIA_", "OMP_", "OPENBLAS_"),
    *("PYTHON", "PYTORCH_", "SGLANG_", "TOKENIZERS_", "TORCH", "TRITON_", "VLLM_"),
)
_FOLDERS = ("KVTRAIL_TREE", "KVTRAIL_OUT", "KVTRAIL_SUBJECT")


@dataclass(frozen=True, slots=True)
class Cell:
    """What one variant ran with.

    Attributes
    ----------
    interpreter
        The Python that ran, if one did. Folders of the commit are named by their variables, as in
        `$KVTRAIL_OUT/env/bin/python`: they differ between any two commits.
    packages
        Its distributions and their versions, as `pip freeze` has them.
    variables
        Those of the environment that change how such programs run, and those that the subject's
        file sets; none that hold secrets.
    elsewhere
        Modules of the variant's files that its lives import from elsewhere, and from where.
    """

    interpreter: str | None
    packages: Mapping[str, str]
    variables: Mapping[str, str]
    elsewhere: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The cell as JSON-ready values; of the interpreter only its name, of paths nothing."""
        content = {**asdict(self), "interpreter": self.interpreter and Path(self.interpreter).name}
        del content["elsewhere"]
        return content


def cell_of(
    command: str | tuple[str, ...], job: Job, processes: Processes, own: Collection[str] = ()
) -> Cell:
    """The cell of a life that `command` is; `job` says where it runs and with what.

    `own` are the variables that the subject's file sets.
    """
    # Folders are this machine's, and of no meaning on another.
    folders = {name: job.variables.get(name, "") for name in _FOLDERS}
    variables = {
        name: _named(value, folders)
        for name, value in sorted(job.variables.items())
        if (name.startswith(_PREFIXES) or name in own)
        and name not in _FOLDERS
        and not is_secret(name, value)
    }
    interpreter = _interpreter(command, job)
    packages: dict[str, str] = {}
    if interpreter is not None:
        asking = Job((interpreter, "-c", _LISTING), job.folder, job.variables)
        try:
            packages = json.loads(processes.run(asking, 60.0).said)
        except (LifeFailed, ValueError):
            interpreter = None
    return Cell(interpreter and _named(interpreter, folders), packages, variables)


def differences(base: Cell, head: Cell) -> list[str]:
    """A sentence where two variants ran with other packages."""
    names = sorted({*base.packages, *head.packages}, key=str.lower)
    moved = [
        f"{name} {base.packages.get(name, 'none')} → {head.packages.get(name, 'none')}"
        for name in names
        if base.packages.get(name) != head.packages.get(name)
    ]
    if not moved:
        return []
    shown = ", ".join(moved[:8]) + (f" and {len(moved) - 8} more" if moved[8:] else "")
    return [f"Base and head ran with other packages: {shown}."]


def _named(value: str, folders: Mapping[str, str]) -> str:
    """A text with the variable of each folder in place of the folder."""
    for name, folder in folders.items():
        value = value.replace(folder, f"${name}") if folder else value
    return value


def _interpreter(command: str | tuple[str, ...], job: Job) -> str | None:
    """The Python that a command runs: named first, or in the first line of its program."""
    try:
        words = shlex.split(command) if isinstance(command, str) else list(command)
    except ValueError:
        return None
    words = [word for word in words if word != "exec" and "=" not in word]
    known = Template(words[0]).safe_substitute(job.variables) if words else ""
    program = known and shutil.which(known, path=job.variables.get("PATH"))
    if not program:
        return None
    if Path(program).name.startswith("python"):
        return program
    with Path(program).open("rb") as file:
        first = file.readline(256)
    script = first.removeprefix(b"#!").decode(errors="replace").split()
    return script[0] if first.startswith(b"#!") and "python" in script[0] else None
