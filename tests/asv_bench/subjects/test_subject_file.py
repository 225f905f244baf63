"""Any `kvtrail.toml` is read, or refused in a sentence, and measuring it leaves nothing behind."""

from __future__ import annotations

import json
import random
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from declared_repository import DeclaredRepository, alive, own_seconds
from mutated_files import altered, places

from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.subjects.subject_file import SubjectFile

NAME = '[subject]\nname = "toy"\n'
HEAD = f'{NAME}measure = "true"\n'
DEEP = 100_000


SERVER = f'{NAME}[server]\nstart = "x"\n'
REFUSED = {
    "unknown field `mesure`, in subject": [f'{NAME}mesure = "x"'],
    "give either measure in": [NAME, f'{NAME}measure = " \\t"'],
    r"`float` <= 31536000\.0, in subject\.timeout_s": [f"{HEAD}timeout_s = 1e300"],
    "<= 31536000": [f"{HEAD}setup_timeout_s = inf"],
    "> 0": [f"{HEAD}timeout_s = nan", f"{HEAD}timeout_s = -1"],
    "out of range, in subject.timeout_s": [f"{HEAD}timeout_s = {'9' * 400}"],
    "4300 digits": [f"{HEAD}timeout_s = {'9' * 5000}"],
    "`int` <= 1000000": [
        f"{HEAD}cores = {'9' * 30}",
        f'{SERVER}ready = "http://x"\n[client]\nrun = "x"\nwindows = 10000000',
    ],
    "text of letters, digits, .* dots alone": [
        f'[subject]\nname = {name}\nmeasure = "x"'
        for name in ('".."', '"."', '""', '"a/b"', '"a\\n"', '"../a"')
    ],
    "of length <= 60, in subject.name": [f'[subject]\nname = "{"a" * 300}"\nmeasure = "x"'],
    "variable's name: .*, in a key of subject.env": [
        f'{HEAD}env = {{ "{name}" = "x" }}' for name in ("A=B", "", "A\\u0000")
    ],
    r"without NUL characters, in subject\.env\.NAME": [f'{HEAD}env = {{ A = "\\u0000" }}'],
    "without NUL characters, in subject.": [
        *(f'{HEAD}{key} = "\\u0000"' for key in ("setup", "repository")),
        *(f'{NAME}measure = "\\u0000"', f'{HEAD}pinned = ["\\u0000"]'),
    ],
    "pinned names .*, which is every file": [
        f"{HEAD}pinned = {paths}" for paths in (["."], ["a", "./"], [""])
    ],
    "within the repository": [
        f"{HEAD}pinned = {[path]}" for path in ("../a", "a/../b", "/etc", "a/.git/hooks")
    ],
    "preload needs measure to start one script or module": [
        f"{NAME}measure = {json.dumps(line)}\npreload = ['json']"
        for line in (
            *("true", "python", "python -c pass", "python a.py > out", "cd x && python a.py"),
            *("X=1 python a.py", "python a.py *.json", "python a.py '$X'", "python `name`"),
            "python 'a",
        )
    ],
    "that names a module": [f'{NAME}measure = "python a.py"\npreload = ["a b"]'],
    "turns needs measure, and metrics": [f"{HEAD}turns = true"],
    "in one line, .* in a key of metrics": [f'{HEAD}[metrics."a\\nb"]\npath = "x"'],
    "is no regular expression: .*, in metrics.NAME": [
        f'{HEAD}[metrics.a]\nregex = "{regex}"'
        for regex in ("(", "(a{99999999999})", f"{'(' * 5000}{')' * 5000}")
    ],
    "is no regular expression": [f'{SERVER}ready = {{ regex = "(" }}\n[client]\nrun = "x"'],
    "without control characters": [f'{HEAD}[metrics.a]\npath = "x"\nunit = "\\u001b[2J"'],
    "in one line": [f'{HEAD}[axis]\nkind = "labels"\nlabels = ["a", "\\u0000"]'],
    "nested too deeply": [f"{HEAD}cores = {'[' * DEEP}", f"{HEAD}cores = {'{a=' * DEEP}"],
}


