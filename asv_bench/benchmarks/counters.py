"""What needs no clock: operators, tensors, copies, launches and calls of a step, and machine code.

The same in every process and on every machine with the same Python, torch and Triton, so one
sample is enough and any step in a series is a change of the code. `nox -s counters` gates them.
"""

from __future__ import annotations

from dataclasses import fields
from typing import ClassVar

from asv_runner.benchmarks.mark import SkipNotImplemented

from asv_bench.errors import MeasurementFailed
from asv_bench.lab.counters.step_counters import BLOCK_SIZE, PATHS, count_steps, path_named

from .guard import check_identity
from .sharing import Samples, SharesRuns, shared_figure, tracked

KERNEL_BATCH = 64


class Steps(SharesRuns):
    """A decode step on one of the engine's paths, averaged over the steps of one block."""

    params = ([path.name for path in PATHS], [8, 64])
    param_names: ClassVar = ["path", "batch"]

    def setup(self, path: str, batch: int) -> None:
        check_identity()
        _require_options(*path_named(path).options, *(["fuse"] if path == "fused" else []))

    @tracked(unit="operators", rounds=1)
    def track_operators(self, path: str, batch: int) -> Samples:
        """aten operators a step, those inside a captured graph left out."""
        return _step_figure("operators", path, batch)

    @tracked(unit="tensors", rounds=1)
    def track_new_tensors(self, path: str, batch: int) -> Samples:
        """Tensors in memory of their own that a step makes."""
        return _step_figure("new_tensors", path, batch)

    @tracked(unit="bytes", rounds=1)
    def track_new_bytes(self, path: str, batch: int) -> Samples:
        """Bytes of that memory."""
        return _step_figure("new_bytes", path, batch)

    @tracked(unit="copies", rounds=1)
    def track_copies(self, path: str, batch: int) -> Samples:
        """Copies between host and device a step, both ways."""
        return _step_figure("copies", path, batch)

    @tracked(unit="bytes", rounds=1)
    def track_copied_bytes(self, path: str, batch: int) -> Samples:
        """Bytes of those copies."""
        return _step_figure("copied_bytes", path, batch)

    @tracked(unit="launches", rounds=1)
    def track_launches(self, path: str, batch: int) -> Samples:
        """Triton kernels and graphs that the host launches a step."""
        return _step_figure("launches", path, batch)

    @tracked(unit="calls", rounds=1)
    def track_python_calls(self, path: str, batch: int) -> Samples:
        """Calls of the engine's own Python functions a step."""
        return _step_figure("engine_python_calls", path, batch)


class Kernels(SharesRuns):
    """The kernels that the engine launches for GPT-2, compiled for sm_90 without a GPU."""

    def setup(self) -> None:
        check_identity()
        _require_options("fuse")

    @tracked(unit="instructions", rounds=1)
    def track_instructions(self) -> Samples:
        """Machine instructions of all of them."""
        return shared_figure("kernels", "instructions", _compile)

    @tracked(unit="registers", rounds=1)
    def track_most_registers(self) -> Samples:
        """Registers a thread of the kernel that needs the most."""
        return shared_figure("kernels", "most_registers", _compile)

    @tracked(unit="instructions", rounds=1)
    def track_spills(self) -> Samples:
        """Instructions of all of them that move registers to local memory or back."""
        return shared_figure("kernels", "spills", _compile)

    @tracked(unit="bytes", rounds=1)
    def track_most_shared_bytes(self) -> Samples:
        """Shared memory of the kernel that needs the most."""
        return shared_figure("kernels", "most_shared_bytes", _compile)


def _require_options(*names: str) -> None:
    """Skip a commit whose engine has not all of these options."""
    from engine import EngineConfig

    missing = set(names) - {field.name for field in fields(EngineConfig)}
    if missing:
        raise SkipNotImplemented(f"this engine has no option {', '.join(sorted(missing))}")


def _step_figure(figure: str, path: str, batch: int) -> Samples:
    return shared_figure(f"counters-{path}-{batch}", figure, lambda: _count(path, batch))


def _count(path: str, batch: int) -> dict[str, float]:
    counted = count_steps(path_named(path), batch).block.to_json()
    figures = {name: value / BLOCK_SIZE for name, value in counted.items() if value is not None}
    figures["copies"] = figures["copies_to_device"] + figures["copies_to_host"]
    figures["copied_bytes"] = figures["bytes_to_device"] + figures["bytes_to_host"]
    figures["launches"] += figures["graph_replays"]
    return figures


def _compile() -> dict[str, float]:
    from asv_bench.lab.codegen.check import fresh_compiler
    from asv_bench.lab.codegen.compiled import compile_launched
    from asv_bench.lab.codegen.launched_kernels import launched_kernels

    with fresh_compiler():
        try:
            launched = launched_kernels(batch_sizes=(KERNEL_BATCH,))
        except MeasurementFailed as error:
            # An engine of another time launches kernels that today's rules do not name.
            raise SkipNotImplemented(str(error)) from error
        compiled = [compile_launched(kernel) for kernel in launched]
    return {
        "instructions": sum(one.instructions for one in compiled),
        "most_registers": max(one.registers for one in compiled),
        "spills": sum(one.spill_instructions for one in compiled),
        "most_shared_bytes": max(one.shared_bytes for one in compiled),
    }
