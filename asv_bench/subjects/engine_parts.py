"""Parts of the engine that benchmarks need beyond its public face, from wherever a commit has them.

The ruler of today measures the engines of all commits, and files move between commits. A part is
looked for in each place where it has ever been, the newest first.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PLACES: dict[str, tuple[str, ...]] = {
    "KVBlockManager": ("engine", "engine.kv_blocks"),
    "Delivery": ("engine.requests.delivery", "engine.delivery"),
}


def engine_part(name: str) -> Any:
    """Return a part of the engine that this process imports.

    Raises
    ------
    ImportError
        If this commit has it in none of the known places.
    """
    for place in _PLACES[name]:
        try:
            module = import_module(place)
        except ModuleNotFoundError as error:
            # One that is there and lacks a package of its own is not passed over.
            if error.name is None or not f"{place}.".startswith(f"{error.name}."):
                raise
            continue
        if hasattr(module, name):
            return getattr(module, name)
    raise ImportError(f"this commit's engine has no {name} in {' or '.join(_PLACES[name])}")
