"""Every mutant. A kernel file has at least four; none may survive."""

from __future__ import annotations

from . import attention, hopper, paging, projections, residual, rows

MUTANTS = (
    *paging.MUTANTS,
    *attention.MUTANTS,
    *projections.MUTANTS,
    *rows.MUTANTS,
    *residual.MUTANTS,
    *hopper.MUTANTS,
)
