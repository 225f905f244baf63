"""The action for other repositories: what it calls exists, and its steps do what they say."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from toy_repository import ToyRepository

ROOT = Path(__file__).resolve().parents[2]
ACTION = ROOT / "action.yml"
SCRIPT = ROOT / ".ci" / "pull_request.py"
FAKE_KVTRAIL = """
import json, os, sys
words = sys.argv[1:]
print("asked", json.dumps(words), flush=True)
sys.stdout.buffer.write(os.fsencode(os.environ.get("FAKE_SAYS", "")) + b"\\n")
code = int(os.environ.get("FAKE_CODE", "0"))
for option in ("--json", "--markdown"):
    if code not in (1, 2):
        with open(words[words.index(option) + 1], "w") as file:
            file.write("### step: slower\\n" + 70000 * "x")
sys.exit(code)
"""
FAKE_GH = """
import json, os, sys
words = sys.argv[1:]
with open(os.environ["GH_CALLS"], "a") as calls:
    given = sys.stdin.read() if "--input" in words else None
    calls.write(json.dumps([words, given]) + "\\n")
if "GH_ANSWER" in os.environ:
    print(os.environ["GH_ANSWER"])
    print("A new release of gh is available", file=sys.stderr)
    sys.exit(os.environ["GH_ANSWER"].startswith("HTTP 403"))
elif "graphql" in words:
    for nodes in json.loads(os.environ["GH_COMMENTS"]):
        comments = {"nodes": nodes, "pageInfo": {"hasNextPage": False, "endCursor": None}}
        print(json.dumps({"data": {"repository": {"pullRequest": {"comments": comments}}}}))
"""


class Runner(ToyRepository):
    """A runner's folder with a repository, in which a branch left main, and fake programs."""

    @classmethod
    def make(cls, root: Path) -> Runner:
        (root / "bin").mkdir()
        for name, text in (("kvtrail", FAKE_KVTRAIL), ("gh", FAKE_GH)):
            (root / "bin" / name).write_text(f"#!{sys.executable}\n{text}")
            (root / "bin" / name).chmod(0o755)
        runner = cls(root)
        runner.git("init", "-q", "-b", "main")
        runner.commit("", "before")
        runner.git("switch", "-q", "-c", "topic")
        runner.commit("", "of the pull request")
        runner.git("switch", "-q", "main")
        runner.commit("", "of others since")
        ends = {"number": 7, "base": {"sha": runner["main"]}, "head": {"sha": runner["topic"]}}
        runner.happened({"pull_request": ends})
        return runner

    def __getitem__(self, name: str) -> str:
        return self.git("rev-parse", name)

    def happened(self, event: object) -> None:
        text = event if isinstance(event, str) else json.dumps(event)
        (self.root / "event.json").write_text(text)

    def step(self, name: str, **variables: str) -> str:
        """What a step prints; the file `ended` then holds its exit code."""
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
        command = [sys.executable, str(SCRIPT), name]
        done = subprocess.run(
            command, cwd=self.root, env=told, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0 or name == "conclude", done.stderr
        return done.stdout

    def asked(self, **variables: str) -> list[str]:
        """What `compare` asks kvtrail."""
        [asked] = re.findall("^asked (.*)", self.step("compare", **variables), re.M)
        words: list[str] = json.loads(asked)
        return words

    @property
    def outputs(self) -> dict[str, str]:
        lines = (self.root / "output").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines)

    @property
    def summary(self) -> str:
        return (self.root / "summary").read_text("utf-8")

    def calls(self) -> list[tuple[list[str], str | None]]:
        """The words of each call of gh, and what it was given."""
        return [json.loads(line) for line in (self.root / "calls").read_text().splitlines()]


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner.make(tmp_path)


def test_the_action_calls_what_exists_and_uses_all_that_it_declares() -> None:
    text, script = ACTION.read_text("utf-8"), SCRIPT.read_text("utf-8")
    called = re.findall(r'"\$GITHUB_ACTION_PATH/([^"]+)" (\w+)', text)
    assert {path for path, _ in called} == {".ci/pull_request.py"}
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
        (2, "refused", "none slower, inconclusive"),
    ],
)
def test_the_verdict_is_told_and_decides(
    runner: Runner, code: int, verdict: str, fails: str
) -> None:
    runner.step("compare", FAKE_CODE=str(code))
    outputs = runner.outputs
    wanted = re.findall(r"value: .* steps\.compare\.outputs\.([\w-]+)", ACTION.read_text("utf-8"))
    assert list(outputs) == wanted
    assert (outputs["verdict"], outputs["exit-code"]) == (verdict, str(code))
    assert bool(outputs["record"]) == (code != 2)
    assert runner.summary == Path(outputs["markdown"]).read_text()
    assert runner.summary.startswith("### kvtrail compared" if code == 2 else "### step: slower")
    for gate in ("none", "slower", "slower, inconclusive"):
        said = runner.step("conclude", VERDICT=verdict, INPUT_FAIL_ON=gate)
        assert bool(said) == bool(fails and (fails in gate or gate in fails))


