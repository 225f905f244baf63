"""What the ruler refuses, and what it could not finish or import: sentences for the user."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import util

OWN = ("asv_bench", "engine", "kernels", "benchmarks")
_DISTRIBUTIONS = {
    "asv_runner": "asv",
    "huggingface_hub": "huggingface-hub",
    "pynvml": "nvidia-ml-py",
}
"""Modules whose package is called otherwise."""
_LARGE = " Without a GPU take torch's CPU build first: it saves several GB of CUDA."


class BenchError(Exception):
    """Base of the ruler's own errors."""


class Refused(BenchError, ValueError):
    """What was asked for cannot be honoured; nothing was measured and nothing changed."""


class NothingSelected(Refused):
    """No benchmark of today is what was asked for, or none that this machine measures."""


class MeasurementFailed(BenchError, RuntimeError):
    """A measurement began and did not give figures that mean what they say."""


class Interrupted(BenchError):
    """Ctrl-C ended a command; the sentence says what is kept."""


class TimeIsUp(KeyboardInterrupt):
    """The minutes are over that a command may take; what it knows by then is its answer."""


class NothingMeasured(MeasurementFailed):
    """There is nothing here to measure, or nothing stored to look at."""


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
        f"{_LARGE if name == 'torch' else ''}"
    )
