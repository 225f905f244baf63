"""How often `asv find` names the right commit of packaging's own suite, beside `kvtrail bisect`.

`python asv_find.py GOOD BAD CULPRIT BENCHMARK --sessions 5` in a folder with a clone `packaging`.
Both search for an improvement among the same commits, in turns, with environments of their own that
stay from one session to the next. What each named is a row of asv-find.json.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

CONFIGURATION = "asv.conf.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("good", "bad", "culprit", "benchmark"):
        parser.add_argument(name)
    parser.add_argument("--sessions", type=int, default=5)
    asked = parser.parse_args()
    suite = json.loads(Path("packaging", CONFIGURATION).read_text())
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    places = {"repo": "packaging", "benchmark_dir": "packaging/benchmarks"}
    own = {"pythons": [version], "env_dir": "asv/env", "results_dir": "asv/results"}
    Path(CONFIGURATION).write_text(json.dumps({**suite, **places, **own}))
    asv = (sys.executable, "-m", "asv")
    subprocess.run([*asv, "machine", "--yes"], check=True, stdout=subprocess.DEVNULL)
    kvtrail = (sys.executable, "-m", "asv_bench", "bisect", asked.good, asked.bad, "--fresh")
    ways = {
        "asv find": (*asv, "find", "-i", f"{asked.good}..{asked.bad}", asked.benchmark),
        "kvtrail bisect": (
            *(*kvtrail, "--improvement", "--margin", "5", "--json", "found.json"),
            *("--subject", f"packaging/{CONFIGURATION}", "-b", asked.benchmark),
        ),
    }
    rows: list[dict[str, object]] = []
    for _ in range(asked.sessions):
        for way, words in ways.items():
            begun = time.monotonic()
            said = subprocess.run(words, check=False, stdout=-1, stderr=-2, text=True).stdout
            seconds = round(time.monotonic() - begun, 1)
            named = re.findall(r"Greatest \w+ found: (\w+)", said)
            if way == "kvtrail bisect":
                found = json.loads(Path("found.json").read_text())["results"]["finding"]
                named = found["suspects"] if found["outcome"] == "found" else []
            name = named[0][:8] if named else None
            row = {"way": way, "found": name, "right": name == asked.culprit[:8]}
            rows.append({**row, "seconds": seconds, "load": os.getloadavg()[0]})
            print(json.dumps(rows[-1]), flush=True)
            Path("asv-find.json").write_text(
                json.dumps({**vars(asked), "sessions": rows}, indent=1) + "\n"
            )


if __name__ == "__main__":
    main()
