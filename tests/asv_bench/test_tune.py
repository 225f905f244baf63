"""`tune`: picks what is truly faster, keeps what is there under noise, writes a readable table."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import asv_bench.commands.tune as command
from asv_bench.__main__ import build_app
from asv_bench.commands.tune import chosen_slots, decision_json, decision_table
from asv_bench.errors import Refused
from asv_bench.record import write_json
from asv_bench.tuning.candidates import Choice, Point, Slot, candidates, slots_of
from asv_bench.tuning.search import Decision, Trial, decide, tune
from asv_bench.tuning.table_text import table_text
from asv_bench.tuning.workbench import Rejected, Timer
from engine.models import RANDOM_CONFIGS
from kernels.fused_configs import (
    ROLES,
    ConfigTable,
    LinearTile,
    Measured,
    RingTile,
    committed_table,
    read_table,
)

GPT2 = RANDOM_CONFIGS["gpt2"]
# The committed table with a few choices pinned, so that these tests outlive the next tuning.
_COMMITTED = committed_table()
TABLE = _COMMITTED.with_tile(
    _COMMITTED.place(64), "head", LinearTile(64, 384, 64, stages=4, tma=True)
).with_ring(0, RingTile(32, 8, 128, ((3.5, 6), (6.0, 4), (math.inf, 2))))
SLOTS = slots_of(TABLE, GPT2.head_dim)
[HEAD] = [slot for slot in SLOTS if slot.role == "head" and slot.points[0].rows == 64]
RING = SLOTS[-1]


@dataclass
class FakeBench:
    """Steps that take what a function of the table and the point says, on a machine that drifts.

    `noise` is the deviation of a measurement and `luck` that of a capture, which all measurements
    of it share; the whole machine slows down by `drift` each one.
    """

    cost: Callable[[ConfigTable, Point], float]
    noise: float = 0.0
    luck: float = 0.0
    drift: float = 0.0
    seed: int = 0
    prepared: list[tuple[ConfigTable, Point]] = field(default_factory=list)
    measured: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def prepare(self, table: ConfigTable, point: Point) -> Timer:
        self.prepared.append((table, point))
        cost = self.cost(table, point) * math.exp(self._random.gauss(0, self.luck))

        def timer() -> float:
            self.measured += 1
            slow = 1 + self.drift * self.measured
            return cost * slow * math.exp(self._random.gauss(0, self.noise))

        return timer


def head_cost(best: LinearTile, gain: float) -> Callable[[ConfigTable, Point], float]:
    return lambda table, point: 300.0 * (1 - gain * (table.tiles(point.rows).head == best))


def head_tiles(count: int) -> list[Choice]:
    return [LinearTile(64, 128, 64, stages=stages) for stages in range(2, 2 + count)]


@pytest.mark.parametrize("seed", range(5))
def test_the_truly_best_is_found_in_noise_and_drift(seed: int) -> None:
    """A gain of 3 % under 1 % noise, on a machine that slows down by a third meanwhile."""
    tiles = head_tiles(12)
    best = tiles[7]
    assert isinstance(best, LinearTile)
    bench = FakeBench(head_cost(best, 0.03), noise=0.01, drift=0.003, seed=seed)
    decision = decide(HEAD, TABLE, tiles, bench)
    assert decision is not None
    assert decision.chosen == best
    assert decision.is_adopted
    assert decision.p_value < 0.01
    [(point, figure)] = decision.measured.items()
    assert point == "B=64, context 257"
    assert figure.next_us is not None
    assert figure.step_us < figure.next_us


def test_what_is_there_stays_under_noise() -> None:
    """Nothing is faster: over many seeds hardly ever is anything adopted."""
    adopted = 0
    for seed in range(40):
        bench = FakeBench(lambda table, point: 300.0, noise=0.01, seed=seed)
        decision = decide(HEAD, TABLE, head_tiles(12), bench)
        assert decision is not None
        adopted += decision.is_adopted
    assert adopted <= 1


def test_a_lucky_capture_is_no_gain() -> None:
    """Captures of one step differ by more than the least gain, and the luckiest come first."""
    for seed in range(20):
        bench = FakeBench(lambda table, point: 300.0, noise=0.002, luck=0.01, seed=seed)
        decision = decide(HEAD, TABLE, head_tiles(30), bench)
        assert decision is not None
        assert not decision.is_adopted


@pytest.mark.parametrize("seed", range(5))
def test_an_unlucky_capture_hides_no_gain_that_matters(seed: int) -> None:
    tiles = head_tiles(6)
    best = tiles[3]
    assert isinstance(best, LinearTile)
    bench = FakeBench(head_cost(best, 0.05), noise=0.002, luck=0.01, seed=seed)
    decision = decide(HEAD, TABLE, tiles, bench)
    assert decision is not None
    assert decision.chosen == best


def test_a_gain_too_small_to_matter_is_left() -> None:
    best = LinearTile(64, 128, 64, stages=5)
    decision = decide(HEAD, TABLE, head_tiles(4), FakeBench(head_cost(best, 0.014)))
    assert decision is not None
    assert not decision.is_adopted
    assert decision.chosen == HEAD.choice(TABLE)
    adopted = decide(HEAD, TABLE, head_tiles(4), FakeBench(head_cost(best, 0.016)))
    assert adopted is not None
    assert adopted.chosen == best


def test_a_candidate_that_fails_is_left_out_and_listed() -> None:
    """The fastest is wrong, another does not compile."""
    tiles = head_tiles(5)

    class Picky(FakeBench):
        def prepare(self, table: ConfigTable, point: Point) -> Timer:
            if table.tiles(point.rows).head == tiles[1]:
                raise Rejected("the logits are far from full precision.")
            if table.tiles(point.rows).head == tiles[2]:
                raise Rejected("OutOfResources: shared memory.")
            return super().prepare(table, point)

    def cost(table: ConfigTable, point: Point) -> float:
        return {tiles[1]: 10.0, tiles[4]: 250.0}.get(table.tiles(point.rows).head, 300.0)

    decision = decide(HEAD, TABLE, tiles, Picky(cost))
    assert decision is not None
    assert decision.chosen == tiles[4]
    assert [trial.rejected.split()[0] for trial in decision.trials if trial.rejected] == [
        "the",
        "OutOfResources:",
    ]
    assert [trial.choice for trial in decision.trials] == tiles
    shown = decision_table([decision])
    assert "1x OutOfResources: shared memory." in str(shown.caption)


def test_the_figures_are_of_fresh_captures() -> None:
    """What won the screening by luck is judged anew: captures 2 to 16, the 9th in the middle."""

    class Counting(FakeBench):
        def prepare(self, table: ConfigTable, point: Point) -> Timer:
            tile = table.tiles(point.rows).head
            number = numbers[tile] = numbers.get(tile, 0) + 1
            return lambda: 100.0 + number

    numbers: dict[LinearTile, int] = {}
    decision = decide(HEAD, TABLE, head_tiles(1), Counting(lambda table, point: 0.0))
    assert decision is not None
    assert list(decision.present_us.values()) == [109.0]


def test_an_adopted_choice_stands_beside_the_one_before() -> None:
    best = LinearTile(64, 128, 64, stages=5)
    decision = decide(HEAD, TABLE, [best], FakeBench(head_cost(best, 0.1)))
    assert decision is not None
    assert list(decision.measured.values()) == [Measured(270.0, 300.0)]


def test_a_present_choice_that_fails_is_no_baseline() -> None:
    class Broken(FakeBench):
        def prepare(self, table: ConfigTable, point: Point) -> Timer:
            raise Rejected("wrong")

    with pytest.raises(Rejected):
        decide(HEAD, TABLE, head_tiles(2), Broken(lambda table, point: 1.0))


def test_all_are_measured_in_turns() -> None:
    order: list[Any] = []

    class Listening(FakeBench):
        def prepare(self, table: ConfigTable, point: Point) -> Timer:
            order_of = table.tiles(point.rows).head
            return lambda: (order.append(order_of), 300.0)[1]

    tiles = head_tiles(2)
    decide(HEAD, TABLE, tiles, Listening(lambda table, point: 300.0))
    present = HEAD.choice(TABLE)
    assert order[:9] == [
        *(present, tiles[0], tiles[1]),
        *(tiles[0], tiles[1], present),
        *(tiles[1], present, tiles[0]),
    ]
    assert order.count(present) == order.count(tiles[0]) == 3 + 15


def test_a_ring_is_judged_at_all_points_together() -> None:
    """Twice as fast for one row and a little slower elsewhere is a gain in the mean of all."""
    assert RING.points == tuple(Point(one.rows, one.context) for one in TABLE.buckets)
    present = TABLE.ring(64)
    good, bad = replace(present, split=256), replace(present, split=512)

    def cost(table: ConfigTable, point: Point) -> float:
        change = {good: 0.5, bad: 0.9}.get(table.ring(64), 1.0)
        if table.ring(64) != present and point.rows > 1:
            change = 1.05
        return 100.0 * point.rows * change

    decision = decide(RING, TABLE, [bad, good], FakeBench(cost))
    assert decision is not None
    assert decision.chosen == good
    assert set(decision.measured) == {str(point) for point in RING.points}
    worse = decide(RING, TABLE, [bad], FakeBench(cost))
    assert worse is not None
    assert not worse.is_adopted


@pytest.mark.parametrize(("elsewhere", "is_adopted"), [(1.0, True), (1.01, False)])
def test_a_ring_that_gains_for_one_batch_and_loses_for_none_is_adopted(
    elsewhere: float, is_adopted: bool
) -> None:
    """3 % at one of seven points are too little in the mean of all."""
    shallow = replace(TABLE.ring(64), depths=((6.0, 4), (math.inf, 2)))

    def cost(table: ConfigTable, point: Point) -> float:
        if table.ring(64) != shallow:
            return 100.0
        return 97.0 if point.rows == 32 else 100.0 * elsewhere if point.rows == 8 else 100.0

    bench = FakeBench(cost, noise=0.002, luck=0.003)
    decision = decide(RING, TABLE, [shallow], bench)
    assert decision is not None
    assert decision.is_adopted is is_adopted


def test_seven_points_of_lucky_captures_are_no_gain() -> None:
    present = TABLE.ring(64)
    rings: list[Choice] = [replace(present, depths=((n / 2, 4), (math.inf, 2))) for n in range(20)]
    for seed in range(20):
        bench = FakeBench(lambda table, point: 300.0, noise=0.002, luck=0.01, seed=seed)
        decision = decide(RING, TABLE, rings, bench)
        assert decision is not None
        assert not decision.is_adopted


def optimum() -> tuple[Callable[[ConfigTable, Point], float], LinearTile]:
    """A cost with its least two steps away from the committed head of 64 rows."""
    present = TABLE.tiles(64).head
    goal = replace(present, block_m=128, stages=2)

    def cost(table: ConfigTable, point: Point) -> float:
        head = table.tiles(point.rows).head
        away = abs(math.log2(head.block_m / goal.block_m)) + abs(head.stages - goal.stages)
        return 300.0 + 10.0 * away + 50.0 * (head.tma != goal.tma)

    return cost, goal


def test_passes_go_on_until_nothing_changes() -> None:
    cost, goal = optimum()
    decisions: list[Decision] = []
    tuned = tune(
        TABLE,
        [HEAD],
        lambda slot, table: candidates(slot, table, GPT2),
        FakeBench(cost),
        out_of_time=lambda: False,
        on_decision=decisions.append,
    )
    assert tuned.tiles(64).head == goal
    assert [decision.is_adopted for decision in decisions] == [True, True, False]
    # Only this slot has changed, and its bucket has the figures of the last decision.
    assert tuned.with_tile(HEAD.place, "head", TABLE.tiles(64).head).tiles(64) == TABLE.tiles(64)
    assert (
        tuned.buckets[HEAD.place].step_us
        == tuned.buckets[HEAD.place].measured["head"].step_us
        == 300.0
    )
    assert tuned.buckets[HEAD.place + 1] == TABLE.buckets[HEAD.place + 1]


def test_time_that_is_over_leaves_the_slot_at_hand_as_it_was() -> None:
    cost, _ = optimum()
    bench = FakeBench(cost)
    tuned = tune(
        TABLE,
        [HEAD],
        lambda slot, table: candidates(slot, table, GPT2),
        bench,
        out_of_time=lambda: len(bench.prepared) > 5,
    )
    assert tuned == TABLE
    assert len(bench.prepared) == 6
    assert bench.measured == 0


def test_a_table_survives_being_written() -> None:
    ring = RingTile(64, 16, 256, ((1.5, 8), (math.inf, 3)), ((math.inf, 4),), 3, even=True)
    figures = {"B=1, context 256": Measured(200.25, 210.5), "B=64, context 257": Measured(300.0)}
    changed = (
        replace(TABLE, origin='a "GPU", torch 2')
        .with_tile(1, "head", LinearTile(16, 64, 128, stages=6, warps=8), Measured(280.5, 281.25))
        .with_tile(0, "attention_out", LinearTile(64, 64, 256, split_k=4, tma=True), Measured(9.0))
        .with_ring(0, ring, figures)
    )
    assert read_table(table_text(changed)) == changed
    assert read_table(table_text(TABLE)) == TABLE


def test_the_committed_file_is_what_tune_would_write() -> None:
    """Nobody edits it by hand, and one changed choice is a diff of one line and its bucket's."""
    text = command.TABLE_FILE.read_text("utf-8")
    assert table_text(committed_table()) == text
    text = table_text(TABLE)
    tile = replace(TABLE.tiles(64).head, block_n=64)
    changed = table_text(TABLE.with_tile(HEAD.place, "head", tile, Measured(1.0, 2.0)))
    pairs = zip(text.splitlines(), changed.splitlines(), strict=True)
    differing = [new for old, new in pairs if old != new]
    assert [line.split(" = ")[0] for line in differing] == ["step_us", "head"]
    assert differing[1].endswith("step_us = 1.0, next_us = 2.0 }")


