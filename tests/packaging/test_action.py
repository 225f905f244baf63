"""The action for other repositories: what it calls exists, and its steps do what they say."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ACTION = ROOT / "action.yml"
SCRIPT = ROOT / ".ci" / "pull_request.py"
FAKE_KVTRAIL = """#!{python}
import json, os, sys
from pathlib import Path
words = sys.argv[1:]
print("asked", json.dumps(words), flush=True)
sys.stdout.buffer.write(os.fsencode(os.environ.get("FAKE_SAYS", "")) + b"\\n")
code = int(os.environ.get("FAKE_CODE", "0"))
for option in ("--json", "--markdown"):
    if code not in (1, 2):
        Path(words[words.index(option) + 1]).write_text("### step: slower\\n" + 70000 * "x")
sys.exit(code)
"""
FAKE_GH = """#!{python}
import json, os, sys
from pathlib import Path
words = sys.argv[1:]
with open(os.environ["GH_CALLS"], "a") as calls:
    given = sys.stdin.read() if "--input" in words else None
    calls.write(json.dumps([words, given]) + "\\n")
if os.environ.get("GH_REFUSES"):
    sys.exit("HTTP 403: Resource not accessible by integration")
if "GH_ANSWER" in os.environ:
    print(os.environ["GH_ANSWER"])
    print("A new release of gh is available", file=sys.stderr)
elif "graphql" in words:
    for nodes in json.loads(os.environ["GH_COMMENTS"]):
        comments = {{"nodes": nodes, "pageInfo": {{"hasNextPage": False, "endCursor": None}}}}
        print(json.dumps({{"data": {{"repository": {{"pullRequest": {{"comments": comments}}}}}}}}))
"""


class Runner:
    """A runner's folder with a repository, in which a branch left main, and fake programs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name, text in (("kvtrail", FAKE_KVTRAIL), ("gh", FAKE_GH)):
            path = root / "bin" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text.format(python=sys.executable))
            path.chmod(0o755)
        self.git("init", "-q", "-b", "main")
        self.fork = self.commit("before")
        self.git("switch", "-q", "-c", "topic")
        self.head = self.commit("of the pull request")
        self.git("switch", "-q", "main")
        self.main = self.commit("of others since")
        pull = {"number": 7, "base": {"sha": self.main}, "head": {"sha": self.head}}
        self.happened(json.dumps({"pull_request": pull}))

    def happened(self, event: str) -> None:
        (self.root / "event.json").write_text(event)

    def git(self, *words: str) -> str:
        identity = ("-c", "user.name=A", "-c", "user.email=a@example.invalid")
        command = ["git", *identity, "-C", str(self.root), *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, message: str) -> str:
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")

    def step(self, name: str, **variables: str) -> subprocess.CompletedProcess[str]:
        told = {
            "PATH": f"{self.root / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "KVTRAIL": str(self.root / "bin" / "kvtrail"),
            "RUNNER_TEMP": str(self.root / "temp"),
            "GITHUB_EVENT_PATH": str(self.root / "event.json"),
            "GITHUB_OUTPUT": str(self.root / "output"),
            "GITHUB_STEP_SUMMARY": str(self.root / "summary"),
            "GITHUB_REPOSITORY": "owner/name",
            "GH_CALLS": str(self.root / "calls"),
            "GH_COMMENTS": "[[]]",
            "INPUT_FAIL_ON": "slower",
            **variables,
        }
        return subprocess.run(
            [sys.executable, str(SCRIPT), name],
            cwd=self.root,
            env=told,
            capture_output=True,
            text=True,
            check=False,
        )

    def outputs(self) -> dict[str, str]:
        lines = (self.root / "output").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines)

    def calls(self) -> list[tuple[list[str], str | None]]:
        path = self.root / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


