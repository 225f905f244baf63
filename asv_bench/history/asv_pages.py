"""asv's own pages of stored results, which it makes in a folder of this process alone."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from asv_bench.errors import MeasurementFailed
from asv_bench.history.asv_results import read_results
from asv_bench.history.filing import write_published
from asv_bench.history.histories import Histories
from asv_bench.output.stored_json import read_stored
from asv_bench.process.environment import measured_environment
from asv_bench.process.run_apart import last_words

_LAST_LINES = 3


class AsvError(MeasurementFailed):
    """asv failed."""


def publish(histories: Histories, branch: str) -> None:
    """Build asv's pages of what `read_results` reads, of the commits on a branch.

    Raises AsvError with asv's own words, or where its configuration is missing.
    """
    source = histories.configured / "asv.conf.json"
    if not source.is_file():
        raise AsvError(f"{source} is missing; run this from a checkout of the project.")
    config = read_stored(source, "asv's configuration", dict)
    with tempfile.TemporaryDirectory(prefix="kvtrail-") as scratch:
        shown = Path(scratch) / "results"
        write_published(read_results(histories.results), histories.results, shown)
        config |= {
            "repo": str(histories.repository),
            "env_dir": str(Path(scratch) / "env"),
            "benchmark_dir": str(histories.configured / config["benchmark_dir"]),
            "results_dir": str(shown),
            "html_dir": str(histories.folder / "html"),
            "branches": [branch],
        }
        path = Path(scratch) / "asv.conf.json"
        path.write_text(json.dumps(config, indent=4) + "\n")
        done = subprocess.run(
            [sys.executable, "-m", "asv", "--config", str(path), "publish", "--no-pull"],
            cwd=histories.configured,
            env=measured_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
    if done.returncode:
        raise AsvError(f"asv could not publish: {last_words(done.stdout, _LAST_LINES)}")
