"""Mutants of the LM head."""

from __future__ import annotations

from .mutant import Mutant

HEAD, ROWS_TESTS = "kernels/linear/head.py", ("tests/kernels/step/test_rows.py",)

MUTANTS = (
    Mutant(
        HEAD,
        "place = row * TILES + tile + tl.arange(0, 1)",
        "place = tile + tl.arange(0, 1)",
        "every row's best is written where the first row's belongs",
        ROWS_TESTS,
        "every_tile",
    ),
    Mutant(
        HEAD,
        "    logits += shift\n",
        "    logits += 0.0\n",
        "a single row's logits lose the bias",
        ROWS_TESTS,
        "every_tile",
    ),
    Mutant(
        HEAD,
        "(n < vocab_size)[None, :]",
        "(n <= vocab_size)[None, :]",
        "padding may be picked as a token",
        ROWS_TESTS,
    ),
    Mutant(
        HEAD,
        'tl.where(has_nan, float("nan"), best)',
        "best",
        "logits that are not numbers go unnoticed",
        ROWS_TESTS,
        "lowest",
    ),
    Mutant(
        HEAD,
        "token = tl.min(tl.where(logits == best[:, None], n[None, :], 2147483647), axis=1)",
        "token = tl.max(tl.where(logits == best[:, None], n[None, :], -1), axis=1)",
        "the highest of equal tokens wins",
        ROWS_TESTS,
        "lowest",
    ),
    Mutant(
        HEAD,
        "place = m * TILES + tile_n",
        "place = m * TILES + tile_n % (TILES - 1)",
        "the last tile overwrites the first",
        ROWS_TESTS,
    ),
    Mutant(
        HEAD,
        "tl.store(tile_token + place, token, mask=in_batch)",
        "tl.store(tile_token + place, token)",
        "tokens of rows beyond the batch are written",
        ROWS_TESTS,
    ),
    Mutant(
        HEAD,
        "logits = rstd[:, None] * logits + shift[None, :]",
        "logits = logits + shift[None, :]",
        "rows are not normalised",
        ROWS_TESTS,
    ),
    Mutant(
        HEAD,
        "X_TILES_PAD=padded(in_features) if x_stats is None else padded(x_tiles, 1),",
        "X_TILES_PAD=padded(in_features) // 2 if x_stats is None else padded(x_tiles, 1),",
        "half of each row counts in its statistics",
        ROWS_TESTS,
    ),
)