@pytest.mark.parametrize(("words", "texts"), REFUSED.items(), ids=lambda _: "")
def test_a_value_that_cannot_be_is_a_sentence(tmp_path: Path, words: str, texts: list[str]) -> None:
    path = tmp_path / "kvtrail.toml"
    for text in texts:
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
PLACES = (".", "sub", "./sub/", "gone", "", "..", "/", "link", "link/x", "\0", "x" * 300)
TEXTS = {
    **dict.fromkeys(("measure", "setup", "start", "run"), COMMANDS),
    **dict.fromkeys(("repository", "pinned"), PLACES),
    "name": ("ü", "..", "a/b"),
    "regex": ("(.*)", "(", "x", "(a{99999999999})", "((a))"),
    "ready": ("http://127.0.0.1:$KVTRAIL_PORT/", "x"),
    "preload": ("json", "json:loads", "no.such", "a b"),
    "preset": ("vllm-bench", "x"),
}
ODD = (None, True, -1, 0, 1.5, 10**30, 1e300, float("nan"), "", "\0", [], {}, [[]], {"A=B": "x"})
SUBJECT = {"name": "toy", "repository": ".", "setup": "true", "timeout_s": 20, "cores": 0}
SUBJECT |= {"env": {"A": "$KVTRAIL_OUT"}, "pinned": ["bench.py"], "setup_timeout_s": 20}
METRICS = {"a": {"regex": "([0-9])", "unit": "ms", "better": "lower", "margin": 1}}
LABELS = {"kind": "labels", "labels": ["a", "b"]}
WHOLE = (
    {"subject": SUBJECT | {"measure": f"{ORPHAN} & echo 1"}, "metrics": METRICS, "axis": LABELS},
    {
        "subject": SUBJECT,
        "server": {"start": f"echo x; {ORPHAN}", "ready": {"regex": "x"}, "ready_timeout_s": 5},
        "client": {"run": "echo 1", "warmup": 1, "windows": 2},
        "metrics": METRICS,
        "trace": {"run": "true"},
    },
    {"subject": SUBJECT | {"measure": "python bench.py", "preload": ["json"]}, "metrics": METRICS},
)


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


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DeclaredRepository:
    """With a folder, a file, and a link that leads out of it."""
    made = DeclaredRepository.make(tmp_path / "toy", HEAD, "print(1)")
    for folder in (tmp_path / "outside", tmp_path / "scratch"):
        folder.mkdir()
        (folder / "x").write_text("x")
    (made.root / "link").symlink_to(tmp_path / "outside")
    made.git("add", "link")
    made.change("more", {"sub/x": "x"})
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("asv_bench.measure.trees.CACHE", tmp_path / "cache")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    return made


def outcome(made: DeclaredRepository, content: dict[str, Any]) -> str:
    """What a file comes to: a life that went well, or the sentence why not."""
    made.declare("".join(f"{toml(key)} = {toml(one)}\n" for key, one in content.items()))

    def state() -> list[tuple[Path, int]]:
        """All that measuring must leave as it is, the repository's own files too."""
        around = sorted(made.root.parent.rglob("*"))
        paths = (path for path in around if "cache" not in path.parts)
        return [(path, path.is_dir() or path.lstat().st_mtime_ns) for path in paths]

    before = state()
    try:
        made.prepared("a" if made.subject.labels else "HEAD")
        said = "it lived."
    except (Refused, MeasurementFailed) as error:
        said = str(error)
    assert state() == before
    assert not alive(ORPHAN.removeprefix("sleep "))
    return said


@pytest.mark.parametrize("count", [12, pytest.param(500, marks=pytest.mark.thorough)])
def test_an_altered_file_is_measured_or_refused_in_a_sentence_and_leaves_nothing(
    made: DeclaredRepository, count: int
) -> None:
    assert [outcome(made, one) for one in WHOLE] == ["it lived."] * 3
    draws = random.Random(1)
    for number in range(count):
        content = WHOLE[number % len(WHOLE)]
        place = draws.choice([*places(content)])
        known = [one for key in place[-2:] for one in TEXTS.get(key, ())]
        said = outcome(made, altered(content, place, draws.choice(known * 2 or [*ODD, altered])))
        assert re.search(r"\w+ \w+", said)
        assert "Traceback" not in said


def test_variables_are_filled_by_whole_names(made: DeclaredRepository) -> None:
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
        "C": f"'$KVTRAIL_SUBJECTS:{made.root}'",
        "D": "'$PATH $$ ${ $'",
        "KVTRAIL_SUBJECT": str(made.root),
    }
    measure = " && ".join(f'test "${name}" = {value}' for name, value in wanted.items())
    table = {"name": "toy", "measure": measure, "env": given}
    assert outcome(made, {"subject": table}) == "it lived."