def test_the_action_calls_what_exists_and_uses_all_that_it_declares() -> None:
    text = ACTION.read_text("utf-8")
    called = re.findall(r'"\$GITHUB_ACTION_PATH/([^"]+)" (\w+)', text)
    assert {path for path, _ in called} == {".ci/pull_request.py"}
    assert {path for path, _ in called if not (ROOT / path).is_file()} == set()
    script = SCRIPT.read_text("utf-8")
    known = script.partition("STEPS = {")[2].partition("}")[0]
    assert [step for _, step in called] == re.findall(r'"(\w+)"', known)
    head, _, steps = text.partition("\nruns:")
    inputs = head.partition("\noutputs:")[0]
    declared = set(re.findall(r"^  ([\w-]+):$", inputs, re.M))
    assert set(re.findall(r"inputs\.([\w-]+)", steps)) == declared
    # Only through variables: an input in a line of a shell would be part of it.
    assert not re.findall(r"run: [^|].*\$\{\{", steps)
    asked = {name.lower().replace("_", "-") for name in re.findall(r"INPUT_(\w+):", steps)}
    assert asked <= declared
    assert asked == {*re.findall(r'given\("([\w-]+)"\)', script), "subject", "margin"}


@pytest.mark.parametrize(
    ("code", "verdict", "fails"),
    [
        (0, "good", ""),
        (3, "slower", "slower"),
        (4, "inconclusive", "inconclusive"),
        (2, "refused", "*"),
    ],
)
def test_the_verdict_is_told_and_decides(
    runner: Runner, code: int, verdict: str, fails: str
) -> None:
    done = runner.step("compare", FAKE_CODE=str(code))
    assert done.returncode == 0, done.stderr
    outputs = runner.outputs()
    wanted = re.findall(r"value: .* steps\.compare\.outputs\.([\w-]+)", ACTION.read_text("utf-8"))
    assert list(outputs) == wanted
    assert (outputs["verdict"], outputs["exit-code"]) == (verdict, str(code))
    assert bool(outputs["record"]) == (code != 2)
    summary = (runner.root / "summary").read_text()
    assert summary == Path(outputs["markdown"]).read_text()
    assert summary.startswith("### kvtrail compared nothing" if code == 2 else "### step: slower")
    for gate in ("none", "slower", "slower, inconclusive"):
        ended = runner.step("conclude", VERDICT=verdict, INPUT_FAIL_ON=gate)
        assert ended.returncode == int(fails == "*" or bool(fails and fails in gate))


