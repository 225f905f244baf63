"""Any `kvtrail.toml` is read, or refused in a sentence, and measuring it leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from asv_bench.errors import Refused
from asv_bench.subjects.subject_file import read_tables

NAME = '[subject]\nname = "toy"\n'
HEAD = f'{NAME}measure = "true"\n'
DEEP = 100_000
CHECK = f"{HEAD}[check.a]\n"
SERVER = f'{NAME}[server]\nstart = "x"\n'
REFUSED = {
    "unknown field `mesure`, in subject": [f'{NAME}mesure = "x"'],
    "There is no `name`, in subject": ['[subject]\nmeasure = "x"'],
    r"Expected a table, got a text, in check\.NAME": [f'{HEAD}[check]\nrun = "x"'],
    "give either measure in": [NAME, f'{NAME}measure = " \\t"'],
    r"a number <= 31536000\.0, in subject\.timeout_s": [f"{HEAD}timeout_s = 1e300"],
    "<= 31536000": [f"{HEAD}setup_timeout_s = inf"],
    "> 0": [f"{HEAD}timeout_s = nan", f"{HEAD}timeout_s = -1"],
    "out of range, in subject.timeout_s": [f"{HEAD}timeout_s = {'9' * 400}"],
    "4300 digits": [f"{HEAD}timeout_s = {'9' * 5000}"],
    "a whole number <= 1000000": [
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
    "builds needs setup, the line that builds a commit": [f"{HEAD}builds = 3"],
    "a check needs either path or regex": [f'{CHECK}path = "a"\nregex = "(b)"'],
    "needs a tolerance": [f'{CHECK}path = "a"\nmust = "not-worse"'],
    "score gives results their numbers": [f'{CHECK}path = "a"\nscore = "grade"'],
    "nothing else takes one": [f'{CHECK}path = "a"\ntolerance = 1.0'],
    "'better', in check.NAME.must": [f'{CHECK}path = "a"\nmust = "better"'],
    "a is a metric already; call the check otherwise": [
        f'{CHECK}path = "a"\n[metrics.a]\npath = "b"'
    ],
    "that names a module": [f'{NAME}measure = "python a.py"\npreload = ["a b"]'],
    "turns needs measure, and metrics": [f"{HEAD}turns = true"],
    "in one line, .* in a key of metrics": [f'{HEAD}[metrics."a\\nb"]\npath = "x"'],
    "is no regular expression: .*, in metrics.NAME": [
        f'{HEAD}[metrics.a]\nregex = "{regex}"'
        for regex in ("(", "(a{99999999999})", f"{'(' * 5000}{')' * 5000}")
    ],
    "is no regular expression": [f'{SERVER}ready = {{ regex = "(" }}\n[client]\nrun = "x"'],
    ", in server": [
        f'{SERVER}ready = "{ready}"\n[client]\nrun = "x"'
        for ready in (
            *("http://127.0.0.1:$PORT/", "http://127.0.0.1:$KVTRAIL_PORTS/", "http://a:1/a b"),
            *("file:///etc/hostname", "ws://a:1/", "127.0.0.1:8000/health", "http://:80/"),
            *("http://a:0/", "http://a:99999/", "http://a:x/", "http://u:p@a:1/", "http:///a"),
            *("http://[::1/", "http://ü:1/", "http://a:1/\\n"),
        )
    ],
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
            read_tables(path)
        said = str(caught.value)
        assert said.startswith(f"{path}: ")
        assert said.endswith(".")
        assert "regex '" not in said


def test_a_mark_of_the_encoding_is_no_part_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "kvtrail.toml"
    path.write_bytes(b"\xef\xbb\xbf" + HEAD.encode())
    assert read_tables(path)[1] == HEAD
    path.write_text(HEAD, encoding="utf-16")
    with pytest.raises(Refused, match="it is not UTF-8"):
        read_tables(path)


@pytest.mark.parametrize("label", ["a", "b"])
def test_variables_are_filled_by_whole_names(declared, tmp_path: Path, label: str) -> None:
    env = (
        'A = "$KVTRAIL_OUTPUT", B = "${KVTRAIL_OUT}PUT$KVTRAIL_OUT", D = "$PATH $$ ${ $", '
        'C = "$KVTRAIL_SUBJECTS:$KVTRAIL_SUBJECT:$KVTRAIL_LABEL", KVTRAIL_SUBJECT = "another"'
    )
    wanted = {
        "A": "'$KVTRAIL_OUTPUT'",
        "B": '"${KVTRAIL_OUT}PUT$KVTRAIL_OUT"',
        "C": f"'$KVTRAIL_SUBJECTS:{tmp_path / 'toy'}:{label}'",
        "D": "'$PATH $$ ${ $'",
        "KVTRAIL_SUBJECT": str(tmp_path / "toy"),
        "KVTRAIL_LABEL": label,
    }
    measure = " && ".join(f'test "${name}" = {value}' for name, value in wanted.items())
    axis = '[axis]\nkind = "labels"\nlabels = ["a", "b"]'
    tables = f'{NAME}measure = """{measure}"""\nenv = {{ {env} }}\n{axis}'
    assert declared(tables, "").prepared(label) == {}
