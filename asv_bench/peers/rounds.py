"""Rounds: a life of every engine on the workloads of a model, after each other on one device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from asv_bench.output.record import REPOSITORY
from asv_bench.peers.heats import Heat
from asv_bench.process.device_pool import DevicePool
from asv_bench.process.machine import has_cuda_gpu
from asv_bench.process.samples import CommitUnusable, LifeSource, Reading, SampleFailed
from asv_bench.subjects.declared import DeclaredSubject
from asv_bench.subjects.subject_file import AxisTable, MetricTable, SubjectTable, SubjectText

_PLACE = "PEERS_FOLDER"
STARTUP = "startup_s"
_METRIC = MetricTable(path=STARTUP, unit="s")


def peers_subject(labels: Sequence[str], folder: Path) -> DeclaredSubject:
    """Engines on models as labels of one subject, whose life is `peers.lives.life`.

    Parameters
    ----------
    labels
        A heat and an engine each, with a slash between.
    folder
        That of each heat lies in it, under the heat's name.
    """
    life = '"$KVTRAIL_TREE/asv_bench/peers/lives/life.py"'
    task = f'"${_PLACE}/${{KVTRAIL_LABEL%/*}}/task.json"'
    table = SubjectTable(
        name="peers",
        measure=f'exec "${_PLACE}/$KVTRAIL_LABEL/python" {life} {task}',
        timeout_s=3600.0,
        devices=1 if has_cuda_gpu() else None,
        # Nothing is to be fetched: the model is a folder. Nor is anything to be reported: vLLM
        # looks at the machine for that, in a thread beside what is measured.
        env={
            _PLACE: str(folder),
            "HF_HUB_OFFLINE": "1",
            "DO_NOT_TRACK": "1",
            "OMP_NUM_THREADS": "1",
        },
    )
    axis = AxisTable("labels", tuple(labels))
    return DeclaredSubject(REPOSITORY, SubjectText(table, metrics={STARTUP: _METRIC}, axis=axis))


@dataclass(frozen=True, slots=True)
class Round:
    """A life of every engine of a heat; rounds of a heat are numbered from 0 on."""

    heat: Heat
    number: int


@dataclass(frozen=True, slots=True)
class Lived:
    """What a round gave by engine, and why engines gave nothing."""

    readings: dict[str, Reading] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PeerRounds:
    """Rounds on each device of a source at the same time; none leaves its device.

    A round whose device is lost is done again as a whole.

    Attributes
    ----------
    source
        Gives lives.
    on_life
        Told, from the device's thread, which begins.
    on_over
        Told of each heat whose rounds are over.
    """

    source: LifeSource
    on_life: Callable[[str], None]
    on_over: Callable[[Heat], None]

    def measure(self, heats: Sequence[Heat], rounds: int) -> None:
        """Measure so many rounds of each heat. An engine that fails is left out from then on.

        Raises
        ------
        MeasurementFailed
            If the last device is lost.
        """
        unfinished = {id(one): rounds for one in heats}
        left = deque(Round(one, number) for one in heats for number in range(rounds))

        def take(one: Round, future: Future[Lived]) -> None:
            lived = future.result()
            one.heat.add(one.number, lived.readings, lived.failed)
            unfinished[id(one.heat)] -= 1
            if not unfinished[id(one.heat)]:
                self.on_over(one.heat)

        pool = DevicePool(self.source, self._live)
        pool.run(lambda *_: left.popleft() if left else None, take, left.appendleft)

    def _live(self, one: Round, device: str) -> Lived:
        lived = Lived()
        for name in one.heat.order(one.number):
            self.on_life(f"{name} on {one.heat.contests[0].model}, round {one.number + 1}")
            try:
                label = f"{one.heat.folder.name}/{name}"
                lived.readings[name] = self.source.life(label, device=device)[STARTUP]
            except (CommitUnusable, SampleFailed) as error:
                lived.failed[name] = error.reason
        return lived
