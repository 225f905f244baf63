"""`ladder`: measure every rung, and try the claims of the write-ups."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from asv_bench.compare.plan import DEFAULT_MARGIN, ComparisonPlan
from asv_bench.compare.verdict import Verdict
from asv_bench.errors import MeasurementFailed, Refused, require_packages
from asv_bench.measure.places import CPU, shared_out
from asv_bench.output.console import Progress, make_console, print_sentences, print_table
from asv_bench.output.record import REPOSITORY, RUNS, WORKPLACE, Record, require_places, write_json
from asv_bench.process.checkout_lock import checkout_lock
from asv_bench.process.machine import REFERENCE_MACHINES, MachineFacts, machine_facts
from asv_bench.session.exit_codes import ExitCode
from asv_bench.session.options import Devices, Margin, RequireGpu
from asv_bench.session.time_limit import termination_as_interrupt
from asv_bench.studies.ladder.claims import Trial, claims_named, trials_here
from asv_bench.studies.ladder.engine_in_turns import TURN_STEPS
from asv_bench.studies.ladder.findings import (
    QUICK_PAIRS,
    FoundClaim,
)
from asv_bench.studies.ladder.ladder_page import PAGE, PREFIX, title_of, write_page
from asv_bench.studies.ladder.ladder_run import (
    CountingProcesses,
    MeasuredRung,
    measure_waterfall,
    processes_expected,
    try_claims,
)
from asv_bench.studies.ladder.ladder_tables import agreement, claim_table, percent, rung_table
from asv_bench.studies.ladder.rung_process import RungAnswer, RungProcesses, RungSettings
from asv_bench.studies.ladder.rung_run import WATERFALL_WORKLOAD
from asv_bench.studies.ladder.rungs import RUNGS, Rung, rungs_between
from asv_bench.subjects.own_suite import devices_named
from asv_bench.words import counted
from asv_bench.workloads.named import default_model

REPORTS = REPOSITORY / "reports"


def run(
    rungs: Annotated[
        str | None,
        typer.Option(help="Rungs by number, such as 0-7 or 0,3-5 (default: all that run here)."),
    ] = None,
    claims: Annotated[
        str | None,
        typer.Option(
            "--claims",
            "--seeds",
            help="Claims to try by their write-ups, such as 036,064, or none (default: all).",
        ),
    ] = None,
    pairs: Annotated[
        int | None,
        typer.Option(help="Pairs of processes for each claim at most (default: 30)."),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help=f"A tenth of each workload, and {QUICK_PAIRS} pairs."),
    ] = False,
    margin: Margin = 100 * DEFAULT_MARGIN,
    devices: Devices = None,
    require_gpu: RequireGpu = False,
    machine: Annotated[
        str | None,
        typer.Option(help="The machine's name in the names of the files (default: its own)."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the record, the page and the pictures (default: reports on a reference "
            "machine, else reports/runs)."
        ),
    ] = None,
    render: Annotated[
        bool,
        typer.Option("--render", help="Write page and pictures again; measure nothing."),
    ] = False,
) -> None:
    """Measure every step from the first write-up to today's engine, and try their claims.

    The working tree is measured as it stands at the start. Exit code 0: every claim was tried; 1:
    the processes of a claim failed, or rungs' tokens differ; 5: a claim that --claims names does
    not run here, or a claim had no pair that counts; 2: refused; 130: interrupted.
    """
    console = make_console()
    if render:
        _write_pages(output or REPORTS, console)
        return
    chosen = devices_named(devices)
    if require_gpu and chosen == (CPU,):
        raise MeasurementFailed("--require-gpu was given, but there is no GPU that torch can use.")
    device = CPU if chosen == (CPU,) else "cuda"
    climbed, left_out = _rungs_here(rungs, device)
    wanted_claims = claims_named(claims)
    trials = trials_here(wanted_claims, climbed, device)
    tried = [trial.claim for trial in trials]
    untried = [claim.seed for claim in wanted_claims if claims and claim not in tried]
    wanted = QUICK_PAIRS if quick and pairs is None else pairs
    plan = ComparisonPlan() if wanted is None else ComparisonPlan.with_cap(wanted)
    plan = plan.with_margin(margin / 100)
    facts = machine_facts()
    is_whole = rungs is None and claims is None and not quick
    target = _target(facts, machine, output, is_whole=is_whole)
    require_places(target, target.parent / PAGE)
    require_packages("matplotlib", "scipy")
    settings = RungSettings.on(device, default_model(device), quick=quick)
    record = Record(
        "ladder",
        {
            "rungs": [rung.label for rung in climbed],
            "claims": [trial.claim.seed for trial in trials],
            "waterfall_workload": WATERFALL_WORKLOAD,
            "rung_settings": asdict(settings),
            "devices": list(chosen),
            "plan": plan.to_json(),
        },
        machine=facts,
    )
    record.notes += _notes(left_out, quick=quick, device=device)
    if untried:
        record.notes.append(
            f"Not tried, since their rungs do not run here or are not among --rungs: claims "
            f"{', '.join(untried)}."
        )
    climb = Climb(RungProcesses(settings), climbed, trials, chosen, plan, record, console)
    with checkout_lock(WORKPLACE):
        climb.run(is_exact=settings.dtype == "float32")
    climb.print_answer()
    if climb.is_interrupted:
        console.print(f"record: {record.write()}", highlight=False, soft_wrap=True)
        raise typer.Exit(ExitCode.INTERRUPTED)
    write_json(target, record.to_json())
    console.print(f"record: {target}", highlight=False, soft_wrap=True)
    _write_pages(target.parent, console)
    code = climb.exit_code(has_untried=bool(untried))
    if code:
        raise typer.Exit(code)


class Climb:
    """One run of the command, from its first process to its tables.

    Parameters
    ----------
    processes
        Measures rungs.
    rungs, trials
        What to measure and try.
    devices
        Where.
    plan
        Of each claim's comparison.
    record
        Gets results and samples.
    console
        Gets progress and tables.
    """

    def __init__(
        self,
        processes: CountingProcesses,
        rungs: list[Rung],
        trials: list[Trial],
        devices: tuple[str, ...],
        plan: ComparisonPlan,
        record: Record,
        console: Console,
    ) -> None:
        self._processes = processes
        self._rungs = rungs
        self._trials = trials
        self._places = shared_out(devices)
        self._plan = plan
        self._record = record
        self._console = console
        self._claims: list[FoundClaim] = []
        self.is_interrupted = False
        record.results = {"rungs": [], "claims": []}

    def run(self, *, is_exact: bool) -> None:
        """Measure the waterfall, then try the claims; Ctrl-C leaves what there is by then."""
        record = self._record
        for note in record.notes:
            self._console.print(note, highlight=False, soft_wrap=True)
        record.look_around(self._console, [place.device for place in self._places])
        console = self._console
        rungs, trials = len(self._rungs), len(self._trials)
        threads = counted(record.threads, "thread")
        console.print(f"measuring {rungs} rungs and {trials} claims, {threads} a process")
        total = processes_expected(self._rungs, self._trials, self._plan.cap)
        try:
            with termination_as_interrupt(), _Shown(self._console, total) as shown:
                shown.says("counting")
                waterfall = measure_waterfall(
                    self._processes, self._rungs, self._places, shown, is_exact=is_exact
                )
                record.results["rungs"] = [rung.to_json() for rung in waterfall]
                record.samples += [_sample(rung) for rung in waterfall]
                shown.says("trying claims")
                self._claims = try_claims(
                    self._processes,
                    self._trials,
                    self._places,
                    self._plan,
                    shown,
                    record.samples,
                )
                record.results["claims"] = [claim.to_json() for claim in self._claims]
        except KeyboardInterrupt:
            self.is_interrupted = True
            self._processes.stop()
            record.notes.append("The run was interrupted before its end.")

    def exit_code(self, *, has_untried: bool) -> ExitCode:
        """The code that the claims call for; a failure outweighs what could not be tried."""
        comparisons = [claim.comparison for claim in self._claims]
        if any(one.verdict is Verdict.FAILED for one in comparisons):
            return ExitCode.FAILED
        if has_untried or not all(one.pairs_used for one in comparisons):
            return ExitCode.NOTHING_MEASURED
        return ExitCode.GOOD

    def print_answer(self) -> None:
        """Print the tables of what was measured."""
        title = title_of(self._record.to_json())
        rungs, claims = self._record.results["rungs"], self._record.results["claims"]
        if rungs:
            print_table(self._console, rung_table(rungs, title))
            first, last = rungs[0], rungs[-1]
            self._console.print(
                f"{agreement(rungs)} From {first['rung']} to {last['rung']} a step became "
                f"{first['step_ms'] / last['step_ms']:.2f} times as fast.",
                highlight=False,
                soft_wrap=True,
            )
        if claims:
            print_table(
                self._console, claim_table(claims, self._plan.to_json(), "the write-ups' claims")
            )
        for claim in self._claims:
            if reason := claim.comparison.reason:
                self._console.print(
                    f"{claim.trial.claim.seed}: {reason}", highlight=False, soft_wrap=True
                )


class _Shown:
    """Processes with the time left.

    Pairs that are discarded are measured again, so there can be more processes than expected.
    """

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._bar = Progress(console, "ladder", total, "processes or so")

    def __enter__(self) -> _Shown:
        self._bar.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.__exit__()

    def says(self, what: str) -> None:
        """Name what is being done."""
        self._bar.show(what=what)

    def ran(self, rung: Rung, answer: RungAnswer) -> None:
        """See `ladder_run.Watcher`."""
        self._bar.advance(rung.label)

    def found(self, claim: FoundClaim) -> None:
        """See `ladder_run.Watcher`."""
        self._console.print(found_line(claim), highlight=False, soft_wrap=True)


def found_line(claim: FoundClaim) -> str:
    """A claim's finding in a line."""
    figure = claim.figures[0]
    return (
        f"{claim.trial.claim.seed} {claim.trial.claim.what}: {claim.comparison.verdict}, decode "
        f"throughput {percent(figure.change)} after {claim.comparison.pairs_used} pairs; reported "
        f"{percent(figure.reported.change)}"
    )


