"""What action.yml does: compare a pull request with its base, comment on it, fail or not.

Only the standard library: it runs with whatever Python the runner has. Inputs come as variables
INPUT_..., so that no text of a pull request is ever part of a command line of a shell.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

VERDICTS = {
    0: "good",
    1: "failed",
    2: "refused",
    3: "slower",
    4: "inconclusive",
    5: "nothing measured",
    130: "interrupted",
}
"""What the exit codes of `kvtrail compare` say."""
GATES = ("slower", "inconclusive")
"""Verdicts that fail the job only where `fail-on` names them; all but "good" fail it otherwise."""
LONGEST = 65_000
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
        base, head = ends(event())
        words = [os.environ["KVTRAIL"], "--quiet", "compare", base, head, *options()]
    except Unfit as error:
        code, said = 2, str(error)
    else:
        words[5:5] = ["--json", str(record), "--markdown", str(page)]
        print(shlex.join(["kvtrail", *words[1:]]), flush=True)
        done = subprocess.run(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        code, said = done.returncode, done.stdout
    print(said, flush=True)
    if not page.is_file():
        lines = said.strip().splitlines()[-20:] or ["It said nothing."]
        page.write_text("\n".join(["### kvtrail compared nothing", "", "```", *lines, "```", ""]))
    text = page.read_text(encoding="utf-8")
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
    number = event().get("pull_request", {}).get("number")
    if number is None:
        print("This is no pull request, so there is nothing to comment on.")
        return 0
    name = given("name")
    marker = f"<!-- kvtrail compare {name} -->"
    text = Path(os.environ["MARKDOWN"]).read_text(encoding="utf-8")
    body = json.dumps({"body": f"{marker}\n{text[:LONGEST]}"})
    repository = os.environ["GITHUB_REPOSITORY"]
    try:
        known = next(own_comments(repository, number, marker), None)
        if known is None:
            gh("--method", "POST", f"repos/{repository}/issues/{number}/comments", body=body)
        else:
            gh("--method", "PATCH", f"repos/{repository}/issues/comments/{known}", body=body)
    except Unfit as error:
        reason = " ".join(str(error).split())
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


def ends(event: Mapping[str, Any]) -> tuple[str, str]:
    """The two commits: those of the inputs, or a pull request's head and where it branched off.

    Raises Unfit if there are none.
    """
    pull = event.get("pull_request", {})
    head = given("head") or pull.get("head", {}).get("sha") or os.environ.get("GITHUB_SHA", "")
    if base := given("base"):
        return base, head
    tip = pull.get("base", {}).get("sha")
    if not tip:
        raise Unfit("this is no pull request: the action needs its input base.")
    found = subprocess.run(
        ["git", "merge-base", tip, head], capture_output=True, text=True, check=False
    )
    if found.returncode:
        raise Unfit(
            f"git does not find where {head[:8]} branched off from {tip[:8]}: check out the "
            f"history, with fetch-depth: 0. {found.stderr.strip()}"
        )
    return found.stdout.strip(), head


def options() -> list[str]:
    """The options of `compare` that the inputs ask for, and the command behind --.

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
        command = shlex.split(given("command"))
    except ValueError as error:
        raise Unfit(
            f"arguments and command must be words as a shell reads them: {error}."
        ) from None
    return [*words, "--", *command] if command else words


def own_comments(repository: str, number: int, marker: str) -> Iterator[int]:
    """Ids of the comments of this token's user that begin with the marker.

    Those of others do not count, whatever they begin with.
    """
    owner, _, name = repository.partition("/")
    fields = ("-f", f"owner={owner}", "-f", f"name={name}", "-F", f"number={number}")
    text = gh("graphql", "--paginate", "-f", f"query={COMMENTS}", *fields)
    decoder, at = json.JSONDecoder(), 0
    # A document for each page, one after the other.
    while at < len(text.rstrip()):
        page, at = decoder.raw_decode(text, at)
        while at < len(text) and text[at].isspace():
            at += 1
        for node in page["data"]["repository"]["pullRequest"]["comments"]["nodes"]:
            if node["viewerDidAuthor"] and node["body"].startswith(marker):
                yield node["databaseId"]


def gh(*words: str, body: str | None = None) -> str:
    """What `gh api` answers; Unfit with its words if it is missing or fails."""
    sent = [] if body is None else ["--input", "-"]
    try:
        done = subprocess.run(
            ["gh", "api", *words, *sent], input=body, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise Unfit("the command gh is not installed on this runner.") from None
    if done.returncode:
        raise Unfit(done.stderr.strip() or "gh api failed.")
    return done.stdout


def event() -> dict[str, Any]:
    """What started the workflow."""
    path = os.environ.get("GITHUB_EVENT_PATH")
    content = json.loads(Path(path).read_text(encoding="utf-8")) if path else {}
    assert isinstance(content, dict)
    return content


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
    return STEPS[arguments[0]]()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
