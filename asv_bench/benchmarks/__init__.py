"""asv's benchmarks of the engine.

asv imports this folder as a package of its own, called `benchmarks`, in an environment that holds
one commit's `engine` and `kernels`. The ruler, `asv_bench`, must be today's, and the directory it
lies in must not be searched for anything else: there lies the working tree's engine too. So the
package is registered by itself instead of being found on the search path.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path


def _register_the_ruler() -> None:
    folder = Path(__file__).resolve().parents[1]
    spec = importlib.util.spec_from_file_location(
        "asv_bench", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{folder} does not hold the package asv_bench.")
    ruler = importlib.util.module_from_spec(spec)
    sys.modules["asv_bench"] = ruler
    spec.loader.exec_module(ruler)


if __name__ == "benchmarks":
    _register_the_ruler()
