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
_EXTRAS = {
    **dict.fromkeys(("huggingface-hub", "nvtx", "safetensors"), "engine"),
    **dict.fromkeys(("tokenizers", "torch", "triton"), "engine"),
    **dict.fromkeys(("asv", "jinja2"), "history"),
    "matplotlib": "studies",
    "ray": "fleet",
    "transformers": "transformers",
}
"""Packages that only an extra of kvtrail brings."""


def require_packages(*modules: str) -> None:
    """See before measuring that modules can be imported which are needed only later.

    Raises Refused if one is missing; the sentence names its package.
    """
    for module in modules:
        with suppress(ImportError, ValueError):
            if util.find_spec(module) is not None:
                continue
        raise Refused(missing_package(module))


def missing_package(module: str) -> str:
    """The sentence for a module that cannot be imported: its package, and how it gets here."""
    name = module.partition(".")[0]
    package = _DISTRIBUTIONS.get(name, name)
    extra = _EXTRAS.get(package)
    clone = "nox" if extra is None else f"`pip install '.[{extra}]'`, or nox,"
    return (
        f"the package {package} is missing here; install it with `{sys.executable} -m pip install "
        f"{package}`. In a clone of kvtrail, {clone} installs all that the command needs."
    )


def missing_sentence(error: BaseException) -> str | None:
    """The sentence for an import that failed since a package is missing; None for other errors."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return None
    return None if error.name.partition(".")[0] in OWN else missing_package(error.name)