def asked_in(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What the fake kvtrail was asked."""
    [asked] = [line for line in done.stdout.splitlines() if line.startswith("asked ")]
    words: list[str] = json.loads(asked.removeprefix("asked "))
    return words


def test_the_base_is_where_the_branch_left_and_inputs_are_words(runner: Runner) -> None:
    inputs = {"INPUT_METRICS": "tpot\n\n ttft ms \n", "INPUT_MARGIN": "2"}
    words = asked_in(
        runner.step("compare", **inputs, INPUT_ARGUMENTS="--quick --devices '0,1'"),
    )
    assert words[:4] == ["compare", "--quiet", runner.fork, runner.head]
    assert words[words.index("--gate") :] == [
        *("--gate", "slower,inconclusive", "--margin", "2", "--metric", "tpot"),
        *("--metric", "ttft ms", "--quick", "--devices", "0,1"),
    ]
    done = runner.step("compare", INPUT_BASE="v1", INPUT_HEAD="topic")
    assert asked_in(done)[2:4] == ["v1", "topic"]


@pytest.mark.parametrize(
    "line",
    ["make -s && ./bench", "FOO=1 python b.py > out", "echo $N 'it''s'", "a 'b", "make\n./bench"],
)
def test_the_command_is_one_line_for_the_shell(runner: Runner, line: str) -> None:
    words = asked_in(runner.step("compare", INPUT_COMMAND=line))
    assert words[words.index("--") :] == ["--", line]


def test_a_merge_queue_is_compared_with_what_it_goes_on(runner: Runner) -> None:
    group = {"base_sha": runner.main, "head_sha": runner.head, "head_ref": "gh-readonly-queue/x"}
    runner.happened(json.dumps({"action": "checks_requested", "merge_group": group}))
    words = asked_in(runner.step("compare", GITHUB_SHA=runner.head))
    assert words[2:4] == [runner.fork, runner.head]
    assert "nothing to comment on" in runner.step("comment", MARKDOWN="none").stdout


@pytest.mark.parametrize("event", ["{}", '{"pull_request": null}', "[]", "no JSON", "[" * 100_000])
def test_what_does_not_fit_is_said_in_the_summary(runner: Runner, event: str) -> None:
    runner.happened(event)
    runner.step("compare", GITHUB_SHA=runner.head)
    assert "the action needs its input base" in (runner.root / "summary").read_text()
    assert runner.outputs()["verdict"] == "refused"
    assert "nothing to comment on" in runner.step("comment").stdout
    runner.step("compare", INPUT_BASE="v1", INPUT_FAIL_ON="slow")
    assert "fail-on takes slower, inconclusive or none" in (runner.root / "summary").read_text()


@pytest.mark.parametrize("program", ["kvtrail", "git"])
def test_a_program_that_is_not_there_is_said_in_the_summary(runner: Runner, program: str) -> None:
    missing = {"KVTRAIL": "/nowhere/kvtrail"} if program == "kvtrail" else {"PATH": "/nowhere"}
    done = runner.step("compare", **missing)
    assert done.returncode == 0, done.stderr
    assert f"{program} cannot be started" in (runner.root / "summary").read_text()


def test_what_a_program_prints_is_quoted_and_obeyed_by_nobody(runner: Runner) -> None:
    says = "\n::error::planted\n```\n@octocat fixes #1\n````` \udcff\udcfe tail"
    done = runner.step("compare", FAKE_CODE="1", FAKE_SAYS=says, LC_ALL="C", PYTHONUTF8="0")
    assert done.returncode == 0, done.stderr
    stop, _, rest = done.stdout.partition("::stop-commands::")[2].partition("\n")
    assert "\n::error::planted\n" in rest.partition(f"\n::{stop}::\n")[0]
    summary = (runner.root / "summary").read_text("utf-8")
    _, quoted, after = re.split(r"^``````$", summary, flags=re.M)
    assert "@octocat fixes #1\n````` \ufffd\ufffd tail" in quoted
    assert after == "\n"


def test_one_comment_is_made_and_then_made_anew(runner: Runner) -> None:
    runner.step("compare", FAKE_CODE="3")
    page = runner.outputs()["markdown"]
    assert runner.step("comment", MARKDOWN=page).returncode == 0
    (asked, _), (posted, body) = runner.calls()
    assert {"owner=owner", "name=name", "number=7"} < set(asked)
    assert posted[:4] == ["api", "--method", "POST", "repos/owner/name/issues/7/comments"]
    text = json.loads(body)["body"]
    assert text.startswith("<!-- kvtrail compare  -->\n### step: slower")
    assert len(text) < 65_536

    others = {"databaseId": 1, "viewerDidAuthor": False, "body": text}
    another_use = {"databaseId": 2, "viewerDidAuthor": True, "body": "<!-- kvtrail compare b -->"}
    own = {"databaseId": 3, "viewerDidAuthor": True, "body": text}
    pages = json.dumps([[others, another_use], [own]])
    runner.step("comment", MARKDOWN=page, GH_COMMENTS=pages)
    assert runner.calls()[-1][0][:4] == [
        *("api", "--method", "PATCH", "repos/owner/name/issues/comments/3"),
    ]
    runner.step("comment", MARKDOWN=page, GH_COMMENTS=pages, INPUT_NAME="b")
    assert runner.calls()[-1][0][3] == "repos/owner/name/issues/comments/2"


@pytest.mark.parametrize(
    "variables",
    [
        {"GH_REFUSES": "1"},
        {"PATH": "/nowhere"},
        *(
            {"GH_ANSWER": answer}
            for answer in (
                *("", "<html>502</html>", "[]", "{}", "null", '"text"', "7", "[" * 100_000),
                '{"data": {"repository": null}, "errors": [{"message": "not found"}]}',
                '{"data": {"repository": {"pullRequest": {"comments": {"nodes": [null]}}}}}',
                '{"data": {"repository": {"pullRequest": {"comments": {"nodes": []}}}}} {"da',
            )
        ),
    ],
)
def test_where_no_comment_can_be_written_the_summary_is_named(
    runner: Runner, variables: dict[str, str]
) -> None:
    (runner.root / "page.md").write_bytes(b"### step: slower \xff")
    done = runner.step("comment", MARKDOWN=str(runner.root / "page.md"), **variables)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("::notice title=kvtrail::No comment could be written: ")
    assert "the summary of this job" in done.stdout
    assert done.stdout.count("\n") == 1
