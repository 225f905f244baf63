"""Any drawn `kvtrail.toml` is measured or refused in a sentence, and leaves nothing behind."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from declared_repository import DeclaredRepository, alive, own_seconds
from hypothesis import HealthCheck, given, settings
from msgspec import inspect

from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.subjects.choose import declared_by
from asv_bench.subjects.subject_file import SubjectText

ORPHAN = f"sleep {own_seconds()}"
LEAVING = f"setsid {ORPHAN} & true"
COMMANDS = ("python bench.py", "true", "exit 3", "exit 125", LEAVING)
USUAL = {
    **dict.fromkeys(("measure", "setup", "start", "run"), COMMANDS),
    "repository": (".", "sub", "gone"),
    "pinned": ("sub", "./sub/", "bench.py", "gone", "link", "link/x"),
    "name": ("toy", "toy-2"),
    "regex": ("(.*)", "x", "((a))"),
    "path": ("a", "a.0"),
    "ready": ("http://127.0.0.1:$KVTRAIL_PORT/",),
    "preload": ("json", "json:loads", "no.such"),
    "preset": ("vllm-bench",),
    "labels": ("a", "b", "HEAD"),
}
"""Texts by key, which may well be those of a file."""
RARE = ("", "\0", "..", "/", "a/b", "a b", "ü", "(", "(a{99999999999})", "x" * 300)
ODD = st.sampled_from([None, True, -1, 0, 1.5, 10**30, 1e300, float("nan"), "", "\0", [], {}, [[]]])


SIMPLE = {
    inspect.BoolType: st.booleans(),
    inspect.IntType: st.integers(0, 2),
    inspect.FloatType: st.floats(0.5, 60),
    inspect.NoneType: st.none(),
}


def values(kind: inspect.Type, name: str = "") -> st.SearchStrategy[Any]:
    """Values for a type of the tables, most of which it takes."""
    match kind:
        case inspect.StructType(fields=fields):
            drawn = {
                one.encode_name: seldom(values(one.type, one.encode_name), ODD) for one in fields
            }
            needed = {one.encode_name: drawn.pop(one.encode_name) for one in fields if one.required}
            return st.fixed_dictionaries(needed, optional=drawn)
        case inspect.DictType(value_type=inner):
            keys = seldom(st.sampled_from(["a", "b"]), st.text(max_size=4))
            return st.dictionaries(keys, values(inner, name), max_size=2)
        case inspect.VarTupleType(item_type=inner):
            return st.lists(values(inner, name), max_size=3)
        case inspect.UnionType(types=types):
            return st.one_of(values(one, name) for one in types)
        case inspect.LiteralType(values=known):
            return st.sampled_from(known)
        case inspect.StrType():
            usual = st.sampled_from(USUAL[name]) if name in USUAL else st.text(max_size=5)
            return seldom(usual, st.sampled_from(RARE))
    return SIMPLE[type(kind)]


def seldom(usual: st.SearchStrategy[Any], odd: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """An odd value once in fifty times: a file of many odd values shows the first of them only."""
    return st.integers(0, 49).flatmap(lambda number: usual if number else odd)


def whole(content: dict[str, Any]) -> dict[str, Any]:
    """The same with what a file needs beside what its types ask for: one command, or a server."""
    subject = content["subject"]
    if not isinstance(subject, dict):
        return content
    is_served = None not in (content.get("server"), content.get("client"))
    gone = ("measure", "preload", "turns") if is_served else ("server", "client")
    subject = {"name": "toy", "measure": COMMANDS[0], **subject, "devices": 0}
    content = {**content, "subject": {key: one for key, one in subject.items() if key not in gone}}
    return {key: one for key, one in content.items() if key not in gone}


DRAWN = values(inspect.type_info(SubjectText))
FILES = DRAWN | DRAWN.map(whole)


def toml(value: Any) -> str:
    """A value as TOML has it in one line; None, which it does not have, is left out."""
    match value:
        case dict():
            kept = {key: one for key, one in value.items() if one is not None}
            return "{" + ", ".join(f"{toml(key)} = {toml(one)}" for key, one in kept.items()) + "}"
        case list():
            return "[" + ", ".join(map(toml, value)) + "]"
        case str() | bool():
            return json.dumps(value, ensure_ascii=False)
    return repr(value)


def state(around: Path) -> list[tuple[Path, int]]:
    """All that measuring must leave as it is, the repository's own files too."""
    paths = (path for path in sorted(around.rglob("*")) if "cache" not in path.parts)
    return [(path, path.is_dir() or path.lstat().st_mtime_ns) for path in paths]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a repository lies, with a folder, a file, and a link that leads out of it."""
    made = DeclaredRepository.make(tmp_path / "toy", "", "pass")
    for folder in (made.root / "sub", tmp_path / "outside", tmp_path / "scratch"):
        folder.mkdir()
        (folder / "x").write_text("x")
    (made.root / "link").symlink_to(tmp_path / "outside")
    made.git("add", "--all")
    made.commit("pass", "more")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("asv_bench.measure.trees.CACHE", tmp_path / "cache")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    return tmp_path


def outcome(place: Path, content: dict[str, Any]) -> str:
    """What a file comes to: a life that went well, or the sentence why not."""
    path = place / "toy" / "kvtrail.toml"
    tables = {key: one for key, one in content.items() if one is not None}
    path.write_text("".join(f"{toml(key)} = {toml(one)}\n" for key, one in tables.items()))
    before = state(place)
    try:
        subject = declared_by(path)
        with subject.pairs() as source:
            source.prepare(subject.resolve((*subject.labels, "HEAD")[0]).hash)
        said = "it lived."
    except (Refused, MeasurementFailed) as error:
        said = str(error)
    assert state(place) == before
    assert not alive(ORPHAN.removeprefix("sleep "))
    assert re.search(r"\w+ \w+", said)
    assert "Traceback" not in said
    return said


AT_RANDOM = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@settings(AT_RANDOM, max_examples=10)
@given(content=FILES)
def test_a_random_file_is_measured_or_refused_in_a_sentence(place: Path, content) -> None:
    outcome(place, content)


@pytest.mark.thorough
@pytest.mark.timeout(3600)
@settings(AT_RANDOM, max_examples=1000)
@given(content=FILES)
def test_a_thousand_random_files_are_measured_or_refused(place: Path, content) -> None:
    outcome(place, content)


def test_random_files_are_not_all_refused(place: Path) -> None:
    assert outcome(place, {"subject": {"name": "toy", "measure": LEAVING}}) == "it lived."
