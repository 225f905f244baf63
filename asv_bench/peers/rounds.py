"""Rounds of contests: a life of every engine on one workload, after each other on one device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from asv_bench.output.record import REPOSITORY
from asv_bench.peers.contest import METRICS, Contest
from asv_bench.process.device_pool import DevicePool
from asv_bench.process.machine import has_cuda_gpu
from asv_bench.process.samples import CommitUnusable, LifeSource, Reading, SampleFailed
from asv_bench.subjects.declared import DeclaredSubject
from asv_bench.subjects.subject_file import AxisTable, SubjectTable, SubjectText

_PLACE = "PEERS_FOLDER"


def peers_subject(labels: Sequence[str], folder: Path) -> DeclaredSubject:
    """Engines on workloads as labels of one subject, whose life is `peers.lives.life`.

    Parameters
    ----------
    labels
        A workload and an engine each, with a slash between.
    folder
        That of each workload lies in it, under the workload's name.
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
    return DeclaredSubject(REPOSITORY, SubjectText(table, metrics=METRICS, axis=axis))


@dataclass(frozen=True, slots=True)
class Round:
    """A life of every engine of a contest; rounds of a contest are numbered from 0 on."""

    contest: Contest
    number: int


@dataclass(frozen=True, slots=True)
class Lived:
    """What a round gave by engine, and why engines gave nothing."""

    readings: dict[str, Mapping[str, Reading]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PeerRounds:
    """Rounds on each device of a source at the same time; none leaves its device.

    The first life of an engine on a machine is not measured. A round whose device is lost is done
    again as a whole.

    Attributes
    ----------
    source
        Gives lives.
    on_life
        Told, from the device's thread, which begins.
    on_over
        Told of each contest whose rounds are over.
    """

    source: LifeSource
    on_life: Callable[[str], None]
    on_over: Callable[[Contest], None]

    def measure(self, contests: Sequence[Contest], rounds: int) -> None:
        """Measure so many rounds of each contest. An engine that fails is left out from then on.

        Raises
        ------
        MeasurementFailed
            If the last device is lost.
        """
        unfinished = {id(one): rounds for one in contests}
        left = deque(Round(one, number) for one in contests for number in range(rounds))

        def take(one: Round, future: Future[Lived]) -> None:
            lived = future.result()
            one.contest.failed |= lived.failed | one.contest.failed
            one.contest.add(one.number, lived.readings)
            unfinished[id(one.contest)] -= 1
            if not unfinished[id(one.contest)]:
                self.on_over(one.contest)

        pool = DevicePool(self.source, self._live)
        pool.run(lambda *_: left.popleft() if left else None, take, left.appendleft)

    def _live(self, one: Round, device: str) -> Lived:
        lived = Lived()
        for name in one.contest.order(one.number):
            self.on_life(f"{name} on {one.contest.workload.name}, round {one.number + 1}")
            try:
                lived.readings[name] = self.source.life(one.contest.label(name), device=device)
            except (CommitUnusable, SampleFailed) as error:
                lived.failed[name] = error.reason
        return lived
