"""Workloads of one model with every engine: a life of each engine a round, and a row of each."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from io import StringIO
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console

from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.history.life_rounds import Counting, Due
from asv_bench.measure.log import KeptRound
from asv_bench.measure.samples import CommitUnusable, RoundSource, SampleFailed
from asv_bench.output.console import print_sentences
from asv_bench.output.record import REPOSITORY, write_text
from asv_bench.output.table import Cell, Column, Table, digits, percent
from asv_bench.peers.lives.life import KINDS, KVTRAIL, PeerTask
from asv_bench.peers.model import apart, likelihoods, put_on_disk
from asv_bench.process.machine import chosen_device, has_cuda_gpu, machine_facts
from asv_bench.session.exit_codes import ExitCode
from asv_bench.stats.paired import hodges_lehmann, shift_interval
from asv_bench.subjects.declared import DeclaredSubject
from asv_bench.subjects.metrics import MetricTable
from asv_bench.subjects.subject_file import AxisTable, SubjectTable, SubjectText
from asv_bench.workloads.named import Workload

CONFIDENCE = 0.95
TASK = "task.json"
STARTUP = "startup_s"
METRICS = ("step_ms", "tokens_per_s", "ttft_ms", "tpot_ms", STARTUP)
_PLACE = "PEERS_FOLDER"
_LIFE = '"$KVTRAIL_TREE/asv_bench/peers/lives/life.py"'


def _gib(count: float) -> str:
    return f"{count / 2**30:.1f}"


SPEED = (
    Column("workload", "workload", kind="name"),
    Column("engine", "engine", kind="name"),
    Column("step_ms", "step", "ms", digits(3)),
    Column("times", "times", "kvtrail's", digits(2)),
    Column("tokens_per_s", "tokens/s", show=digits(0)),
    Column("ttft_ms", "TTFT", "ms", digits(1)),
    Column("tpot_ms", "TPOT", "ms", digits(3)),
    Column("fraction_of_floor", "of floor", show=percent(0)),
)
TOKENS = (
    "Likeliest in fp64: the share of generated tokens that a model in double precision finds the "
    "likeliest after the very tokens before them, and the largest gap in score to its own choice. "
    "In half precision close scores go either way, and engines part from there on."
)
REST = (
    Column("workload", "workload", kind="name"),
    Column("engine", "engine", kind="name"),
    Column("startup_s", "start-up", "s", digits(1)),
    Column("peak_gpu_bytes", "GPU", "GiB", _gib),
    Column("peak_rss_bytes", "host", "GiB", _gib),
    Column("tokens", "likeliest in fp64", kind="text"),
    Column("settings", "settings", kind="text"),
)
CAPTION = (
    "A step is wall time over tokens of a sequence, prefill and host included: the median over "
    "lives, and beside it their range; of a single life, over its windows. Times kvtrail's: of the "
    "same round; its interval is that of Wilcoxon's test, or the whole range where there are too "
    "few rounds for 95 %. TTFT: all requests at once, one token each. Of floor: the bytes that a "
    "step must read, at the read bandwidth of this GPU."
)


@dataclass(slots=True)
class Contest:
    """Engines that start once a round for all these workloads of a model."""

    folder: Path
    workloads: Sequence[Workload]
    model: str
    dtype: str
    engines: Mapping[str, str]  # their interpreters by name, kvtrail's first
    options: Mapping[str, Any]  # of all of them, as `WorkloadFlags.beside_model` says
    # Milliseconds that reading the bytes of a decode step takes, by workload; None on the CPU, and
    # lacking before `prepare`.
    floors_ms: Mapping[str, float | None] = field(init=False, default_factory=dict)
    # What was measured, by engine: readings of the time to load, and what else lives told.
    rounds: dict[int, KeptRound] = field(init=False, default_factory=dict)
    # How they compare with a model in double precision, by workload and engine.
    tokens: Mapping[tuple[str, str], Any] = field(init=False, default_factory=dict)

    def _lived(self) -> list[KeptRound]:
        return [lived for _, lived in sorted(self.rounds.items())]

    def left_out(self) -> dict[tuple[str, str], str]:
        """Why engines have no row, by the names of the workload and the engine."""
        found: dict[tuple[str, str], str] = {}
        for lived in reversed(self._lived()):  # the first reason stays
            for engine, told in lived.facts.items():
                found |= {(name, engine): why for name, why in told["failed"].items()}
            for engine, why in lived.failed.items():
                found |= {(one.name, engine): why for one in self.workloads}
        return found

    def _ran(self) -> Iterator[tuple[Workload, str, list[dict[str, Any]]]]:
        """Each workload and engine that never failed, and what its lives told."""
        out, lived = self.left_out(), self._lived()
        for workload in self.workloads:
            for engine in self.engines if lived else ():
                if (workload.name, engine) not in out:
                    yield workload, engine, [one.facts[engine] for one in lived]

    def compare_tokens(self) -> list[str]:
        """Set the tokens of all engines beside a model in double precision, or say why not."""
        failing = "tokens were not compared with a model in fp64"
        task = PeerTask.read(str(self.folder / TASK))
        of_model = {"model": task.model, "dtype": "float64", "device": task.device}
        asked = {
            (one.name, engine): (task.demands[one.name].prompts, told[-1]["tokens"][one.name])
            for one, engine, told in self._ran()
        }
        try:
            found = apart(failing, likelihoods, **of_model, asked=list(asked.values()))
        except MeasurementFailed as error:
            return [str(error)]
        self.tokens = dict(zip(asked, found, strict=True))
        return []

    def rows(self) -> list[dict[str, Any]]:
        """The figures of each engine that ran, medians over its lives."""
        rows = []
        steps: dict[tuple[str, str], list[list[float]]] = {}
        for workload, engine, told in self._ran():
            name = workload.name
            lives = [{STARTUP: [one[STARTUP]], **one["figures"][name]} for one in told]
            # Of a single life its windows are what there is.
            values = {
                metric: [median(life[metric]) for life in lives] if lives[1:] else lives[0][metric]
                for metric in METRICS
            }
            medians = {metric: median(values[metric]) for metric in METRICS}
            step_ms, floor = medians.pop("step_ms"), self.floors_ms.get(name)
            steps[name, engine] = [life["step_ms"] for life in lives]
            ours = None if engine == KVTRAIL else steps.get((name, KVTRAIL))
            row = {
                "workload": name,
                "engine": engine,
                "model": self.model,
                "dtype": self.dtype,
                "batch": workload.batch_size,
                "step_ms": step_ms,
                "step_ms_range": [min(values["step_ms"]), max(values["step_ms"])],
                "times": ours and _times(ours, steps[name, engine]),
                **medians,
                "floor_ms": floor,
                "fraction_of_floor": floor and floor / step_ms,
                "lives": len(lives),
                **{key: told[-1][key] for key in ("settings", "chosen", "versions")},
                "tokens": self.tokens.get((name, engine)),
            }
            for peak in ("peak_gpu_bytes", "peak_rss_bytes"):
                row[peak] = max((one[peak] for one in told if peak in one), default=None)
            rows.append(row)
        return rows

    def sample(self) -> dict[str, Any]:
        """What the record keeps beside the rows: all that each engine's lives told but tokens."""
        return {
            "model": self.model,
            "workloads": [asdict(one) for one in self.workloads],
            "rounds": [
                {
                    engine: {**told, "tokens": None, "reading": asdict(lived.readings[0][engine])}
                    for engine, told in lived.facts.items()
                }
                for lived in self._lived()
            ],
        }


