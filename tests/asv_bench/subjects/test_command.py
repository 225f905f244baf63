"""A command in any repository: compared, nothing left behind, and what is left out said."""

from __future__ import annotations

import json
import os
import random
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from declared_repository import STEP, DeclaredRepository
from measured_rounds import pair_of_lives
from toy_repository import COMMAND, SCRIPT, ToyRepository
from typer.testing import CliRunner

from asv_bench.cli.commands import build_app
from asv_bench.errors import Refused
from asv_bench.measure.samples import CommitUnusable, SampleFailed
from asv_bench.run.settings import EngineWorkload
from asv_bench.subjects.choose import Choice
from asv_bench.subjects.declared import DeclaredSubject

ENDS = ("HEAD~1", "HEAD")


@pytest.fixture
def toy(tmp_path: Path, kvtrail, monkeypatch: pytest.MonkeyPatch) -> ToyRepository:
    """The repository as the current folder."""
    made = ToyRepository.make(tmp_path / "toy")
    monkeypatch.chdir(made.root)
    return made


@pytest.fixture
def compare(kvtrail, toy: ToyRepository) -> Callable[..., Any]:
    """The exit code, what was said, and the record; a refusal is raised."""
    return partial(kvtrail, toy, "compare", "--quick")


def test_a_slower_command_is_found(compare, toy: ToyRepository) -> None:
    code, said, record = compare(*ENDS, "--", *COMMAND)
    (answer,) = record["results"]["comparisons"]
    assert (code, answer["benchmark"], answer["verdict"]) == (3, "wall_s", "slower"), said
    assert 0.004 < answer["base_value"] < answer["head_value"]
    subject = record["settings"]["subject"]
    assert (subject["command"], subject["repository"]) == ("sh bench.sh", "toy")
    assert len(record["samples"]) == answer["pairs_used"] <= 12
    assert "wall_s: slower" in said
    # What differs besides time, and the command that tells more.
    base, head = (toy.git("rev-parse", "--short=8", name) for name in ENDS)
    assert record["results"]["why"] == [
        "1 file differs: bench.sh (+1 -1).",
        f"One commit lies between: {head} sleep 0.020 (Test).",
        f"Why: kvtrail explain {base} {head} -- sh bench.sh",
    ]


def test_a_record_on_standard_output_is_alone_there(toy: ToyRepository) -> None:
    toy.commit("sleep 0.020", "only a message")
    arguments = ["compare", *ENDS, "--json", "-", "--", *COMMAND]
    done = CliRunner().invoke(build_app(), arguments, catch_exceptions=False)
    record = json.loads(done.stdout)
    (answer,) = record["results"]["comparisons"]
    assert (answer["verdict"], record["samples"], record["results"]["exit_code"]) == ("same", [], 0)
    assert "wall_s: same" in done.stderr
    assert "the same in both, nothing to measure; --anyway measures" in done.stderr


