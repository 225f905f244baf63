"""Parts of the engine are found wherever a commit has them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from asv_bench.subjects.engine_parts import engine_part

FILES = {
    "today": {"engine/__init__.py": "class KVBlockManager: pass\n"},
    "long ago": {
        "engine/__init__.py": "",
        "engine/kv_blocks.py": "class KVBlockManager: pass\n",
    },
    "never": {"engine/__init__.py": ""},
    "broken": {"engine/__init__.py": "", "engine/kv_blocks.py": "import no_such_package\n"},
}


@pytest.fixture
def engine_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Put an engine of another commit where this process imports it from."""

    def put(kind: str) -> None:
        for path, text in FILES[kind].items():
            (tmp_path / path).parent.mkdir(exist_ok=True)
            (tmp_path / path).write_text(text, encoding="utf-8")
        for name in [name for name in sys.modules if name.partition(".")[0] == "engine"]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.syspath_prepend(tmp_path)

    yield put
    for name in [name for name in sys.modules if name.partition(".")[0] == "engine"]:
        del sys.modules[name]


@pytest.mark.parametrize("kind", ["today", "long ago"])
def test_a_part_is_found_where_the_commit_has_it(engine_of, kind: str) -> None:
    engine_of(kind)
    assert engine_part("KVBlockManager").__name__ == "KVBlockManager"


def test_a_part_that_the_commit_lacks_is_named(engine_of) -> None:
    engine_of("never")
    with pytest.raises(ImportError, match=r"no KVBlockManager in engine or engine\.kv_blocks"):
        engine_part("KVBlockManager")


def test_a_part_that_cannot_be_imported_is_not_taken_for_a_missing_one(engine_of) -> None:
    engine_of("broken")
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        engine_part("KVBlockManager")
