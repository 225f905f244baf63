"""How often `git bisect run` with a threshold names the right commit, beside `kvtrail bisect`.

`python threshold.py FOLDER GOOD BAD CULPRIT --sessions 5` in a folder with a kvtrail.toml of one
declared metric, a line in `measure`, and a clone. Both see the same variables. The threshold lies
half way between the ends, by the median of five runs of each. Each way is tried in turns, so that
the machine's load is the same. Of labels, each is an empty commit for `git bisect`. What has a
setup is set up once. With `--gpus 0,1` as many sessions of labels run at once, each on a GPU and on
cores of its own. `threshold.py --table` prints the table of all folders beside this file.
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
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

CANNOT = 125  # the exit code of a commit that cannot be measured, for kvtrail and for git bisect
PAIRS = 15  # runs of both ends in turns, of which the effect is told
WAYS = {"git bisect run, 1 run": 1, "git bisect run, median of 5": 5, "kvtrail bisect": 0}
Row = dict[str, object]


def main() -> None:
    if sys.argv[1:] == ["--table"]:
        print_table(Path(__file__).parent)
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    for name in ("good", "bad", "culprit"):
        parser.add_argument(name)
    parser.add_argument("--sessions", type=int, default=5, help="0: the effect of the ends anew")
    parser.add_argument("--gpus", help="numbers of GPUs, with a comma between them")
    asked = parser.parse_args()
    path = asked.folder / "threshold.json"
    rows = [] if asked.sessions else json.loads(path.read_text())["sessions"]
    gpus = [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in asked.gpus.split(",")] if asked.gpus else [{}]
    with tempfile.TemporaryDirectory() as scratch:
        places = [
            Place(asked.folder.resolve(), Path(scratch, str(number)), variables)
            for number, variables in enumerate(gpus)
        ]
        if len(places) > 1 and not places[0].labels:
            parser.error("several GPUs need labels: of a repository, kvtrail measures in one place")
        names = asked.good, asked.bad, asked.culprit
        settings = places[0].settings(*map(places[0].commit, names))
        free: SimpleQueue[Place] = SimpleQueue()
        for place in places:
            free.put(place)

        def session(_: int) -> None:
            place = free.get()
            for row in place.session(*map(place.commit, names)):
                rows.append(row)
                print(json.dumps(row), flush=True)
                keep(path, settings, rows)
            free.put(place)

        with ThreadPoolExecutor(len(places), initializer=sharing_cores(len(places))) as pool:
            list(pool.map(session, range(asked.sessions)))
    keep(path, settings, rows)
    print_table(asked.folder)


def sharing_cores(count: int) -> Callable[[], None]:
    """What gives each of so many threads, and all that it starts, cores of its own."""
    cores, numbers = sorted(os.sched_getaffinity(0)), iter(range(count))
    return lambda: os.sched_setaffinity(0, cores[next(numbers) :: count])


def keep(path: Path, settings: dict[str, object], rows: list[Row]) -> None:
    path.write_text(json.dumps({**settings, "sessions": rows}, indent=1) + "\n")


class Place:
    """A clone of the subject, and the variables of whatever is measured there."""

    def __init__(self, folder: Path, scratch: Path, variables: dict[str, str]) -> None:
        self.folder, self.clone = folder, scratch / "clone"
        table = tomllib.loads((folder / "kvtrail.toml").read_text())
        self.labels: list[str] = table["axis"]["labels"] if "axis" in table else []
        self.lines: dict[str, str] = table["subject"]
        [self.metric] = table["metrics"].values()
        own = {"KVTRAIL_TREE": str(self.clone), "KVTRAIL_SUBJECT": str(folder)}
        # Sessions of kvtrail as a package would wait for each other in one place.
        apart = {"XDG_STATE_HOME": str(scratch / "state")} if variables else {}
        self.variables = {**os.environ, **variables, **apart}
        self.of_runs = {**self.variables, **own}
        scratch.mkdir()
        if self.labels:
            self.make_commits()
        else:
            repository = (folder / self.lines["repository"]).resolve()
            subprocess.run(["git", "clone", "-q", repository, self.clone], check=True)

    def make_commits(self) -> None:
        """A repository of the subject's two files, with an empty commit, and a tag, for each label.

        kvtrail measures there too: a release is set up anew where the working tree has changed.
        """
        subprocess.run(["git", "init", "-q", self.clone], check=True)
        who = ("-c", "user.name=threshold", "-c", "user.email=threshold@localhost")
        for name in ("kvtrail.toml", "bench.py"):
            (self.clone / name).write_bytes((self.folder / name).read_bytes())
            self.git("add", name)
        self.git(*who, "commit", "-q", "-m", "the subject")
        for label in self.labels:
            self.git(*who, "commit", "-q", "--allow-empty", "-m", label)
            self.git("tag", label)

    def git(self, *words: str) -> str:
        command = ["git", "-C", str(self.clone), *words]
        return subprocess.run(command, check=True, stdout=-1, stderr=-1, text=True).stdout.strip()

    def commit(self, name: str) -> str:
        return self.git("rev-parse", f"{name}^{{commit}}")

    def name_of(self, commit: str) -> str:
        """What kvtrail calls a commit: its label, where the subject has labels."""
        return self.git("log", "-1", "--format=%s", commit) if self.labels else commit

    def settings(self, good: str, bad: str, culprit: str) -> dict[str, object]:
        ratios = (self.figure(bad) / self.figure(good) for _ in range(PAIRS))
        return {
            "good": self.name_of(good),
            "bad": self.name_of(bad),
            "culprit": self.name_of(culprit),
            "commits": int(self.git("rev-list", "--count", "--first-parent", f"{good}..{bad}")),
            "effect": round(statistics.median(ratios) - 1, 3),
            "cores": os.cpu_count(),
        }

    def session(self, good: str, bad: str, culprit: str) -> Iterator[Row]:
        """What each way names, and the seconds it takes."""
        for way, runs in WAYS.items():
            begun = time.monotonic()
            if runs:
                commit = self.by_threshold(good, bad, runs)
                found = self.name_of(commit) if commit else None
            else:
                found = self.by_kvtrail(self.name_of(good), self.name_of(bad))
            seconds = round(time.monotonic() - begun, 1)
            is_right = found == self.name_of(culprit)
            row = {"way": way, "found": found, "right": is_right, "seconds": seconds}
            yield {**row, "load": os.getloadavg()[0]}

    def figure(self, commit: str, runs: int = 1) -> float:
        """The median of so many runs of a commit."""
        self.git("checkout", "-q", "--force", commit)
        if "setup" in self.lines:
            out = self.clone.with_name(self.name_of(self.git("rev-parse", "HEAD")))
            self.of_runs.update(KVTRAIL_LABEL=out.name, KVTRAIL_OUT=str(out))
            if not out.exists():
                out.mkdir()
                self.run(self.lines["setup"])
        said = [self.run(self.lines["measure"]) for _ in range(runs)]
        return statistics.median(float(re.findall(self.metric["regex"], one)[-1]) for one in said)

    def run(self, line: str) -> str:
        return subprocess.run(
            line, shell=True, cwd=self.clone, env=self.of_runs, check=True, stdout=-1, text=True
        ).stdout

    def by_threshold(self, good: str, bad: str, runs: int) -> str | None:
        """The commit that `git bisect` names, of first parents; None: too many are skipped."""
        limit = (self.figure(good, 5) + self.figure(bad, 5)) / 2
        self.git("bisect", "start", "--first-parent", bad, good)
        while True:
            try:
                word = "bad" if self.figure("HEAD", runs) > limit else "good"
            except subprocess.CalledProcessError as error:
                if error.returncode != CANNOT:
                    raise
                word = "skip"
            command = ["git", "-C", str(self.clone), "bisect", word]
            said = subprocess.run(command, check=False, stdout=-1, text=True)
            is_found = "is the first bad commit" in said.stdout
            if is_found or said.returncode:
                self.git("bisect", "reset")
                return said.stdout.split()[0] if is_found else None

    def by_kvtrail(self, good: str, bad: str) -> str | None:
        """What kvtrail names first, if it confirmed a step within ten minutes.

        Raises SystemExit where kvtrail refuses or fails, as while another session of this checkout
        measures: that is no answer.
        """
        folder = self.clone if self.labels else self.folder
        with tempfile.TemporaryDirectory() as scratch:
            record = Path(scratch, "record.json")
            words = ["bisect", good, bad, "--fresh", "--minutes", "10", "--json", str(record)]
            command = [sys.executable, "-m", "asv_bench", *words]
            ended = subprocess.run(
                command, cwd=folder, env=self.variables, stderr=-1, stdout=-1, text=True
            )
            if ended.returncode not in (0, 3, 4):
                raise SystemExit(f"kvtrail ended with {ended.returncode}: {ended.stderr}")
            finding = json.loads(record.read_text())["results"]["finding"] or {}
        steps = [one for one in finding.get("steps", ()) if one["confirmed"]]
        return max(steps, key=lambda one: abs(one["effect"]))["commit"] if steps else None


def print_table(folder: Path) -> None:
    """A row of each threshold.json in `folder`, and one of all of them."""
    print("| subject | commits, labels | effect | " + " | ".join(WAYS) + " | load |")
    print("| --- | ---: | ---: | --- | --- | --- | --- |")
    every: list[Row] = []
    for path in sorted(folder.rglob("threshold.json")):
        told = json.loads(path.read_text())
        every += told["sessions"]
        name = path.resolve().parent.name
        effect = f"{100 * told['effect']:+,.0f} %"
        cells = [f"[{name}]({name}/README.md)", str(told["commits"]), effect]
        print("|", " | ".join([*cells, *cells_of(told["sessions"])]), "|")
    print("| all | | |", " | ".join(cells_of(every)), "|")


def cells_of(sessions: list[Row]) -> list[str]:
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


if __name__ == "__main__":
    main()
