"""A repository with a `kvtrail.toml`, whose bench.py prints and leaves what a test says."""

from __future__ import annotations

import json
import textwrap
import uuid
from collections.abc import Mapping
from pathlib import Path

from measured_rounds import one_life
from toy_repository import ToyRepository

from asv_bench.measure.samples import Absence, Reading
from asv_bench.subjects.choose import declared_by
from asv_bench.subjects.declared import DeclaredSubject

BENCH = "bench.py"
STEP = """
    [subject]
    name = "toy"
    measure = "python bench.py"

    [metrics.step]
    path = "step"
    """


def in_ms(metric: str) -> str:
    """Tables of a bench.py that leaves one metric in milliseconds."""
    return STEP.replace("step", metric) + 'unit = "ms"\n    '


def along(*labels: str) -> str:
    """The table of an axis of labels."""
    return f'\n[axis]\nkind = "labels"\nlabels = {json.dumps(labels, ensure_ascii=False)}\n'


class DeclaredRepository(ToyRepository):
    """A toy repository whose commits are texts of bench.py."""

    @classmethod
    def make(cls, root: Path, tables: str, *benches: str) -> DeclaredRepository:
        """A commit for each text of bench.py; the file with the tables is not committed."""
        root.mkdir(parents=True)
        made = cls(root)
        if benches:
            texts = map(textwrap.dedent, benches)
            made.begin(BENCH, *((text, f"change {number}") for number, text in enumerate(texts)))
        else:
            made.git("init", "-q", "-b", "main", "--template=")
        made.declare(tables)
        return made

    def declare(self, tables: str) -> None:
        """Give it another kvtrail.toml."""
        (self.root / "kvtrail.toml").write_text(textwrap.dedent(tables), encoding="utf-8")

    def commit(self, script: str, message: str) -> str:
        """Commit another bench.py; its hash."""
        return self.change(message, {BENCH: textwrap.dedent(script)})

    @property
    def subject(self) -> DeclaredSubject:
        """What its kvtrail.toml declares."""
        return declared_by(self.root / "kvtrail.toml")

    def prepared(self, word: str = "HEAD") -> Mapping[str, Absence]:
        """What a commit or label lacks, after one life that is not measured."""
        subject = self.subject
        with subject.pairs() as source:
            return source.prepare(subject.resolve(word).hash)

    def lacking(self, metric: str) -> Absence | None:
        """Why a life of HEAD has no figure of a metric that is asked for."""
        subject = self.subject
        subject.choose([metric, "^wall_s$"], None)
        with subject.pairs() as source:
            return source.prepare(subject.resolve("HEAD").hash).get(metric)

    def lived(self, *metrics: str) -> Mapping[str, Reading]:
        """The figures of one life of HEAD after the first; of what is declared, or of these."""
        subject = self.subject
        subject.choose([f"^{name}$" for name in metrics], None)
        with subject.pairs() as source:
            return one_life(source, subject.resolve("HEAD").hash)


# In a bench.py: up to 0.1 % less or more. Importing random takes longer than all else of a life.
NOISE = "(0.999 + int.from_bytes(os.urandom(2)) / 2**15 / 1000)"


def noisy(name: str, value: float | str) -> str:
    """A bench.py that leaves one figure in $KVTRAIL_RESULT, a little else each time."""
    return f"""
        import os
        value = {value} * {NOISE}
        with open(os.environ["KVTRAIL_RESULT"], "w") as file:
            file.write('{{"{name}": %r}}' % value)
        """


def seen(bench: str) -> str:
    """The same, alive for long enough to be seen running on a busy machine."""
    return f"import time; time.sleep(0.05)\n{textwrap.dedent(bench)}"


def own_seconds() -> str:
    """How long a process of one test alone sleeps: `alive` finds no sleeper of another test."""
    return f"97.{uuid.uuid4().int % 10**9}"


def alive(marker: str) -> bool:
    """Whether a process runs with this text on its command line."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if marker.encode() in (folder / "cmdline").read_bytes():
                return True
        except OSError:
            continue
    return False