def _rungs_here(text: str | None, device: str) -> tuple[list[Rung], list[Rung]]:
    """The rungs to climb, and those that were asked for and do not run here."""
    wanted = RUNGS if text is None else rungs_between(text)
    climbed = [rung for rung in wanted if rung.runs_on(device)]
    if not climbed:
        raise Refused(f"none of --rungs {text} runs on {device}; rungs 0 to 2 run anywhere.")
    return climbed, [rung for rung in wanted if rung not in climbed]


def _notes(left_out: list[Rung], *, quick: bool, device: str) -> list[str]:
    notes = [
        f"The two rungs of a pair took turns of {TURN_STEPS} steps. Their throughputs are those of "
        f"the turns at each place in a block in which neither was disturbed, told by the ratios of "
        f"turns that follow each other."
    ]
    if left_out:
        names = ", ".join(rung.label for rung in left_out)
        notes.append(f"Left out on this device, since they need a GPU: {names}.")
    if quick:
        notes.append("Quick: a tenth of each workload, and few pairs.")
    if device == CPU:
        notes.append("On a CPU rungs 5 and 6 append as rung 2 does: Triton's kernels need a GPU.")
    return notes


def _target(
    facts: MachineFacts, machine: str | None, output: Path | None, *, is_whole: bool
) -> Path:
    """Where the record goes.

    Raises
    ------
    Refused
        If the committed reports would get a part of a ladder.
    """
    name = machine or facts.name
    folder = output
    if folder is None:
        folder = REPORTS if facts.is_reference and is_whole else RUNS
    if folder.resolve() == REPORTS and not is_whole:
        raise Refused(
            f"reports/ holds whole ladders of the reference machines "
            f"({', '.join(REFERENCE_MACHINES)}); say where a part of one goes with --output."
        )
    return folder / f"{PREFIX}{name}.json"


def _write_pages(folder: Path, console: Console) -> None:
    complaints: list[str] = []
    page = write_page(folder, complaints)
    print_sentences(console, complaints)
    console.print(f"page: {page}", highlight=False, soft_wrap=True)


def _sample(rung: MeasuredRung) -> dict[str, Any]:
    answer = rung.answer
    return {
        "rung": rung.rung.label,
        "workloads": answer.workloads,
        "check": answer.check,
        "started_at": answer.started_at,
        "process_s": answer.process_s,
    }
