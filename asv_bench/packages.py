"""Packages that a command needs and that may be missing, by the names they are installed under."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import util

from asv_bench.errors import Refused

OWN = ("asv_bench", "engine", "kernels", "benchmarks")
_DISTRIBUTIONS = {
    "asv_runner": "asv",
    "huggingface_hub": "huggingface-hub",
    "pynvml": "nvidia-ml-py",
}
"""Modules whose package is called otherwise."""


def require_packages(*modules: str) -> None:
    """See before measuring that modules can be imported later; Refused names what is missing."""
    for module in modules:
        with suppress(ImportError, ValueError):
            if util.find_spec(module) is not None:
                continue
        raise Refused(_missing_package(module))


def missing_sentence(error: BaseException) -> str | None:
    """The sentence for an import that failed since a package is missing; None for other errors."""
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    return None if name is None or name.partition(".")[0] in OWN else _missing_package(name)


def _missing_package(module: str) -> str:
    name = module.partition(".")[0]
    package = _DISTRIBUTIONS.get(name, name)
    return (
        f"the package {package} is missing here; install it with `{sys.executable} -m pip install "
        f"{package}`. In a clone of kvtrail, nox installs all that the command needs."
    )