def test_a_command_is_a_line_that_sees_its_tree_and_the_users_threads(
    toy: ToyRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asv_bench.process.environment._USERS_OWN", None)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    # The working tree runs with what is not committed, which another commit has not.
    (toy.root / SCRIPT).write_text("cat notes.txt > seen; test -f notes.txt\n")
    line = 'test "$PWD" = "$KVTRAIL_TREE" && test -n "$KVTRAIL_LABEL" && test -z "$OMP_NUM_THREADS"'
    subject = DeclaredSubject.of_command(toy.root, [f"{line} && sh<{SCRIPT}"])
    tree = subject.resolve(".").hash
    with subject.pairs() as source:
        assert source.prepare(tree) == {}
        with pytest.raises(CommitUnusable, match="notes"):
            source.prepare(subject.resolve(toy.commit("cat notes.txt", "wants the notes")).hash)
    assert not (toy.root / "seen").exists()


def test_a_short_command_is_repeated_in_turns_of_both_commits(
    tmp_path: Path, toy: ToyRepository
) -> None:
    log = tmp_path / "log"
    subject = DeclaredSubject.of_command(toy.root, [f"grep -o '[0-9.]*' bench.sh >> {log}"])
    subject.choose(["cpu_s"], None)
    ends = [subject.resolve(name).hash for name in ENDS]
    with subject.pairs() as lives:
        for end in ends:
            lives.prepare(end)
        log.unlink()
        measured = lives.round(ends, (0, 1), ())
    base, head = (one["cpu_s"] for one in measured.readings)
    first, *others = log.read_text().split()
    turns = [one == first for one in (first, *others)]
    repeats = len(base.samples)
    assert repeats == len(head.samples) > 1
    # There and back, so that what disturbs one of them for a while meets the other as well.
    assert turns == [(number + 1) // 2 % 2 == 0 for number in range(2 * repeats)]
    assert base.value == min(base.samples)
    assert base.started_at < head.started_at < base.started_at + base.process_s


def test_stopping_ends_the_command(toy: ToyRepository) -> None:
    toy.commit("test -e warm && sleep 600; touch warm", "sleep long, but for the first time")
    subject = DeclaredSubject.of_command(toy.root, COMMAND)
    commit = subject.resolve("HEAD").hash
    with subject.pairs() as source:
        source.prepare(commit)
        threading.Timer(0.3, source.stop).start()
        with pytest.raises(SampleFailed):
            pair_of_lives(source, commit, commit)
        with pytest.raises(CommitUnusable, match="measuring was stopped"):
            source.prepare("HEAD~1")


def test_a_program_that_is_not_there_is_a_sentence(compare) -> None:
    code, said, _ = compare(*ENDS, "--", "no-such-program")
    assert code == 1
    assert "no-such-program: No such file or directory" in said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("-b", "x", "--", *COMMAND), "no metric is called x; there are wall_s"),
        *(
            (("--metric", pattern, "--", *COMMAND), r"--metric .* is not a regular expression: .*$")
            for pattern in ("(", "a{99999999999}", "*")
        ),
        ((), "compare finds nothing to measure.*kvtrail init.*give a command behind --"),
    ],
)
def test_options_that_do_not_fit_are_refused(compare, words: tuple[str, ...], sentence) -> None:
    with pytest.raises(Refused, match=sentence):
        compare(*ENDS, *words)


def test_folders_of_no_repository_are_refused_and_a_suite_below_is_named(
    compare, toy: ToyRepository
) -> None:
    with pytest.raises(Refused, match="no commit called"):
        compare("HEAD~1", "nowhere", "--", *COMMAND)
    # An asv suite is taken where it lies around, and named where it lies below.
    suite = toy.root / "my suite" / "asv.conf.json"
    suite.parent.mkdir()
    suite.write_text("{")
    with pytest.raises(Refused, match=r"--subject as 'my suite/asv\.conf\.json', an asv suite"):
        Choice().subject("compare")
    with pytest.raises(Refused, match="is no configuration of asv"):
        compare(*ENDS, folder=suite.parent)
    with pytest.raises(Refused, match="is in no git repository"):
        compare(*ENDS, "--", *COMMAND, folder=Path(os.sep))


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_a_workload_is_compared_by_its_step_time_wherever_it_runs(is_elsewhere: bool) -> None:
    choice = Choice(workload=EngineWorkload("scheduler"), is_elsewhere=is_elsewhere)
    assert [one.name for one in choice.subject("compare").metrics] == ["step_ms"]


def test_a_life_of_a_workload_on_several_gpus_gets_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    two = EngineWorkload("qwen3-8b-64", tensor_parallel_size=2, quantization="fp8")
    monkeypatch.setattr("asv_bench.subjects.own_suite.has_cuda_gpu", lambda: True)
    monkeypatch.setattr("asv_bench.process.gpu.visible_gpus", lambda: ["GPU-a"])
    with pytest.raises(Refused, match=r"there is no GPU 1 here: CUDA may see 0 to 0 \(GPU-a\)"):
        Choice(workload=two).subject("compare")
    monkeypatch.setattr("asv_bench.process.gpu.visible_gpus", lambda: ["GPU-a", "GPU-b"])
    subject = Choice(workload=two).subject("compare")
    assert subject.devices == ["GPU-a,GPU-b"]
    assert subject.line.count("--tensor-parallel-size 2 --quantization fp8") == 1
    # What ranks compute in eight bits has a history of its own.
    assert subject.name == "kvtrail-qwen3-8b-64-tensor_parallel_size-2-quantization-fp8"
    assert Choice(workload=EngineWorkload("single")).subject("compare").name == "kvtrail-single"


