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
    """An engine.

    Attributes
    ----------
    name
        In tables and on the command line.
    package
        What its interpreter must be able to import.
    driver
        Its module in `peers.lives`.
    """

    name: str
    package: str
    driver: str


KINDS = (
    PeerKind(KVTRAIL, "torch", "drive_kvtrail"),
    PeerKind("transformers-dynamic", "transformers", "drive_transformers"),
    PeerKind("transformers-static", "transformers", "drive_transformers"),
    PeerKind("torch", "torch", "drive_torch"),
    PeerKind("vllm", "vllm", "drive_vllm"),
    PeerKind("sglang", "sglang", "drive_sglang"),
    PeerKind("nano-vllm", "nanovllm", "drive_nano_vllm"),
    PeerKind("mini-sglang", "minisgl", "drive_mini_sglang"),
)
"""In the order of tables."""


@dataclass(frozen=True, slots=True)
class FoundPeers:
    """The interpreters of the engines that can run, by name, and a sentence for each other."""

    interpreters: dict[str, str]
    absent: list[str]


def find_peers(wanted: Sequence[str]) -> FoundPeers:
    """Where the engines are that are to be measured; kvtrail's is always among them.

    Parameters
    ----------
    wanted
        Names, or NAME=INTERPRETER for one that another Python has. Empty: every engine that this
        interpreter can import.

    Raises
    ------
    Refused
        If there is no such engine, or no such interpreter.
    """
    named = {KVTRAIL: sys.executable}
    for word in wanted:
        name, _, path = word.partition("=")
        named[name] = path or sys.executable
    known = {kind.name: kind for kind in KINDS}
    for name, path in named.items():
        if name not in known:
            raise Refused(f"there is no peer {name!r}; there are {', '.join(known)}.")
        if not Path(path).expanduser().is_file():
            raise Refused(f"{path}, which is to run {name}, is no file; name a Python interpreter.")
    asked = named if wanted else dict.fromkeys(known, sys.executable)
    found = FoundPeers({}, [])
    for kind in KINDS:
        if kind.name not in asked:
            continue
        # Not resolved: an environment is known by where its interpreter's link lies.
        interpreter = str(Path(asked[kind.name]).expanduser().absolute())
        if _can_import(interpreter, kind.package):
            found.interpreters[kind.name] = interpreter
        else:
            found.absent.append(f"{kind.name}: absent, its Python has no package {kind.package}")
    return found


def _can_import(interpreter: str, package: str) -> bool:
    """Whether the package is there; it is not imported, which takes many seconds."""
    question = (
        f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    )
    # Outside of any folder whose packages could be taken for it.
    asked = subprocess.run([interpreter, "-P", "-c", question], capture_output=True, cwd="/")
    return asked.returncode == 0
