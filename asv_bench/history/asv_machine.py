"""What asv stores about a machine."""

from __future__ import annotations

import platform

from asv_bench.process.machine import MachineFacts


def describe_hardware(facts: MachineFacts) -> dict[str, str]:
    """Only what changes speed, as each entry keys a series; all values are text.

    Of the operating system only the kind is kept: with its patch level, each update would start a
    new series.
    """
    return {
        "machine": facts.name,
        "os": platform.system(),
        "arch": platform.machine(),
        "cpu": facts.cpu,
        "num_cpu": str(facts.cores),
        "ram": f"{facts.memory_gib or 0:.0f} GiB",
        "gpu": facts.gpu or "none",
        "driver": facts.driver or "none",
    }


def describe_machine(facts: MachineFacts) -> dict[str, str]:
    """The hardware, and the packages that kvtrail's own benchmarks run with."""
    packages = {"torch": facts.torch or "none", "triton": facts.triton or "none"}
    return {**describe_hardware(facts), **packages}
