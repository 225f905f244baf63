"""Labels that are listed when a command begins: releases, tags, and what a line prints."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from declared_repository import DeclaredRepository, in_ms

from asv_bench.errors import Refused

TABLES = in_ms("tpot_ms")
RELEASES = ("0.9", "1.0", "1.10", "1.2.1", "1.2", "1.3rc1", "2.0")
pytestmark = pytest.mark.usefixtures("lives_in_process")


def listing(table: str, kind: str = "labels") -> str:
    """Tables of a subject whose labels are listed."""
    return f'{TABLES}\n    [axis]\n    kind = "{kind}"\n    labels = {{ {table} }}\n'


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """An index of packages, which pip alone asks; it can be called to shut it down."""
    pytest.importorskip("pip")
    links = [f'<a href="fastpath-{one}-py3-none-any.whl">x</a>' for one in RELEASES]
    links.append('<a data-yanked="broken" href="fastpath-1.1-py3-none-any.whl">x</a>')
    links.append('<a data-requires-python="&gt;=9" href="fastpath-1.9-py3-none-any.whl">x</a>')
    page = tmp_path / "index" / "fastpath" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text(f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>")
    handler = partial(Quiet, directory=str(page.parents[1]))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    found = tmp_path / "found"
    found.mkdir()
    (found / "fastpath-1.5-py3-none-any.whl").touch()
    for name, value in {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_FIND_LINKS": str(found),
        "PIP_INDEX_URL": f"http://127.0.0.1:{server.server_port}/",
        "no_proxy": "*",
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)

    def stop() -> None:
        server.shutdown()
        server.server_close()

    yield stop
    stop()


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        (', since = "1.0", until = "1.10"', ["1.0", "1.2", "1.2.1", "1.5", "1.10"]),
        (', until = "1.2"', ["0.9", "1.0", "1.2", "1.2.1"]),
        (', since = "1.2", until = "1.2.1"', ["1.2", "1.2.1"]),
        (', pre = true, since = "1.3.dev0"', ["1.3rc1", "1.5", "1.10", "2.0"]),
    ],
)
def test_releases_that_pip_can_install_are_labels(
    declared: Callable[..., DeclaredRepository], more: str, wanted: list[str]
) -> None:
    assert list(declared(listing(f'pip = "fastpath"{more}')).subject.labels) == wanted


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize(
    ("table", "words"),
    [
        ('pip = "nopath"', "'nopath' in .axis. gives nothing; .* at least two"),
        ('pip = "fastpath", since = "2"', "gives 2.0; .* at least two"),
        ('pip = "fastpath", until = "two"', "(?s)'fastpath' in .*: Invalid version: 'two'"),
    ],
)
def test_releases_that_are_not_there_are_refused(declared, table: str, words: str) -> None:
    with pytest.raises(Refused, match=words):
        _ = declared(listing(table)).subject


def test_releases_are_not_known_where_an_index_is_silent(declared, index) -> None:
    index()
    with pytest.raises(Refused, match=r"(?s)'fastpath' in .*http://127.* does not answer: "):
        _ = declared(listing('pip = "fastpath"')).subject


def test_tags_are_labels_with_the_files_of_their_commits(kvtrail, declared) -> None:
    tables = listing('tags = "v*"', "commits")
    made = declared(tables, "tpot_ms = 5.0", "tpot_ms = 5.0 ", "tpot_ms = 5.5", "tpot_ms = 5.5 ")
    tags = ["v1.8", "v1.9", "v1.10-rc1", "v1.10"]
    for place, tag in enumerate(reversed(tags)):
        made.git("tag", "-am", "A release", tag, f"HEAD~{place}")
    made.git("tag", "other")
    (made.root / "bench.py").write_text("tpot_ms = 9.0")
    said = kvtrail(made, "bisect", "v1.8", "v1.10", "--axis", "labels")
    assert said.code == 3, said.text
    assert "first slower label: v1.10-rc1" in said.text
    assert "in the files of each tag" in said.text
    assert "1 file differs: bench.py (+1 -1)" in said.text
    assert "Which of its commits did it: kvtrail" in said.text
    assert said.record["settings"]["subject"]["labels"] == tags
    same = kvtrail(made, "compare", "v1.8", "v1.9")
    assert "labels" not in same.record["settings"]["subject"]
    along = kvtrail(made, "compare", "v1.8", "v1.9", "--axis", "labels")
    assert along.verdicts == {"tpot_ms": "equivalent"}
    assert along.record["settings"]["fixed"] == ""


def test_a_line_lists_labels_once_a_command(kvtrail, declared, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    line = f"echo $MORE >> {seen}; echo not this >&2; printf 'a\\\\n\\\\n b \\\\n'; echo $MORE"
    tables = listing(f'run = "{line}"').replace("measure", 'env = { MORE = "c" }\n    measure', 1)
    made = declared(tables, "tpot_ms = 5.5 if label == 'c' else 5.0")
    said = kvtrail(made, "bisect", "a", "c")
    assert said.code == 3, said.text
    assert "first slower label: c" in said.text
    assert said.record["settings"]["subject"]["labels"] == ["a", "b", "c"]
    assert seen.read_text() == "c\n"


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ('run = "echo a"', "'echo a' in .axis. gives a; .* at least two"),
        ('run = "echo a; echo a"', "a label stands twice"),
        ('run = "echo oh >&2; exit 3"', "ended with exit code 3: oh"),
        ("run = \"printf 'a\\\\033\\\\nb'\"", "without control characters"),
        ('tags = "v*"', "'v.' in .axis. gives nothing; .* at least two"),
        ('tags = "v*", run = "true"', "exactly one of pip, tags and run"),
        ("pre = true", "exactly one of pip, tags and run"),
        ('tags = "v*", since = "v1"', "since, until and pre"),
    ],
)
def test_what_lists_no_labels_is_refused(declared, table: str, words: str) -> None:
    with pytest.raises(Refused, match=words):
        _ = declared(listing(table), "pass").subject
