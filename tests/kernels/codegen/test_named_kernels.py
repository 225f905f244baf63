"""Which kernels are compiled: those that the engine launches, specialised as it launches them.

In processes of their own, because the kernels remember what ``cuda:0`` is.
"""

from __future__ import annotations

import pytest

from tests.fresh_python import forked_python

EVERY_BUCKET = """
from tests.kernels.codegen.named_kernels import engine_kernels
from engine.worker.decode_graphs import bucket_sizes
from kernels.tiles.table import committed_table

kernels = engine_kernels((256, 1))
hopper = names = [one.name for one in kernels]
assert len(set(names)) == len(names), names
launched = {name.split("-")[0] for name in names}
assert launched == {
    "embed_rows", "linear_stream", "linear_row", "row_attention", "ring_attention",
    "head_row", "head_stream", "pick_tokens",
    "append_rows", "prefill_attention", "add_norm_rows",
}, launched
# Fused steps append as they attend; sampled ones attend over tokens that are there.
rings = {name.split("-")[4] for name in names if name.startswith("ring_attention")}
assert rings == {"append", "cached"}, rings
# A single row that appends has a kernel of its own; several programs of others are a cluster.
assert [one.rows for one in kernels if one.name.startswith("row_attention")] == [[1]]
shared = {"8": set(), "4": set()}
for one in kernels:
    if "-cluster" in one.name:
        shared[one.name.split("-cluster")[1]] |= set(one.rows)
assert shared == {"8": {2, 4, 8}, "4": {16}}, shared
for first in ("embed_rows", "pick_tokens", ("ring_attention", "row_attention")):
    rows = sorted({row for one in kernels if one.name.startswith(first) for row in one.rows})
    assert rows == bucket_sizes(256), (first, rows)
for rows in (16, 64, 256):
    tile = committed_table().tiles(rows).attention_in
    kernel = "linear_stream" if tile.tma else "linear_tiles"
    start = f"{kernel}-N2304-K768-M{tile.block_m}-n{tile.block_n}-k{tile.block_k}-"
    assert [one for one in kernels if one.name.startswith(start) and rows in one.rows], start
fused = [one for one in kernels if one.rows]
assert all(one.is_dependent == (one.family != "rows" or "pick" in one.name) for one in fused)
assert all(one.options["num_warps"] == 1 for one in kernels if one.name.startswith("ring_"))
# The rows of an engine of one are not aligned as those of a larger one.
assert sorted(name for name in names if name.startswith("pick_tokens")) == [
    "pick_tokens-TILES131", "pick_tokens-TILES6288", "pick_tokens-TILES6288-2"
]
"""
OTHERS = """
from kernels.tiles.launch import ring_tile
from tests.kernels.codegen.every_kernel import family_kernels, plain_kernels, wide_head_kernels

kernels = plain_kernels()
names = {one.name for one in kernels}
assert {name.split("-")[0] for name in names} == {
    "linear_tiles", "decode_attention_append", "head_tiles"
}, names
assert len(names) == len(kernels) and not names & set(hopper)
assert not any(one.is_dependent or one.rows for one in kernels)

names = [one.name for one in wide_head_kernels()]
start = "ring_attention-D128-G4-"
# From 72 pairs of a sequence and one of 8 heads on, a program walks a whole context.
stages = {ring_tile(128, 4).stages(rows * 8 / 132) for rows in range(9, 65)}
depths = {f"{start}serial-append-stages{one}" for one in stages}
assert len(depths) > 1
assert {name for name in names if "serial" in name} == depths, names
assert any(name.startswith(f"{start}parallel-append-") for name in names), names

kernels = family_kernels(("llama-3.2-1b",), (64,))
names = [one.name for one in kernels]
for start in ("embed_rows", "linear_stream-N3072-K2048", "ring_attention-D64-G4-serial-append",
              "linear_stream-N16384-K2048", "head_stream", "pick_tokens", "linear_tiles",
              "decode_attention_append-D64-G4", "head_tiles"):
    assert any(name.startswith(start) for name in names), (start, names)
gated = next(one for one in kernels if one.name.startswith("linear_stream-N16384"))
constants = {gated.source.fn.arg_names[place[0]]: value
             for place, value in gated.source.constants.items()}
assert [constants[one] for one in ("NORM", "ACTIVATION", "GATED")] == [2, 2, True], constants
# A single row attends with its map where the weights of its heads fit.
[row] = [one for one in family_kernels(("qwen3-0.6b",), (1,))
         if one.name.startswith(("row_attention", "ring_attention"))]
types = row.source.signature
assert (types["turns"], types["head_norm"]) == ("*fp32", "*bf16"), types
"""


@pytest.mark.thorough
def test_every_kernel_of_every_bucket_gpu_and_family_is_there_as_the_tables_say() -> None:
    # One after the other: what is pretended of one GPU does not last.
    done = forked_python(EVERY_BUCKET + OTHERS)
    assert done.returncode == 0, done.stdout + done.stderr


CHANGED_TILE = """
import dataclasses
from tests.kernels.codegen import named_kernels
from kernels.tiles import table as tiles
table = tiles.committed_table()
taller = dataclasses.replace(table.tiles(8).attention_out, block_m=16)
changed = table.with_tile(table.place(8), "attention_out", taller)
tiles.committed_table = lambda: changed
kernels = named_kernels.engine_kernels((8,))
print(*(one.name for one in kernels if "N768-K768" in one.name))
del named_kernels._KERNELS["pick_tokens"]
named_kernels.engine_kernels((1,))
"""


@pytest.mark.thorough
def test_a_changed_tile_is_compiled_as_changed_and_a_kernel_without_rules_is_refused() -> None:
    done = forked_python(CHANGED_TILE)
    # Two to eight rows take 16 at a time now; the one for a single row is as it was.
    assert "linear_stream-N768-K768-M16-n64-k256-stats0" in done.stdout.split()
    assert "linear_stream-N768-K768-M8-" not in done.stdout
    assert "linear_row-N768-K768-n8" in done.stdout.split()
    assert done.returncode == 1
    assert "the engine launches the kernel pick_tokens, which" in done.stderr
