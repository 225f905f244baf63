"""`init` begins a file that measures what lies in the repository."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from toy_repository import ToyRepository
from typer.testing import CliRunner

from asv_bench.cli.commands import build_app
from asv_bench.errors import Refused
from asv_bench.subjects.subject_file import SubjectText, read_tables


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], tuple[SubjectText, str]]:
    """What `init` writes at a root, and what it says."""

    def begin(root: Path) -> tuple[SubjectText, str]:
        monkeypatch.chdir(root)
        done = CliRunner().invoke(build_app(), ["init"])
        if isinstance(done.exception, Exception):
            raise done.exception
        return read_tables(root / "kvtrail.toml")[0], done.output

    return begin


def test_the_script_that_measures_is_found(tmp_path: Path, begun) -> None:
    toy = ToyRepository.make(tmp_path / "my engine")
    for name in ("pyproject.toml", "asv.conf.json"):
        (toy.root / name).touch()
    before = toy.git("for-each-ref")
    content, said = begun(toy.root)
    assert content.subject.name == "my-engine"
    assert content.subject.measure == "sh bench.sh"
    assert content.subject.pinned == ("bench.sh",)
    assert "pip install" in content.subject.setup
    assert content.subject.env == {"PYTHONPATH": "$KVTRAIL_OUT"}
    assert "an asv suite lies here too: --subject asv.conf.json measures it" in said
    assert "each measurement runs `sh bench.sh`, after `python -m pip install" in said
    assert "compare HEAD~1 HEAD --metric cpu_s`" in (toy.root / "kvtrail.toml").read_text()
    assert toy.git("for-each-ref") == before
    with pytest.raises(Refused, match="exists already"):
        begun(toy.root)


@pytest.mark.parametrize(
    ("name", "text", "preset", "measure"),
    [
        (
            "tests/test speed.py",
            "def test_sum(benchmark):\n    benchmark(sum, [1])\n",
            "pytest-benchmark",
            "python -m pytest -q --benchmark-only --benchmark-json=$KVTRAIL_RESULT "
            "'tests/test speed.py'",
        ),
        (
            "perf/bench_sum.py",
            "import pyperf\npyperf.Runner().timeit('sum', 'sum([1])')\n",
            "pyperf",
            "python perf/bench_sum.py --quiet --processes 3 --output $KVTRAIL_RESULT",
        ),
        ("tests/test_sum.py", "def test_sum(other):\n    pass\n", "", "sh bench.sh"),
    ],
)
def test_a_program_that_measures_already_is_found(
    tmp_path: Path, begun, name: str, text: str, preset: str, measure: str
) -> None:
    toy = ToyRepository.make(tmp_path / "toy")
    (toy.root / name).parent.mkdir(exist_ok=True)
    (toy.root / name).write_text(text)
    (toy.root / "asv.conf.json").touch()
    content, _ = begun(toy.root)
    assert (content.subject.preset, content.subject.measure) == (preset, measure)
    assert content.subject.pinned == ((name,) if preset else ("bench.sh",))
    assert "# --subject asv.conf.json measures the asv suite" in (
        toy.root / "kvtrail.toml"
    ).read_text("utf-8")


@pytest.mark.parametrize(
    "name", ["bench'.py", 'bench".py', "bench\\n.py", "bench$HOME.py", "-bench.py", "bench;`id`.py"]
)
def test_an_odd_name_stays_one_word_of_the_shell_and_one_string_of_the_file(
    tmp_path: Path, begun, name: str
) -> None:
    toy = ToyRepository.make(tmp_path / f".{name}")
    toy.git("rm", "-q", "bench.sh")
    (toy.root / name).touch()
    content, _ = begun(toy.root)
    script = f"./{name}" if name.startswith("-") else name
    assert shlex.split(content.subject.measure) == ["python", script]
    assert content.subject.pinned == (name,)


def test_what_measures_nothing_or_is_of_others_is_no_benchmark(tmp_path: Path, begun) -> None:
    toy = ToyRepository.make(tmp_path / "toy")
    toy.git("rm", "-q", "bench.sh")
    names = ["bench/__init__.py", "bench/test_a.py", ".venv/bench.py", "env/bench.py"]
    names += ["bench/conftest.py", "bench/setup.py", "node_modules/bench.py", "tests/bench.py"]
    names += ["env/pyvenv.cfg", "ignored/bench.py", "benchmarks/a.py", "test_bench.py"]
    for name in (*names, "bench\n.py", ".git/bench.py", "z_bench.py"):
        (toy.root / name).parent.mkdir(exist_ok=True)
        (toy.root / name).touch()
    (toy.root / "bench_linked.py").symlink_to(toy.root / "z_bench.py")
    (toy.root / ".gitignore").write_text("ignored/\n")
    (toy.root / "asv.conf.json").write_text('{"benchmark_dir": "benchmarks"}')
    assert begun(toy.root)[0].subject.measure == "python z_bench.py"
    for name in ("kvtrail.toml", "z_bench.py", "asv.conf.json"):
        (toy.root / name).unlink()
    (toy.root / "benchmarks" / "a.py").unlink()
    assert begun(toy.root)[0].subject.measure.startswith("python -c ")


def test_every_commented_table_is_one_that_the_file_knows(tmp_path: Path, begun) -> None:
    toy = ToyRepository.make(tmp_path / "toy")
    toy.git("rm", "-q", "bench.sh")
    begun(toy.root)
    path = toy.root / "kvtrail.toml"
    lines = path.read_text().splitlines()
    start = next(place for place, line in enumerate(lines) if line == "# [metrics.tpot_ms]")
    kept = [line.removeprefix("# ") for line in lines[start:] if "=" in line or "# [" in line]
    subject = [line for line in lines[:start] if not line.startswith(("#", "measure"))]
    path.write_text("\n".join([*subject, *kept]))
    content = read_tables(path)[0]
    assert content.client is not None
    assert set(content.metrics) == {"tpot_ms", "throughput"}
    assert content.axis.labels == ("4.55.0", "4.56.0", "4.57.0")


def test_a_folder_of_no_repository_is_refused(tmp_path: Path, begun) -> None:
    with pytest.raises(Refused, match="is in no git repository"):
        begun(tmp_path)
