"""The picture of a bisection, from its record.

    python docs/extensions/bisect_picture.py reports/runs/bisect.json docs/images/bisect.svg

Run it from the repository's folder, in an environment that has matplotlib.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from asv_bench.studies.ladder.drawing import quieten, svg_of

TIME, CULPRIT = "#0969da", "#cf222e"
SIZE_INCHES = (8.8, 4.0)
LONGEST_SUBJECT = 24


def bisect_svg(record: Mapping[str, Any]) -> str:
    """The step time of every measured process by commit, the curve through them, and its steps."""
    settings, finding = record["settings"], record["results"]["finding"]
    commits = [{"hash": settings["good"], "subject": "the good end"}, *settings["commits"]]
    times: dict[str, list[float]] = defaultdict(list)
    for sample in record["samples"]:
        for side in ("base", "head"):
            if sample["pair"] is not None:
                reading = sample["pair"][side]
                times[reading["commit"]].append(1e3 * reading["value"])

    def draw(canvas: Figure) -> None:
        above, below = canvas.subplots(2, sharex=True, height_ratios=(3, 1))
        for place, commit in enumerate(commits):
            colour = CULPRIT if commit["hash"] in finding["suspects"] else TIME
            values = times[commit["hash"]]
            above.plot([place] * len(values), values, "o", color=colour, markersize=4, alpha=0.6)
            below.bar(place, 100 * finding["posterior"].get(commit["hash"], 0), color=colour)
        good = statistics.median(times[settings["good"]])
        places = {commit["hash"]: place for place, commit in enumerate(commits)}
        for point in finding.get("curve", ()):
            place, levels = places[point["commit"]], [point["effect"], *point["interval"]]
            middle, low, high = (good * (1 + level) for level in levels)
            above.vlines(place, low, high, color=TIME)
            above.hlines(middle, place - 0.3, place + 0.3, color=TIME)
        above.set_ylabel("ms a step")
        above.set_ylim(bottom=0)
        below.set_ylabel("% a step")
        below.set_ylim(0, 100)
        names = [f"{one['hash'][:8]} {one['subject'][:LONGEST_SUBJECT]}" for one in commits]
        below.set_xticks(range(len(commits)), names, rotation=20, ha="right")
        for axes in (above, below):
            quieten(axes, grid="y")

    return svg_of(draw, size=SIZE_INCHES, font_size=9, salt="bisect")


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.write_text(bisect_svg(json.loads(source.read_text("utf-8"))), "utf-8")
