"""What the searches among commits and among files have in common."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from asv_bench.bisect.finding import Direction, Outcome
from asv_bench.bisect.plan import SearchPlan
from asv_bench.cli.exit_codes import BY_OUTCOME, ExitCode
from asv_bench.cli.question import Question
from asv_bench.compare.kept_pairs import KeptFile
from asv_bench.compare.noise_pools import NoisePools
from asv_bench.errors import MeasurementFailed
from asv_bench.fleet.fleet import Fleet
from asv_bench.output.table_files import TableFiles
from asv_bench.process.samples import CommitUnusable
from asv_bench.subjects.declared import DeclaredSubject


class Searching(Question[DeclaredSubject]):
    """One search for what made a benchmark slower, or faster.

    Parameters
    ----------
    among
        What is searched, for the record.
    """

    def __init__(
        self,
        subject: DeclaredSubject,
        among: Mapping[str, Any],
        direction: Direction,
        plan: SearchPlan,
        files: TableFiles,
        fleet: Fleet | None = None,
    ) -> None:
        self._benchmark = subject.metrics[0].name
        settings = {
            **among,
            "benchmark": self._benchmark,
            "direction": str(direction),
            "plan": plan.to_json(),
        }
        super().__init__("bisect", settings, subject, files, fleet)
        self._direction = direction
        self._plan = plan
        self._noise = NoisePools(self._record)
        self._pool = self._noise.of([self._benchmark]).get(self._benchmark, [])

    def _ended(self, kept: KeptFile, search: Callable[[], Outcome]) -> ExitCode:
        """The code of what a search comes to, or of what ends it before."""
        begun = time.monotonic()
        try:
            outcome = search()
        except KeyboardInterrupt:
            self._record.notes.append("Interrupted; the same command goes on with these pairs.")
            return ExitCode.INTERRUPTED
        except MeasurementFailed as error:
            self._record.notes.append(str(error))
            if not isinstance(error, CommitUnusable):
                return ExitCode.FAILED
            # An end cannot be measured: that is the answer, and the next command tries anew.
            kept.finish()
            return ExitCode.NOTHING_MEASURED if error.is_lacking else ExitCode.FAILED
        finally:
            self.seconds = time.monotonic() - begun
            self._record.notes += kept.complaints
        kept.finish()
        return BY_OUTCOME[outcome]

    def _outcome(self, code: ExitCode) -> str:
        return self._direction if code is ExitCode.REGRESSION else super()._outcome(code)
