"""What every verb that measures does, from its first process to its exit code."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import typer

from asv_bench.compare.checks import ControlMoved
from asv_bench.compare.noise_pools import NoisePools, reach_of
from asv_bench.compare.plan import ComparisonPlan
from asv_bench.errors import MeasurementFailed, TimeIsUp
from asv_bench.fleet.fleet import Fleet, opened_fleet
from asv_bench.measure import log
from asv_bench.measure.log import Log, conditions
from asv_bench.measure.samples import CommitUnusable, Pair, judged
from asv_bench.measure.software import same_code
from asv_bench.output.console import Progress, print_sentences
from asv_bench.output.issue_text import environment_of, issue_text, repeating
from asv_bench.output.record import WORKPLACE, Record, command_line, require_writable
from asv_bench.output.table import Table
from asv_bench.process.checkout_lock import checkout_lock
from asv_bench.session.exit_codes import ExitCode
from asv_bench.session.options import Outputs, RunningOptions
from asv_bench.session.time_limit import ending_in_time, termination_as_interrupt
from asv_bench.subjects.declared import DeclaredSubject
from asv_bench.words import gathered

_LOOKING = "looking at what differs besides time"
_OF_BUILD = (
    "The answer is one of this build: another build of the same source may be faster or slower by "
    "luck of its layout. In kvtrail.toml, builds = 5 in [subject] tells that from a change."
)


class Session(ABC):
    """A command that measures commits, labels or engines.

    A verb says what is known without measuring, how rounds are measured, and how that is shown. The
    session locks the checkout, opens the fleet, looks around, goes on with what is kept, ends in
    time, writes the record and ends with a code.
    """

    keeps = True
    """Whether the same command goes on where it was interrupted."""
    unit = "pairs"
    """Of what is kept."""
    is_for_one_kind = True
    """Whether figures of all hosts of a fleet are taken together."""
    tells_doubts = True
    """Whether it is said before anything is measured what else the machine does."""
    _record: Record
    _log: Log
    _fleet: Fleet | None = None
    _stopped: KeyboardInterrupt | None = None  # Ctrl-C, or that the time was up, before the end
    _is_answer = True  # whether the next command starts over, unless this one was stopped
    _doubts: Sequence[str] = ()  # what else the machine did, and what that may have spoilt

    def __init__(self, command: str, settings: Mapping[str, Any], subject: DeclaredSubject) -> None:
        self._command = command
        self._settings = settings
        self._subject = subject
        self.seconds = 0.0

    def with_options(self, files: Outputs, how: RunningOptions) -> Self:
        """The session with what the user says of how it is measured, and where that goes."""
        if self.keeps:
            require_writable(log.FOLDER / "pairs.jsonl")
        self._files, self._console = files, files.console
        self._how = how
        return self

    def answer(self) -> None:
        """Measure and show; raises typer.Exit with the code, unless it is 0, as `end` does."""
        with self._subject.lying():
            code = self.settle()
            self.show(code, self._files.json)
        self.end(code)

    def settle(self) -> ExitCode:
        """Measure what is not known; the code."""
        code, how = self.known(), self._how
        if code is not None:
            self._begin_record()
            return code
        with (
            checkout_lock(WORKPLACE),
            termination_as_interrupt(),
            opened_fleet(
                *(how.address, how.kind, self._subject, self.names(), self._console),
                is_for_one_kind=self.is_for_one_kind,
                require_quiet=how.require_quiet,
            ) as self._fleet,
        ):
            self._begin_record()
            print_sentences(self._console, [*self.begin(), self.sentence()])
            if self._fleet is None:  # its hosts look themselves, before each life
                self._doubts = self._record.look_around(
                    self._console,
                    self._subject.devices,
                    require_quiet=how.require_quiet,
                    is_told=self.tells_doubts,
                )
            if self.keeps:
                self._log = Log.of_settings(self.meaning(), self._command, how.resume, self.unit)
                print_sentences(self._console, self._log.sentences())
            code = self._measured()
            if self.keeps:
                self._record.notes += self._log.complaints
                if self._is_answer and self._stopped is None:
                    self._log.finish()
            return code

    def show(self, code: ExitCode, path: Path | None) -> Path:
        """Print what was found and write the record; where it is."""
        self._record.warn(self._console, same_code(self._subject.cells))
        self._print_all()
        print_sentences(self._console, gathered(self._subject.remarks), "yellow")
        self._record.notes += self._subject.remarks
        self._record.results |= {
            "exit_code": int(code),
            "outcome": code.name.lower(),
            "seconds": self.seconds,
            "so_far": self._stopped is not None,
            "interrupted": self._is_interrupted,
            "cells": {name: cell.to_json() for name, cell in self._subject.cells.items()},
            **self.results(),
            **({} if self._fleet is None else {"hosts": self._fleet.to_json()}),
        }
        higher = [one.name for one in self._subject.metrics if one.better == "higher"]
        self._files.write_answers(self._record, higher)
        written = self._record.write(path)
        self._console.print(f"record: {written}")
        return written

    def end(self, code: ExitCode) -> None:
        """Say how to go on, and end with the code."""
        if self._stopped is not None and self.keeps:
            self._console.print(f"go on with these {self.unit}: {command_line('--fresh')}")
        if code:
            raise typer.Exit(code)

    def known(self) -> ExitCode | None:
        """The code where the answer needs no measuring; it is found then. None: it needs some."""
        return None

    def devices(self) -> Sequence[str]:
        """Where it is measured."""
        return self._subject.devices

    @abstractmethod
    def names(self) -> Sequence[str]:
        """The full hashes, or labels, that may be measured."""

    def begin(self) -> list[str]:
        """Prepare with the record at hand; sentences that say what is measured."""
        return []

    def sentence(self) -> str:
        """What is measured and where, for the user to check."""
        return self._subject.sentence()

    def meaning(self) -> dict[str, Any]:
        """What has to be the same for a command to go on with what another one measured."""
        # GPUs of one kind measure alike.
        return {**self._record.settings, "devices": None, **conditions(self._record)}

    def source(self) -> AbstractContextManager[Any]:
        """What measures rounds (`RoundSource`); leaving it as a context ends its processes."""
        return self._subject.pairs()

    @abstractmethod
    def measure(self, source: Any) -> ExitCode:
        """Measure to the end, or until there is an answer; the code."""

    @abstractmethod
    def print_answer(self) -> None:
        """Print the tables and the answer."""

    @abstractmethod
    def results(self) -> dict[str, Any]:
        """What the record says of the answer."""

    def _begin_record(self) -> None:
        known = {"subject": self._subject.to_json(), "fixed": self._subject.fixed}
        settings = {**self._settings, **known, "devices": list(self.devices())}
        self._record = Record(self._command, settings)
        if self._fleet is not None:
            # The facts are those of its hosts, not of this machine.
            self._record.machine, self._record.before = self._fleet.hosts[0].machine, None
            self._record.warnings = self._fleet.warnings

    def _measured(self) -> ExitCode:
        """The code of what is measured."""
        begun = time.monotonic()
        try:
            # The last is left first, since processes that are told to end need their time.
            with self.source() as source, ending_in_time(self._how.limit.left()):
                return self.measure(source)
        finally:
            self.seconds = time.monotonic() - begun

    def _print_all(self) -> None:
        """Print the answer, and what it is worth."""
        self.print_answer()

    @property
    def _is_interrupted(self) -> bool:
        """Whether Ctrl-C ended it, which is no answer; that the time was up is one."""
        return self._stopped is not None and not isinstance(self._stopped, TimeIsUp)

    def _why_stopped(self) -> str:
        """What ended it before its end, as a sentence's beginning; "": nothing."""
        if self._stopped is None:
            return ""
        return "Interrupted" if self._is_interrupted else f"Time is up ({self._how.limit.whose})"


