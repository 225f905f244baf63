"""A rung's engine: what its host path is made of, or how today's engine is set up."""

from __future__ import annotations

from dataclasses import replace

from asv_bench.errors import Refused
from asv_bench.studies.ladder.appends import (
    GenericKernelAppend,
    IndexedAppend,
    NarrowestKernelAppend,
    PerTokenAppend,
)
from asv_bench.studies.ladder.block_managers import ArrayBlocks, MutableBlocks, TupleBlocks
from asv_bench.studies.ladder.block_tables import CachedRows, RebuiltTables
from asv_bench.studies.ladder.host_path import Parts
from asv_bench.studies.ladder.rung_engine import RungEngine
from asv_bench.studies.ladder.rungs import Rung, interpreting
from asv_bench.workloads.drive import EngineFace
from engine import Engine, EngineConfig

PARTS = {
    "rebuild": Parts(TupleBlocks, PerTokenAppend, RebuiltTables),
    "row-cache": Parts(TupleBlocks, PerTokenAppend, CachedRows),
    "batched-append": Parts(TupleBlocks, IndexedAppend, CachedRows),
    "triton-append": Parts(TupleBlocks, GenericKernelAppend, CachedRows),
    "identity-append": Parts(TupleBlocks, NarrowestKernelAppend, CachedRows),
    "mutable-info": Parts(MutableBlocks, NarrowestKernelAppend, CachedRows),
    "array-metadata": Parts(ArrayBlocks, NarrowestKernelAppend, CachedRows),
}
"""Host paths by the names of their rungs; each differs from the one before in one part."""


def build_rung(rung: Rung, config: EngineConfig) -> EngineFace:
    """The rung's engine.

    Raises
    ------
    Refused
        If the rung does not run on the configured device.
    """
    if not rung.runs_on(config.device):
        raise Refused(
            f"rung {rung.label} does not run on a CPU; it needs "
            + ("a GPU." if rung.needs == "cuda" else "a GPU or TRITON_INTERPRET=1.")
        )
    if rung.name in PARTS:
        return RungEngine(config, parts_on(rung, config.device))
    return Engine(replace(config, **rung.options))


def parts_on(rung: Rung, device: str) -> Parts:
    """The parts; where Triton does not run, appends are what they were before it came."""
    parts = PARTS[rung.name]
    has_triton = device != "cpu" or interpreting()
    if issubclass(parts.append, GenericKernelAppend) and not has_triton:
        return replace(parts, append=IndexedAppend)
    return parts
