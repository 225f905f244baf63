"""Any `kvtrail.toml` is read, or refused in a sentence, and measuring it leaves nothing behind."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis.strategies as st
import pytest
from declared_repository import DeclaredRepository, alive, own_seconds
from hypothesis import HealthCheck, given, settings
from msgspec import inspect

from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.subjects.choose import declared_by
from asv_bench.subjects.subject_file import SubjectFile, SubjectText

NAME = '[subject]\nname = "toy"\n'
HEAD = f'{NAME}measure = "true"\n'
DEEP = 100_000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f'{NAME}mesure = "x"', "unknown field `mesure`, in subject"),
        (NAME, "give either measure in"),
        (f"{HEAD}timeout_s = 1e300", r"`float` <= 31536000\.0, in subject\.timeout_s"),
        (f"{HEAD}setup_timeout_s = inf", "<= 31536000"),
        (f"{HEAD}timeout_s = nan", "> 0"),
        (f"{HEAD}timeout_s = -1", "> 0"),
        (f"{HEAD}timeout_s = {'9' * 400}", "out of range, in subject.timeout_s"),
        (f"{HEAD}timeout_s = {'9' * 5000}", "4300 digits"),
        (f"{HEAD}cores = {'9' * 30}", "`int` <= 1000000"),
        *((f'[subject]\nname = {name}\nmeasure = "x"', "text of letters, digits, .* dots alone")
          for name in ('".."', '"."', '""', '"a/b"', '"a\\n"', '"../a"')),
        (f'[subject]\nname = "{"a" * 300}"\nmeasure = "x"', "of length <= 60, in subject.name"),
        (f'{HEAD}env = {{ "A=B" = "x" }}', "variable's name: .*, in a key of subject.env"),
        (f'{HEAD}env = {{ "" = "x" }}', "variable's name"),
        (f'{HEAD}env = {{ "A\\u0000" = "x" }}', "variable's name"),
        (f'{HEAD}env = {{ A = "\\u0000" }}', r"without NUL characters, in subject\.env\.NAME"),
        (f'{HEAD}setup = "\\u0000"', "without NUL characters, in subject.setup"),
        (f'{HEAD}repository = "\\u0000"', "without NUL characters"),
        (f'{NAME}measure = "\\u0000"', "without NUL characters"),
        (f'{NAME}measure = " \\t"', "give either measure"),
        (f'{HEAD}pinned = ["."]', r"pinned names '\.', which is every file"),
        (f'{HEAD}pinned = ["a", "./"]', "which is every file"),
        (f'{HEAD}pinned = [""]', "which is every file"),
        (f'{HEAD}pinned = ["../a"]', "within the repository"),
        (f'{HEAD}pinned = ["a/../b"]', "within the repository"),
        (f'{HEAD}pinned = ["/etc"]', "within the repository"),
        (f'{HEAD}pinned = ["a/.git/hooks"]', "within the repository"),
        (f'{HEAD}pinned = ["\\u0000"]', "without NUL characters"),
        (f'{HEAD}preload = ["json"]', "preload needs measure to start one script or module"),
        (f'{NAME}measure = "python a.py"\npreload = ["a b"]', "that names a module"),
        (f"{HEAD}turns = true", "turns needs measure, and metrics"),
        (f'{HEAD}[metrics."a\\nb"]\npath = "x"', "in one line, .* in a key of metrics"),
        (f'{HEAD}[metrics.a]\nregex = "("', "is no regular expression: .*, in metrics.NAME"),
        (f'{HEAD}[metrics.a]\nregex = "(a{{99999999999}})"', "is no regular expression"),
        (f'{HEAD}[metrics.a]\nregex = "{"(" * 5000}{")" * 5000}"', "is no regular expression"),
        (f'{HEAD}[metrics.a]\npath = "x"\nunit = "\\u001b[2J"', "without control characters"),
        (f'{HEAD}[axis]\nkind = "labels"\nlabels = ["a", "\\u0000"]', "in one line"),
        (
            f'{NAME}[server]\nstart = "x"\nready = {{ regex = "(" }}\n[client]\nrun = "x"',
            "is no regular expression",
        ),
        (
            f'{NAME}[server]\nstart = "x"\nready = "http://x"\n'
            '[client]\nrun = "x"\nwindows = 10000000',
            "`int` <= 1000000",
        ),
        (f"{HEAD}cores = {'[' * DEEP}", "nested too deeply"),
        (f"{HEAD}cores = {'{a=' * DEEP}", "nested too deeply"),
    ],
    ids=lambda _: "",
)  # fmt: skip
def test_a_value_that_cannot_be_is_a_sentence(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "kvtrail.toml"
    path.write_text(text)
    with pytest.raises(Refused, match=words) as caught:
        SubjectFile.read(path)
    said = str(caught.value)
    assert said.startswith(f"{path}: ")
    assert said.endswith(".")
    assert "regex '" not in said


def test_a_mark_of_the_encoding_is_no_part_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "kvtrail.toml"
    path.write_bytes(b"\xef\xbb\xbf" + HEAD.encode())
    assert SubjectFile.read(path).text == HEAD
    path.write_text(HEAD, encoding="utf-16")
    with pytest.raises(Refused, match="it is not UTF-8"):
        SubjectFile.read(path)


ORPHAN = f"sleep {own_seconds()}"
COMMANDS = ("true", "exit 3", "exit 125", f"{ORPHAN} & true", f"setsid {ORPHAN} & true", "", "\0")
PLACES = (
    *(".", "sub", "./sub/", "bench.py", "gone", "", "..", "/", "link", "link/x", "\0"),
    "x" * 300,
)
TEXTS = {
    **dict.fromkeys(("measure", "setup", "start", "run"), COMMANDS),
    **dict.fromkeys(("repository", "pinned"), PLACES),
    "name": ("toy", "ü", "..", "a/b", ""),
    "regex": ("(.*)", "(", "x", "(a{99999999999})", "((a))"),
    "path": ("a", "a.0", "."),
    "ready": ("http://127.0.0.1:$KVTRAIL_PORT/", "x"),
    "preload": ("json", "json:loads", "no.such", "a b", ""),
    "preset": ("vllm-bench", "x"),
    "labels": ("a", "b", "HEAD"),
}
ODD = st.sampled_from([None, True, -1, 0, 1.5, 10**30, 1e300, float("nan"), "", "\0", [], {}, [[]]])


def values(kind: inspect.Type, name: str = "") -> st.SearchStrategy[Any]:
    """Values for a type of the tables, most of which it takes."""
    match kind:
        case inspect.StructType(fields=fields):
            needed = {one.encode_name: field(one) for one in fields if one.required}
            others = {one.encode_name: field(one) for one in fields if not one.required}
            return st.fixed_dictionaries(needed, optional=others)
        case inspect.DictType(value_type=inner):
            keys = st.sampled_from(["a", "b", "A=B", "", "\0"]) | st.text(max_size=4)
            return st.dictionaries(keys, values(inner, name), max_size=2)
        case inspect.VarTupleType(item_type=inner):
            return st.lists(values(inner, name), max_size=3)
        case inspect.UnionType(types=types):
            return st.one_of(values(one, name) for one in types)
        case inspect.LiteralType(values=known):
            return st.sampled_from(known)
        case inspect.StrType():
            known = TEXTS.get(name)
            return st.sampled_from(known) if known else st.text(max_size=5)
        case inspect.BoolType():
            return st.booleans()
        case inspect.IntType():
            return st.integers(0, 2)
        case inspect.FloatType():
            return st.floats(0.5, 60)
        case inspect.NoneType():
            return st.none()
    raise AssertionError(f"the tables have a type that is not drawn: {kind}")


def field(one: inspect.Field) -> st.SearchStrategy[Any]:
    """A value of a key, an odd one now and then."""
    usual = values(one.type, one.encode_name)
    return st.integers(0, 19).flatmap(lambda number: usual if number else ODD)


FILES = values(inspect.type_info(SubjectText))


def toml(value: Any) -> str:
    """A value as TOML has it in one line; None, which it does not have, as a mistake."""
    match value:
        case dict():
            return "{" + ", ".join(f"{toml(key)} = {toml(one)}" for key, one in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(toml, value)) + "]"
        case str() | bool():
            return json.dumps(value, ensure_ascii=False)
    return repr(value)


class Place(NamedTuple):
    """A repository with its surroundings."""

    made: DeclaredRepository
    around: Path

    def state(self) -> list[tuple[Path, int]]:
        """All that measuring must leave as it is, the repository's own files too."""
        paths = (path for path in sorted(self.around.rglob("*")) if "cache" not in path.parts)
        return [(path, path.is_dir() or path.lstat().st_mtime_ns) for path in paths]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """With a folder, a file, and a link that leads out of it."""
    made = DeclaredRepository.make(tmp_path / "toy", HEAD, "pass")
    for folder in (made.root / "sub", tmp_path / "outside", tmp_path / "scratch"):
        folder.mkdir()
        (folder / "x").write_text("x")
    (made.root / "link").symlink_to(tmp_path / "outside")
    made.toy.git("add", "--all")
    made.commit("pass", "more")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("asv_bench.measure.trees.CACHE", tmp_path / "cache")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    return Place(made, tmp_path)


