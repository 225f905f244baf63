"""A host of a fleet: a bare process that runs lives and pairs in the slots of its machine.

It is asked through its standard input and ends, with all that it started, when that does: when
whoever started it is gone. First it reads an `Order`, and how many slots it has, its name and what
looks for disturbances, and answers with its facts. Then each request is the name of a method of
`Host` and its arguments, and an `Answer` comes back.
"""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.fleet.host_process import read_frame, write_frame
from asv_bench.fleet.order import Order
from asv_bench.process.gpu import ALL_DEVICES, chosen_gpus
from asv_bench.process.machine import MachineFacts, machine_facts
from asv_bench.process.samples import Absence, Pair, Reading
from asv_bench.process.surroundings import look_around
from asv_bench.subjects.axis import Variant
from asv_bench.subjects.cell import Cell
from asv_bench.subjects.lives import Lives, Place
from asv_bench.subjects.processes import Processes
from asv_bench.subjects.subject_file import SubjectTable
from asv_bench.subjects.trees import Trees

Look = Callable[[Place, Callable[[], bool]], Sequence[str]]
"""Given a place where nothing of ours runs, and what says whether nothing of ours runs on the whole
host now, says in sentences what disturbs it."""
LOOKS, PAUSE_SECONDS = 3, 1.0
"""What disturbs is still there when it is looked at again: a GPU counts as busy for a while after
the life that was busy there."""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What a host says of itself when it begins.

    Attributes
    ----------
    refusal
        Why lives cannot run there; "" where they can.
    """

    machine: MachineFacts
    refusal: str = ""


@dataclass(slots=True)
class Answer:
    """What came of a request.

    Attributes
    ----------
    value
        What was measured; None where nothing was.
    error
        Why not.
    disturbances
        What disturbs the host, in sentences, for which reason nothing was measured.
    cells, others, remarks
        What there is of these since the last answer; see `DeclaredSubject`.
    """

    value: Any = None
    error: MeasurementFailed | None = None
    disturbances: tuple[str, ...] = ()
    cells: dict[str, Cell] = field(default_factory=dict)
    others: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


class Host:
    """Runs what is asked for in its slots, numbered from 0 on, in a thread for each."""

    def __init__(
        self, lives: Lives, remarks: list[str], places: Sequence[Place], look: Look
    ) -> None:
        self._lives = lives
        self._remarks = remarks
        self._places = list(places)
        self._look = look
        self._lock = threading.Lock()
        self._busy: set[int] = set()

    def prepare(self, slot: int, may_leave: bool, commit: str) -> Answer:
        """See `Lives.prepare`."""
        return self._run(slot, may_leave, lambda device: self._lives.prepare(commit, device))

    def life(self, slot: int, may_leave: bool, commit: str, names: Sequence[str] | None) -> Answer:
        """See `Lives.life`."""

        def measure(device: str) -> Mapping[str, Reading]:
            return self._lives.life(commit, benchmarks=names, device=device)

        return self._run(slot, may_leave, measure)

    def pair(
        self,
        slot: int,
        may_leave: bool,
        base: str,
        head: str,
        head_first: bool,
        names: Sequence[str] | None,
    ) -> Answer:
        """See `Lives.pair`."""

        def measure(device: str) -> Mapping[str, Pair]:
            return self._lives.pair(
                base, head, head_first=head_first, benchmarks=names, device=device
            )

        return self._run(slot, may_leave, measure)

    def stop(self) -> None:
        """End what runs."""
        self._lives.stop()

    def _run(
        self,
        slot: int,
        may_leave: bool,
        measure: Callable[[str], Mapping[str, Absence | Reading | Pair]],
    ) -> Answer:
        """Measure in a slot, unless the host is disturbed and may be left out."""
        place = self._places[slot]
        with self._lock:
            self._busy.add(slot)
        try:
            if may_leave and (found := self._look(place, lambda: self._busy == {slot})):
                return Answer(disturbances=tuple(found))
            answer = Answer()
            try:
                answer.value = dict(measure(place.device))
            except MeasurementFailed as error:
                answer.error = error
            return self._with_account(answer)
        finally:
            with self._lock:
                self._busy.discard(slot)

    def _with_account(self, answer: Answer) -> Answer:
        answer.cells, answer.others = self._lives.take_account()
        with self._lock:
            answer.remarks = list(self._remarks)
            self._remarks.clear()
        return answer


def disturbances(place: Place, is_alone: Callable[[], bool]) -> list[str]:
    """What disturbs a place: load, or somebody else on its GPUs.

    Load is judged where it is not ours. Clocks that follow the load are the machine's own.
    """
    sentences: list[str] = []
    for number in range(LOOKS):
        if number:
            time.sleep(PAUSE_SECONDS)
        was_alone = is_alone()
        seen = look_around(place.gpus or [place.device])
        # A life of another slot may have ended meanwhile, or begun.
        busy = seen.busy_cores if was_alone and is_alone() else None
        sentences = replace(seen, busy_cores=busy, governors=()).sentences()
        if not sentences:
            break
    return sentences


def places_here(table: SubjectTable, slots: int, name: str) -> list[Place]:
    """So many places on this machine, each with its GPUs and the cores beside them.

    Raises
    ------
    Refused
        If there are too few GPUs or cores.
    """
    cores = sorted(os.sched_getaffinity(0))
    share = table.cores or (len(cores) // slots if slots > 1 else 0)
    if share * slots > len(cores):
        raise Refused(f"{slots} lives with {share} cores each need more than its {len(cores)}")
    needed = table.devices or 0
    gpus = chosen_gpus(ALL_DEVICES) if needed else ()
    if needed * slots > len(gpus):
        raise Refused(f"{slots} lives with {needed} GPUs each need more than its {len(gpus)}")
    return [
        Place(gpus[one * needed :][:needed], tuple(cores[one * share :][:share]), f"{name}/{one}")
        for one in range(slots)
    ]


@contextmanager
def opened(order: Order, slots: int, name: str, look: Look) -> Iterator[Host]:
    """The host, with the files laid out; on leaving all that it runs is ended."""
    with tempfile.TemporaryDirectory(prefix="kvtrail-", ignore_cleanup_errors=True) as scratch:
        places = places_here(order.work.table, slots, name)
        folder = Path(scratch)
        repository = order.unpack(folder)

        def variant_of(asked: str) -> Variant:
            commit, label = order.variants[asked]
            return Variant(commit, repository, label)

        processes = Processes()
        work, laid = order.work, folder / "trees"
        trees = Trees(variant_of, work.table, order.pinned, work.folder, laid, processes)
        lives = Lives(work, places, trees.lay_out, processes)
        try:
            yield Host(lives, trees.remarks, places, look)
        finally:
            lives.stop()


def main() -> None:
    """Answer requests until there are no more."""
    asked, answered = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    # What a library prints must not be taken for an answer.
    os.dup2(2, 1)
    packed, begin = read_frame(asked), read_frame(asked)
    if packed is None or begin is None:
        return
    order: Order = pickle.loads(packed[1])
    slots, name, look = pickle.loads(begin[1])
    facts = HostFacts(machine_facts())
    try:
        with opened(order, slots, name, look) as host:
            write_frame(answered, 0, pickle.dumps(facts))
            _answer_all(host, asked, answered, slots)
    except (Refused, MeasurementFailed) as error:
        write_frame(answered, 0, pickle.dumps(replace(facts, refusal=str(error))))


def _answer_all(host: Host, asked: IO[bytes], answered: IO[bytes], slots: int) -> None:
    lock = threading.Lock()

    def answer(number: int, request: bytes) -> None:
        try:
            method, arguments = pickle.loads(request)
            came: Answer = getattr(host, method)(*arguments)
        except Exception:
            # Whoever asked waits for an answer.
            came = Answer(error=MeasurementFailed(traceback.format_exc()))
        content = pickle.dumps(came)
        with lock:
            write_frame(answered, number, content)

    with ThreadPoolExecutor(slots) as pool:
        while (frame := read_frame(asked)) is not None:
            pool.submit(answer, *frame)
        host.stop()