@pytest.mark.parametrize("slot", SLOTS, ids=str)
def test_candidates_fit_the_model_and_differ_from_what_is_there(slot: Slot) -> None:
    present = slot.choice(TABLE)
    found = candidates(slot, TABLE, GPT2)
    assert len(found) == len(set(found)) >= 8
    assert present not in found
    for choice in found:
        changed = slot.with_choice(TABLE, choice)
        assert slot.choice(changed) == choice
        if isinstance(choice, RingTile):
            assert choice.split % choice.block_n == 0
            assert len(choice.depths) == len(TABLE.ring(64).depths)
            assert len(choice.cluster_depths) == len(TABLE.ring(64).cluster_depths)
            continue
        tiles = changed.tiles(slot.points[0].rows)
        assert tiles.fitted(GPT2.hidden_size, GPT2.inner_size, 50304) == tiles
        assert not choice.tma or slot.role != "head" or choice.block_m % 64 == 0
        assert choice.is_possible
        assert slot.role != "head" or choice.split_k == 1


def test_every_band_of_a_ring_is_tried_with_other_depths() -> None:
    ring = SLOTS[-1].choice(TABLE)
    assert isinstance(ring, RingTile)
    found = [one for one in candidates(SLOTS[-1], TABLE, GPT2) if isinstance(one, RingTile)]
    for name in ("depths", "cluster_depths"):
        for band, (most, stages) in enumerate(getattr(ring, name)):
            tried = {getattr(one, name)[band] for one in found}
            assert len(tried) > 3
            assert {limit for limit, _ in tried} == {most}
            assert (most, stages) in tried


