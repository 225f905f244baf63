"""The action for other repositories: what it calls exists, and its steps do what they say."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pull_request
import pytest
from documents import documents
from pull_request import Ended

from asv_bench import __version__

ROOT = Path(__file__).resolve().parents[2]
ACTION = (ROOT / "action.yml").read_text("utf-8")
SCRIPT = (ROOT / ".ci" / "pull_request.py").read_text("utf-8")
PULL = {"pull_request": {"number": 7, "base": {"sha": "main"}, "head": {"sha": "topic"}}}


class Runner:
    """A runner of jobs, on which kvtrail, git and gh say what a test wants."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch, out: pytest.CaptureFixture[str]):
        self.root, self._patch, self._out = root, patch, out
        self.calls: list[tuple[list[str], str]] = []
        self.kvtrail, self.gh = Ended(0, "", ""), Ended(0, "", "")
        files = {"GITHUB_EVENT_PATH": "event", "GITHUB_OUTPUT": "out", "GITHUB_STEP_SUMMARY": "sum"}
        for name, file in {**files, "RUNNER_TEMP": "temp", "KVTRAIL": "kvtrail"}.items():
            patch.setenv(name, str(root / file))
        patch.setenv("GITHUB_REPOSITORY", "owner/name")
        patch.setattr(pull_request, "run", self._run)
        self.happened(PULL)
        self.shown([])

    def happened(self, event: object) -> None:
        (self.root / "event").write_text(event if isinstance(event, str) else json.dumps(event))

    def shown(self, *pages: list[dict[str, Any]]) -> None:
        """Comments that gh lists."""
        pulls = ({"pullRequest": {"comments": {"nodes": nodes}}} for nodes in pages)
        self.gh = Ended(
            0, "\n".join(json.dumps({"data": {"repository": one}}) for one in pulls), ""
        )

    def _run(self, words: Sequence[str], given: str = "", errors: int = 0) -> Ended:
        self.calls.append(([*words], given))
        if words[0] == "git":
            return Ended(0, f"fork of {words[2]} and {words[3]}", "")
        if words[0] == "gh":
            return self.gh
        if self.kvtrail.code not in (1, 2):
            for option in ("--json", "--markdown"):
                page = Path(words[words.index(option) + 1])
                page.write_text("### step: slower\n" + 70000 * "x")
        return self.kvtrail

    def step(self, name: str, **variables: str) -> str:
        """What a step prints."""
        with self._patch.context() as patch:
            for variable, value in {"INPUT_FAIL_ON": "slower", **variables}.items():
                patch.setenv(variable, value)
            code = pull_request.main([name])
        said = self._out.readouterr().out
        assert code == (1 if name == "conclude" and said else 0)
        return said

    def asked(self, **variables: str) -> list[str]:
        """What `compare` asks kvtrail."""
        self.step("compare", **variables)
        return self.calls[-1][0][1:]

    @property
    def outputs(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in (self.root / "out").read_text().splitlines())

    @property
    def summary(self) -> str:
        return (self.root / "sum").read_text("utf-8")


@pytest.fixture
def runner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Runner:
    return Runner(tmp_path, monkeypatch, capsys)


def test_the_action_calls_what_exists_and_uses_all_that_it_declares() -> None:
    called = re.findall(r'"\$GITHUB_ACTION_PATH/([^"]+)" (\w+)', ACTION)
    assert called == [(".ci/pull_request.py", step) for step in pull_request.STEPS]
    # With the standard library alone, as on a runner.
    command = [sys.executable, "-S", str(ROOT / ".ci" / "pull_request.py"), "conclude"]
    subprocess.run(command, env={"VERDICT": "good"}, check=True)
    head, _, steps = ACTION.partition("\nruns:")
    inputs = head.partition("\noutputs:")[0]
    declared = set(re.findall(r"^  ([\w-]+):$", inputs, re.M))
    assert set(re.findall(r"inputs\.([\w-]+)", steps)) == declared
    # Only through variables: an input in a line of a shell would be part of it.
    assert not re.findall(r"run: [^|].*\$\{\{", steps)
    asked = {name.lower().replace("_", "-") for name in re.findall(r"INPUT_(\w+):", steps)}
    assert asked <= declared
    assert asked == {*re.findall(r'given\("([\w-]+)"\)', SCRIPT), "subject", "margin"}


def test_it_is_used_at_a_version_and_not_at_a_branch() -> None:
    texts = [ACTION, *(page.read_text("utf-8") for page in documents())]
    used = [word for text in texts for word in re.findall(r"OWNER/kvtrail@([\w.]+)", text)]
    assert len(used) >= 4
    assert set(used) == {f"v{__version__.partition('.')[0]}"}


@pytest.mark.parametrize(
    ("code", "verdict", "fails"),
    [
        (0, "good", ""),
        (3, "slower", "slower"),
        (4, "inconclusive", "inconclusive"),
        (6, "differs", "differs"),
        (2, "refused", "none slower, inconclusive, differs"),
    ],
)
def test_the_verdict_is_told_and_decides(
    runner: Runner, code: int, verdict: str, fails: str
) -> None:
    runner.kvtrail = Ended(code, "said", "")
    runner.step("compare")
    outputs = runner.outputs
    assert list(outputs) == re.findall(r"value: .* steps\.compare\.outputs\.([\w-]+)", ACTION)
    assert (outputs["verdict"], outputs["exit-code"]) == (verdict, str(code))
    assert bool(outputs["record"]) == (code != 2)
    assert runner.summary == Path(outputs["markdown"]).read_text()
    assert runner.summary.startswith("### kvtrail compared" if code == 2 else "### step: slower")
    for gate in ("none", "slower", "differs", "slower, inconclusive, differs"):
        said = runner.step("conclude", VERDICT=verdict, INPUT_FAIL_ON=gate)
        assert bool(said) == bool(fails and (fails in gate or gate in fails))


