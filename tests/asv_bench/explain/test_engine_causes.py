"""Causes planted in kvtrail's own engine: each is named first."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from asv_bench.explain.clue import Clue, Source
from asv_bench.explain.engine_counts import (
    Counts,
    count_ends,
    figure_clues,
    stand_in,
    step_clues,
)
from asv_bench.explain.explaining import Explaining, why
from asv_bench.explain.explanation import Explanation
from asv_bench.git.repository import Commit, Repository
from asv_bench.run.settings import EngineWorkload
from asv_bench.session.options import Outputs, RunningOptions
from asv_bench.subjects.own_suite import EngineRuns
from tests.explanations import explanation_of, slower
from tests.fresh_python import ROOT, forked_python, planted

# All folders in one process, which imports torch once.
COUNT = """
import json, sys
import msgspec
from asv_bench.explain.engine_counts import CountTask, count
answers = []
for folder, *paths in json.loads(sys.argv[1]):
    for name in [one for one in sys.modules if one.partition(".")[0] in ("engine", "kernels")]:
        del sys.modules[name]
    sys.path.insert(0, folder)
    answers.append(count(CountTask(folder, tuple(paths))))
print(msgspec.json.encode(answers).decode())
"""
PLANTS = {
    "operator": (
        "engine/models/decoder.py",
        "attended = block.attention.attended(layer, normed, own, attend)",
        "attended = block.attention.attended(layer, normed, own, attend).neg()",
    ),
    "copy": (
        "engine/transport/token_slots.py",
        "        self._num_sent += 1\n",
        "        self._num_sent += 1\n        self.slots.cpu()\n",
    ),
    "loop": (
        "engine/engine.py",
        "    def _advance(self) -> None:\n",
        "    def _advance(self) -> None:\n        for _ in range(300):\n            pass\n",
    ),
}


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Counts]:
    """What the engine as it is does, and what it does with each plant."""
    folder = tmp_path_factory.mktemp("planted")
    places = {name: planted(folder / name, *plant) for name, plant in PLANTS.items()}
    places = {"": ROOT, "again": ROOT, **places}
    paths = {"": ["cpu", "graph"], "copy": ["graph"]}
    asked = [[str(folder), *paths.get(name, ["cpu"])] for name, folder in places.items()]
    done = forked_python(COUNT, json.dumps(asked), KVTRAIL_NVTX="0")
    assert done.returncode == 0, done.stderr
    answers = msgspec.json.decode(done.stdout, type=list[Counts])
    return dict(zip(places, answers, strict=True))


def first(clues: Iterable[Clue]) -> Clue:
    return explanation_of(clues).causes[0]


@pytest.mark.parametrize(
    ("plant", "name", "words"),
    [
        ("operator", "aten::neg", "is called 2 more times (0 → 2) a step (on the CPU)"),
        ("copy", "copy to the host", "A copy to the host is made 1 more time (0 → 1) a step"),
        ("loop", "Python of the engine", "Engine._advance 601 (on the CPU)"),
    ],
)
def test_a_plant_is_the_first_cause(
    counted: dict[str, Counts], plant: str, name: str, words: str
) -> None:
    found = first(step_clues(counted[""], counted[plant]))
    assert (found.source, found.leaning, found.name) == (Source.COUNTERS, 1, name)
    assert words in found.sentence


def test_counts_of_another_model_than_was_measured_name_it() -> None:
    assert stand_in("scheduler.Scheduler.track_step_time('gpt2-tiny', 8)") == ""
    said = " in random:gpt2-tiny, a stand-in for the measured model"
    assert stand_in("random:gpt2") == stand_in("") == said


def test_the_same_engine_differs_in_nothing(counted: dict[str, Counts]) -> None:
    assert list(step_clues(counted[""], counted["again"])) == []
    assert not any(one.failures for one in counted.values())


def test_a_kernel_is_told_by_what_it_compiles_to() -> None:
    base = {"gemm": {"registers": 96, "spill_instructions": 0}}
    head = {"gemm": {"registers": 255, "spill_instructions": 40}}
    assert list(figure_clues(base, base)) == []
    spills, registers = explanation_of(figure_clues(base, head)).causes
    assert spills.sentence == (
        "gemm spills registers to local memory by 40 more instructions (0 → 40)"
    )
    assert registers.sentence == "gemm takes 159 more registers (96 → 255) a thread"


@pytest.mark.thorough
def test_a_tile_that_spills_is_named_first(tmp_path: Path) -> None:
    # Tiles of 64 x 64 in the registers of one warp.
    head = planted(
        tmp_path,
        "kernels/tiles/launch.py",
        "    warps = 8 if element_bytes == 4 and rows * dim > 4096 else 4\n",
        "    warps = 1\n",
    )
    clues, notes = count_ends(ROOT, head, (), has_kernels=True)
    assert notes == []
    cause = first(clues)
    assert (cause.name, cause.what) == ("prefill_attention", "spill instructions")
    assert cause.sentence.startswith("prefill_attention spills registers to local memory")


@pytest.mark.thorough
def test_a_rank_that_sleeps_in_each_step_is_named(tmp_path: Path) -> None:
    root, before = tmp_path / "clone", "        states = self._worker.decode(plan)\n"
    Repository(ROOT).ask("clone", "--quiet", "--local", str(ROOT), str(root))
    file = root / "engine" / "parallel" / "follower.py"
    # Many times what other work on the machine takes from a rank.
    file.write_text(file.read_text().replace(before, f"        time.sleep(0.03)\n{before}"))
    me = ("-c", "user.name=kvtrail", "-c", "user.email=kvtrail@localhost")
    Repository(root).ask(*me, "commit", "--quiet", "--all", "-m", "Tidy up the ranks")
    subject = EngineRuns(root, EngineWorkload("scheduler", tensor_parallel_size=2))
    base, head = subject.resolve("HEAD^"), subject.resolve("HEAD")

    def look(head: Commit) -> Explanation:
        effect = slower(is_on_gpu=False)
        explaining = Explaining(subject, [("a", base), ("b", head)], effect, 3)
        explaining.with_options(Outputs(), RunningOptions()).look()
        return explaining.found

    found = look(head)
    assert found.looked_at[-1].endswith(" of scheduler-quick with random:gpt2-tiny on 2 ranks")
    assert found.causes[0].name == "rank 1"
    assert found.causes[0].sentence.endswith("and rank 0 waits for it")
    assert not any(one.name.startswith("rank") for one in look(base).clues)
    # A verdict says so, too.
    lines = why(subject, base, head, (), has_commits=False)
    assert any(line.startswith("Traced: Rank 1 takes ") for line in lines)


@pytest.mark.thorough
def test_commits_of_the_engine_are_looked_at_with_traces(tmp_path: Path) -> None:
    # A clone whose newest commit calls an operator more.
    root, (file, before, after) = tmp_path / "clone", PLANTS["operator"]
    Repository(ROOT).ask("clone", "--quiet", "--local", str(ROOT), str(root))
    (root / file).write_text((root / file).read_text().replace(before, after))
    me = ("-c", "user.name=kvtrail", "-c", "user.email=kvtrail@localhost")
    Repository(root).ask(*me, "commit", "--quiet", "--all", "-m", "Tidy up attention")
    subject = EngineRuns(root, EngineWorkload("scheduler"))
    base, head = subject.resolve("HEAD^"), subject.resolve("HEAD")

    def look(base: Commit, head: Commit, traces: int) -> Explanation:
        ends = [("a", base), ("b", head)]
        effect = slower(is_on_gpu=False)
        explaining = Explaining(subject, ends, effect, traces)
        explaining.with_options(Outputs(), RunningOptions()).look()
        return explaining.found

    found = look(base, head, 1)
    assert found.looked_at == [
        *("files", "exact counters of a step"),
        "a trace of each end of 32 decode steps of scheduler-quick with random:gpt2-tiny",
    ]
    one = "One trace of each end has no noise to tell times from: only counts are compared."
    assert found.notes == [one]
    assert found.causes[0].sentence == "aten::neg is called 2 more times (0 → 2) a step"
    files = f"1 file differs: {file} (+1 -1)."
    between = f"One commit lies between: {head.short} Tidy up attention (kvtrail)."
    assert list(found.context()) == [files, between, one]
    assert look(base, base, 3).causes == []
    # A verdict says so too, and of which model its counts are.
    larger = EngineRuns(root, EngineWorkload("scheduler", model="random:gpt2"))
    lines = why(larger, base, head, (), has_commits=False)
    assert lines[0] == files
    assert lines[1].startswith("Counted exactly in random:gpt2-tiny, a stand-in for the measured ")
