"""Somebody else's asv suite as the subject: installed, listed and compared commit by commit."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from declared_repository import DeclaredRepository

from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.subjects.choose import declared_by

INSTALL = (
    "import os, shutil, site; "
    "shutil.copy(os.environ['FROM'], site.getsitepackages()[0] + '/toy.py')"
)
CONF = {
    "version": 1,
    "project": "toy",
    "repo": "..",
    "benchmark_dir": "suite",
    "install_command": [f'in-dir={{build_dir}} FROM=bench.py python -c "{INSTALL}"'],
    "matrix": {"env": {"LEVEL": ["2"]}},
    "default_benchmark_timeout": 1,
}
SUITE = """
import os, time
import toy

timeout = 60
CAN_WAIT = toy.value() > 5.2

class Suite:
    params = ([1, 2],)
    param_names = ("level",)

    def track_value(self, level):
        return toy.value() * level * int(os.environ["LEVEL"])

    track_value.unit = "things"

    def setup(self, level):
        if level == 2 and not hasattr(toy, "EVEN"):
            raise NotImplementedError("not here")

class Many:
    params = ([8, 1], ["x" * 70_000])  # names longer than what a command line or a variable holds

    def peakmem_of(self, chunks, _):
        bytearray(chunks * 2 ** 25)

class Cached:
    def setup_cache(self):
        print(file=open("caches", "a"))
        return 7

    def track_cached(self, cached):
        return cached + len(open("caches").readlines())

    def track_again(self, cached):
        return self.track_cached(cached)

def track_none():
    return None

def track_ended():
    os._exit(0)

def track_crash():
    os.kill(os.getpid(), 11)

def track_wrong():
    raise LookupError("no such thing")

def track_late():
    if CAN_WAIT and os.fork():
        os.wait()
    time.sleep(60 if CAN_WAIT else 0)
    return 1

track_late.timeout = 0.5
"""


def conf_of(**more: object) -> str:
    """A configuration that says something more, with a comment as asv's own files have them."""
    return f"// The configuration.\n{json.dumps({**CONF, **more})}"


class Repository(DeclaredRepository):
    """A repository with a suite, the second of whose commits is a tenth slower."""

    @classmethod
    def make(cls, root: Path, **more: object) -> Repository:
        value = (
            "import random\n\ndef value():\n    return {} * (1 + random.uniform(-0.001, 0.001))\n"
        )
        made = super().make(root, "", value.format(5), f"{value.format(5.5)}EVEN = 1\n")
        (made.root / "kvtrail.toml").unlink()
        made.suite.mkdir(parents=True)
        (made.suite / "__init__.py").touch()
        made.conf.write_text(conf_of(**more))
        made.write("toy", SUITE)
        return made

    @property
    def suite(self) -> Path:
        return self.root / "asv" / "suite"

    @property
    def conf(self) -> Path:
        return self.root / "asv" / "asv.conf.json"

    @property
    def named(self) -> tuple[str, str]:
        return "--subject", str(self.conf)

    def write(self, name: str, text: str) -> None:
        (self.suite / f"bench_{name}.py").write_text(text)


@pytest.mark.thorough
def test_a_suite_is_compared_and_every_benchmark_has_a_limit_and_a_state_of_its_own(
    kvtrail, tmp_path: Path
) -> None:
    made = Repository.make(tmp_path / "toy")
    made.write("default", "import time\n\ndef track_default():\n    time.sleep(60)\n")
    said = kvtrail(made, "compare", "HEAD~1", "HEAD", "--quick", *made.named)
    value = said.answers["bench_toy.Suite.track_value(1)"]
    assert (said.code, value["verdict"]) == (3, "slower"), said.text
    assert value["base_value"] == pytest.approx(10, rel=0.01)
    assert " things" in said.text
    # Each commit runs in an environment of its own, which is no difference.
    assert "1 file differs: bench.py" in said.text
    assert "runs in place of" not in said.text
    reasons = {
        name.partition(".")[2]: (answer["verdict"], answer["reason"].partition(": ")[2])
        for name, answer in said.answers.items()
        if answer["reason"]
    }
    skipped = "it was skipped in setup, by NotImplementedError('not here')."
    assert reasons == {
        "track_none": ("failed", "it returned None."),
        "track_ended": ("failed", "it ended its process before it gave a figure."),
        "track_crash": ("failed", "signal 11 ended its process."),
        "track_wrong": ("failed", "it failed: LookupError: no such thing."),
        "track_late": ("failed", "it did not end within its limit of 0.5 s."),
        "track_default": ("failed", "it did not end within its limit of 1 s."),
        "Suite.track_value(2)": ("not measured", skipped),
    }
    is_large = {
        name.partition("(")[2][0]: answer["base_value"] > 2**28
        for name, answer in said.answers.items()
        if "peakmem" in name
    }
    assert is_large == {"8": True, "1": False}
    # One cache for both benchmarks that use it.
    for name in ("track_cached", "track_again"):
        assert said.answers[f"bench_toy.Cached.{name}"]["base_value"] == 8


REFUSED: list[tuple[str | dict[str, object], str]] = [
    ("{", "is no configuration of asv"),
    ("[" * 100_000, "is no configuration of asv"),
    ({"repo": "https://example.org/x"}, "clone it"),
    ({"benchmark_dir": "nowhere"}, "benchmark_dir is 'nowhere'"),
    ({"pythons": ["9.7"]}, "is for Python 9.7, of which none runs here"),
    ({"exclude": [{"python": "("}]}, "missing \\)"),
    ({"pythons": [], "include": [{"req": {}}]}, "does not specify Python version"),
    ({"matrix": {"env": "x"}}, "matrix.env is 'x'"),
    ({"matrix": {"env": {"A=B": "1"}}}, "a variable's name"),
    ({"install_timeout": "long"}, "install_timeout"),
    ({"install_command": "return-code=good python"}, "return-code"),
    ({"install_command": "python {nothing}"}, "nothing"),
    ({"environment_type": "conda", "conda_environment_file": "x.yml"}, "under matrix"),
]


