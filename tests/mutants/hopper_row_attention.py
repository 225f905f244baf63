"""Mutants of a single row's attention, which only a Hopper GPU runs.

What their machine code shows is checked anywhere; the rest where there is such a GPU.
"""

from __future__ import annotations

from .mutant import Mutant

ROW = "kernels/attention/hopper/row_attention.py"
ROW_TESTS = ("tests/kernels/attention/test_row.py",)

MUTANTS = (
    Mutant(
        ROW,
        "        gdc_wait()\n",
        "",
        "the row is read before its producer has written it",
        ("row_attention",),
        check="codegen",
    ),
    Mutant(
        ROW,
        'return gl.where(start + _token() < cached, scores, float("-inf"))',
        "return scores",
        "what stands beyond the cached tokens takes part",
        ROW_TESTS,
        "float64",
        check="gpu",
    ),
    Mutant(
        ROW,
        "    for here in range(start, cached, CLUSTER * TILE):\n",
        "    for here in range(start, start, CLUSTER * TILE):\n",
        "only the first round of tiles takes part",
        ROW_TESTS,
        "float64",
        check="gpu",
    ),
    Mutant(
        ROW,
        "None] * SLOT_STRIDE + dim",
        "None] * HEAD_DIM + dim",
        "keys are read as if no value stood between them",
        ROW_TESTS,
        "float64",
        check="gpu",
    ),
    Mutant(
        ROW,
        "        ahead = here + CLUSTER * TILE\n",
        "        ahead = here\n",
        "a tile takes part again in place of the next",
        ROW_TESTS,
        "float64",
        check="gpu",
    ),
    Mutant(
        ROW,
        "gl.sum(products, 1) - mean * column_sum",
        "gl.sum(products, 1)",
        "the mean is not taken out of the product",
        ROW_TESTS,
        "float64",
        check="gpu",
    ),
    Mutant(
        ROW,
        "run_accs * fade[:, None][:, :, None] +",
        "run_accs +",
        "weights of earlier tiles stay relative to an old maximum",
        ROW_TESTS,
        "float64 or exponential",
        check="gpu",
    ),
    Mutant(
        ROW,
        "    first += HEADS * HEAD_DIM\n    value_strips",
        "    value_strips",
        "the new value is made by the weights of the key",
        ROW_TESTS,
        "float64",
        check="gpu",
    ),
    Mutant(
        ROW,
        "    place = (rank * WARPS + warp) * PART_WORDS + dim % SHARE + whole\n",
        "    place = rank * WARPS * PART_WORDS + dim % SHARE + whole\n",
        "the warps of a program overwrite each other's part",
        ROW_TESTS,
        "float64",
        check="gpu",
    ),
    Mutant(
        ROW,
        "    to = inbox_of(parts_at, dim // SHARE + whole)\n",
        "    to = inbox_of(parts_at, 7 - dim // SHARE + whole)\n",
        "programs get each other's dimensions",
        ROW_TESTS,
        "float64",
        check="gpu",
    ),
    Mutant(
        ROW,
        '    return gl.where(run_max == float("-inf"), 0.0, run_max)\n',
        "    return run_max\n",
        "a warp without tokens leaves NaN",
        ROW_TESTS,
        "float64",
        check="gpu",
    ),
    Mutant(
        ROW,
        "    new_weight = gl.exp2(new_score - top)\n",
        "    new_weight = 0.0 * new_score\n",
        "the new token does not take part",
        ROW_TESTS,
        "float64",
        check="gpu",
    ),
    Mutant(
        ROW,
        "slot = slot * SLOT_STRIDE + rank * SHARE\n",
        "slot = slot * SLOT_STRIDE\n",
        "every program appends to the first dimensions",
        ROW_TESTS,
        "float64",
        check="gpu",
    ),
    Mutant(
        ROW,
        "    result = gl.where(runs, result, 0.0)\n",
        "",
        "a row that does not run gives what its weights hold",
        ROW_TESTS,
        "does_not_run",
        check="gpu",
    ),
)
