"""How often `git bisect run` with a threshold names the right commit, beside `kvtrail bisect`.

`python threshold.py FOLDER GOOD BAD CULPRIT --sessions 5` in a folder with a kvtrail.toml of one
declared metric, a line in `measure`, and a clone. Both see the same variables. The threshold lies half way between the ends, by
the median of five runs of each. Each way is tried in turns, so that the machine's load is the same.
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
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    for name in ("good", "bad", "culprit"):
        parser.add_argument(name)
    parser.add_argument("--sessions", type=int, default=5)
    asked = parser.parse_args()
    table = tomllib.loads((asked.folder / "kvtrail.toml").read_text())
    [metric] = table["metrics"].values()
    repository = (asked.folder / table["subject"]["repository"]).resolve()
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as scratch:
        clone = Path(scratch, "clone")
        git("clone", "-q", str(repository), str(clone))
        told = {"KVTRAIL_TREE": str(clone), "KVTRAIL_SUBJECT": str(asked.folder.resolve())}
        measure = figure_of(clone, table["subject"]["measure"], metric["regex"], told)
        good, bad, culprit = (
            git("-C", str(clone), "rev-parse", f"{one}^{{commit}}")
            for one in (asked.good, asked.bad, asked.culprit)
        )
        ways = {"git bisect run, 1 run": 1, "git bisect run, median of 5": 5, "kvtrail bisect": 0}
        for _ in range(asked.sessions):
            for way, runs in ways.items():
                begun = time.monotonic()
                found = (
                    by_threshold(clone, good, bad, measure, runs)
                    if runs
                    else by_kvtrail(asked.folder, good, bad)
                )
                seconds = round(time.monotonic() - begun, 1)
                row = {"way": way, "found": found, "right": found == culprit, "seconds": seconds}
                rows.append({**row, "load": os.getloadavg()[0]})
                print(json.dumps(rows[-1]), flush=True)
    settings = {"good": good, "bad": bad, "culprit": culprit, "cores": os.cpu_count()}
    path = asked.folder / "threshold.json"
    path.write_text(json.dumps({**settings, "sessions": rows}, indent=1) + "\n")
    for way in ways:
        own = [row for row in rows if row["way"] == way]
        seconds = sorted(float(str(row["seconds"])) for row in own)
        right = sum(bool(row["right"]) for row in own)
        print(f"| {way} | {right} of {len(own)} | {seconds[0]:.0f} to {seconds[-1]:.0f} s |")


def git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], check=True, capture_output=True, text=True
    ).stdout.strip()


def figure_of(clone: Path, line: str, regex: str, told: dict[str, str]):
    """What gives the figure of a commit: the median of so many runs."""

    def measure(commit: str, runs: int) -> float:
        git("-C", str(clone), "checkout", "-q", "--force", commit)
        said = [
            subprocess.run(
                line,
                shell=True,
                cwd=clone,
                env={**os.environ, **told},
                check=True,
                stdout=-1,
                text=True,
            )
            for _ in range(runs)
        ]
        return statistics.median(float(re.findall(regex, one.stdout)[-1]) for one in said)

    return measure


def by_threshold(clone: Path, good: str, bad: str, measure, runs: int) -> str:
    """The commit that `git bisect` names, first parents only, with the exit codes of a script."""
    limit = (measure(good, 5) + measure(bad, 5)) / 2
    git("-C", str(clone), "bisect", "start", "--first-parent", bad, good)
    while True:
        now = git("-C", str(clone), "rev-parse", "HEAD")
        word = "bad" if measure(now, runs) > limit else "good"
        said = git("-C", str(clone), "bisect", word)
        if "is the first bad commit" in said:
            git("-C", str(clone), "bisect", "reset")
            return said.split()[0]


def by_kvtrail(folder: Path, good: str, bad: str) -> str | None:
    """The commit that kvtrail names first, if it confirmed one."""
    with tempfile.TemporaryDirectory() as scratch:
        record = Path(scratch, "record.json")
        words = ["-m", "asv_bench", "bisect", good, bad, "--fresh", "--json", str(record)]
        subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, check=False)
        finding = json.loads(record.read_text())["results"]["finding"] or {}
    steps = [one for one in finding.get("steps", ()) if one["confirmed"]]
    return max(steps, key=lambda one: abs(one["effect"]))["commit"] if steps else None


if __name__ == "__main__":
    main()
