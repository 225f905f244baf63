"""What every verb that judges commits or labels does, from its first process to its exit code."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import typer

from asv_bench.compare.controls import ControlMoved
from asv_bench.compare.noise_pools import NoisePools
from asv_bench.compare.plan import ComparisonPlan
from asv_bench.errors import MeasurementFailed, TimeIsUp
from asv_bench.fleet.fleet import Fleet, FleetOptions, hosts_json, opened_fleet, record_of
from asv_bench.lab.reach import reach_of
from asv_bench.measure import log
from asv_bench.measure.log import Log, conditions
from asv_bench.measure.samples import CommitUnusable, Pair, judged
from asv_bench.measure.software import same_code
from asv_bench.output.console import print_sentences
from asv_bench.output.destinations import require_writable
from asv_bench.output.issue_text import environment_of, issue_text, repeating
from asv_bench.output.record import WORKPLACE, Record, command_line
from asv_bench.output.table import Table
from asv_bench.process.checkout_lock import checkout_lock
from asv_bench.process.run_apart import ending_in_time, termination_as_interrupt
from asv_bench.session.exit_codes import ExitCode
from asv_bench.session.options import MeasuringOptions, Outputs
from asv_bench.session.time_limit import TimeLimit
from asv_bench.subjects.declared import DeclaredSubject

_OF_BUILD = (
    "The answer is one of this build: another build of the same source may be faster or slower by "
    "luck of its layout. In kvtrail.toml, builds = 5 in [subject] tells that from a change."
)


class Session(ABC):
    """One question about commits or labels.

    A verb says what is known without measuring, how pairs are measured, and how the answer is
    shown. The session locks the checkout, opens the fleet, goes on with kept pairs, knows the
    machine's noise, writes the record and ends with a code.
    """

    keeps_pairs = True
    """Whether the same command goes on where it was interrupted."""
    _plan_of_rounds: ComparisonPlan | None = None
    """By which it judges commits, of which `_cells` live in a round; None: it judges otherwise."""
    _cells = 2
    _of_reach = ""  # what a change that it finds is not yet
    _record: Record
    _noise: NoisePools
    _log: Log
    _fleet: Fleet | None = None
    _stopped: KeyboardInterrupt | None = None
    """Ctrl-C, or that the time was up, before the answer was final."""

    def __init__(
        self,
        command: str,
        settings: Mapping[str, Any],
        subject: DeclaredSubject,
        files: Outputs,
        how: MeasuringOptions,
        hosts: FleetOptions | None = None,
    ) -> None:
        if self.keeps_pairs:
            require_writable(log.FOLDER / "pairs.jsonl")
        self._command = command
        self._settings = settings
        self._subject = subject
        self._files = files
        self._console = files.console
        self._how = how
        self._hosts = hosts or FleetOptions()
        self._limit = TimeLimit.of(how.minutes)
        self._doubts: list[str] = []  # what else the machine did, and what that may have spoilt
        self._of_build: list[str] = []  # that it is the answer of one build of each commit
        self._ending = ""  # what ended it before there was an answer
        self._reached: set[str] = set()  # metrics of which it is said what the time shows
        self.seconds = 0.0

    def answer(self) -> None:
        """Answer the question, and end with a code.

        Raises typer.Exit with the code, unless it is 0.
        """
        try:
            code = self.settle()
            self.show(code, self._files.json)
        finally:
            self._subject.forget()
        if self._stopped is not None and self.keeps_pairs:
            self._console.print(f"go on with these pairs: {command_line('--fresh')}")
        if code:
            raise typer.Exit(code)

    def settle(self) -> ExitCode:
        """Find the answer; its code."""
        code = self.known()
        if code is not None:
            self._begin_record()
            return code
        with (
            checkout_lock(WORKPLACE),
            opened_fleet(
                self._hosts,
                self._subject,
                self.names(),
                self._console,
                require_quiet=self._how.require_quiet,
            ) as self._fleet,
        ):
            self._begin_record()
            return self._measured()

    def show(self, code: ExitCode, path: Path | None) -> Path:
        """Print the answer and write the record; where it is."""
        self._record.warn(self._console, same_code(self._subject.cells))
        if self._ending:
            print_sentences(self._console, [self._ending], "bold")
        else:
            self.print_answer()
            print_sentences(self._console, self._of_build)
        if not self._is_clear():
            # Where the answer is clear, what the machine did besides does not change it.
            print_sentences(self._console, self._doubts, "yellow")
        print_sentences(self._console, self._subject.remarks, "yellow")
        self._record.notes += self._subject.remarks
        self._record.results = {
            "exit_code": int(code),
            "outcome": code.name.lower(),
            "seconds": self.seconds,
            "so_far": self._stopped is not None,
            "of_build": " ".join(self._of_build),
            **self.results(),
            **hosts_json(self._fleet),
        }
        written = self._record.write(path)
        self._console.print(f"record: {written}")
        return written

    def _reaches(self, measured: Iterable[Pair] = ()) -> list[str]:
        """What the time that is left shows of each metric whose noise is known, said once.

        A round takes what one that was measured took. Before that it takes what it took in earlier
        commands, and each cell lives once without being measured.
        """
        metrics = judged(self._subject.metrics)
        margins = {one.name: one.margin for one in metrics if one.margin is not None}
        seconds, plan, found = self._limit.left(), self._plan_of_rounds, []
        if seconds is None or plan is None:
            return []
        unit = "starts" if self._subject.work.life.pairs > 1 else "pairs"
        round_s = max((pair.seconds for pair in measured), default=0.0)
        asked = [one.name for one in metrics if one.name not in self._reached]
        for name, pool in self._noise.of(asked).items():
            if took := round_s or pool.pair_s * self._cells / 2:
                self._reached.add(name)
                own, left = plan.for_one(name, margins), seconds if round_s else seconds - took
                reach = reach_of(pool, took, own, left, len(metrics), len(self.devices()))
                said = reach.sentence(self._command, "rounds" if self._cells > 2 else unit)
                found.append(f"{name}: {said}{self._of_reach}")
        return found

    def _doubt(self, sentences: Sequence[str]) -> None:
        """Record what makes figures doubtful; it is printed where the answer is not clear."""
        self._doubts += sentences
        self._record.warnings += sentences

    def _is_clear(self) -> bool:
        """Whether the answer would be the same on a quiet machine."""
        return False

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
        """Prepare for the noise of the machine; sentences that say what is measured."""
        return []

    def sentence(self) -> str:
        """What is measured and where, for the user to check."""
        return self._subject.sentence()

    def source(self) -> AbstractContextManager[Any]:
        """What measures rounds (`RoundSource`); leaving it as a context ends its processes."""
        return self._subject.pairs()

    @abstractmethod
    def measure(self, source: Any) -> ExitCode:
        """Measure until there is an answer; its code."""

    @abstractmethod
    def print_answer(self) -> None:
        """Print the table and the answer."""

    @abstractmethod
    def results(self) -> dict[str, Any]:
        """What the record says of the answer."""

    def _begin_record(self) -> None:
        known = {"subject": self._subject.to_json(), "fixed": self._subject.fixed}
        settings = {**self._settings, **known, "devices": list(self.devices())}
        self._record = record_of(self._command, settings, self._fleet)
        self._noise = NoisePools(self._record)

    def _measured(self) -> ExitCode:
        """The code of what is measured, or of what ends it before."""
        said = [*self.begin(), self.sentence()]
        if self.keeps_pairs:
            # GPUs of one kind measure alike.
            settings = {**self._record.settings, "devices": None, **conditions(self._record)}
            self._log = Log.of_settings(settings, self._command, self._how.resume)
            said += [*self._log.sentences(), *self._noise.complaints]
        print_sentences(self._console, [*said, *self._reaches()])
        if self._fleet is None:  # its hosts look themselves, before each life
            devices, quiet = self._subject.devices, self._how.require_quiet
            self._doubts = self._record.look_around(
                self._console, devices, require_quiet=quiet, is_told=False
            )
        begun, is_answer = time.monotonic(), True
        try:
            # The last is left first, since processes that are told to end need their time.
            with (
                termination_as_interrupt(),
                self.source() as source,
                ending_in_time(self._limit.left()),
            ):
                code = self.measure(source)
        except KeyboardInterrupt as error:
            if not self.keeps_pairs:
                raise
            code, self._stopped = ExitCode.INCONCLUSIVE, error
            self._ending = f"{self._why_stopped()}; the same command goes on with these pairs."
        except MeasurementFailed as error:
            # That an end cannot be measured is an answer, and the next command tries anew.
            is_answer = isinstance(error, (CommitUnusable, ControlMoved))
            is_lacking = isinstance(error, CommitUnusable) and error.is_lacking
            code = ExitCode.NOTHING_MEASURED if is_lacking else ExitCode.FAILED
            if isinstance(error, ControlMoved):
                code = ExitCode.INCONCLUSIVE
            self._ending = str(error)
        finally:
            self.seconds = time.monotonic() - begun
        table = self._subject.work.table
        self._of_build = [_OF_BUILD] if table.setup and table.builds == 1 else []
        if self._is_interrupted:
            code = ExitCode.INTERRUPTED
        self._record.notes += filter(None, [self._ending])
        if self.keeps_pairs:
            self._record.notes += self._log.complaints
            if is_answer and self._stopped is None:
                self._log.finish()
        return code

    @property
    def _is_interrupted(self) -> bool:
        """Whether Ctrl-C ended it, which is no answer; that the time was up is one."""
        return self._stopped is not None and not isinstance(self._stopped, TimeIsUp)

    def _why_stopped(self) -> str:
        """What ended it before its answer was final, as a sentence's beginning; "": nothing."""
        if self._stopped is None:
            return ""
        return "Interrupted" if self._is_interrupted else f"Time is up ({self._limit.whose})"

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
        command = repeating(sys.argv[1:], names)
        said = [*remarks, *self._of_build]
        return issue_text(heading, commits, tables, said, environment, command)
