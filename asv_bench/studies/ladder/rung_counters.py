"""What one steady decode step of a rung does, counted exactly: it says why times differ.

For a GPU the counts are of a pretended one (`asv_bench.lab.pretend_cuda`), so that a
machine without a GPU has them too, and a process that counts must not measure.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from asv_bench.errors import MeasurementFailed
from asv_bench.process.environment import MEASURED_PACKAGES
from asv_bench.studies.ladder.rungs import Rung
from asv_bench.workloads.named import Workload

if TYPE_CHECKING:
    from asv_bench.lab.pretend_cuda import Traffic

STEADY_AFTER = 6
"""Steps before the counted ones; they and the counted ones lie within one block."""

PACKAGES = (*MEASURED_PACKAGES, "asv_bench.studies.ladder")


@dataclass(frozen=True, slots=True)
class RungCounters:
    """Counts of one steady step of a full batch.

    Attributes
    ----------
    python_calls
        Of functions of the engine, the kernels and the ladder, and of constructors that Python
        generated, such as a named tuple's.
    operators
        aten operators dispatched.
    copies
        Between host and device, in both directions; none on a CPU.
    new_tensors
        Results in memory of their own.
    launches
        Of Triton kernels, one by one; those inside a graph are not among them.
    graph_replays
        CUDA graphs launched.
    """

    python_calls: int
    operators: int
    copies: int
    new_tensors: int
    launches: int
    graph_replays: int

    def to_json(self) -> dict[str, int]:
        """The counters by name."""
        return asdict(self)


COUNTERS = tuple(entry.name for entry in fields(RungCounters))


def count_rung(rung: Rung, workload: Workload, *, model: str, pretends: bool) -> RungCounters:
    """Bring a full batch to where it decodes, and count a step as torch sees it and one as Python.

    Parameters
    ----------
    rung, workload
        What to count; the workload's batch decodes.
    model
        As for the engine.
    pretends
        Count on a pretended GPU in half precision, rather than on the CPU.

    Raises
    ------
    MeasurementFailed
        If a step did not yield one token of each request.
    """
    from asv_bench.studies.ladder.memory_ledger import MemoryLedger
    from asv_bench.studies.ladder.rung_build import build_rung

    with _device(pretends) as traffic:
        device, dtype = ("cuda", "float16") if pretends else ("cpu", "float32")
        alike = replace(workload, num_requests=workload.resident)
        engine: Any = build_rung(rung, alike.engine_config(model, device=device, dtype=dtype))
        for prompt in alike.prompts(engine.model_config.vocab_size):
            engine.submit(prompt, alike.sampling_params())
        received = 0
        while received < STEADY_AFTER * alike.num_requests:
            received += len(engine.step())
        traffic.clear()
        with MemoryLedger() as ledger:
            _step(engine, alike.num_requests)
        counted = RungCounters(
            python_calls=0,
            operators=ledger.operators,
            copies=traffic.copies_to_device + traffic.copies_to_host,
            new_tensors=ledger.new_tensors,
            launches=len(traffic.launches),
            graph_replays=traffic.graph_replays,
        )
        calls = _python_calls(engine, alike.num_requests)
    return replace(counted, python_calls=calls)


def _python_calls(engine: Any, batch: int) -> int:
    """Calls of Python functions in a step; a generator that is resumed counts as called."""
    specs = map(find_spec, PACKAGES)
    folders = [f"{Path(spec.origin).parent}/" for spec in specs if spec and spec.origin]
    # A function that was generated has no file.
    ours, calls = (*folders, "<string>"), 0

    def on_event(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename.startswith(ours)

    was_collecting = gc.isenabled()
    gc.disable()
    sys.setprofile(on_event)
    try:
        _step(engine, batch)
    finally:
        sys.setprofile(None)
        if was_collecting:
            gc.enable()
    return calls


@contextmanager
def _device(pretends: bool) -> Iterator[Traffic]:
    from asv_bench.lab.pretend_cuda import Traffic, pretended_cuda

    if not pretends:
        yield Traffic()
        return
    with pretended_cuda() as traffic:
        yield traffic


def _step(engine: Any, batch: int) -> None:
    delivered = len(engine.step())
    if delivered != batch:
        raise MeasurementFailed(
            f"a steady step of {batch} requests must deliver {batch} tokens, but this one "
            f"delivered {delivered}; nothing was counted."
        )