class Judging(Session):
    """One question about commits or labels, which is judged by the noise of the machine."""

    # Where the answer is clear, what the machine did besides does not change it.
    tells_doubts = False
    _plan_of_rounds: ComparisonPlan | None = None
    """By which it judges commits, of which `_cells` live in a round; None: it judges otherwise."""
    _cells = 2
    _of_reach = ""  # what a change that it finds is not yet
    _reached: frozenset[str] = frozenset()  # metrics of which it is said what the time shows
    _noise: NoisePools
    _of_build: Sequence[str] = ()  # that it is the answer of one build of each commit
    _ending = ""  # what ended it before there was an answer

    def _begin_record(self) -> None:
        super()._begin_record()
        self._noise = NoisePools(self._record)

    def _reaches(self, measured: Iterable[Pair] = ()) -> list[str]:
        """What the time that is left shows of each metric whose noise is known, said once.

        A round takes what one that was measured took. Before that it takes what it took in earlier
        commands, and each cell lives once without being measured.
        """
        metrics = judged(self._subject.metrics)
        margins = {one.name: one.margin for one in metrics if one.margin is not None}
        seconds, plan, found = self._how.limit.left(), self._plan_of_rounds, []
        if seconds is None or plan is None:
            return []
        unit = "starts" if self._subject.work.life.pairs > 1 else "pairs"
        round_s = max((pair.seconds for pair in measured), default=0.0)
        asked = [one.name for one in metrics if one.name not in self._reached]
        for name, pool in self._noise.of(asked).items():
            if took := round_s or pool.pair_s * self._cells / 2:
                self._reached |= {name}
                own, left = plan.for_one(name, margins), seconds if round_s else seconds - took
                reach = reach_of(pool, took, own, left, len(metrics), len(self.devices()))
                said = reach.sentence(self._command, "rounds" if self._cells > 2 else unit)
                found.append(f"{name}: {said}{self._of_reach}")
        return found

    def _doubt(self, sentences: Sequence[str]) -> None:
        """Record what makes figures doubtful; it is printed where the answer is not clear."""
        self._doubts = [*self._doubts, *sentences]
        self._record.warnings += sentences

    def _is_clear(self) -> bool:
        """Whether the answer would be the same on a quiet machine."""
        return False

    def _measured(self) -> ExitCode:
        """See `Session`; also of what ends it before."""
        if self.keeps:
            print_sentences(self._console, self._noise.complaints)
        print_sentences(self._console, self._reaches())
        try:
            code = super()._measured()
        except KeyboardInterrupt as error:
            if not self.keeps:
                raise
            code, self._stopped = ExitCode.INCONCLUSIVE, error
            self._ending = f"{self._why_stopped()}; the same command goes on with these pairs."
        except MeasurementFailed as error:
            # That an end cannot be measured is an answer, and the next command tries anew.
            self._is_answer = isinstance(error, (CommitUnusable, ControlMoved))
            is_lacking = isinstance(error, CommitUnusable) and error.is_lacking
            code = ExitCode.NOTHING_MEASURED if is_lacking else ExitCode.FAILED
            if isinstance(error, ControlMoved):
                code = ExitCode.INCONCLUSIVE
            self._ending = str(error)
        table = self._subject.work.table
        self._of_build = [_OF_BUILD] if table.setup and table.builds == 1 else []
        self._record.notes += filter(None, [self._ending])
        return ExitCode.INTERRUPTED if self._is_interrupted else code

    def _print_all(self) -> None:
        if self._ending:
            print_sentences(self._console, [self._ending], "bold")
        else:
            self.print_answer()
            print_sentences(self._console, self._of_build)
        if not self._is_clear():
            print_sentences(self._console, self._doubts, "yellow")
        self._record.results["of_build"] = " ".join(self._of_build)

    @contextmanager
    def _looking(self) -> Iterator[Callable[..., list[str]]]:
        """Gives `why`, of two ends; Ctrl-C ends what it surrounds, and leaves the answer."""
        with suppress(KeyboardInterrupt), Progress(self._console, _LOOKING):
            # Not at the top: where nothing is slower, nothing has need of it.
            from asv_bench.explain.explaining import why

            yield lambda *ends, **more: why(
                self._subject, *ends, seconds=self._how.limit.left(), **more
            )

    def _issue(
        self,
        heading: str,
        commits: str,
        tables: Sequence[Table],
        remarks: Sequence[str],
        names: Mapping[str, tuple[str, ...]],  # words in place of names that move, see `repeating`
    ) -> str:
        """The answer as text for an issue or a pull request, see `issue_text`."""
        # The facts that the figures depend on.
        environment = environment_of(
            self._record,
            self.sentence(),
            self._subject.devices,
            with_torch=not self._subject.lists_packages,
            seconds=self.seconds,
        )
        command = self._record.results["repeat"] = repeating(sys.argv[1:], names)
        said = [*remarks, *self._of_build]
        return issue_text(heading, commits, tables, said, environment, command)
