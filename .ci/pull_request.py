"""What action.yml does: compare a pull request with its base, comment on it, fail or not.

Only the standard library and one file of the same checkout: it runs with whatever Python the runner
has. Inputs come as variables INPUT_..., so that no text of a pull request is ever part of a command
line of a shell.
"""

from __future__ import annotations

import io
import json
import os
import secrets
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from asv_bench.output.markdown import fenced

VERDICTS = {
    0: "good",
    1: "failed",
    2: "refused",
    3: "slower",
    4: "inconclusive",
    5: "nothing measured",
    6: "differs",
    130: "interrupted",
}
"""What the exit codes of `kvtrail compare` say."""
GATES = ("slower", "inconclusive", "differs")
"""Verdicts that fail the job only where `fail-on` names them; all but "good" fail it otherwise."""
LONGEST, LONGEST_QUOTE = 65_000, 20_000
"""Characters of a comment, and of what failed."""
COMMENTS = """
query($owner: String!, $name: String!, $number: Int!, $endCursor: String) {
  repository(owner: $owner, name: $name) {
    pullRequest(number: $number) {
      comments(first: 100, after: $endCursor) {
        nodes { databaseId body viewerDidAuthor }
        pageInfo { hasNextPage endCursor }
      }
    }
  }
}
"""


class Ended(NamedTuple):
    """What came of a program: its exit code, what it printed, and its complaints."""

    code: int
    said: str
    complained: str


class Unfit(Exception):
    """What the action was given does not do; the message is a sentence."""


def compare() -> int:
    """Compare, write the summary of the job and the outputs of the step; 0 unless that fails."""
    folder = Path(os.environ["RUNNER_TEMP"]) / "kvtrail-compare"
    folder.mkdir(parents=True, exist_ok=True)
    record, page = folder / "record.json", folder / "page.md"
    for old in (record, page):
        old.unlink(missing_ok=True)
    try:
        base, head = ends()
        words = [os.environ["KVTRAIL"], "compare", "--quiet", base, head, *options()]
    except Unfit as error:
        code, said = 2, str(error)
    else:
        words[5:5] = ["--json", str(record), "--markdown", str(page)]
        print(shlex.join(["kvtrail", *words[1:]]), flush=True)
        code, said, _ = run(words, errors=subprocess.STDOUT)
    show(said)
    if not page.is_file():
        lines = said.splitlines()[-20:] or ["It said nothing."]
        quote = fenced("\n".join(lines)[-LONGEST_QUOTE:])
        page.write_text(f"### kvtrail compared nothing\n\n{quote}\n", encoding="utf-8")
    text = page.read_text(encoding="utf-8", errors="replace")
    append("GITHUB_STEP_SUMMARY", text)
    outputs = {
        "verdict": VERDICTS.get(code, "failed"),
        "exit-code": code,
        "record": record if record.is_file() else "",
        "markdown": page,
    }
    append("GITHUB_OUTPUT", "".join(f"{name}={value}\n" for name, value in outputs.items()))
    return 0


def comment() -> int:
    """Write the comment of this pull request, or write it anew; 0 also where that is forbidden."""
    number = part(event(), "pull_request", "number")
    if not isinstance(number, int):
        print("This is no pull request, so there is nothing to comment on.")
        return 0
    name = given("name")
    marker = f"<!-- kvtrail compare {name} -->"
    text = Path(os.environ["MARKDOWN"]).read_text(encoding="utf-8", errors="replace")
    body = json.dumps({"body": f"{marker}\n{text[:LONGEST]}"})
    repository = os.environ["GITHUB_REPOSITORY"]
    try:
        known = next(own_comments(repository, number, marker), None)
        if known is None:
            gh("--method", "POST", f"repos/{repository}/issues/{number}/comments", body=body)
        else:
            gh("--method", "PATCH", f"repos/{repository}/issues/comments/{known}", body=body)
    except Unfit as error:
        reason = " ".join(str(error).split()).replace("%", "%25")
        print(
            f"::notice title=kvtrail::No comment could be written: {reason} The comparison is in "
            f"the summary of this job. A pull request from a fork has a token that cannot write; "
            f"else the job needs the permission pull-requests: write."
        )
    return 0


def conclude() -> int:
    """The exit code of the job: 1 where the verdict is one that it fails on."""
    verdict = os.environ["VERDICT"]
    failing = [word.strip() for word in given("fail-on").split(",")]
    if verdict == "good" or (verdict in GATES and verdict not in failing):
        return 0
    print(f"::error title=kvtrail::The comparison says: {verdict}.")
    return 1


