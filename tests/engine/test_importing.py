"""The engine beside other packages: without transformers, and with a namesake of `kernels`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

WITHOUT_TRANSFORMERS = """
import sys
sys.modules["transformers"] = None  # any import of it fails from here on
from engine import Engine, EngineConfig
(completion,) = Engine(EngineConfig(device="cpu")).generate([[1, 2, 3]])
assert len(completion.token_ids) == 16
"""


def _python(code: str, *paths: Path) -> subprocess.CompletedProcess[str]:
    lines = "import sys\n" + "".join(
        f"sys.path.insert(0, {str(path)!r})\n" for path in reversed(paths)
    )
    return subprocess.run(
        [sys.executable, "-c", lines + code], capture_output=True, text=True, check=False
    )


def test_the_engine_runs_where_transformers_cannot_be_imported():
    done = _python(WITHOUT_TRANSFORMERS, ROOT)
    assert done.returncode == 0, done.stderr


def test_a_namesake_that_comes_first_is_named_in_a_sentence(tmp_path):
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "__init__.py").write_text("__version__ = '0.17.0'\n")
    done = _python("import engine", tmp_path, ROOT)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: engine needs kvtrail's own package 'kernels'")
    assert last.endswith("environment of its own.")
