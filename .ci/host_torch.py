"""Where the sessions' torch comes from: the host's own on a GPU machine, the lock elsewhere.

A GPU machine comes with a torch built for its driver. Sessions borrow it through a ``.pth`` file
and constrain torch and Triton to the versions found, so that nothing ever replaces them. The
interpreter that holds it may differ from the one that runs nox, and may itself live in a virtual
environment, whose packages a new environment would not see.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

HOST_PYTHON_VARIABLE = "KVTRAIL_HOST_PYTHON"
OLDEST_PYTHON = (3, 11)
OLDEST_TORCH = "2.11"

# Reads torch's version file instead of importing torch: 0.1 s instead of seconds.
_PROBE = """
import importlib.metadata, importlib.util, json, pathlib, runpy, sys
facts = {
    "python": list(sys.version_info[:2]),
    "site_directories": [
        entry for entry in sys.path
        if pathlib.Path(entry).name in ("site-packages", "dist-packages")
    ],
    "installed": sorted({
        dist.metadata["Name"]: dist.version
        for dist in reversed(list(importlib.metadata.distributions())) if dist.metadata["Name"]
    }.items()),
    "torch": None,
    "cuda": None,
}
spec = importlib.util.find_spec("torch")
if spec is not None and spec.origin:
    version_file = pathlib.Path(spec.origin).with_name("version.py")
    if version_file.exists():
        version = runpy.run_path(str(version_file))
        facts["torch"], facts["cuda"] = str(version["__version__"]), version.get("cuda")
print(json.dumps(facts))
"""


class HostTorchError(RuntimeError):
    """The interpreter named by the user cannot lend its torch."""


@dataclass(frozen=True, slots=True)
class HostPython:
    """An interpreter outside nox, and what a session can borrow from it.

    Attributes
    ----------
    executable
        Path as found; never resolved, since a virtual environment's ``python`` is a link.
    python
        Its version, as (major, minor).
    site_directories
        Directories on its path that hold installed packages, in import order.
    torch, cuda
        Versions of its torch and of the CUDA that torch was built for; None where absent.
    installed
        Normalised name and version of every distribution that it sees.
    """

    executable: str
    python: tuple[int, int]
    site_directories: tuple[str, ...]
    torch: str | None
    cuda: str | None
    installed: Mapping[str, str]

    @property
    def triton(self) -> str | None:
        """Version of its Triton, None where it has none."""
        return self.installed.get("triton")


@dataclass(frozen=True, slots=True)
class TorchSource:
    """The decision for this machine: whose torch, is there a GPU, and one line that says so."""

    host: HostPython | None
    has_gpu: bool
    sentence: str


def normalised(name: str) -> str:
    """Return a distribution name in its canonical spelling (``Foo_bar`` and ``foo-bar`` agree)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def nvidia_gpu_present(
    environ: Mapping[str, str] = os.environ, device: Path = Path("/dev/nvidia0")
) -> bool:
    """Say whether an NVIDIA GPU is visible, without importing torch."""
    if environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return False
    if device.exists():
        return True
    nvidia_smi = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if nvidia_smi is None:
        return False
    listing = subprocess.run([nvidia_smi, "-L"], capture_output=True, text=True, check=False)
    return listing.returncode == 0 and "GPU " in listing.stdout


def probe(executable: str) -> HostPython | None:
    """Ask an interpreter what it could lend; None where it does not answer or is too old."""
    environ = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
    }
    try:
        answer = subprocess.run(
            [executable, "-c", _PROBE],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
            env=environ,
            cwd="/",  # the working directory is on the path: a checkout must not look installed
        )
        facts = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, json.JSONDecodeError):
        return None
    major, minor = facts["python"]
    if (major, minor) < OLDEST_PYTHON:
        return None
    return HostPython(
        executable=executable,
        python=(major, minor),
        site_directories=tuple(facts["site_directories"]),
        torch=facts["torch"],
        cuda=facts["cuda"],
        installed={normalised(name): version for name, version in facts["installed"]},
    )


def candidates(
    environ: Mapping[str, str] = os.environ,
    executable: str = sys.executable,
    base_prefix: str = sys.base_prefix,
) -> list[str]:
    """List interpreters that may hold the host's torch, likeliest first.

    nox's own comes first (nox may be installed beside torch), then what ``python3`` and ``python``
    mean in each directory of PATH, then the interpreter that nox's environment was made from.
    """
    found = [executable]
    for directory in environ.get("PATH", "").split(os.pathsep):
        found += [
            str(path)
            for name in ("python3", "python")
            if (path := Path(directory) / name).is_absolute() and os.access(path, os.X_OK)
        ]
    base = Path(base_prefix) / "bin" / "python3"
    if base.exists():
        found.append(str(base))
    return list(dict.fromkeys(found))


