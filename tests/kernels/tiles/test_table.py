"""The table of configurations: what the file may say, and that every step finds what it needs."""

from __future__ import annotations

import math
import subprocess
import sys
import tomllib
from dataclasses import replace
from typing import Any

import pytest

from kernels.tiles.launch import ring_stages, ring_tile
from kernels.tiles.table import TABLE_FILE, ConfigTable, Measured, committed_table, read_table
from kernels.tiles.tile import ROLES, LinearTile, RingTile, StepShapes

TEXT = TABLE_FILE.read_text("utf-8")
SAMPLE = """
origin = "a machine"
[[buckets]]
most_rows = 2
rows = 1
context = 256
step_us = 210.0
attention_in = { block_m = 1, block_n = 8, block_k = 16, step_us = 210.0, next_us = 211.0 }
attention_out = { block_m = 1, block_n = 8, block_k = 16 }
feed_forward_in = { block_m = 1, block_n = 8, block_k = 16 }
feed_forward_out = { block_m = 1, block_n = 2, block_k = 16 }
head = { block_m = 16, block_n = 128, block_k = 128, stages = 4, prefetch = false }
[[buckets]]
rows = 64
context = 257
step_us = 300.0
attention_in = { block_m = 8, block_n = 64, block_k = 256, tma = true }
attention_out = { block_m = 16, block_n = 16, block_k = 256 }
feed_forward_in = { block_m = 16, block_n = 32, block_k = 128, stages = 5 }
feed_forward_out = { block_m = 16, block_n = 32, block_k = 128, split_k = 4 }
head = { block_m = 16, block_n = 128, block_k = 128, stages = 3 }
[[rings]]
most_dim = 256
block_n = 32
tail = 8
split = 128
depths = [{ most_programs = 3.5, stages = 6 }, { stages = 2 }]
cluster_depths = [{ most_programs = 1.5, stages = 4 }, { stages = 3 }]
measured."B=64" = { step_us = 356.0, next_us = 375.0 }
"""


def _gpt2(hidden: int) -> StepShapes:
    inner = 4 * hidden
    return StepShapes(
        (3 * hidden, hidden), (hidden, hidden), (inner, hidden), (hidden, inner), (50304, hidden)
    )


LLAMA_1B = StepShapes((3072, 2048), (2048, 2048), (16384, 2048), (2048, 8192), (128256, 2048))


@pytest.fixture(scope="module")
def table() -> ConfigTable:
    return committed_table()


def test_every_bucket_has_every_role_and_says_where_it_was_measured(table: ConfigTable) -> None:
    assert table.origin
    for bucket in table.buckets:
        assert 1 <= bucket.rows <= bucket.most_rows
        assert bucket.context > 0
        # Of a rule that was never measured nothing is claimed.
        assert bucket.step_us > 0 if bucket.step_us else not bucket.measured
        for role in ROLES:
            assert isinstance(getattr(bucket.tiles, role), LinearTile)
    # A bucket is measured at a size that it serves.
    for shapes in (None, LLAMA_1B):
        served = [table.buckets[place] for place in table.places(shapes)]
        assert [table.tiles(one.rows, shapes) for one in served] == [one.tiles for one in served]


def test_larger_maps_follow_another_rule_until_a_model_has_its_own(table: ConfigTable) -> None:
    assert all(table.tiles(rows, _gpt2(1600)) is table.tiles(rows) for rows in (1, 64, 256))
    rule = table.tiles(64, replace(LLAMA_1B, head=(256, 2048)))
    assert rule is not table.tiles(64)
    assert rule is not table.tiles(64, LLAMA_1B), "it has buckets of its own"


@pytest.mark.parametrize("shapes", [LLAMA_1B, replace(LLAMA_1B, head=(256, 2048))])
def test_tiles_of_larger_maps_fit_a_multiprocessor(table: ConfigTable, shapes: StepShapes) -> None:
    """With what a cluster sends. A single row's tiles use no shared memory."""
    for rows in (1, 8, 16, 32, 64, 128, 256):
        tiles = table.tiles(rows, shapes).fitted(shapes)
        for role in ROLES[:-1]:
            tile = getattr(tiles, role)
            assert (tile.block_m == 1) == (rows == 1)
            assert tile.is_possible
            if tile.tma:
                operands = 2 * tile.stages * (tile.block_m + tile.block_n) * tile.block_k
                inbox = 4 * (tile.split_k - 1) * tile.block_m * tile.block_n // tile.split_k
                assert operands + inbox <= 226 * 1024


