"""A host of a fleet: a Ray actor that holds the lives of its machine's slots.

Ray carries the ruler, the work and what is said. However the actor ends, its lives end too: their
launchers see that it is gone (`fleet` keeps Ray from killing these), as does what removes files.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.git.repository import GitError, Repository
from asv_bench.measure.delay import Delay
from asv_bench.measure.life import Work
from asv_bench.measure.lives import Lives
from asv_bench.measure.log import RULER
from asv_bench.measure.places import Place
from asv_bench.measure.processes import Processes
from asv_bench.measure.samples import CommitUnusable
from asv_bench.measure.software import Software
from asv_bench.measure.trees import Trees
from asv_bench.process.gpu import ALL_DEVICES, chosen_gpus
from asv_bench.process.machine import MachineFacts, look_around, machine_facts
from asv_bench.subjects.axis import Variant
from asv_bench.subjects.declared import DeclaredSubject
from asv_bench.subjects.pinned import Pinned

Look = Callable[[Place, Callable[[], bool]], Sequence[str]]
"""Given a place where nothing of ours runs, and what says whether nothing of ours runs on the whole
host now, says in sentences what disturbs it."""
LOOKS, PAUSE_SECONDS = 3, 1.0
"""What disturbs is still there when it is looked at again: a GPU counts as busy for a while after
the life that was busy there."""
_OF_RAY = ("RAY_", "SPT_NOENV")
_REMOVE = 'cat; sleep 1; rm -rf "$1" || { sleep 10; rm -rf "$1"; }'
"""Waits until whoever holds its standard input is gone, and what that ran has been killed."""


@dataclass(frozen=True, slots=True)
class Packed:
    """Commits on their way to a host: their files, and nothing of their history."""

    variants: Mapping[str, Variant]  # by what is asked for
    packs: tuple[bytes, ...]  # of git

    @classmethod
    def of(cls, subject: DeclaredSubject, names: Iterable[str], held: Iterable[str] = ()) -> Packed:
        """Commits or labels, without the files of `held` ones; GitError if a file is missing."""
        variants = {name: subject.axis.variant(name) for name in names}
        without = [f"^{subject.axis.variant(name).commit}" for name in held]
        packs = []
        for repository in dict.fromkeys(one.repository for one in variants.values()):
            of_one = [one.commit for one in variants.values() if one.repository == repository]
            trees = "".join(f"{one}^{{tree}}\n" for one in (*of_one, *without)).encode()
            objects = repository.ask("rev-list", "--objects", "--stdin", given=trees)
            objects += "".join(f"{commit}\n" for commit in of_one).encode()
            packs.append(repository.ask("pack-objects", "--stdout", "-q", given=objects))
        return cls(variants, tuple(packs))


class Disturbed(MeasurementFailed):
    """Nothing was measured, as something else disturbs the host; the message says what."""


@dataclass(slots=True)
class Told:
    """What a host answers, what its lives gave since it was asked last, and all its remarks."""

    value: Any = None
    error: MeasurementFailed | None = None
    cells: dict[str, Software] = field(default_factory=dict)
    others: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    lacking: Collection[str] = ()  # commits or labels that it must be given to measure


class Host:
    """Measures in slots numbered from 0 on, a life at a time in each."""

    def begin(
        self, work: Work, pinned: Pinned, commits: Packed, slots: int, name: str, look: Look
    ) -> MachineFacts:
        """Be ready and say what machine this is; Refused or GitError where lives cannot run."""
        bare = bare_environment(os.environ)
        os.environ.clear()
        os.environ.update(bare)
        self._look = look
        self._busy: set[int] = set()
        self._turns = [threading.Lock() for _ in range(slots)]
        self._places = places_here(work, slots, name)
        folder = Path(tempfile.mkdtemp(prefix="kvtrail-"))
        # This process is killed when all is done, and leaves no temporary file elsewhere.
        tempfile.tempdir = str(folder)
        reading, held = os.pipe()
        weakref.finalize(self, os.close, held)
        remove, given = ["sh", "-c", _REMOVE, "sh", str(folder)], (os.POSIX_SPAWN_DUP2, reading, 0)
        os.posix_spawn("/bin/sh", remove, os.environ, file_actions=[given], setsid=True)
        os.close(reading)
        repository = self._repository = Repository(folder / "repository.git")
        is_long = any(len(one.commit) == 64 for one in commits.variants.values())
        init = ("init", "-q", "--bare", f"--object-format={'sha256' if is_long else 'sha1'}")
        Repository(folder).ask(*init, str(repository.path))
        self._variants: dict[str, Variant] = {}
        self._receive(commits)

        def variant_of(asked: str) -> Variant:
            undelayed, delay = Delay.planted(asked)
            return replace(self._variants[undelayed], repository=repository, delay=delay)

        processes, laid = Processes(), folder / "trees"
        self._trees = Trees(variant_of, work.table, pinned, work.folder, laid, processes)
        self._lives = Lives(work, self._places, self._trees.lay_out, processes)
        return machine_facts()

    def _receive(self, commits: Packed) -> None:
        """Have more commits; GitError if git cannot take them."""
        for pack in commits.packs:
            self._repository.ask("index-pack", "--stdin", given=pack)
        self._variants |= commits.variants

    def measure(
        self,
        method: str,
        slot: int,
        may_leave: bool,
        asked: str | Sequence[str],
        *arguments: Any,
        given: Packed | None = None,  # what it lacked when it was asked before
    ) -> Told:
        """What a method of `Lives` gives in a slot, unless the host is disturbed and may leave, or
        lacks commits that are asked for."""
        place, told = self._places[slot], Told()
        cells = (asked,) if isinstance(asked, str) else asked
        told.lacking = {Delay.planted(cell)[0] for cell in cells} - self._variants.keys()
        if told.lacking and given is None:
            return told
        with self._turns[slot]:
            self._busy.add(slot)
            try:
                if may_leave and (found := self._look(place, lambda: self._busy == {slot})):
                    raise Disturbed(" ".join(found))
                if given is not None:
                    self._receive(given)
                measure = getattr(self._lives, method)
                told.value = measure(asked, *arguments, device=place.device)
            except GitError as error:
                told.error = CommitUnusable(cells[-1], f"git could not unpack it: {error}")
            except MeasurementFailed as error:
                told.error = error
            finally:
                self._busy.discard(slot)
        told.cells, told.others = self._lives.take_account()
        told.remarks = list(self._trees.remarks)
        return told


def disturbances(place: Place, is_alone: Callable[[], bool]) -> list[str]:
    """What disturbs a place: load where that is not ours, or somebody else on its GPUs."""
    sentences: list[str] = []
    for number in range(LOOKS):
        if number:
            time.sleep(PAUSE_SECONDS)
        was_alone = is_alone()
        seen = look_around(place.gpus or [place.device])
        # A life of another slot may have ended meanwhile, or begun.
        busy = seen.busy_cores if was_alone and is_alone() else None
        # Clocks that follow the load are the machine's own.
        if not (sentences := replace(seen, busy_cores=busy, governors=()).sentences()):
            break
    return sentences


def places_here(work: Work, slots: int, name: str) -> list[Place]:
    """So many places on this machine, with GPUs and the cores beside them; Refused if too few."""
    cores = sorted(os.sched_getaffinity(0))
    share = work.table.cores or (len(cores) // slots if slots > 1 else 0)
    needed = work.table.devices or 0
    gpus = chosen_gpus(ALL_DEVICES) if needed else ()
    for each, unit, there in ((share, "cores", cores), (needed, "GPUs", gpus)):
        if each * slots > len(there):
            raise Refused(f"{slots} lives with {each} {unit} each need more than its {len(there)}")
    return [
        Place(gpus[one * needed :][:needed], tuple(cores[one * share :][:share]), f"{name}/{one}")
        for one in range(slots)
    ]


def bare_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables as a user of this machine has them, without what Ray set for this process."""
    kept = {
        name: value
        for name, value in variables.items()
        if not name.startswith(_OF_RAY) and not value.startswith("ray.util.")
    }
    paths = kept.pop("PYTHONPATH", "").split(os.pathsep)
    own = os.pathsep.join(path for path in paths if Path(path).resolve() != RULER.parent)
    return kept | ({"PYTHONPATH": own} if own else {})
