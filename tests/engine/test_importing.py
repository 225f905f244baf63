"""The engine beside other packages: without transformers, and with a namesake of `kernels`."""

from __future__ import annotations

from tests.fresh_python import ROOT, forked_python

WITHOUT_TRANSFORMERS = """
import sys
sys.modules["transformers"] = None  # any import of it fails from here on
from engine import Engine, EngineConfig
(completion,) = Engine(EngineConfig(device="cpu")).generate([[1, 2, 3]])
assert len(completion.token_ids) == 16
"""


def test_the_engine_runs_where_transformers_cannot_be_imported():
    done = forked_python(WITHOUT_TRANSFORMERS)
    assert done.returncode == 0, done.stderr


def test_a_namesake_that_comes_first_is_named_in_a_sentence(tmp_path):
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "__init__.py").write_text("__version__ = '0.17.0'\n")
    done = forked_python("import engine", search=(tmp_path, ROOT))
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: engine needs kvtrail's own package 'kernels'")
    assert last.endswith("environment of its own.")
