"""Every mutant. A kernel file has at least four; none may survive."""

from __future__ import annotations

from . import (
    attention,
    head,
    hopper_attention,
    hopper_projections,
    hopper_row_attention,
    paging,
    projections,
    residual,
    rows,
    sampling,
)

MUTANTS = (
    *paging.MUTANTS,
    *attention.MUTANTS,
    *projections.MUTANTS,
    *head.MUTANTS,
    *rows.MUTANTS,
    *sampling.MUTANTS,
    *residual.MUTANTS,
    *hopper_projections.MUTANTS,
    *hopper_attention.MUTANTS,
    *hopper_row_attention.MUTANTS,
)