def ends() -> tuple[str, str]:
    """The two commits: those of the inputs, or a head and where it branched off.

    That is the head of a pull request, or of what a merge queue is about to merge.

    Raises Unfit if there are none.
    """
    asked = event()
    head = given("head") or part(asked, "pull_request", "head", "sha")
    head = head or part(asked, "merge_group", "head_sha") or os.environ.get("GITHUB_SHA", "")
    if base := given("base"):
        return base, head
    tip = part(asked, "pull_request", "base", "sha") or part(asked, "merge_group", "base_sha")
    if not tip:
        raise Unfit("this is no pull request: the action needs its input base.")
    code, said, complained = run(["git", "merge-base", tip, head])
    if code:
        raise Unfit(
            f"git does not find where {head[:8]} branched off from {tip[:8]}: check out the "
            f"history, with fetch-depth: 0. {complained}"
        )
    return said, head


def options() -> list[str]:
    """The options of `compare` that the inputs ask for, and the command behind --, as one line.

    Raises Unfit if the arguments are no words, or `fail-on` names no verdict.
    """
    failing = [word.strip() for word in given("fail-on").split(",")]
    if unknown := [word for word in failing if word not in (*GATES, "none")]:
        raise Unfit(f"fail-on takes {', '.join(GATES)} or none, and not {unknown[0]!r}.")
    words = ["--gate", ",".join(GATES)]
    for name in ("subject", "margin"):
        if value := given(name):
            words += [f"--{name}", value]
    for metric in given("metrics").splitlines():
        words += ["--metric", metric.strip()] if metric.strip() else []
    try:
        words += shlex.split(given("arguments"))
    except ValueError as error:
        raise Unfit(f"arguments must be words as a shell reads them: {error}.") from None
    command = given("command")
    return [*words, "--", command] if command else words


def own_comments(repository: str, number: int, marker: str) -> Iterator[int]:
    """Ids of the comments of this token's user that begin with the marker.

    Those of others do not count, whatever they begin with. Raises Unfit if gh answers with anything
    but pages of comments: with no list of them, a comment that is there would be written twice.
    """
    owner, _, name = repository.partition("/")
    fields = ("-f", f"owner={owner}", "-f", f"name={name}", "-F", f"number={number}")
    text = gh("graphql", "--paginate", "-f", f"query={COMMENTS}", *fields)
    decoder, at = json.JSONDecoder(), 0
    try:
        # A document for each page, one after the other.
        while at < len(text) or not at:
            page, at = decoder.raw_decode(text, at)
            at += len(text[at:]) - len(text[at:].lstrip())
            for node in page["data"]["repository"]["pullRequest"]["comments"]["nodes"]:
                if node["viewerDidAuthor"] and node["body"].startswith(marker):
                    yield int(node["databaseId"])
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise Unfit(f"gh answered with no list of comments: {text[:200] or 'nothing'}.") from None


def gh(*words: str, body: str | None = None) -> str:
    """What `gh api` answers; Unfit with its words if it is missing or fails."""
    sent = [] if body is None else ["--input", "-"]
    code, said, complained = run(["gh", "api", *words, *sent], body or "")
    if code:
        raise Unfit(complained or said or "gh api failed.")
    return said


def run(words: Sequence[str], given: str = "", errors: int = subprocess.PIPE) -> Ended:
    """Run a program to its end, whatever bytes it prints; `errors` is where its complaints go."""
    try:
        done = subprocess.run(
            words, input=given.encode(), stdout=subprocess.PIPE, stderr=errors, check=False
        )
    except OSError as error:
        sentence = f"{words[0]} cannot be started on this runner: {error.strerror}."
        return Ended(1, sentence, sentence)
    said, complained = (
        (output or b"").decode(errors="replace").replace("\0", "\ufffd").strip()
        for output in (done.stdout, done.stderr)
    )
    return Ended(done.returncode, said, complained)


def show(said: str) -> None:
    """Print what a program said, of which the runner is to obey nothing."""
    word = secrets.token_hex(16)
    print(f"::stop-commands::{word}\n{said}\n::{word}::", flush=True)


def event() -> Any:
    """What started the workflow; None where that cannot be read."""
    try:
        return json.loads(Path(os.environ["GITHUB_EVENT_PATH"]).read_bytes())
    except (KeyError, OSError, ValueError, RecursionError):
        return None


def part(content: Any, *keys: str) -> Any:
    """What lies under these keys, one in the other; "" where there is nothing."""
    for key in keys:
        content = content.get(key) if isinstance(content, dict) else None
    return content or ""


def given(name: str) -> str:
    """An input of the action; "" where there is none."""
    return os.environ.get(f"INPUT_{name.upper().replace('-', '_')}", "").strip()


def append(variable: str, text: str) -> None:
    """Add to one of the files by which a step speaks to its job."""
    if path := os.environ.get(variable):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(text)


STEPS = {"compare": compare, "comment": comment, "conclude": conclude}


def main(arguments: Sequence[str]) -> int:
    """Run one of the steps."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # else what prints there is a test
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    return STEPS[arguments[0]]()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