def test_the_base_is_where_the_branch_left_and_inputs_are_words(runner: Runner) -> None:
    inputs = {"INPUT_METRICS": "tpot\n\n ttft ms \n", "INPUT_MARGIN": "2"}
    line = "FOO=1 make -s && ./bench 'it''s' > out"
    words = runner.asked(
        **inputs, INPUT_ARGUMENTS="--quick --devices '0,1'", INPUT_COMMAND=line, FAKE_CODE="3"
    )
    assert words[:4] == ["--quiet", "compare", runner["topic~1"], runner["topic"]]
    assert words[words.index("--gate") :] == [
        *("--gate", "slower,inconclusive", "--margin", "2", "--metric", "tpot"),
        *("--metric", "ttft ms", "--quick", "--devices", "0,1", "--", line),
    ]
    assert runner.asked(INPUT_BASE="v1", INPUT_HEAD="topic")[1:4] == ["compare", "v1", "topic"]
    # A merge queue is compared with what it goes on.
    group = {"base_sha": runner["main"], "head_sha": runner["topic"], "head_ref": "queue/x"}
    runner.happened({"action": "checks_requested", "merge_group": group})
    assert runner.asked()[2:4] == [runner["topic~1"], runner["topic"]]
    assert "nothing to comment on" in runner.step("comment", MARKDOWN="none")


NO_ENDS = ("{}", '{"pull_request": null}', "[]", "no JSON", "[" * 100_000)


@pytest.mark.parametrize(
    ("event", "variables", "sentence"),
    [
        *((event, {}, "the action needs its input base") for event in NO_ENDS),
        (None, {"INPUT_FAIL_ON": "slow"}, "fail-on takes slower, inconclusive or none"),
        (None, {"KVTRAIL": "/nowhere/kvtrail"}, "kvtrail cannot be started"),
        (None, {"PATH": "/nowhere"}, "git cannot be started"),
    ],
)
def test_what_does_not_fit_is_said_in_the_summary(
    runner: Runner, event: str | None, variables: dict[str, str], sentence: str
) -> None:
    if event:
        runner.happened(event)
    runner.step("compare", **variables)
    assert sentence in runner.summary
    assert runner.outputs["verdict"] in ("refused", "failed")


def test_what_a_program_prints_is_quoted_and_obeyed_by_nobody(runner: Runner) -> None:
    says = "\n::error::planted\n```\n@octocat fixes #1\n````` \udcff\udcfe tail"
    said = runner.step("compare", FAKE_CODE="1", FAKE_SAYS=says, LC_ALL="C", PYTHONUTF8="0")
    stop, _, rest = said.partition("::stop-commands::")[2].partition("\n")
    assert "\n::error::planted\n" in rest.partition(f"\n::{stop}::\n")[0]
    _, quoted, after = re.split(r"^``````$", runner.summary, flags=re.M)
    assert "@octocat fixes #1\n````` \ufffd\ufffd tail" in quoted
    assert after == "\n"


def test_one_comment_is_made_and_then_made_anew(runner: Runner) -> None:
    runner.step("compare", FAKE_CODE="3")
    page = runner.outputs["markdown"]
    runner.step("comment", MARKDOWN=page)
    (asked, _), (posted, body) = runner.calls()
    assert {"owner=owner", "name=name", "number=7"} < set(asked)
    assert posted[:4] == ["api", "--method", "POST", "repos/owner/name/issues/7/comments"]
    text = json.loads(body or "")["body"]
    assert text.startswith("<!-- kvtrail compare  -->\n### step: slower")
    assert len(text) < 65_536

    others = {"databaseId": 1, "viewerDidAuthor": False, "body": text}
    another_use = {"databaseId": 2, "viewerDidAuthor": True, "body": "<!-- kvtrail compare b -->"}
    own = {"databaseId": 3, "viewerDidAuthor": True, "body": text}
    pages = json.dumps([[others, another_use], [own]])
    for name, number in (("", 3), ("b", 2)):
        runner.step("comment", MARKDOWN=page, GH_COMMENTS=pages, INPUT_NAME=name)
        path = f"repos/owner/name/issues/comments/{number}"
        assert runner.calls()[-1][0][1:4] == ["--method", "PATCH", path]


@pytest.mark.parametrize(
    "variables",
    [
        {"PATH": "/nowhere"},
        *(
            {"GH_ANSWER": answer}
            for answer in (
                *("HTTP 403: Resource not accessible", "", "<html>502</html>", "[]", "[" * 100_000),
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
    said = runner.step("comment", MARKDOWN=str(runner.root / "page.md"), **variables)
    assert said.startswith("::notice title=kvtrail::No comment could be written: ")
    assert "the summary of this job" in said
    assert said.count("\n") == 1