def test_figures_of_a_workload_mean_the_same_wherever_python_lies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    choice = Choice(workload=EngineWorkload("scheduler", dtype="float16"))

    def versions() -> list[str]:
        subject = choice.subject("compare")
        return [subject.version(name) for name in subject.described()]

    here = versions()
    monkeypatch.setattr("sys.executable", "/elsewhere/bin/python")
    assert versions() == here


@pytest.fixture
def stepping(declared, lives_in_process: None) -> DeclaredRepository:
    return declared(STEP.replace("measure", 'setup = "true"\n    measure'), *["step = 5"] * 3)


@pytest.mark.parametrize(
    ("changed", "words", "is_said"),
    [
        ("bench.py", ("compare", "HEAD~1", "HEAD"), True),
        ("bench.py", ("bisect", "HEAD~2", "main"), True),
        ("bench.py", ("bisect", "main", "--files"), True),
        ("bench.py", ("explain", "HEAD~1", "HEAD", "--traces", "0"), True),
        ("bench.py", ("compare", "HEAD~1", "."), False),
        ("bench.py", ("compare", "HEAD~2", "HEAD~1"), False),
        ("notes.txt", ("compare", "HEAD~1", "HEAD"), False),
    ],
)
def test_uncommitted_changes_of_the_commit_checked_out(
    kvtrail, stepping: DeclaredRepository, changed: str, words: tuple[str, ...], is_said: bool
) -> None:
    with (stepping.root / changed).open("a") as file:
        file.write("# changed\n")
    said = "uncommitted changes in bench.py are not measured"
    assert (said in kvtrail(stepping, *words).text) is is_said


def test_a_submodule_that_is_not_laid_out_is_named(
    kvtrail, stepping: DeclaredRepository, tmp_path: Path
) -> None:
    stepping.git("init", "-q", str(tmp_path / "inner"))
    stepping.git("-C", str(tmp_path / "inner"), "commit", "-q", "--allow-empty", "-m", "inner")
    allowed = ("-c", "protocol.file.allow=always")
    stepping.git(*allowed, "submodule", "add", "-q", str(tmp_path / "inner"), "third")
    for number in range(2):
        stepping.commit(f"step = {5 + number / 1000}", f"with a submodule {number}")
    for _ in ("laid out", "found in the cache"):
        said = kvtrail(stepping, "compare", "HEAD~1", "HEAD")
        assert said.text.count("the files of the submodule third are missing") == 1
        assert len(said.record["notes"]) == 2


def test_a_merge_that_is_the_culprit_comes_with_the_command_that_goes_into_it(
    kvtrail, stepping: DeclaredRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    random.seed(3)
    fork = stepping.git("rev-parse", "HEAD")
    stepping.git("checkout", "-q", "-b", "side")
    stepping.commit("step = 7", "slower")
    stepping.commit("step = 7.001", "more")
    stepping.git("checkout", "-q", "main")
    stepping.git("merge", "-q", "--no-ff", "side", "-m", "merge side")
    merge = stepping.git("rev-parse", "HEAD")[:8]
    stepping.commit("step = 7.002", "later")
    words = ("bisect", "HEAD~3", "HEAD")
    monkeypatch.setattr("sys.argv", ["kvtrail", *words])
    said = kvtrail(stepping, *words)
    assert said.code == 3, said.text
    assert "1 of 3 commits are merges: only first parents are searched" in said.text
    assert f"It is a merge. Which of the commits that it brought in: kvtrail bisect {fork[:8]}" in (
        said.text
    )
    assert "slower" in kvtrail(stepping, "bisect", fork[:8], f"{merge}^2").text