def test_properties_that_only_pay_together_change_together() -> None:
    strip = next(slot for slot in SLOTS if slot.role == "attention_in" and slot.place == 0)
    assert LinearTile(1, 4, 16, warps=1) in candidates(strip, TABLE, GPT2)
    split = next(
        slot for slot in SLOTS if slot.role == "feed_forward_out" and slot.points[0].rows == 64
    )
    present = split.choice(TABLE)
    assert isinstance(present, LinearTile)
    assert present.split_k > 1
    both = [
        tile
        for tile in candidates(split, TABLE, GPT2)
        if isinstance(tile, LinearTile)
        and tile == replace(present, block_n=tile.block_n, split_k=tile.split_k)
        and tile.block_n != present.block_n
        and tile.split_k != present.split_k
    ]
    assert both
    # A narrower tile of the head leaves room for more stages.
    head = TABLE.tiles(64).head
    assert replace(head, block_n=128, stages=6) in candidates(HEAD, TABLE, GPT2)


def test_what_the_other_buckets_have_is_tried() -> None:
    last = len(TABLE.buckets) - 1
    slot = next(slot for slot in SLOTS if slot.role == "attention_out" and slot.place == last)
    tile = replace(LinearTile(128, 32, 64), stages=6, warps=8)
    assert tile not in candidates(slot, TABLE, GPT2)
    table = TABLE.with_tile(last - 1, "attention_out", tile)
    found = candidates(slot, table, GPT2)
    assert tile in found
    # Single rows are for one or two.
    assert all(one.block_m > 1 for one in found if isinstance(one, LinearTile))