def outcome(place: Place, content: dict[str, Any]) -> str:
    """What a file comes to: a life that went well, or the sentence why not."""
    path = place.made.root / "kvtrail.toml"
    path.write_text("".join(f"{toml(key)} = {toml(one)}\n" for key, one in content.items()))
    before = place.state()
    try:
        subject = declared_by(path)
        commit = subject.resolve((*subject.labels, "HEAD")[0]).hash
        with subject.pairs() as source:
            source.prepare(commit)
        said = "it lived."
    except (Refused, MeasurementFailed) as error:
        said = str(error)
    assert place.state() == before
    assert not alive(ORPHAN.removeprefix("sleep "))
    return said


def check(place: Place, content: dict[str, Any]) -> None:
    said = outcome(place, content)
    assert re.search(r"\w+ \w+", said)
    assert "Traceback" not in said


AT_RANDOM = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@settings(AT_RANDOM, max_examples=10)
@given(content=FILES)
def test_a_random_file_is_measured_or_refused_in_a_sentence(place: Place, content) -> None:
    check(place, content)


@pytest.mark.thorough
@settings(AT_RANDOM, max_examples=1000)
@given(content=FILES)
def test_a_thousand_random_files_are_measured_or_refused(place: Place, content) -> None:
    check(place, content)


def test_random_files_are_not_all_refused(place: Place) -> None:
    assert outcome(place, {"subject": {"name": "toy", "measure": COMMANDS[4]}}) == "it lived."


def test_variables_are_filled_by_whole_names(place: Place) -> None:
    given = {
        "A": "$KVTRAIL_OUTPUT",
        "B": "${KVTRAIL_OUT}PUT$KVTRAIL_OUT",
        "C": "$KVTRAIL_SUBJECTS:$KVTRAIL_SUBJECT",
        "D": "$PATH $$ ${ $",
        "KVTRAIL_SUBJECT": "another",
    }
    wanted = {
        "A": "'$KVTRAIL_OUTPUT'",
        "B": '"${KVTRAIL_OUT}PUT$KVTRAIL_OUT"',
        "C": f"'$KVTRAIL_SUBJECTS:{place.made.root}'",
        "D": "'$PATH $$ ${ $'",
        "KVTRAIL_SUBJECT": str(place.made.root),
    }
    measure = " && ".join(f'test "${name}" = {value}' for name, value in wanted.items())
    table = {"name": "toy", "measure": measure, "env": given}
    assert outcome(place, {"subject": table}) == "it lived."
