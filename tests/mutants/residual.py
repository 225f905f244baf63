"""Mutants of the residual connection with the norm behind it."""

from __future__ import annotations

from .mutant import Mutant

NORM, NORM_TESTS = "kernels/linear/norm_kernel.py", ("tests/kernels/linear/test_norm.py",)

MUTANTS = (
    Mutant(
        NORM,
        "    values = rounded.to(tl.float32)\n",
        "    values = added\n",
        "the norm is not that of the sum as it is stored",
        NORM_TESTS,
        "fp64",
    ),
    Mutant(
        NORM,
        "    centred = tl.where(in_row, values - mean, 0.0)",
        "    centred = values - mean",
        "padding counts towards the variance",
        NORM_TESTS,
        "fp64",
    ),
    Mutant(
        NORM,
        "tl.sum(centred * centred, axis=0) / E + epsilon",
        "tl.sum(values * values, axis=0) / E - mean * mean + epsilon",
        "large squares are subtracted, so that a row far from zero loses its variance",
        NORM_TESTS,
        "far_from_zero",
    ),
    Mutant(
        NORM,
        "mean = tl.sum(values, axis=0) / E\n",
        "mean = tl.sum(values, axis=0) / E_PAD\n",
        "padding counts towards the mean",
        NORM_TESTS,
        "fp64",
    ),
    Mutant(
        NORM,
        "/ E + epsilon",
        "/ E",
        "a constant row is divided by zero",
        NORM_TESTS,
        "constant",
    ),
    Mutant(
        NORM,
        "in_row = column < E",
        "in_row = column < E_PAD",
        "padding is written into the next row",
        NORM_TESTS,
        "beyond",
    ),
    Mutant(
        NORM,
        "centred = values  # zeros beyond the row",
        "centred = values - tl.sum(values, axis=0) / E",
        "an RMS norm centres the row",
        NORM_TESTS,
        "rms",
    ),
    Mutant(
        NORM,
        "    if not RMS:\n        scaled +=",
        "    if True:\n        scaled +=",
        "an RMS norm adds a bias",
        NORM_TESTS,
        "rms",
    ),
    Mutant(
        NORM,
        "tl.load(change + place, mask=in_row, other=0.0).to(tl.float32)",
        "tl.load(x + place, mask=in_row, other=0.0).to(tl.float32)",
        "the row is added to itself",
        NORM_TESTS,
        "fp64",
    ),
)
