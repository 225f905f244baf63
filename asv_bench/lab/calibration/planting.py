"""Commits that are slower by a known time, in a scratch clone and nowhere else.

Every planted commit adds the same work to its decode step: on a GPU a kernel that spins for some
clock cycles after the captured step, on a CPU a wait of the host. Only the length of the work
differs. The base has a length of 0, so the cost of the work itself, such as a node of the graph, is
no part of the difference.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.git.repository import Repository
from asv_bench.measure.lives import Place
from asv_bench.output.record import REPOSITORY
from asv_bench.process.contract import MEASURED_PACKAGES
from asv_bench.process.threads import measured_environment

PLANTED_IN = Path("engine") / "running" / "runner.py"
"""`ModelRunner.decode` is called for every step without a GPU, and for every captured one with."""

_PLANT = """

def _plant(decode, length):
    def slower_decode(self, *arguments, **options):
        states = decode(self, *arguments, **options)
        {work}
        return states

    return slower_decode


ModelRunner.decode = _plant(ModelRunner.decode, {length!r})
"""
# An ordinary launch, after the step's last kernel: the next step's first one waits for it.
_SPIN = "torch.cuda._sleep(length)"
_WAIT = """from time import perf_counter
        until = perf_counter() + length
        while perf_counter() < until:
            pass"""


@dataclass(frozen=True, slots=True)
class Planted:
    """A planted commit."""

    hash: str  # the full hash, in the scratch clone
    length: float  # what was planted: clock cycles on a GPU, seconds on a CPU
    seconds: float  # what it adds to a step, beyond a length of 0, measured by itself


class ScratchClone:
    """A clone of a repository's HEAD, in an empty or absent directory, for planted slowdowns.

    The repository is only read. The place where steps run decides between spinning and waiting.
    """

    def __init__(self, directory: Path, place: Place, repository: Path = REPOSITORY) -> None:
        self.root = directory
        self._place = place
        original = Repository(repository)
        head = original.line("rev-parse", "--verify", "HEAD")
        clone = ("clone", "--quiet", "--no-checkout", "--local")
        original.ask(*clone, str(repository.absolute()), str(directory.absolute()))
        self._git = Repository(directory)
        self._git.ask("update-ref", "--no-deref", "HEAD", head)
        self._git.ask("read-tree", "--reset", "-u", head)
        source = directory / PLANTED_IN
        if not source.is_file() or "class ModelRunner" not in source.read_text(encoding="utf-8"):
            raise Refused(
                f"commit {head[:8]} has no ModelRunner in {PLANTED_IN}; there is nowhere to plant "
                f"a slowdown of its decode step."
            )
        self._original = source.read_text(encoding="utf-8")
        self._spins: SpinTimes | None = None

    def plant(self, seconds: float) -> Planted:
        """Commit a step that is slower by about so many seconds, and measure by how many."""
        length, work = seconds, _WAIT
        if self._place.gpus:
            self._spins = self._spins or measure_spins(self._place)
            length, work = self._spins.cycles_for(seconds), _SPIN
            seconds = self._spins.seconds(length)
        text = self._original + _PLANT.format(length=length, work=work)
        (self.root / PLANTED_IN).write_text(text, encoding="utf-8")
        return Planted(
            self.commit(f"Make a decode step longer by {1e6 * seconds:.3g} µs"), length, seconds
        )

    def commit(self, subject: str) -> str:
        """Commit the measured packages as they are; returns the full hash."""
        identity = {
            f"GIT_{role}_{key}": value
            for role in ("AUTHOR", "COMMITTER")
            for key, value in (("NAME", "kvtrail"), ("EMAIL", "kvtrail@localhost"))
        }
        self._git.ask("add", "--", *MEASURED_PACKAGES)
        tree = self._git.line("write-tree")
        made = self._git.line("commit-tree", tree, "-p", "HEAD", "-m", subject, variables=identity)
        self._git.ask("update-ref", "HEAD", made)
        return made


@dataclass(frozen=True, slots=True)
class SpinTimes:
    """How long spins take as nodes of a CUDA graph: seconds by clock cycles, from 0 upward."""

    by_cycles: dict[int, float]

    def seconds(self, cycles: float) -> float:
        """What so many cycles add to a graph, beyond 0 cycles."""
        return float(np.interp(cycles, *self._curve))

    def cycles_for(self, seconds: float) -> int:
        """The cycles that add so many seconds. Raises Refused if no measured spin is as long."""
        cycles, added = self._curve
        if seconds > added[-1]:
            raise Refused(
                f"{1e6 * seconds:.0f} µs cannot be planted: spins of up to "
                f"{1e6 * added[-1]:.0f} µs were measured; plant a smaller slowdown."
            )
        return round(float(np.interp(seconds, added, cycles)))

    @property
    def _curve(self) -> tuple[list[int], list[float]]:
        cycles = sorted(self.by_cycles)
        return cycles, [self.by_cycles[count] - self.by_cycles[0] for count in cycles]


def measure_spins(place: Place) -> SpinTimes:
    """Measure spins on a GPU, in a process of its own.

    Raises MeasurementFailed if the process fails.
    """
    script = Path(__file__).with_name("spin_times.py")
    done = subprocess.run(
        [sys.executable, str(script)],
        env=measured_environment()
        | {"CUDA_VISIBLE_DEVICES": place.device, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise MeasurementFailed(f"the length of a spin could not be measured: {done.stderr}")
    measured: dict[str, float] = json.loads(done.stdout)
    return SpinTimes({int(cycles): seconds for cycles, seconds in measured.items()})
