"""Pairs of equal processes, in turns and one after the other: which differ less by chance.

Pairs of both kinds alternate, so that whatever else the machine does falls on both kinds alike.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from asv_bench.compare.bench_setup import set_up
from asv_bench.git.commit_sources import WORKING_TREE
from asv_bench.output.record import REPOSITORY
from asv_bench.process.measured_process import ProcessRunner
from asv_bench.process.process_pairs import ProcessPairs
from asv_bench.process.samples import Pair
from asv_bench.process.surroundings import look_around

KINDS = {"in turns": True, "one after the other": False}


def run(
    output: Annotated[Path, typer.Argument(help="JSON of every pair.")],
    pairs: Annotated[int, typer.Option(help="Pairs of each kind.", min=2)] = 16,
) -> None:
    """Measure the working tree against itself, and print how far equal processes are apart."""
    setup = set_up(REPOSITORY, (), None)
    commit = setup.resolve(WORKING_TREE).hash
    (entry,) = setup.entries
    print(f"{look_around(setup.devices).busy_cores or 0:.1f} cores are busy with other work.")
    found: dict[str, list[Pair]] = {kind: [] for kind in KINDS}
    with ExitStack() as stack:
        sources = {
            kind: stack.enter_context(
                ProcessPairs(
                    setup.sources,
                    ProcessRunner(setup.folder, setup.sources.environment),
                    {entry.name: entry.identifier},
                    setup.devices,
                    in_turns=in_turns,
                )
            )
            for kind, in_turns in KINDS.items()
        }
        for number, (kind, source) in itertools.product(range(pairs), sources.items()):
            head_first = number % 4 in (1, 2)
            measured = source.pair(commit, commit, head_first=head_first)
            found[kind].append(measured[entry.name])
            written = {each: [pair.to_json() for pair in those] for each, those in found.items()}
            output.write_text(json.dumps(written))
    for kind, measured_pairs in found.items():
        ratios = [pair.log_ratio for pair in measured_pairs]
        spread = math.sqrt(statistics.fmean(ratio**2 for ratio in ratios))
        typical = statistics.median(map(abs, ratios))
        seconds = statistics.fmean(pair.seconds for pair in measured_pairs)
        print(
            f"{kind}: equal processes differ by {100 * spread:.2f} % (root mean square), "
            f"{100 * typical:.2f} % (median), {seconds:.1f} s a pair"
        )
