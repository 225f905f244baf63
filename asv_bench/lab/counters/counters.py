"""All exact counters of the working tree: of its decode steps and of its compiled kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import track

from asv_bench.lab.counters.step_counters import (
    BATCHES,
    LARGE,
    PATHS,
    SMALL,
    calls_per_request,
    count_steps,
)

if TYPE_CHECKING:
    from asv_bench.lab.codegen.compiled import KernelFigures

Counters = dict[str, dict[str, Any]]
"""By what was counted ("cpu, batch 8, step", or a kernel), then by the counter's name."""

KERNEL_FIGURES = (
    "registers",
    "spill_instructions",
    "stack_bytes",
    "shared_bytes",
    "instructions",
)


def step_name(path: str, batch: int, part: str) -> str:
    """What a path's counters at one batch are called; `part` is "step" or "block"."""
    return f"{path}, batch {batch}, {part}"


def step_counters(console: Console) -> Counters:
    """Every path at every batch: a steady step, and the steps of one block together."""
    todo = [(path, batch) for path in PATHS for batch in BATCHES]
    counted: Counters = {}
    for path, batch in track(todo, "counting steps", console=console, transient=True):
        steps = count_steps(path, batch)
        counted[step_name(path.name, batch, "step")] = steps.step.to_json()
        counted[step_name(path.name, batch, "block")] = steps.block.to_json()
    return counted


def kernel_counters(figures: list[KernelFigures]) -> Counters:
    """What is kept of compiled kernels."""
    return {
        one.name: {
            **{name: getattr(one, name) for name in KERNEL_FIGURES},
            "cubin": one.cubin_sha256[:16],
        }
        for one in figures
    }


def broken_rules(steps: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Sentences about what must hold of a steady step, whatever a baseline says."""
    for path in PATHS:
        few, many = (steps[step_name(path.name, batch, "step")] for batch in (SMALL, LARGE))
        calls = calls_per_request(few, many)
        if path.is_alike and calls:
            yield (
                f"the engine calls {calls:g} Python functions for each request in a steady step "
                f"({path.what}), where it must call none"
            )
        if many["copies_to_device"]:
            yield (
                f"a steady step copies to the device {many['copies_to_device']} times "
                f"({path.what}), where it must not"
            )
        if many["copies_to_host"]:
            yield (
                f"a steady step copies to the host {many['copies_to_host']} times ({path.what}), "
                "where the device writes its tokens there itself"
            )
