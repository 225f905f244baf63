"""`bench`: what it measures, where it files the figures, and when it fails."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from toy_project import ROOT, ToyProject, git, make_project, run_ruler

from asv_bench.cli import bench as bench_module
from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.git.trees import snapshot
from asv_bench.history.asv_results import read_results
from asv_bench.history.asv_selection import FULL, STANDARD, Entry, on_the_gpu, select
from asv_bench.process.environment import MEASURED_PACKAGES
from asv_bench.session.options import Outputs


@pytest.fixture
def toy(tmp_path: Path) -> ToyProject:
    return make_project(tmp_path / "project", commits=1)


def steps(results: Path) -> dict[str, tuple[float, ...]]:
    return {
        figure.commit: figure.samples
        for figure in read_results(results).figures
        if figure.series.benchmark.endswith(".track_step")
    }


def test_a_clean_tree_is_filed_as_head_and_a_changed_one_never(toy: ToyProject) -> None:
    head = toy.commits[0]
    arguments = ("--rounds", "2", "--benchmark", "track_step")

    clean = run_ruler(toy.root, "bench", *arguments, "--benchmark", "track_threads")
    assert clean.returncode == 0, clean.stderr
    assert f"measuring HEAD, {head[:8]}" in clean.stdout
    assert "result: reports/asv/own-toy/" in clean.stdout
    assert steps(toy.root / "reports" / "asv") == {head: (1.0, 1.0)}

    (path,) = (toy.root / "reports" / "runs").glob("bench-*.json")
    assert str(path) in clean.stdout
    record = json.loads(path.read_text())
    [threads] = [one for one in record["samples"] if "track_threads" in str(one)]
    assert threads["samples"] == [record["threads"]] * 2
    assert (record["commit"], record["settings"]["results"]) == (head, "reports/asv")

    toy.set_engine(5)
    dirty = run_ruler(toy.root, "bench", *arguments)
    assert dirty.returncode == 0, dirty.stderr
    said = " ".join(dirty.stdout.split())
    assert f"differs from HEAD ({head[:8]}) in engine/__init__.py" in said
    assert "5.00 s" in said, "the table shows what was measured now"
    assert "result: reports/asv-worktree/own-toy/" in said
    # HEAD keeps its figure, and the changed tree's stands under a hash that is not HEAD's.
    assert steps(toy.root / "reports" / "asv") == {head: (1.0, 1.0)}
    [(filed, figures)] = steps(toy.root / "reports" / "asv-worktree").items()
    assert (filed != head, figures) == (True, (5.0, 5.0))
    assert f"page:   {toy.root}/reports/pages/index.html" in dirty.stdout
    assert toy.git("status", "--porcelain").split() == ["M", "engine/__init__.py"]


@pytest.mark.thorough
def test_fewer_samples_replace_none_and_only_what_was_measured_now_is_printed(
    toy: ToyProject,
) -> None:
    head = toy.commits[0]
    first = run_ruler(toy.root, "bench", "--rounds", "2", "--benchmark", "track_(step|ruler)")
    [file] = (toy.root / "reports" / "asv" / "own-toy").glob(f"{head[:8]}-*.json")
    listed = toy.root / "reports" / "asv" / "benchmarks.json"
    # As it was when benchmarks read otherwise and measured the same: git tracks the list.
    listed.write_text(listed.read_text().replace('"code": "', '"code": "# Older. '))
    before, list_before = file.read_bytes(), listed.read_text()
    assert "# Older. " in list_before
    second = run_ruler(toy.root, "bench", "--rounds", "1", "--benchmark", "track_step")
    assert (first.returncode, second.returncode) == (0, 0), second.stdout + second.stderr
    assert steps(toy.root / "reports" / "asv") == {head: (1.0, 1.0)}
    assert "ruler" in first.stdout
    assert "ruler" not in second.stdout
    # The last column counts processes.
    assert re.search(r"│ +1 │$", second.stdout, re.M)
    # Nothing is lost: each session has its file.
    assert file.read_bytes() == before
    assert listed.read_text() == list_before
    sessions = {path.name: path for path in file.parent.glob(f"{head[:8]}-*.json")}
    assert len(sessions) == 2


def test_a_failing_benchmark_fails_the_command_but_keeps_the_rest(toy: ToyProject) -> None:
    done = run_ruler(toy.root, "bench", "--rounds", "1", "--benchmark", "track_(step|failure)")
    assert done.returncode == 1
    assert (
        "1 benchmarks failed and gave no figure: toy.Broken.track_failure (ArithmeticError: "
        "planted failure)"
    ) in " ".join(done.stderr.split())
    assert "1.00 s" in done.stdout
    broken = run_ruler(toy.root, "bench", "--rounds", "1", "--benchmark", "track_failure")
    assert broken.returncode == 1
    assert "cannot be measured: ArithmeticError: planted failure" in broken.stderr
    unmatched = run_ruler(toy.root, "bench", "--benchmark", "no_such_benchmark")
    assert unmatched.returncode == 2
    assert "'no_such_benchmark' is found in none of the 5 benchmarks" in unmatched.stderr


@pytest.mark.thorough
def test_the_real_benchmarks_run_where_there_is_no_git_history(tmp_path: Path) -> None:
    """The whole path on the real engine, from a directory as an archive unpacks it."""
    for name in (*MEASURED_PACKAGES, "asv_bench"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "asv.conf.json", tmp_path)
    done = run_ruler(
        tmp_path,
        "bench",
        "--rounds=1",
        "--benchmark=scheduler.Scheduler.track_(step_time|tpot|ttft|seconds_per_token)",
        "--benchmark=AppendBookkeeping.*'array', 64",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "there is no git history to compare it with" in " ".join(done.stdout.split())
    assert len(re.findall(r"│ scheduler, .+ │ +[\d.]+ [µm]?s", done.stdout)) == 4
    assert "append bookkeeping, " in done.stdout
    assert (tmp_path / "reports" / "pages" / "index.html").is_file()


def test_what_cannot_be_measured_here_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_module, "has_cuda_gpu", lambda: False)
    with pytest.raises(MeasurementFailed, match="no GPU here that torch can use"):
        bench_module.bench(require_gpu=True, files=Outputs())
    with pytest.raises(Refused, match="exclude each other"):
        bench_module.bench(quick=True, full=True, files=Outputs())
    with pytest.raises(Refused, match="at least 1"):
        STANDARD.changed((), 0)
    with pytest.raises(Refused, match="not a regular expression"):
        STANDARD.changed(("(",), None)


def test_a_snapshot_holds_the_tree_as_it_stands(toy: ToyProject, tmp_path: Path) -> None:
    (toy.root / "engine" / "new.py").write_text("ANSWER = 42\n")
    (toy.root / "kernels" / "__init__.py").unlink()
    toy.git("add", "engine/new.py")
    (toy.root / "engine" / "new.py").write_text("ANSWER = 43\n")
    before = (toy.git("status", "--porcelain"), toy.git("count-objects"))
    scratch = tmp_path / "scratch.git"
    commit = snapshot(toy.root, scratch)
    assert snapshot(toy.root, scratch) == commit
    assert git(scratch, "show", f"{commit}:engine/new.py") == "ANSWER = 43\n"
    names = git(scratch, "ls-tree", "-r", "--name-only", commit).split()
    assert names == ["engine/__init__.py", "engine/new.py"]
    assert (toy.git("status", "--porcelain"), toy.git("count-objects")) == before
    with pytest.raises(MeasurementFailed, match="nothing to measure"):
        snapshot(tmp_path, scratch)


def test_a_selection_leaves_out_what_the_machine_would_skip_and_an_anchor_still_anchors() -> None:
    def measured(*, has_gpu: bool) -> list[str]:
        return [one.identifier for one in select(entries, FULL.patterns, has_gpu=has_gpu)]

    names = {
        "tiny": "decode.Decode.track_step_time('gpt2-tiny', 8, 128)",
        "full": "decode.Decode.track_step_time('gpt2', 8, 128)",
        "kernel": "kernels.Append.track_time('identity', 'gpt2-b64-c257')",
        "host": "host.BlockMetadata.track_hold_and_release(8)",
    }
    entries = [Entry(name, identifier, "seconds") for identifier, name in names.items()]
    assert measured(has_gpu=False) == ["tiny", "host"]
    assert measured(has_gpu=True) == ["full", "kernel", "host"]
    assert [name for name in names if on_the_gpu(names[name])] == ["full", "kernel"]
    hosts = Entry("host.decode.track_tpot('gpt2-tiny', 8, 128)", "host.decode", "seconds")
    for pattern in ("^decode", "(?i)^DECODE"):
        assert select([*entries, hosts], [pattern], has_gpu=False) == entries[:1]
