"""How often `kvtrail compare --metric cpu_s` is right on cores that other programs keep busy.

`python trials.py --lanes 8 --out FOLDER` on sixteen cores: each lane has two of them, busy
processes, and homes of the ruler's own. Nothing is known of the machine's noise before a session,
unless `--known` lets those of a lane learn from each other.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

OWN = Path(__file__).resolve().parent
WORK = {"base": 1000, "same": 1000, "plus-6": 1060, "plus-15": 1150}
"""Branches of the repository, and the amount of work of each."""
HEADS = ("plus-6", "same", "plus-15", "same")
BUSY = "import os; parent = os.getppid()\nwhile os.getppid() == parent: sum(range(100_000))"
ASKED = ("--metric", "cpu_s", "--minutes", "2", "--fresh", "--json")
SHOWN = ("verdict", "effect", "interval", "pairs_used", "base_value")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--runs", type=int, default=10, help="sessions of each planted change")
    parser.add_argument("--busy", type=int, default=4, help="busy processes of each lane")
    parser.add_argument("--cores", help="those of all lanes, such as 0,1 (default: the first)")
    parser.add_argument("--known", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    cores = asked.cores.split(",") if asked.cores else sorted(os.sched_getaffinity(0))
    if len(cores) < 2 * asked.lanes:
        parser.error(f"{asked.lanes} lanes need {2 * asked.lanes} cores, and {len(cores)} are here")
    asked.out.mkdir(parents=True, exist_ok=True)
    waiting, writing = iter(HEADS * asked.runs), threading.Lock()
    rows, found = list[dict[str, object]](), asked.out / "sessions.json"

    def lane(number: int, scratch: Path) -> None:
        # Of this thread, and of what it starts.
        os.sched_setaffinity(0, map(int, cores[2 * number :][:2]))
        repository, home = make_repository(scratch / "crowded"), scratch
        for _ in range(asked.busy):  # they end with this process
            subprocess.Popen([sys.executable, "-c", BUSY])
        for head in waiting:  # which all lanes share
            home = home if asked.known else Path(tempfile.mkdtemp(dir=scratch))
            row = {"lane": number, "head": head, **session(repository, head, home)}
            with writing:
                rows.append(row)
                print(json.dumps(row), flush=True)
                found.write_text(json.dumps({"sessions": rows}, indent=1) + "\n")

    with tempfile.TemporaryDirectory() as scratch:
        homes = [Path(tempfile.mkdtemp(dir=scratch)) for _ in range(asked.lanes)]
        with ThreadPoolExecutor(asked.lanes) as lanes:
            list(lanes.map(lane, range(asked.lanes), homes))
    print(Counter((row["head"], row["verdict"]) for row in rows))


def make_repository(folder: Path) -> Path:
    """Commit bench.py with each amount of work, and kvtrail.toml, on a branch for each."""
    bench, git = (OWN / "bench.py").read_text(), ["git", "-c", "user.name=-", "-c", "user.email=-"]
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    (folder / "kvtrail.toml").write_text((OWN / "kvtrail.toml").read_text())
    for branch, amount in WORK.items():
        planted = f"AMOUNT = {amount}  # {branch}"
        (folder / "bench.py").write_text(bench.replace("AMOUNT = 1000", planted))
        for words in (["checkout", "-qb", branch], ["add", "."], ["commit", "-qm", branch]):
            subprocess.run([*git, *words], cwd=folder, check=True)
    return folder


def session(repository: Path, head: str, home: Path) -> dict[str, object]:
    """What `compare` says, whose locks, known noise and temporary files lie in a home."""
    load, begun = os.getloadavg()[0], time.monotonic()
    record = home / f"{begun}.json"
    told = dict.fromkeys(("XDG_STATE_HOME", "XDG_CACHE_HOME", "TMPDIR"), str(home))
    told = {**os.environ, **told, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    words = [sys.executable, "-m", "asv_bench", "compare", "base", head, *ASKED, str(record)]
    ended = subprocess.run(words, cwd=repository, env=told, capture_output=True, text=True)
    seconds = round(time.monotonic() - begun, 1)
    if not record.exists():
        return {"verdict": "none", "said": ended.stderr, "seconds": seconds, "load": load}
    found = json.loads(record.read_text())
    [answer] = found["results"]["comparisons"]
    row = {**{name: answer[name] for name in SHOWN}, "seconds": seconds, "load": load}
    pairs = [round(one["log_ratio"], 5) for one in found["samples"]]
    return {**row, "measuring_s": found["results"]["seconds"], "log_ratios": pairs}


if __name__ == "__main__":
    main()
