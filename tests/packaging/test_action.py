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
print("asked", json.dumps(words))
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
if "graphql" in words:
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
        event = {"pull_request": {"number": 7, "base": {"sha": self.main}}}
        event["pull_request"]["head"] = {"sha": self.head}
        (root / "event.json").write_text(json.dumps(event))

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


def test_the_base_is_where_the_branch_left_and_inputs_are_words(runner: Runner) -> None:
    done = runner.step(
        "compare",
        INPUT_METRICS="tpot\n\n ttft ms \n",
        INPUT_MARGIN="2",
        INPUT_ARGUMENTS="--quick --devices '0,1'",
        INPUT_COMMAND="sh -c 'echo $(id)'",
    )
    [asked] = [line for line in done.stdout.splitlines() if line.startswith("asked ")]
    words = json.loads(asked.removeprefix("asked "))
    assert words[:4] == ["--quiet", "compare", runner.fork, runner.head]
    assert words[words.index("--gate") :] == [
        *("--gate", "slower,inconclusive", "--margin", "2", "--metric", "tpot"),
        *("--metric", "ttft ms", "--quick", "--devices", "0,1", "--", "sh", "-c", "echo $(id)"),
    ]
    done = runner.step("compare", INPUT_BASE="v1", INPUT_HEAD="topic")
    assert '"compare", "v1", "topic"' in done.stdout


def test_what_does_not_fit_is_said_in_the_summary(runner: Runner) -> None:
    (runner.root / "event.json").write_text("{}")
    runner.step("compare", GITHUB_SHA=runner.head)
    assert "the action needs its input base" in (runner.root / "summary").read_text()
    runner.step("compare", INPUT_BASE="v1", INPUT_FAIL_ON="slow")
    assert "fail-on takes slower, inconclusive or none" in (runner.root / "summary").read_text()
    assert runner.outputs()["verdict"] == "refused"
    assert "nothing to comment on" in runner.step("comment").stdout


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


@pytest.mark.parametrize("variables", [{"GH_REFUSES": "1"}, {"PATH": "/nowhere"}])
def test_without_the_right_to_write_the_summary_is_named(
    runner: Runner, variables: dict[str, str]
) -> None:
    runner.step("compare", FAKE_CODE="3")
    done = runner.step("comment", MARKDOWN=runner.outputs()["markdown"], **variables)
    assert done.returncode == 0
    assert done.stdout.startswith("::notice title=kvtrail::No comment could be written: ")
    assert "the summary of this job" in done.stdout