@pytest.mark.parametrize("rows", [1, 2, 3, 16, 17, 64, 65, 128, 129, 256, 1000])
def test_a_step_takes_the_first_bucket_that_holds_it(table: ConfigTable, rows: int) -> None:
    [*lower, last] = (table.buckets[place] for place in table.places())
    expected = next((one for one in lower if rows <= one.most_rows), last)
    assert table.tiles(rows) is expected.tiles
    assert last.most_rows == math.inf


def test_the_tiles_divide_the_model_that_they_were_tuned_for(table: ConfigTable) -> None:
    for place in table.places():
        tiles = table.buckets[place].tiles
        assert tiles.fitted(_gpt2(768)) == tiles


@pytest.mark.parametrize("hidden", [768, 1024, 1280, 1600])
def test_every_published_width_has_room_for_the_head(table: ConfigTable, hidden: int) -> None:
    tiles = (table.buckets[place].tiles for place in table.places())
    heads = [one.head for one in tiles if one.head.tma]
    assert heads
    for committed in heads:
        head = committed.fitted_head(50304, hidden)
        assert head == committed
        assert 2 * head.stages * (head.block_m + head.block_n) * head.block_k <= 226 * 1024


HEAD = LinearTile(64, 384, 64, stages=4, tma=True)


@pytest.mark.parametrize(
    ("head_rows", "hidden", "block_n", "block_k", "stages"),
    [
        (50304, 768, 384, 64, 4),
        # Llama 2's and Qwen's vocabularies are whole tiles of fewer parts.
        (32000, 4096, 256, 64, 4),
        (151936, 4096, 128, 64, 4),
        # No more stages than there are chunks.
        (128, 192, 128, 64, 3),
        # Smaller chunks, as many bytes on their way.
        (768, 96, 384, 32, 3),
    ],
)
def test_a_hopper_head_is_cut_down_to_parts(
    head_rows: int, hidden: int, block_n: int, block_k: int, stages: int
) -> None:
    wanted = replace(HEAD, block_n=block_n, block_k=block_k, stages=stages)
    assert HEAD.fitted_head(head_rows, hidden) == wanted


def test_a_head_that_hopper_cannot_make_is_the_plain_kernels() -> None:
    for odd in (
        replace(HEAD, block_m=32),
        replace(HEAD, block_m=256),
        replace(HEAD, block_n=64),
        # Two stages of this are more than there is room for.
        replace(HEAD, block_k=256),
    ):
        head = odd.fitted_head(50304, 768)
        assert not head.tma
        assert head.fitted(50304, 768) == head
    # No registers for the logits of more.
    assert replace(HEAD, block_n=512).fitted_head(128 * 12, 768).block_n == 384


@pytest.mark.parametrize("hidden", [768, 1024, 1280, 1600])
def test_every_published_width_is_the_hopper_kernels(table: ConfigTable, hidden: int) -> None:
    """Operands of all stages must fit into shared memory, beside what a cluster sends."""
    for bucket in (table.buckets[place] for place in table.places()):
        tiles = bucket.tiles.fitted(_gpt2(hidden))
        for role in ROLES[:-1]:
            tile, committed = getattr(tiles, role), getattr(bucket.tiles, role)
            assert tile.tma == committed.tma
            assert tile.is_possible
            if tile.tma:
                operands = 2 * tile.stages * (tile.block_m + tile.block_n) * tile.block_k
                inbox = 4 * (tile.split_k - 1) * tile.block_m * tile.block_n // tile.split_k
                assert operands + inbox <= 226 * 1024


def test_a_cut_tile_keeps_as_many_bytes_on_their_way() -> None:
    tile = LinearTile(64, 64, 256, stages=3, tma=True).fitted(4800, 1600)
    assert (tile.block_k, tile.stages) == (64, 12)
    assert LinearTile(64, 64, 256, stages=3).fitted(4800, 1600).stages == 3


def test_a_ring_depends_on_the_head_and_its_group_alone(table: ConfigTable) -> None:
    assert ring_tile(64) is table.rings[0].tile
    assert ring_tile(64, 2) is ring_tile(64, 4) is table.rings[1].tile
    assert ring_tile(65) is ring_tile(256, 4) is table.rings[2].tile
    ring = RingTile(32, 8, 128, ((2.0, 7), (4.5, 5), (math.inf, 3)))
    assert [ring_stages(64, programs, 10, ring) for programs in (1, 20, 21, 45, 46, 9999)] == [
        *(7, 7, 5, 5, 3, 3)
    ]
    assert ring_stages(64, 100, 10) == ring_tile(64).stages(10.0)


def test_programs_that_begin_together_have_depths_of_their_own() -> None:
    ring = RingTile(32, 8, 128, ((2.0, 7), (math.inf, 3)))
    own = replace(ring, cluster_depths=((1.0, 5), (math.inf, 2)))
    assert [ring_stages(64, programs, 10, ring, in_clusters=True) for programs in (20, 21)] == [
        *(7, 3)
    ]
    assert [ring_stages(64, programs, 10, own, in_clusters=True) for programs in (10, 11)] == [
        *(5, 2)
    ]
    assert ring_stages(64, 11, 10, own) == 7