def find_torch(
    environ: Mapping[str, str] = os.environ,
    *,
    has_gpu: bool | None = None,
    executables: Sequence[str] | None = None,
) -> TorchSource:
    """Decide whose torch the sessions use.

    An interpreter named in KVTRAIL_HOST_PYTHON is used, GPU or not. Otherwise, where there is a
    GPU, the first candidate whose torch is built for CUDA is, preferring nox's own Python version.

    Raises
    ------
    HostTorchError
        KVTRAIL_HOST_PYTHON names something that is no usable interpreter or has no torch.
    """
    if has_gpu is None:
        has_gpu = nvidia_gpu_present(environ)
    named = environ.get(HOST_PYTHON_VARIABLE)
    if named:
        host = _named_host(named, environ)
        return TorchSource(host, has_gpu, _borrowing_sentence(host))
    if not has_gpu:
        return TorchSource(None, False, "no NVIDIA GPU here: torch comes from the lock")

    tried = candidates(environ) if executables is None else list(executables)
    probed = [probe(path) for path in tried]
    with_cuda = [found for found in probed if found and found.torch and found.cuda]
    with_cuda.sort(key=lambda found: found.python != sys.version_info[:2])
    if with_cuda:
        return TorchSource(with_cuda[0], True, _borrowing_sentence(with_cuda[0]))
    return TorchSource(
        None,
        True,
        "an NVIDIA GPU is here, but no Python on PATH has a torch built for CUDA: torch comes from "
        f"the lock (to use another interpreter's torch, name it in {HOST_PYTHON_VARIABLE})",
    )


def _named_host(named: str, environ: Mapping[str, str]) -> HostPython:
    executable = shutil.which(named, path=environ.get("PATH"))
    host = None if executable is None else probe(executable)
    if host is None:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        raise HostTorchError(
            f"{HOST_PYTHON_VARIABLE} is {named!r}, which is no Python {oldest} or later that runs "
            "here; it must name an interpreter that has torch"
        )
    if host.torch is None:
        raise HostTorchError(
            f"{HOST_PYTHON_VARIABLE} is {named!r}, which has no torch; it must name an interpreter "
            "that has one, or be unset so that torch comes from the lock"
        )
    return host


def _borrowing_sentence(host: HostPython) -> str:
    cuda = f" (CUDA {host.cuda})" if host.cuda else ""
    triton = f" and Triton {host.triton}" if host.triton else ""
    sentence = f"torch {host.torch}{cuda}{triton} of {host.executable} are borrowed, never replaced"
    if host.torch and Version(host.torch) < Version(OLDEST_TORCH):
        sentence += f"; kvtrail needs torch {OLDEST_TORCH} or later, so expect failures"
    return sentence


def borrow(session_directory: Path, directories: Iterable[str | Path]) -> None:
    """Let the interpreter of ``session_directory`` import from other environments.

    The directories come after its own in import order: what a session installs wins.
    """
    [site_packages] = session_directory.glob("lib/python*/site-packages")
    text = "".join(f"{Path(directory).absolute()}\n" for directory in directories)
    (site_packages / "borrowed.pth").write_text(text, encoding="utf-8")


def missing_on_host(requirements: Iterable[str], host: HostPython | None) -> list[str]:
    """Keep the requirements that the host does not meet.

    pip is not asked about the others at all: it would examine what they need in turn, and refuse
    a host that works but whose metadata does not add up. torch and Triton are the host's whatever
    their version.
    """
    if host is None:
        return list(requirements)
    return [entry for entry in requirements if not _is_met(Requirement(entry), host)]


def _is_met(requirement: Requirement, host: HostPython) -> bool:
    version = host.installed.get(normalised(requirement.name))
    if normalised(requirement.name) in ("torch", "triton"):
        return version is not None
    return version is not None and requirement.specifier.contains(version, prereleases=True)


def requirement_name(requirement: str) -> str:
    """Return the normalised name at the start of a requirement (``Foo>=1; marker`` gives foo)."""
    match = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)", requirement)
    if match is None:
        raise ValueError(f"{requirement!r} is no requirement: it must start with a package name")
    return normalised(match.group(1))


def constraints(lock: str, host: HostPython | None) -> str:
    """Return the constraints that hold in every session.

    Without a host they are the lock. With one, its torch and Triton are pinned to what is there,
    and the lock speaks only of packages that the host lacks: the others stay as they are.
    """
    if host is None:
        return lock
    kept = [
        line
        for line in lock.splitlines()
        if line.strip()
        and not line.startswith("#")
        and requirement_name(line) not in host.installed
        and requirement_name(line) not in ("torch", "triton")
    ]
    pins = [f"torch=={host.torch}"] + ([f"triton=={host.triton}"] if host.triton else [])
    return "\n".join([*pins, *kept]) + "\n"
