"""What the searches among commits and among files have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from asv_bench.bisect.finding import Direction, SearchPlan
from asv_bench.fleet.opening import FleetOptions
from asv_bench.output.table_files import TableFiles
from asv_bench.session.exit_codes import ExitCode
from asv_bench.session.options import MeasuringOptions
from asv_bench.session.session import Session
from asv_bench.subjects.declared import DeclaredSubject


class Searching(Session):
    """One search for what made a benchmark slower, or faster.

    `among` says what is searched, for the record.
    """

    def __init__(
        self,
        subject: DeclaredSubject,
        among: Mapping[str, Any],
        direction: Direction,
        plan: SearchPlan,
        files: TableFiles,
        how: MeasuringOptions,
        hosts: FleetOptions | None = None,
    ) -> None:
        self._metric = subject.metrics[0]
        self._benchmark = self._metric.name
        settings = {
            **among,
            "benchmark": self._benchmark,
            "direction": str(direction),
            "plan": plan.to_json(),
        }
        super().__init__("bisect", settings, subject, files, how, hosts)
        self._direction = direction
        self._plan = plan
        self._pool: Sequence[float] = ()

    def begin(self) -> list[str]:
        """See `Session`."""
        self._pool = self._noise.of([self._benchmark]).get(self._benchmark, [])
        return []

    def _outcome(self, code: ExitCode) -> str:
        return self._direction if code is ExitCode.REGRESSION else super()._outcome(code)
