"""`python -m asv_bench.lab.store.growth`: reading many made-up figures, from JSON and from columns.

asv keeps a JSON file for each commit. The same figures are put into a Parquet file, which DuckDB
reads, and both are asked for one series and for all of them.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from asv_bench.cli.grouped import grouped
from asv_bench.cli.options import Outputs
from asv_bench.history.asv_results import Results, read_results
from asv_bench.output.record import Record, write_json
from asv_bench.output.table import Column, Table, digits
from asv_bench.packages import require_packages

MACHINE, VERSION = "made-up", "1"
SAMPLES = 3
START_MS, COMMIT_MS = 1_700_000_000_000, 3_600_000
COLUMNS = (
    Column("commits", "commits"),
    Column("figures", "figures"),
    Column("json_mb", "JSON (MB)", show=digits(1)),
    Column("parquet_mb", "Parquet (MB)", show=digits(1)),
    Column("json_read_s", "JSON: all (s)", show=digits(2)),
    Column("json_series_s", "one series (s)", show=digits(2)),
    Column("convert_s", "to Parquet (s)", show=digits(2)),
    Column("parquet_read_s", "Parquet: all (s)", show=digits(2)),
    Column("parquet_series_s", "one series (s)", show=digits(3)),
)


@dataclass(frozen=True, slots=True)
class Growth:
    """What a store of one size takes; seconds are the least of the runs."""

    commits: int
    figures: int
    json_mb: float
    parquet_mb: float
    json_read_s: float
    json_series_s: float
    convert_s: float
    parquet_read_s: float
    parquet_series_s: float


@grouped
def run(
    commits: Annotated[list[int], typer.Option(min=1, help="Sizes to measure.")],
    benchmarks: Annotated[int, typer.Option(min=1, help="Figures of a commit.")] = 200,
    runs: Annotated[int, typer.Option(min=1, help="Of which the fastest counts.")] = 3,
    *,
    outputs: Outputs,
) -> None:
    """Measure each size, and write a record and a table."""
    require_packages("duckdb")
    files = outputs.files()
    settings = {"commits": commits, "benchmarks": benchmarks, "samples": SAMPLES, "runs": runs}
    record = Record("store_growth", settings)
    record.look_around(files.console)
    found: list[Growth] = []
    for count in commits:
        files.console.print(f"measuring {count} commits of {benchmarks} figures")
        with tempfile.TemporaryDirectory(prefix="kvtrail-") as scratch:
            found.append(measure(Path(scratch), count, benchmarks, runs))
    record.samples = [asdict(one) for one in found]
    rows = [tuple(asdict(one).values()) for one in found]
    caption = (
        "JSON is read as kvtrail reads it, with every check; one series needs all files, as each "
        "is of one commit. Parquet is read by DuckDB into Python values."
    )
    files.show(Table(COLUMNS, rows, "figures in asv's files and in columns", caption))
    files.console.print(f"record: {record.write(files.record)}")


def measure(folder: Path, commits: int, benchmarks: int, runs: int) -> Growth:
    """What a store of so many commits takes, made in an empty folder."""
    import duckdb

    results, parquet = folder / "asv", folder / "figures.parquet"
    make_up(results, commits, benchmarks)
    read, json_read_s = _least(lambda: read_results(results), runs)
    series = f"bench.Made.track_{benchmarks // 2}"
    _, json_series_s = _least(lambda: _one_series(results, series), runs)
    lines = folder / "figures.jsonl"
    begun = time.perf_counter()
    with lines.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in _rows(read))
    with duckdb.connect() as store:
        source = f"read_json('{lines}', format = 'newline_delimited')"
        order = "ORDER BY benchmark, committed_ms"
        store.execute(f"COPY (SELECT * FROM {source} {order}) TO '{parquet}' (FORMAT parquet)")
        convert_s = time.perf_counter() - begun
        stored = f"SELECT * FROM read_parquet('{parquet}')"
        all_rows, parquet_read_s = _least(lambda: store.execute(stored).fetchall(), runs)
        wanted = f"{stored} WHERE benchmark = ?"
        some, parquet_series_s = _least(lambda: store.execute(wanted, [series]).fetchall(), runs)
    if len(all_rows) != len(read.figures) or len(some) != commits:
        raise RuntimeError(f"{len(all_rows)} rows came back of {len(read.figures)} figures.")
    return Growth(
        commits=commits,
        figures=len(read.figures),
        json_mb=sum(path.stat().st_size for path in results.rglob("*.json")) / 1e6,
        parquet_mb=parquet.stat().st_size / 1e6,
        json_read_s=json_read_s,
        json_series_s=json_series_s,
        convert_s=convert_s,
        parquet_read_s=parquet_read_s,
        parquet_series_s=parquet_series_s,
    )


def make_up(results: Path, commits: int, benchmarks: int) -> None:
    """Write so many commits as asv would: a file each, beside the machine and the benchmarks."""
    draw = random.Random(commits)
    names = [f"bench.Made.track_{number}" for number in range(benchmarks)]
    described: dict[str, Any] = {
        name: {"name": name, "unit": "seconds", "param_names": [], "version": VERSION}
        for name in names
    }
    write_json(results / "benchmarks.json", {**described, "version": 2})
    write_json(results / MACHINE / "machine.json", {"machine": MACHINE, "version": 1})
    for number in range(commits):
        commit = f"{number:040x}"
        rows = {}
        for place, name in enumerate(names):
            level = 0.001 * (1 + place)
            samples = sorted(level * draw.gauss(1.0, 0.01) for _ in range(SAMPLES))
            started = START_MS + number * COMMIT_MS
            rows[name] = [[samples[1]], [], VERSION, started, 1.0, [samples]]
        content = {
            "commit_hash": commit,
            "env_name": "host",
            "date": START_MS + number * COMMIT_MS,
            "params": {"machine": MACHINE},
            "python": "3.12",
            "result_columns": ["result", "params", "version", "started_at", "duration", "samples"],
            "results": rows,
            "version": 2,
        }
        write_json(results / MACHINE / f"{commit[-12:]}-host.json", content)


def _one_series(results: Path, benchmark: str) -> list[float]:
    """The medians of one series, out of files that hold all series of a commit."""
    paths = (results / MACHINE).glob("*-host.json")
    rows = (json.loads(path.read_bytes())["results"][benchmark] for path in paths)
    return [row[0][0] for row in rows]


def _rows(read: Results) -> Iterator[dict[str, Any]]:
    for figure in read.figures:
        yield {
            "benchmark": figure.series.benchmark,
            "machine": figure.machine,
            "commit": figure.commit,
            "committed_ms": figure.committed_ms,
            "started_ms": figure.started_ms,
            "median": figure.median,
            "samples": figure.samples,
        }


def _least(work: Callable[[], Any], runs: int) -> tuple[Any, float]:
    """What some work gives, and the seconds of its fastest run."""
    seconds = []
    for _ in range(runs):
        begun = time.perf_counter()
        given = work()
        seconds.append(time.perf_counter() - begun)
    return given, min(seconds)


if __name__ == "__main__":
    typer.run(run)