def test_a_file_that_is_none_of_asvs_is_refused(tmp_path: Path) -> None:
    made = Repository.make(tmp_path / "toy")
    for more, words in REFUSED:
        made.conf.write_text(more if isinstance(more, str) else conf_of(**more))
        with pytest.raises(Refused, match=words):
            declared_by(made.conf)
    made.conf.write_text(conf_of(matrix=[]))
    assert "the asv suite of toy" in declared_by(made.conf).sentence()


DECIDED = """
import random
import toy

def ran(name):
    print(file=open({log!r} + name, "a"))

def track_clear():
    ran("clear")
    return toy.value()

def track_noisy():
    ran("noisy")
    return random.uniform(1, 2)
"""


@pytest.mark.thorough
def test_a_benchmark_with_its_answer_is_not_run_again(kvtrail, tmp_path: Path) -> None:
    made = Repository.make(tmp_path / "toy")
    made.write("toy", DECIDED.format(log=str(tmp_path / "ran-")))
    said = kvtrail(made, "compare", "HEAD~1", "HEAD", *made.named, "--pairs", "10")
    clear, noisy = (said.answers[f"bench_toy.track_{one}"] for one in ("clear", "noisy"))
    assert (clear["verdict"], noisy["verdict"]) == ("slower", "inconclusive"), said.text
    ran = [len((tmp_path / f"ran-{one}").read_text()) for one in ("clear", "noisy")]
    # A life of each commit before the pairs, and then both commits' of each pair.
    assert ran == [2 + 2 * clear["pairs_used"], 22]


@pytest.mark.thorough
def test_a_commit_is_installed_as_asv_does(
    kvtrail, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, words in (("9.8", "exit 1"), ("9.9", f'echo >> "{tmp_path}/uses"; exec')):
        (tmp_path / f"python{name}").write_text(f'#!/bin/sh\n{words} {sys.executable} "$@"\n')
        (tmp_path / f"python{name}").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "other"))
    monkeypatch.setattr("asv_bench.measure.trees.CACHE", tmp_path / "with a blank")
    made = Repository.make(
        tmp_path / "toy",
        pythons=["9.7", "9.8", "9.9"],
        build_command=[
            "return-code=any python -c 'raise SystemExit(7)'",
            "python -m pip wheel -q --no-build-isolation -w {build_cache_dir} {build_dir}",
        ],
        install_command=None,
        matrix={"env": {"LEVEL": "12"}, "env_nobuild": {"ONLY": ["1"], "NONE": [None, "1"]}},
        exclude=[{"env_nobuild": {"NONE": "1"}}],
    )
    setup = (
        "import os, setuptools; assert 'ONLY' not in os.environ and os.environ['LEVEL'] == '12'; "
        "setuptools.setup(name='toy', version='1', py_modules=['toy'])"
    )
    made.change("build", {"setup.py": setup, "toy.py": "def value():\n    return 5\n"})
    suite = "import os\nimport toy\n\ndef track_level():\n    return int(os.environ['LEVEL'])\n"
    checks = "assert os.environ['ONLY'] == '1' and not {'NONE', 'PYTHONPATH'} & os.environ.keys()\n"
    made.write("toy", suite + checks)
    where = ("--results", str(tmp_path / "kept"))
    said = kvtrail(made, "history", "HEAD~1..HEAD", *made.named, *where, "--rounds", "1")
    assert "each commit installed for Python 9.9 by pip" in said.text
    assert [one["samples"] for one in said.record["samples"]] == [[12]], said.text
    assert (tmp_path / "uses").exists()


@pytest.mark.thorough
def test_a_suite_is_listed_once_by_an_end_and_only_where_it_may_match(
    kvtrail, tmp_path: Path
) -> None:
    made = Repository.make(tmp_path / "toy")
    made.git("commit", "-q", "--allow-empty", "-m", "the same")
    made.commit("raise SystemExit('never installed')", "no end")
    log = tmp_path / "log"
    for name in ("one", "two"):
        made.write(
            name,
            f"import sys\nif 'list' in sys.argv: open({str(log)!r}, 'a').write('{name} ')\n"
            f"def track_{name}():\n    return 1\n",
        )

    def listed(*options: str) -> list[str]:
        log.write_text("")
        said = kvtrail(made, "compare", "HEAD~2", "HEAD~1", *made.named, *options)
        assert "listing the benchmarks with" in said.text
        assert set(said.verdicts) <= {"bench_one.track_one", "bench_two.track_two"}, said.text
        return log.read_text().split()

    assert listed("-b", "bench_one.") == ["one"]
    assert listed("-b", "track_(one|two)") == ["one", "two"]
    assert listed("-b", "track_(one|two)") == []
    with pytest.raises(Refused, match=r"there are [0-9]+, such as bench_one"):
        listed("-b", "nowhere")
    made.write("one", "import no_such_module")
    assert listed("-b", "track_two") == ["two"]
    (made.suite / "bench_two.py").unlink()
    made.write("toy", "import no_such_module")
    with pytest.raises(MeasurementFailed, match="the suite cannot be imported"):
        listed()
