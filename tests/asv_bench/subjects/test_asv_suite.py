"""Somebody else's asv suite as the subject: installed, listed and compared commit by commit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from declared_repository import DeclaredRepository

from asv_bench.errors import MeasurementFailed, Refused

INSTALL = (
    "import os, shutil, site; "
    "shutil.copy(os.environ['FROM'], site.getsitepackages()[0] + '/toy.py')"
)
CONF = "// As asv's own files have comments.\n" + json.dumps(
    {
        "version": 1,
        "project": "toy",
        "repo": "..",
        "benchmark_dir": "suite",
        "install_command": [f'in-dir={{build_dir}} FROM=bench.py python -c "{INSTALL}"'],
        "matrix": {"env": {"LEVEL": ["2"]}},
    }
)
SUITE = """
import os
import toy

class Suite:
    params = ([1, 2],)
    param_names = ("level",)

    def track_value(self, level):
        return toy.value() * level * int(os.environ["LEVEL"])

    track_value.unit = "things"

    def setup(self, level):
        if level == 2 and not hasattr(toy, "EVEN"):
            raise NotImplementedError

def time_nothing():
    pass
"""


def suite_of(root: Path) -> DeclaredRepository:
    value = "import random\n\ndef value():\n    return {} * (1 + random.uniform(-0.001, 0.001))\n"
    made = DeclaredRepository.make(root, "", value.format(5), value.format(5.5) + "EVEN = 1\n")
    (made.root / "kvtrail.toml").unlink()
    (made.root / "asv" / "suite").mkdir(parents=True)
    (made.root / "asv" / "asv.conf.json").write_text(CONF)
    (made.root / "asv" / "suite" / "__init__.py").touch()
    (made.root / "asv" / "suite" / "bench_toy.py").write_text(SUITE)
    return made


@pytest.mark.thorough
def test_a_suite_is_compared(kvtrail, tmp_path: Path) -> None:
    made = suite_of(tmp_path / "toy")
    named = ("--subject", str(made.root / "asv" / "asv.conf.json"))
    said = kvtrail(made.toy, "compare", "HEAD~1", "HEAD", *named, "-b", "track_value")
    assert said.verdicts == {
        "bench_toy.Suite.track_value(1)": "slower",
        "bench_toy.Suite.track_value(2)": "not measured",
    }, said.text
    answer = said.answers["bench_toy.Suite.track_value(1)"]
    assert answer["base_value"] == pytest.approx(10, rel=0.01)
    assert " things" in said.text
    # Each commit runs in an environment of its own, which is no difference.
    assert "1 file differs: bench.py" in said.text
    assert "runs in place of" not in said.text
    with pytest.raises(Refused, match=r"there are 3, such as bench_toy"):
        kvtrail(made.toy, "compare", "HEAD~1", "HEAD", *named, "-b", "nowhere")
    (made.root / "asv" / "suite" / "bench_toy.py").write_text("import no_such_module")
    with pytest.raises(MeasurementFailed, match="the suite cannot be imported"):
        kvtrail(made.toy, "compare", "HEAD~1", "HEAD", *named)


@pytest.mark.thorough
def test_a_delay_in_what_a_suite_times_is_found(kvtrail, tmp_path: Path) -> None:
    made = suite_of(tmp_path / "toy")
    suite = made.root / "asv" / "suite" / "bench_toy.py"
    work = "sum(range(100_000))"
    suite.write_text(f"{SUITE}\n\ndef time_work():\n    {work}\n\ntime_work.repeat = (3, 3, 0.2)\n")
    named = ("--subject", str(made.root / "asv" / "asv.conf.json"), "-b", "time_work|track")
    said = kvtrail(
        made.toy, "calibrate", *named, "--null", "0", "--planted", "500", "--pairs", "10"
    )
    assert said.code == 0, said.text
    [slow] = said.record["results"]["trials"]
    assert (slow["benchmark"], slow["verdict"]) == ("bench_toy.time_work", "slower")
    assert slow["effect"] == pytest.approx(slow["planted"], rel=0.4)
    assert "track_value(1): no delay was planted; only what is measured in seconds" in said.text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is no configuration of asv"),
        (json.dumps({"version": 1, "project": "x", "repo": "https://example.org/x"}), "clone it"),
    ],
)
def test_a_file_that_is_none_of_asvs_is_refused(
    kvtrail, tmp_path: Path, text: str, words: str
) -> None:
    made = suite_of(tmp_path / "toy")
    conf = made.root / "asv" / "asv.conf.json"
    conf.write_text(text)
    with pytest.raises(Refused, match=words):
        kvtrail(made.toy, "compare", "HEAD~1", "HEAD", "--subject", str(conf))


@pytest.mark.thorough
def test_a_suite_has_a_history_in_which_changes_are_confirmed(kvtrail, tmp_path: Path) -> None:
    made = suite_of(tmp_path / "toy")
    bench = (made.root / "bench.py").read_text()
    for number in range(2):
        made.commit(f"{bench}# {number}\n", f"more {number}")
    named = (
        "--subject",
        str(made.root / "asv" / "asv.conf.json"),
        "--results",
        str(tmp_path / "k"),
    )
    said = kvtrail(made.toy, "history", "HEAD", *named, "-b", "track_value")
    assert said.code == 0, said.text
    found = kvtrail(made.toy, "changes", *named)
    assert found.code == 3, found.text
    [change] = found.record["results"]["changes"]
    assert change["benchmark"] == "bench_toy.Suite.track_value(1)"
    assert (change["subject"], change["standing"]) == ("change 1", "regression")