def test_a_changed_table_leaves_the_old_one_alone(table: ConfigTable) -> None:
    tile = LinearTile(16, 32, 64)
    changed = table.with_tile(1, "head", tile)
    changed_rows = table.buckets[1].rows
    assert changed.buckets[1].tiles.head is tile
    assert len(changed.buckets) == len(table.buckets)
    others = [bucket.rows for bucket in table.buckets if bucket.rows != changed_rows]
    assert [changed.tiles(rows) for rows in others] == [table.tiles(rows) for rows in others]
    assert table.tiles(changed_rows).head != tile


def changed_text(old: str, new: str) -> str:
    assert old in SAMPLE
    return SAMPLE.replace(old, new, 1)


def test_every_field_is_read() -> None:
    sample = read_table(SAMPLE)
    first, last = sample.buckets
    assert (first.most_rows, first.rows, first.context, first.step_us) == (2, 1, 256, 210.0)
    assert first.measured == {"attention_in": Measured(210.0, 211.0)}
    assert first.tiles.head == LinearTile(16, 128, 128, stages=4, prefetch=False)
    assert last.tiles.feed_forward_out == LinearTile(16, 32, 128, split_k=4)
    assert last.tiles.attention_in.tma
    depths, cluster_depths = ((3.5, 6), (math.inf, 2)), ((1.5, 4), (math.inf, 3))
    assert sample.ring(64) == RingTile(32, 8, 128, depths, cluster_depths)
    assert sample.rings[0].measured == {"B=64": Measured(356.0, 375.0)}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (changed_text("\nrows = 64", "\nmost_rows = 1\nrows = 64"), "buckets must ascend"),
        (changed_text("\nrows = 64", "\nmost_rows = 300\nrows = 64"), "end at inf"),
        (
            changed_text("most_dim = 256", "most_dim = 128"),
            "rings must ascend and end at .256, inf.",
        ),
        (changed_text("block_k = 16,", "block_k = 16, warp = 4,"), "'warp'"),
        (changed_text("attention_out = ", "out = "), "lacks 'attention_out'"),
        (changed_text("context = 256", "context = 256\ncolour = 1"), "mean nothing: colour"),
        (changed_text("block_k = 16, ", ""), "attention_in"),
        (changed_text("stages = 4, prefetch", "split_k = 2, prefetch"), "head cannot split"),
        (changed_text("split_k = 4 }", "split_k = 4, tma = true }"), "cannot share a Hopper tile"),
        (changed_text(", { stages = 2 }", ""), "for any number of programs"),
        (changed_text(", { stages = 3 }]", "]"), "for any number of programs"),
        (changed_text("origin", "source"), "lacks 'origin'"),
    ],
)
def test_a_wrong_table_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_table(text)


def test_the_file_is_read_without_torch_or_triton() -> None:
    code = (
        "import sys, kernels.tiles.table as c; c.committed_table(); "
        "print(sorted({'torch', 'triton'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=TABLE_FILE.parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_another_table_can_be_named_and_the_example_of_a_subject_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = TABLE_FILE.parents[2]
    subject = tomllib.loads((root / "reports/subjects/tiles/kvtrail.toml").read_text())
    tables = []
    for label in subject["axis"]["labels"]:
        monkeypatch.setenv("KVTRAIL_TILES", str(root / label))
        tables.append(committed_table.__wrapped__())
    assert tables[0] == read_table(TEXT)
    assert tables[1].tiles(64) != tables[0].tiles(64)
    for rows in (1, 64, 256):
        assert tables[1].tiles(rows).fitted(_gpt2(768)) == tables[1].tiles(rows)


def test_no_field_of_the_file_is_dropped(table: ConfigTable) -> None:
    content: dict[str, Any] = tomllib.loads(TEXT)
    for entry, bucket in zip(content["buckets"], table.buckets, strict=True):
        for role in ROLES:
            tile = getattr(bucket.tiles, role)
            said = {k: v for k, v in entry[role].items() if k not in ("step_us", "next_us")}
            assert {name: getattr(tile, name) for name in said} == said
            assert (role in bucket.measured) == ("step_us" in entry[role])
    for entry, ring in zip(content["rings"], table.rings, strict=True):
        assert ring.tile.depths[-1][1] == entry["depths"][-1]["stages"]
        shared = [band["stages"] for band in entry.get("cluster_depths", [])]
        assert [stages for _, stages in ring.tile.cluster_depths] == shared
        assert set(ring.measured) == set(entry.get("measured", {}))
