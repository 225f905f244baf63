"""How often a bisection is right, by simulation.

Run as `python -m asv_bench.lab.calibration.simulate_bisect`.

It runs the procedure itself, on simulated processes.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from asv_bench.bisect.plan import SearchPlan
from asv_bench.lab.calibration.simulate import NOISES
from asv_bench.lab.calibration.simulated_bisects import Scenario, bisect_often, bisect_table
from asv_bench.lab.calibration.simulated_noise import Noise
from asv_bench.output.console import make_console
from asv_bench.output.record import write_json

SCENARIOS = (
    Scenario("2 %", (0.02,)),
    Scenario("3 %", (0.03,)),
    Scenario("5 %", (0.05,)),
    Scenario("nothing", ()),
    Scenario("3 %, four devices", (0.03,), devices=4),
    Scenario("3 %, a fifth unmeasurable", (0.03,), unmeasurable=0.2),
    Scenario("3 %, each commit moves by 0.2 %", (0.03,), jitter=0.002),
    Scenario("3 %, heavy noise", (0.03,), noise=NOISES["heavy"]),
    Scenario("3 % and 4 %", (0.03, 0.04)),
)


def run(
    runs: Annotated[int, typer.Option(min=1, help="Bisections for each range.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of all draws.")] = 0,
    json: Annotated[
        Path | None, typer.Option("--json", help="Where the counts go; a .md beside it too.")
    ] = None,
) -> None:
    """Bisect simulated ranges of 64 commits, and count how often the answer was right."""
    rows: list[dict[str, Any]] = []
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=make_console(stderr=True)) as progress:
        for scenario in SCENARIOS:
            task = progress.add_task(scenario.name, total=runs)
            advance = partial(progress.advance, task)
            rows.append(bisect_often(scenario, runs, seed, advance))
    table = bisect_table(rows)
    print(table)
    if json is not None:
        command = f"python -m asv_bench.lab.calibration.simulate_bisect --runs {runs} --seed {seed}"
        content = {
            "command": command,
            "date": datetime.now(UTC).date().isoformat(),
            "plan": SearchPlan().to_json(),
            "rows": rows,
        }
        write_json(json, content, indent=2)
        json.with_suffix(".md").write_text(_page(table, command))


def _page(table: str, command: str) -> str:
    return (
        f"# Bisection of simulated ranges\n\n"
        f"Each range has 64 commits, and its steps at random places. Noise: "
        f"{described(Noise())}; heavy: {described(NOISES['heavy'])}. "
        f"Right is a confirmed commit that has a step, and without steps the answer that there is "
        f"none: an inconclusive answer is never right. Pairs are those of the two comparisons and "
        f"of the search together.\n\n{table}\n\nMade by `{command}`.\n"
    )


def described(noise: Noise) -> str:
    """The noise in words."""
    tail = "" if noise.tail is None else f" (t with {noise.tail:.0f} degrees of freedom)"
    return (
        f"{noise.process:.0%}{tail} a process, a drift of {noise.drift:.0%} with a correlation of "
        f"{noise.memory}, {noise.outliers:.0%} of processes slower by {noise.outlier_size:.0%} in "
        f"the mean"
    )


if __name__ == "__main__":
    typer.run(run)
