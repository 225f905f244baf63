"""Rounds of peers: a life of every engine on the workloads of a model, one after another."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from asv_bench.errors import Refused
from asv_bench.history.life_rounds import Due, Lived
from asv_bench.measure.log import Entry, KeptRound, Log
from asv_bench.measure.samples import CommitUnusable, RoundSource, SampleFailed
from asv_bench.output.record import REPOSITORY
from asv_bench.peers.contest import STARTUP, TASK, Contest
from asv_bench.peers.lives.life import KINDS, KVTRAIL
from asv_bench.process.machine import has_cuda_gpu
from asv_bench.subjects.declared import DeclaredSubject
from asv_bench.subjects.subject_file import AxisTable, MetricTable, SubjectTable, SubjectText

_PLACE = "PEERS_FOLDER"


def find_peers(wanted: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The interpreters of the engines that can run, by name, and a sentence for each other.

    `wanted` are names, or NAME=INTERPRETER for one that another Python has; empty: every engine
    that this interpreter can import. kvtrail's is always among them. Refused if there is no such
    engine or interpreter.
    """
    named = {KVTRAIL: sys.executable} if wanted else dict.fromkeys(KINDS, sys.executable)
    for word in wanted:
        name, _, path = word.partition("=")
        if name not in KINDS:
            raise Refused(f"there is no peer {name!r}; there are {', '.join(KINDS)}.")
        # Not resolved: an environment is known by where its interpreter's link lies.
        named[name] = str(Path(path or sys.executable).expanduser().absolute())
        if not Path(named[name]).is_file():
            raise Refused(f"{path}, which is to run {name}, is no file; name a Python interpreter.")
    interpreters, absent = {}, []
    for name in sorted(named, key=list(KINDS).index):
        package = KINDS[name].package
        # It is not imported, which takes many seconds.
        question = f"import sys, importlib.util as u; sys.exit(u.find_spec({package!r}) is None)"
        # Outside of any folder whose packages could be taken for it.
        asked = subprocess.run([named[name], "-P", "-c", question], capture_output=True, cwd="/")
        if asked.returncode == 0:
            interpreters[name] = named[name]
        else:
            absent.append(f"{name}: absent, its Python has no package {package}")
    return interpreters, absent


def peers_subject(contests: Sequence[Contest]) -> DeclaredSubject:
    """Engines on models as labels of one subject, whose life is `peers.lives.life`."""
    life = '"$KVTRAIL_TREE/asv_bench/peers/lives/life.py"'
    task = f'"${_PLACE}/${{KVTRAIL_LABEL%/*}}/{TASK}"'
    table = SubjectTable(
        name="peers",
        measure=f'exec "$(cat "${_PLACE}/$KVTRAIL_LABEL")" {life} {task}',
        timeout_s=3600.0,
        devices=1 if has_cuda_gpu() else None,
        # Nothing is to be fetched: the model is a folder. Nor is anything to be reported: vLLM
        # looks at the machine for that, in a thread beside what is measured.
        env={
            _PLACE: str(contests[0].folder.parent),
            "HF_HUB_OFFLINE": "1",
            "DO_NOT_TRACK": "1",
            "OMP_NUM_THREADS": "1",
        },
    )
    labels = (label for one in contests for label in one.labels.values())
    axis = AxisTable("labels", tuple(labels))
    metrics = {STARTUP: MetricTable(path=STARTUP, unit="s")}
    return DeclaredSubject(REPOSITORY, SubjectText(table, metrics=metrics, axis=axis))


class KeptRounds(Log):
    """The log of a session; a round in which an engine failed is measured again."""

    def keep(self, entry: Entry) -> None:
        if not (isinstance(entry, KeptRound) and entry.failed):
            super().keep(entry)


class PeerRounds:
    """What lives in rounds, and where it goes (`LifeRounds.live`, `LivesTaken`).

    A round of a contest never leaves its device, and is measured again as a whole where that is
    lost. `on_life` is told, from the device's thread, which life begins.
    """

    def __init__(
        self,
        source: RoundSource,
        subject: DeclaredSubject,
        contests: Sequence[Contest],
        on_life: Callable[[str], None],
    ) -> None:
        self._source = source
        self._subject = subject
        self._contests = {one.folder.name: one for one in contests}
        self._on_life = on_life

    def live(self, due: Due, device: str) -> Lived:
        """A life of each engine. One that fails is left out of the rounds that follow."""
        contest, failed = self._contests[due.commit], {}
        readings, facts = {}, {}
        for name in contest.order(due.round):
            self._on_life(f"{name} on {contest.model}, round {due.round + 1}")
            label = contest.labels[name]
            try:
                readings[name] = self._source.round([label], device=device).readings[0][STARTUP]
            except (CommitUnusable, SampleFailed) as error:
                failed[name] = error.reason
                continue
            # The life named its file so.
            lived = contest.folder / f"{name}-{readings[name].value!r}.json"
            facts[name] = {**json.loads(lived.read_text()), **self._conditions(label)}
        return Lived(readings, failed, facts)

    def _conditions(self, label: str) -> dict[str, Any]:
        """What an engine ran with, and the most memory that it held until now."""
        others = list(self._subject.others.items())
        peaks = {metric: max(of_label[label]) for metric, of_label in others if label in of_label}
        cell = self._subject.cells.get(label)
        return {"cell": cell and cell.to_json(), "peaks": peaks}

    def take(self, due: Due, lived: Lived) -> None:
        self._contests[due.commit].rounds[due.round] = lived

    def give_up(self, commit: str, reason: str) -> None:
        """See `LivesTaken`; engines fail one by one."""
