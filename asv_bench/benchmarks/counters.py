"""Exact counts: operators, tensors, copies, launches and calls of a step, and machine code.

They are the same in every process and on every machine with the same Python, torch and Triton, so
one sample is enough, and any step in a series is a change of the code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

from asv_runner.benchmarks.mark import SkipNotImplemented

from asv_bench.lab.step_counters import BLOCK_SIZE, PATHS, count_steps

from .sharing import Figures, Samples, SharesRuns, shared

KERNEL_BATCH = 64


def _counted(figure: str, what: str, unit: str = "") -> Callable[..., Samples]:
    """A count; its unit has the figure's name unless one is given."""
    return shared(figure, what, unit=unit or figure, rounds=1)


class Steps(SharesRuns, path=list(PATHS), batch=[8, 64]):
    """A decode step on one of the engine's paths, averaged over the steps of one block."""

    def prepare(self, path: str, batch: int) -> None:
        _require_options(*PATHS[path], *(["fuse"] if path == "fused" else []))

    def run(self, path: str, batch: int) -> Figures:
        counted = count_steps(path, batch)["block"]
        figures = {name: n / BLOCK_SIZE for name, n in counted.items() if n is not None}
        figures["copies"] = figures["copies_to_device"] + figures["copies_to_host"]
        figures["copied_bytes"] = figures["bytes_to_device"] + figures["bytes_to_host"]
        figures["launches"] += figures["graph_replays"]
        return figures

    track_operators = _counted("operators", "aten operators outside a captured graph, a step.")
    track_new_tensors = _counted("new_tensors", "Tensors in new memory, a step.", "tensors")
    track_new_bytes = _counted("new_bytes", "Bytes of that memory.", "bytes")
    track_copies = _counted("copies", "Copies between host and device a step, both ways.")
    track_copied_bytes = _counted("copied_bytes", "Bytes of those copies.", "bytes")
    track_launches = _counted("launches", "Triton kernels and graphs that the host launches.")
    track_python_calls = _counted(
        "engine_python_calls", "Calls of the engine's own Python functions a step.", "calls"
    )


class Kernels(SharesRuns):
    """The kernels that the engine launches for GPT-2, compiled for sm_90 without a GPU."""

    def prepare(self) -> None:
        _require_options("fuse")

    def run(self) -> Figures:
        from asv_bench.lab.launched_kernels import compile_kernel, launched_kernels

        launched = launched_kernels(KERNEL_BATCH).values()
        compiled = [compile_kernel(one).figures for one in launched]
        return {
            "instructions": sum(one["instructions"] for one in compiled),
            "most_registers": max(one["registers"] for one in compiled),
            "spills": sum(one["spill_instructions"] for one in compiled),
            "most_shared_bytes": max(one["shared_bytes"] for one in compiled),
        }

    track_instructions = _counted("instructions", "Machine instructions of all of them.")
    track_most_registers = _counted(
        "most_registers", "Registers a thread of the kernel that needs the most.", "registers"
    )
    track_spills = _counted(
        "spills", "Instructions that move registers to local memory or back.", "instructions"
    )
    track_most_shared_bytes = _counted(
        "most_shared_bytes", "Shared memory of the kernel that needs the most.", "bytes"
    )


def _require_options(*names: str) -> None:
    """Skip a commit whose engine lacks one of these options."""
    from engine import EngineConfig

    missing = set(names) - {field.name for field in fields(EngineConfig)}
    if missing:
        raise SkipNotImplemented(f"this engine has no option {', '.join(sorted(missing))}")