def test_what_a_kernel_ignores_makes_no_candidate() -> None:
    tile = LinearTile(64, 384, 64, tma=True)
    table = TABLE.with_tile(HEAD.place, "head", replace(tile, warps=8, prefetch=False))
    found = candidates(HEAD, table, GPT2)
    assert tile not in found
    assert all(
        (one.warps, one.prefetch) == (4, True)
        for one in found
        if isinstance(one, LinearTile) and one.tma
    )


def test_a_pipeline_deeper_than_a_map_is_not_tried() -> None:
    widths = {"feed_forward_out": GPT2.inner_size}
    for slot in SLOTS[:-1]:
        tiles = [one for one in candidates(slot, TABLE, GPT2) if isinstance(one, LinearTile)]
        streamed = [tile for tile in tiles if tile.tma and slot.role != "head"]
        for tile in streamed:
            width = widths.get(str(slot.role), GPT2.hidden_size)
            assert tile.stages * tile.block_k * tile.split_k <= width
        assert len(streamed) == len(set(streamed))


def test_slots_are_every_role_of_every_bucket_and_the_models_ring() -> None:
    assert len(SLOTS) == len(TABLE.buckets) * len(ROLES) + 1
    assert RING.role is None
    assert RING.choice(TABLE) == TABLE.ring(64)
    assert slots_of(TABLE, 128)[-1].choice(TABLE) == TABLE.ring(128)
    assert [str(slot) for slot in chosen_slots(TABLE, "head,ring", "64")] == [
        "head at B=64, context 257",
        "ring 0",
    ]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--device", "cpu"], "tune needs a GPU"),
        (["--roles", "head,tail"], "there is no role 'tail'"),
        (["--rows", "63"], "--rows has '63'"),
        (["--dtype", "float32"], "--dtype is 'float32'"),
        (["--device", "cuda"], "written on a reference machine"),
    ],
)
def test_what_cannot_be_is_refused(
    arguments: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVTRAIL_MACHINE", "box")
    before = command.TABLE_FILE.read_bytes()
    done = CliRunner().invoke(build_app(), ["tune", *arguments])
    assert isinstance(done.exception, Refused)
    assert sentence in str(done.exception)
    assert command.TABLE_FILE.read_bytes() == before


def test_the_command_writes_table_and_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cost, goal = optimum()
    monkeypatch.setenv("KVTRAIL_MACHINE", "box")
    monkeypatch.setattr(command, "committed_table", lambda: TABLE)
    monkeypatch.setattr(command, "_workbench", lambda *arguments: (FakeBench(cost), GPT2))
    monkeypatch.setattr("asv_bench.record.RUNS", tmp_path / "runs")
    output = tmp_path / "own.toml"
    arguments = ["--device", "cuda", "--roles", "head", "--rows", "64", "--output", str(output)]
    done = CliRunner().invoke(build_app(), ["tune", *arguments])
    assert done.exit_code == 0, done.output + repr(done.exception)
    written = read_table(output.read_text())
    assert written.tiles(64).head == goal
    assert "torch" in written.origin
    [copy] = (tmp_path / "runs").glob("tune-*.toml")
    assert copy.read_text() == output.read_text()
    [record] = (tmp_path / "runs").glob("tune-*.json")
    assert '"adopted": 2' in record.read_text()
    assert "block_m 64 to 128" in done.output


def test_a_decision_is_json(tmp_path: Path) -> None:
    trial = Trial(replace(TABLE.ring(64), split=64), 0.9, {"B=1": 1.0}, is_finalist=True)
    decision = Decision(
        RING, TABLE.ring(64), TABLE.ring(64), {"B=1": 2.0}, {"B=1": 2.0}, 1.0, (trial,)
    )
    content = decision_json(decision)
    write_json(tmp_path / "x.json", content)
    assert content["trials"][0]["choice"]["split"] == 64
    assert not content["adopted"]
    assert decision.measured == {"B=1": Measured(2.0, 1.0)}
