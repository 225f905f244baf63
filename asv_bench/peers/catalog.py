"""The engines that are measured beside kvtrail's, and where they are."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from asv_bench.errors import Refused

KVTRAIL = "kvtrail"


@dataclass(frozen=True, slots=True)
class PeerKind:
    """An engine: what its interpreter must be able to import, and its class in `peers.lives`."""

    package: str
    driver: str


KINDS = {
    KVTRAIL: PeerKind("torch", "drivers.Kvtrail"),
    "transformers-dynamic": PeerKind("transformers", "drivers.Transformers"),
    "transformers-static": PeerKind("transformers", "drivers.Transformers"),
    "torch": PeerKind("torch", "drive_torch.PlainTorch"),
    "vllm": PeerKind("vllm", "drivers.Vllm"),
    "sglang": PeerKind("sglang", "drivers.Sglang"),
    "nano-vllm": PeerKind("nanovllm", "drivers.NanoVllm"),
    "mini-sglang": PeerKind("minisgl", "drivers.MiniSglang"),
}
"""In the order of tables."""


def find_peers(wanted: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The interpreters of the engines that can run, by name, and a sentence for each other.

    `wanted` are names, or NAME=INTERPRETER for one that another Python has; empty: every engine
    that this interpreter can import. kvtrail's is always among them. Refused if there is no such
    engine or interpreter.
    """
    named = {KVTRAIL: sys.executable}
    for word in wanted:
        name, _, path = word.partition("=")
        named[name] = path or sys.executable
    for name, path in named.items():
        if name not in KINDS:
            raise Refused(f"there is no peer {name!r}; there are {', '.join(KINDS)}.")
        if not Path(path).expanduser().is_file():
            raise Refused(f"{path}, which is to run {name}, is no file; name a Python interpreter.")
    interpreters, absent = {}, []
    for name, kind in KINDS.items():
        if wanted and name not in named:
            continue
        # Not resolved: an environment is known by where its interpreter's link lies.
        path = str(Path(named.get(name, sys.executable)).expanduser().absolute())
        if _can_import(path, kind.package):
            interpreters[name] = path
        else:
            absent.append(f"{name}: absent, its Python has no package {kind.package}")
    return interpreters, absent


def _can_import(interpreter: str, package: str) -> bool:
    """Whether the package is there; it is not imported, which takes many seconds."""
    question = f"import sys, importlib.util as u; sys.exit(u.find_spec({package!r}) is None)"
    # Outside of any folder whose packages could be taken for it.
    asked = subprocess.run([interpreter, "-P", "-c", question], capture_output=True, cwd="/")
    return asked.returncode == 0