def test_the_base_is_where_the_branch_left_and_inputs_are_words(runner: Runner) -> None:
    inputs = {"INPUT_METRICS": "tpot\n\n ttft ms \n", "INPUT_MARGIN": "2"}
    line = "FOO=1 make -s && ./bench $N 'it''s' > out"
    words = runner.asked(**inputs, INPUT_ARGUMENTS="--quick --devices '0,1'", INPUT_COMMAND=line)
    assert words[:4] == ["compare", "--quiet", "fork of main and topic", "topic"]
    assert words[words.index("--gate") :] == [
        *("--gate", "slower,inconclusive,differs", "--margin", "2", "--metric", "tpot"),
        *("--metric", "ttft ms", "--quick", "--devices", "0,1", "--", line),
    ]
    assert runner.asked(INPUT_BASE="v1", INPUT_HEAD="topic")[2:4] == ["v1", "topic"]
    # A merge queue is compared with what it goes on.
    group = {"base_sha": "main", "head_sha": "queued", "head_ref": "queue/x"}
    runner.happened({"action": "checks_requested", "merge_group": group})
    assert runner.asked()[2:4] == ["fork of main and queued", "queued"]
    assert "nothing to comment on" in runner.step("comment", MARKDOWN="none")


@pytest.mark.parametrize("event", ["{}", '{"pull_request": null}', "[]", "no JSON", "[" * 100_000])
def test_what_does_not_fit_is_said_in_the_summary(runner: Runner, event: str) -> None:
    runner.step("compare", INPUT_FAIL_ON="slow")
    assert "fail-on takes slower, inconclusive, differs or none" in runner.summary
    runner.happened(event)
    runner.step("compare")
    assert "the action needs its input base" in runner.summary
    assert runner.outputs["verdict"] == "refused"


def test_a_program_that_is_not_there_or_prints_any_bytes_is_quoted() -> None:
    ended = pull_request.run(["/nowhere/kvtrail"])
    assert (ended.code, "kvtrail cannot be started" in ended.said) == (1, True)
    assert pull_request.run(["printf", r"\377\0 tail"]).said == "\ufffd\ufffd tail"


def test_what_a_program_prints_is_quoted_and_obeyed_by_nobody(runner: Runner) -> None:
    runner.kvtrail = Ended(1, "\n::error::planted\n```\n@octocat fixes #1\n````` tail", "")
    said = runner.step("compare")
    stop, _, rest = said.partition("::stop-commands::")[2].partition("\n")
    assert "\n::error::planted\n" in rest.partition(f"\n::{stop}::\n")[0]
    _, quoted, after = re.split(r"^``````$", runner.summary, flags=re.M)
    assert "@octocat fixes #1\n````` tail" in quoted
    assert after == "\n"


def test_one_comment_is_made_and_then_made_anew(runner: Runner) -> None:
    runner.step("compare")
    page = runner.outputs["markdown"]
    runner.step("comment", MARKDOWN=page)
    (asked, _), (posted, body) = runner.calls[-2:]
    assert {"owner=owner", "name=name", "number=7"} < set(asked)
    assert posted[1:5] == ["api", "--method", "POST", "repos/owner/name/issues/7/comments"]
    text = json.loads(body)["body"]
    assert text.startswith("<!-- kvtrail compare  -->\n### step: slower")
    assert len(text) < 65_536

    others = {"databaseId": 1, "viewerDidAuthor": False, "body": text}
    another_use = {"databaseId": 2, "viewerDidAuthor": True, "body": "<!-- kvtrail compare b -->"}
    own = {"databaseId": 3, "viewerDidAuthor": True, "body": text}
    runner.shown([others, another_use], [own])
    for name, number in (("", 3), ("b", 2)):
        runner.step("comment", MARKDOWN=page, INPUT_NAME=name)
        path = f"repos/owner/name/issues/comments/{number}"
        assert runner.calls[-1][0][2:5] == ["--method", "PATCH", path]


@pytest.mark.parametrize(
    "answer",
    [
        *("", "<html>502</html>", "[]", "[" * 100_000, "HTTP 403: Resource not accessible"),
        '{"data": {"repository": null}, "errors": [{"message": "not found"}]}',
        '{"data": {"repository": {"pullRequest": {"comments": {"nodes": [null]}}}}}',
        '{"data": {"repository": {"pullRequest": {"comments": {"nodes": []}}}}} {"da',
    ],
)
def test_where_no_comment_can_be_written_the_summary_is_named(runner: Runner, answer: str) -> None:
    (runner.root / "page.md").write_bytes(b"### step: slower \xff")
    runner.gh = Ended(int(answer.startswith("HTTP 403")), answer, "")
    said = runner.step("comment", MARKDOWN=str(runner.root / "page.md"))
    assert said.startswith("::notice title=kvtrail::No comment could be written: ")
    assert "the summary of this job" in said
    assert said.count("\n") == 1
