"""What machine a figure was measured on.

Every figure is stored beside these facts. Versions are read from package metadata, so
asking for them does not import torch.
"""

from __future__ import annotations

import os
import platform
import re
import runpy
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import metadata, util
from pathlib import Path
from typing import Any

from asv_bench.errors import Refused
from asv_bench.process.gpu import GpuState, gpu_facts, visible_gpus

MACHINE_VARIABLE = "KVTRAIL_MACHINE"
OWN_PREFIX = "own-"


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """Hardware and versions that a figure depends on; memory in GiB, clocks in MHz, power in W."""

    name: str
    cpu: str
    cores: int
    memory_gib: float | None
    os: str
    kernel: str
    python: str
    torch: str | None
    triton: str | None
    numpy: str | None
    cuda: str | None
    gpu: str | None = None
    gpu_count: int = 0
    gpu_memory_gib: float | None = None
    driver: str | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_max_mhz: int | None = None
    power_limit_w: float | None = None
    state: GpuState | None = None

    @property
    def is_reference(self) -> bool:
        """Whether git keeps what is measured here."""
        return self.name in REFERENCE_MACHINES

    def to_json(self) -> dict[str, Any]:
        """The facts as JSON-ready values."""
        return {
            **asdict(self),
            "reference": self.is_reference,
            "state": None if self.state is None else self.state.to_json(),
        }


@dataclass(frozen=True, slots=True)
class ReferenceMachine:
    """A machine whose results git keeps.

    `automatic` machines are recognised by their hardware alone. The others are common enough
    to be somebody's own, so they are recognised only where `KVTRAIL_MACHINE` names them too.
    """

    description: str
    gpu: str | None  # the only one, with a CUDA build of torch
    cores: int
    automatic: bool

    def matches(self, facts: MachineFacts) -> bool:
        """Whether a machine is this one."""
        is_usable = self.gpu is None or (facts.gpu_count == 1 and facts.cuda is not None)
        return (facts.gpu, facts.cores) == (self.gpu, self.cores) and is_usable


REFERENCE_MACHINES = {
    "h200": ReferenceMachine(
        "one NVIDIA H200, 16 cores, a CUDA build of torch", "NVIDIA H200", 16, automatic=True
    ),
    "cpu-2core": ReferenceMachine("2 cores, no GPU", None, 2, automatic=False),
}


def machine_facts() -> MachineFacts:
    """The facts of this machine, under the name that `machine_name` or `KVTRAIL_MACHINE` gives it.

    Raises Refused if `KVTRAIL_MACHINE` names a reference machine that this one is not.
    """
    versions = _torch_versions()
    unnamed = MachineFacts(
        name="",
        cpu=_cpu_model(),
        cores=os.cpu_count() or 1,
        memory_gib=round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        os=_os_name(),
        kernel=platform.release(),
        python=platform.python_version(),
        torch=versions.get("__version__") or _version("torch"),
        triton=_version("triton"),
        numpy=_version("numpy"),
        cuda=versions.get("cuda"),
        **gpu_facts(),
    )
    return replace(unnamed, name=machine_name(unnamed, os.environ.get(MACHINE_VARIABLE)))


def machine_name(facts: MachineFacts, wanted: str | None = None) -> str:
    """A reference machine's where its rule holds, else `own-` and a slug, which git ignores.

    The slug is of the hardware, or of what the user has `wanted`.
    """
    reference = REFERENCE_MACHINES.get(wanted or "")
    if wanted and reference is not None and not reference.matches(facts):
        raise Refused(
            f"{MACHINE_VARIABLE}={wanted} names a reference machine ({reference.description}), "
            f"which this one is not ({facts.gpu or 'no GPU'}, {facts.cores} cores); "
            f"unset it or choose a name of your own."
        )
    if wanted:
        is_whole = reference is not None or wanted.startswith(OWN_PREFIX)
        return wanted if is_whole else OWN_PREFIX + _slug(wanted)
    for name, reference in REFERENCE_MACHINES.items():
        if reference.automatic and reference.matches(facts):
            return name
    return OWN_PREFIX + _slug(f"{facts.gpu or facts.cpu}-{facts.cores}-cores")


def has_cuda_gpu() -> bool:
    """Whether this machine has a GPU and the torch installed here can use it."""
    return _torch_versions().get("cuda") is not None and bool(visible_gpus())


def chosen_device(device: str) -> str:
    """`device` with "auto" decided: the GPU where torch can use one, else the CPU."""
    return device if device != "auto" else "cuda" if has_cuda_gpu() else "cpu"


@cache
def _torch_versions() -> dict[str, Any]:
    """torch's own version file, run without importing torch."""
    spec = util.find_spec("torch")
    if spec is None or spec.origin is None:
        return {}
    version_file = Path(spec.origin).with_name("version.py")
    return runpy.run_path(str(version_file)) if version_file.is_file() else {}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    return found[1].strip() if found else platform.processor() or platform.machine()


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return f"{platform.system()} {platform.release()}"


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