def _times(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Step time over kvtrail's of the same round, with an interval, of the windows of each life."""
    ratios = np.log([median(one) / median(own) for own, one in zip(ours, theirs, strict=True)])
    *bounds, confidence = shift_interval(ratios, CONFIDENCE)
    if len(ratios) == 1:
        # All that there is: the range over the windows of both lives, which has no confidence.
        windows = np.log(np.divide.outer(theirs[0], ours[0]))
        bounds, confidence = [windows.min(), windows.max()], 0.0
    estimate, low, high = map(float, np.exp([hodges_lehmann(ratios), *bounds]))
    return {"estimate": estimate, "low": low, "high": high, "confidence": confidence}


def find_peers(wanted: Sequence[str], options: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """The interpreters of the engines that can run, by name, and a sentence for each other.

    `wanted` are names, or NAME=INTERPRETER for one that another Python has; empty: every engine
    that this interpreter can import. kvtrail's is always among them. Refused if there is no such
    engine or interpreter.
    """
    named = dict.fromkeys((KVTRAIL,) if wanted else KINDS, sys.executable)
    for word in wanted:
        name, _, path = word.partition("=")
        if name not in KINDS:
            raise Refused(f"there is no peer {name!r}; there are {', '.join(KINDS)}.")
        # Not resolved: an environment is known by where its interpreter's link lies.
        named[name] = str(Path(path or sys.executable).expanduser().absolute())
        if not Path(named[name]).is_file():
            raise Refused(f"{path}, which is to run {name}, is no file; name a Python interpreter.")
    interpreters, absent = {}, []
    for name in filter(named.__contains__, KINDS):
        if (asked := " and ".join(options)) and name not in (KVTRAIL, "vllm"):
            absent.append(f"{name}: left out, as it is not asked for {asked}")
            continue
        _, package = KINDS[name]
        # It is not imported, which takes many seconds.
        question = f"import sys, importlib.util as u; sys.exit(u.find_spec({package!r}) is None)"
        # Outside of any folder whose packages could be taken for it.
        answer = subprocess.run([named[name], "-P", "-c", question], capture_output=True, cwd="/")
        if answer.returncode == 0:
            interpreters[name] = named[name]
        else:
            absent.append(f"{name}: absent, its Python has no package {package}")
    return interpreters, absent


def contests_of(
    works: Iterable[tuple[Workload, Mapping[str, Any]]],
    engines: Mapping[str, str],
    folder: Path,
    options: Mapping[str, Any],
) -> list[Contest]:
    """Contests below a folder, of workloads and what they are run with, as `EngineConfig` has it.

    Of one model they share a start; where requests wait for others only those of one batch, as a
    larger batch makes no difference elsewhere.
    """
    groups: dict[tuple[str, str, int], list[Workload]] = {}
    for workload, engine in works:
        batch = workload.batch_size if workload.waves > 1 else 0
        key = engine["model"], engine.get("dtype", "auto"), batch
        groups.setdefault(key, []).append(workload)
    return [
        Contest(folder / f"contest-{number}", workloads, model, dtype, engines, options)
        for number, ((model, dtype, _), workloads) in enumerate(groups.items())
    ]


def prepare(contests: Sequence[Contest], device: str) -> None:
    """Put what lives read into the contests' folders; each model is put on disk once."""
    models: dict[tuple[str, str], list[Contest]] = {}
    for one in contests:
        one.folder.mkdir()
        for name, interpreter in one.engines.items():
            (one.folder / name).write_text(interpreter)
        models.setdefault((one.model, one.dtype), []).append(one)
    for number, ((model, dtype), alike) in enumerate(models.items()):
        place = alike[0].folder.with_name(f"model-{number}")
        tasks = {str(one.folder / TASK): [asdict(work) for work in one.workloads] for one in alike}
        asked = {"model": model, "dtype_name": dtype, "device_name": device, "folder": str(place)}
        more = {"workloads": tasks, "options": {**alike[0].options}}
        told = apart(f"{model} cannot be put on disk", put_on_disk, **asked, **more)
        for one in alike:
            one.dtype, one.floors_ms = told["dtype"], told["floors_ms"]


def peers_subject(contests: Sequence[Contest]) -> DeclaredSubject:
    """Engines on models as labels of one subject, whose life is `peers.lives.life`."""
    task = f'"${_PLACE}/${{KVTRAIL_LABEL%/*}}/{TASK}"'
    table = SubjectTable(
        name="peers",
        measure=f'exec "$(cat "${_PLACE}/$KVTRAIL_LABEL")" {_LIFE} {task}',
        timeout_s=3600.0,
        devices=contests[0].options.get("tensor_parallel_size", 1) if has_cuda_gpu() else None,
        # Nothing is to be fetched: the model is a folder. Nor is anything to be reported: vLLM
        # looks at the machine for that, in a thread beside what is measured.
        env={
            _PLACE: str(contests[0].folder.parent),
            "HF_HUB_OFFLINE": "1",
            "DO_NOT_TRACK": "1",
            "OMP_NUM_THREADS": "1",
        },
    )
    labels = (f"{one.folder.name}/{name}" for one in contests for name in one.engines)
    axis = AxisTable("labels", tuple(labels))
    metrics = {STARTUP: MetricTable(path=STARTUP, unit="s")}
    return DeclaredSubject(REPOSITORY, SubjectText(table, metrics=metrics, axis=axis))


class Contesting(Counting):
    """Engines on models, a life of each engine a round."""

    unit = "rounds"
    doing = "a life of each engine"
    is_of_several = True

    def __init__(
        self,
        settings: Mapping[str, Any],
        contests: Sequence[Contest],
        absent: Sequence[str],  # sentences of engines that are not here
        svg: Path | None,  # where the drawing goes
    ) -> None:
        self._contests = {one.folder.name: one for one in contests}
        subject, names = peers_subject(contests), list(self._contests)[::-1]
        super().__init__("peers", settings, subject, names, settings["rounds"])
        self._svg, self._absent = svg, absent
        self._notes: list[str] = []
        self._failure: MeasurementFailed | None = None

    def names(self) -> Sequence[str]:
        return self._subject.labels

    def begin(self) -> list[str]:
        """See `Session`; Refused on another kind of machine than those that measure."""
        kind, here = self._record.machine.name, machine_facts().name
        # This one writes the models, and measures the bandwidth that floors follow from.
        if kind != here:
            raise Refused(f"the hosts are {kind}, not {here}: start it on one of the hosts.")
        return []

    def sentence(self) -> str:
        return f"measuring {', '.join(self._settings['engines'])}"

    def meaning(self) -> dict[str, Any]:
        [engines, *_] = (one.engines for one in self._contests.values())
        return {**super().meaning(), "interpreters": engines}

    def live(self, source: RoundSource, due: Due, device: str) -> KeptRound:
        """A life of each engine in a round, back or forth, which never leaves its device.

        It is measured again as a whole where that is lost. An engine that fails on all workloads is
        left out of the rounds that follow.
        """
        contest, subject = self._contests[due.commit], self._subject
        readings, failed, facts = {}, {}, {}
        failures = Counter(engine for _, engine in contest.left_out())
        left = [name for name in contest.engines if failures[name] < len(contest.workloads)]
        for name in left if due.round % 2 == 0 else left[::-1]:
            label = f"{due.commit}/{name}"
            try:
                reading = source.round([label], [0], (), device).readings[0][STARTUP]
            except (CommitUnusable, SampleFailed) as error:
                failed[name] = error.reason
                continue
            # The life named its file so.
            told = json.loads((contest.folder / f"{name}-{reading.value!r}.json").read_text())
            cell, others = subject.cells.get(label), list(subject.others.items())
            # The most memory that a life held until now.
            peaks = {
                metric: max(of_label[label]) for metric, of_label in others if label in of_label
            }
            readings[name] = reading
            facts[name] = {**told, **peaks, "cell": cell and cell.to_json()}
        return KeptRound(due.part, (due.commit,), (0,), (readings,), failed, facts)

    def take(self, due: Due, lived: KeptRound) -> None:
        self._contests[due.commit].rounds[due.round] = lived

    def measure(self, source: RoundSource) -> ExitCode:
        contests = list(self._contests.values())
        prepare(contests, chosen_device("auto"))
        super().measure(source)
        self._notes = [said for one in contests for said in one.compare_tokens()]
        return ExitCode.GOOD

    def _measured(self) -> ExitCode:
        """See `Session`; where it failed before its end, what there is by then is shown, too."""
        try:
            code = super()._measured()
        except MeasurementFailed as error:
            self._failure, self._is_answer, code = error, False, ExitCode.FAILED
        self._rows = [row for one in self._contests.values() for row in one.rows()]
        if not code and all(row["engine"] == KVTRAIL for row in self._rows):
            self._failure = MeasurementFailed("no peer gave a figure: see the sentences above.")
        return ExitCode.FAILED if self._failure else code

    def print_answer(self) -> None:
        is_cut = ["The run was interrupted before its end."] * self._is_interrupted
        self._notes += self._late() + is_cut
        self._notes += [
            f"{engine} on {workload} is left out: {reason}"
            for one in self._contests.values()
            for (workload, engine), reason in one.left_out().items()
        ]
        print_sentences(self._console, self._notes, "yellow")
        self._record.notes += [*self._absent, *self._notes]
        self._record.samples = [one.sample() for one in self._contests.values()]
        if not self._rows:
            self.end(ExitCode.FAILED)
        which = ", ".join(dict.fromkeys(f"{row['model']} {row['dtype']}" for row in self._rows))
        table = speed_table(self._rows, self._record.title(which))
        self._files.show(table, rest_table(self._rows))
        if self._svg is not None:
            write_text(self._svg, drawn(table))

    def results(self) -> dict[str, Any]:
        return {"rows": self._rows}

    def end(self, code: ExitCode) -> None:
        """See `Session`; raises Interrupted, or MeasurementFailed where it failed."""
        if self._is_interrupted:
            raise self._interruption("kept")
        if self._failure is not None:
            raise self._failure
        super().end(code)


def speed_table(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """How fast each engine is."""
    cells = []
    for row in rows:
        (low, high), times = row["step_ms_range"], row["times"]
        step_ms = Cell(row["step_ms"], note=f"{low:.3f}-{high:.3f}" if low < high else "")
        ratio = times and Cell(times["estimate"], note=f"{times['low']:.2f}-{times['high']:.2f}")
        shown = {**row, "step_ms": step_ms, "times": ratio}
        cells.append([shown[column.key] for column in SPEED])
    return Table(SPEED, cells, title, CAPTION)


def rest_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """What else a reader needs: memory, start-up, whether tokens are right, and settings."""
    cells = []
    for row in rows:
        facts = {**row.get("chosen", {}), **row["versions"]}
        listed = ", ".join(f"{name} {value}" for name, value in facts.items())
        likeliest, told = None, row["tokens"] or {}
        if "argmax" in told:  # Older records tell how many were kvtrail's.
            likeliest = f"{told['argmax']:.1%} of {told['tokens']}, gap {told['largest_gap']:.2g}"
        shown = {**row, "tokens": likeliest, "settings": f"{row['settings']}; {listed}"}
        cells.append([shown[column.key] for column in REST])
    return Table(REST, cells, caption=TOKENS)


def drawn(table: Table) -> str:
    """The table as an SVG document."""
    console = Console(record=True, file=StringIO(), width=160)
    for part in (table.title, table.to_rich(), table.caption):
        console.print(part, highlight=False)
    # Nothing is fetched from elsewhere: the reader's own fonts do.
    return re.sub(r"@font-face \{.*?\}", "", console.export_svg(title="peers"), flags=re.DOTALL)
