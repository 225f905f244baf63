"""How often `git bisect run` with a threshold names the right commit, beside `kvtrail bisect`.

`python threshold.py FOLDER GOOD BAD CULPRIT --sessions 5` in a folder with a kvtrail.toml of one
declared metric, a line in `measure`, and a clone. Both see the same variables. The threshold lies
half way between the ends, by the median of five runs of each. Each way is tried in turns, so that
the machine's load is the same. Of labels, each is an empty commit for `git bisect`, and is set up
once. `threshold.py --table` prints the table of all folders beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

CANNOT = 125  # the exit code of a commit that cannot be measured, for kvtrail and for git bisect
PAIRS = 15  # runs of both ends in turns, of which the effect is told
WAYS = {"git bisect run, 1 run": 1, "git bisect run, median of 5": 5, "kvtrail bisect": 0}


def main() -> None:
    if sys.argv[1:] == ["--table"]:
        print_table(Path(__file__).parent)
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    for name in ("good", "bad", "culprit"):
        parser.add_argument(name)
    parser.add_argument("--sessions", type=int, default=5, help="0: the effect of the ends anew")
    asked = parser.parse_args()
    table = tomllib.loads((asked.folder / "kvtrail.toml").read_text())
    path = asked.folder / "threshold.json"
    rows = [] if asked.sessions else json.loads(path.read_text())["sessions"]
    with tempfile.TemporaryDirectory() as scratch:
        clone = Path(scratch, "clone")
        labels = table["axis"]["labels"] if "axis" in table else []
        if labels:
            make_commits(clone, asked.folder, labels)
        else:
            repository = (asked.folder / table["subject"]["repository"]).resolve()
            git("clone", "-q", str(repository), str(clone))
        measure = figure_of(clone, asked.folder.resolve(), table, is_label=bool(labels))
        good, bad, culprit = (
            git("-C", str(clone), "rev-parse", f"{one}^{{commit}}")
            for one in (asked.good, asked.bad, asked.culprit)
        )
        ends = (asked.good, asked.bad) if labels else (good, bad)
        settings = {
            "good": ends[0],
            "bad": ends[1],
            "culprit": asked.culprit if labels else culprit,
            "commits": int(
                git("-C", str(clone), "rev-list", "--count", "--first-parent", f"{good}..{bad}")
            ),
            "effect": round(
                statistics.median(measure(bad, 1) / measure(good, 1) for _ in range(PAIRS)) - 1, 3
            ),
            "cores": os.cpu_count(),
        }
        for _ in range(asked.sessions):
            for way, runs in WAYS.items():
                begun = time.monotonic()
                if runs:
                    found = by_threshold(clone, good, bad, measure, runs)
                    found = label_of(clone, found) if found and labels else found
                else:
                    found = by_kvtrail(clone if labels else asked.folder, *ends)
                seconds = round(time.monotonic() - begun, 1)
                is_right = found == settings["culprit"]
                row = {"way": way, "found": found, "right": is_right, "seconds": seconds}
                rows.append({**row, "load": os.getloadavg()[0]})
                print(json.dumps(rows[-1]), flush=True)
                keep(path, settings, rows)
    keep(path, settings, rows)
    print_table(asked.folder)


def keep(path: Path, settings: dict[str, object], rows: list[dict[str, object]]) -> None:
    path.write_text(json.dumps({**settings, "sessions": rows}, indent=1) + "\n")


def print_table(folder: Path) -> None:
    """A row of each threshold.json in `folder`, and one of all of them."""
    print("| subject | commits, labels | effect | " + " | ".join(WAYS) + " | load |")
    print("| --- | ---: | ---: | --- | --- | --- | --- |")
    every: list[dict[str, object]] = []
    for path in sorted(folder.rglob("threshold.json")):
        told = json.loads(path.read_text())
        every += told["sessions"]
        name = path.resolve().parent.name
        effect = f"{100 * told['effect']:+,.0f} %"
        cells = [f"[{name}]({name}/README.md)", str(told["commits"]), effect]
        print("|", " | ".join([*cells, *cells_of(told["sessions"])]), "|")
    print("| all | | |", " | ".join(cells_of(every)), "|")


def cells_of(sessions: list[dict[str, object]]) -> list[str]:
    """Of each way how often it was right, wrong and unfinished, and its seconds; then the load."""
    cells = []
    for way in WAYS:
        own = [row for row in sessions if row["way"] == way]
        right = sum(bool(row["right"]) for row in own)
        unfinished = sum(row["found"] is None for row in own)
        seconds = statistics.median(float(str(row["seconds"])) for row in own)
        wrong = len(own) - right - unfinished
        cells.append(f"{right} / {wrong} / {unfinished}, {seconds:.0f} s")
    loads = [float(str(row["load"])) for row in sessions]
    return [*cells, f"{min(loads):.0f} to {max(loads):.0f}"]


def git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], check=True, capture_output=True, text=True
    ).stdout.strip()


def make_commits(clone: Path, folder: Path, labels: list[str]) -> None:
    """A repository of the subject's two files, with an empty commit, and a tag, for each label.

    kvtrail measures there too: a release is set up anew where the working tree has changed.
    """
    git("init", "-q", str(clone))
    who = ("-c", "user.name=threshold", "-c", "user.email=threshold@localhost")
    for name in ("kvtrail.toml", "bench.py"):
        (clone / name).write_bytes((folder / name).read_bytes())
        git("-C", str(clone), "add", name)
    git("-C", str(clone), *who, "commit", "-q", "-m", "the subject")
    for label in labels:
        git("-C", str(clone), *who, "commit", "-q", "--allow-empty", "-m", label)
        git("-C", str(clone), "tag", label)


def label_of(clone: Path, commit: str) -> str:
    return git("-C", str(clone), "log", "-1", "--format=%s", commit)


def figure_of(
    clone: Path, folder: Path, table: dict[str, Any], *, is_label: bool
) -> Callable[[str, int], float]:
    """What gives the figure of a commit: the median of so many runs."""
    [metric] = table["metrics"].values()
    variables = {**os.environ, "KVTRAIL_TREE": str(clone), "KVTRAIL_SUBJECT": str(folder)}

    def run(line: str) -> str:
        return subprocess.run(
            line, shell=True, cwd=clone, env=variables, check=True, stdout=-1, text=True
        ).stdout

    def measure(commit: str, runs: int) -> float:
        git("-C", str(clone), "checkout", "-q", "--force", commit)
        if is_label:
            out = clone.with_name(label_of(clone, commit))
            variables.update(KVTRAIL_LABEL=out.name, KVTRAIL_OUT=str(out))
            if not out.exists():
                out.mkdir()
                run(table["subject"]["setup"])
        said = [run(table["subject"]["measure"]) for _ in range(runs)]
        return statistics.median(float(re.findall(metric["regex"], one)[-1]) for one in said)

    return measure


def by_threshold(
    clone: Path, good: str, bad: str, measure: Callable[[str, int], float], runs: int
) -> str | None:
    """The commit that `git bisect` names, of first parents; None: too many cannot be measured."""
    limit = (measure(good, 5) + measure(bad, 5)) / 2
    git("-C", str(clone), "bisect", "start", "--first-parent", bad, good)
    while True:
        now = git("-C", str(clone), "rev-parse", "HEAD")
        try:
            word = "bad" if measure(now, runs) > limit else "good"
        except subprocess.CalledProcessError as error:
            if error.returncode != CANNOT:
                raise
            word = "skip"
        said = subprocess.run(
            ["git", "-C", str(clone), "bisect", word], check=False, stdout=-1, text=True
        )
        is_found = "is the first bad commit" in said.stdout
        if is_found or said.returncode:
            git("-C", str(clone), "bisect", "reset")
            return said.stdout.split()[0] if is_found else None


def by_kvtrail(folder: Path, good: str, bad: str) -> str | None:
    """The commit that kvtrail names first, if it confirmed one within ten minutes.

    Raises SystemExit where kvtrail refuses or fails, as while another session of this checkout
    measures: that is no answer.
    """
    with tempfile.TemporaryDirectory() as scratch:
        record = Path(scratch, "record.json")
        words = ["bisect", good, bad, "--fresh", "--minutes", "10", "--json", str(record)]
        ended = subprocess.run(
            [sys.executable, "-m", "asv_bench", *words], cwd=folder, stderr=-1, stdout=-1, text=True
        )
        if ended.returncode not in (0, 3, 4):
            raise SystemExit(f"kvtrail ended with {ended.returncode}: {ended.stderr}")
        finding = json.loads(record.read_text())["results"]["finding"] or {}
    steps = [one for one in finding.get("steps", ()) if one["confirmed"]]
    return max(steps, key=lambda one: abs(one["effect"]))["commit"] if steps else None


if __name__ == "__main__":
    main()
