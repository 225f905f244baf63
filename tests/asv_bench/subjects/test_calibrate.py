"""`calibrate` on what users declare: a delay in lives, and the noise of a commit with itself."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from declared_repository import in_ms, noisy
from toy_repository import COMMAND, ToyRepository

from asv_bench.errors import Refused
from asv_bench.measure.life import CommandLife

TABLES = in_ms("tpot_ms")
tpot = partial(noisy, "tpot_ms")
OBEDIENT = """
    import json, os, random
    delay_ms = 1e3 * float(os.environ.get("KVTRAIL_DELAY_S", 0))
    noise = lambda value: value * (1 + random.uniform(-0.001, 0.001))
    figures = {"tpot_ms": noise(5.0) + delay_ms, "tokens": noise(200.0)}
    with open(os.environ["KVTRAIL_RESULT"], "w") as file:
        json.dump(figures, file)
    """
FEW = ("--pairs", "6")


def trials(said: Any) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in said.record["results"]["trials"]}


def test_a_delay_that_the_benchmark_obeys_is_found(kvtrail, declared, tmp_path: Path) -> None:
    tables = f"""{TABLES}
    [metrics.tokens]
    path = "tokens"
    unit = "tokens/s"
    better = "higher"

    [metrics.prefill_ms]
    path = "the commit lacks it"
    unit = "ms"
    """
    setup = f'measure = "python bench.py"\n    setup = "echo made >> {tmp_path}/setups"'
    made = declared(tables.replace('measure = "python bench.py"', setup), OBEDIENT)
    said = kvtrail(made, "calibrate", "--null", "1", "--planted", "20", *FEW)
    assert said.code == 0, said.text
    assert {name: one["verdict"] for name, one in trials(said).items()} == {
        "itself, 1 of 1, tpot_ms": "equivalent",
        "itself, 1 of 1, tokens": "equivalent",
        "planted 20.0 %, tpot_ms": "slower",
    }
    slow = trials(said)["planted 20.0 %, tpot_ms"]
    assert slow["planted"] == pytest.approx(0.2, abs=0.001)
    assert slow["effect"] == pytest.approx(0.2, abs=0.003)
    assert said.record["results"]["is_sound"] is True
    assert "prefill_ms is not measured: " in said.text
    assert "tokens: no delay was planted; only what is measured in seconds, s, ms" in said.text
    assert (tmp_path / "setups").read_text() == "made\n", "once for all delays"


def test_the_wall_time_is_lengthened_by_a_wait_after_the_command(kvtrail, declared) -> None:
    # The command cannot shorten the wait, and does not know of it.
    tables = """
        [subject]
        name = "toy"
        measure = "test -z $KVTRAIL_DELAY_S && sleep 0.05 # a line"
        """
    made = declared(tables, "")
    only = ("--metric", "wall_s", "--metric", "peak_rss")
    said = kvtrail(made, "calibrate", "--null", "0", "--planted", "400", *only, *FEW)
    assert said.code == 0, said.text
    [slow] = trials(said).values()
    # A busy machine hides a wait among its own, and shortens none.
    assert slow["verdict"] in ("slower", "inconclusive")
    assert slow["head_value"] >= 0.05 + 4 * 0.05
    assert "peak_rss_bytes: no delay was planted" in said.text


@pytest.mark.thorough
def test_a_command_is_calibrated_in_any_repository(kvtrail, tmp_path: Path) -> None:
    toy = ToyRepository.make(tmp_path / "toy")
    said = kvtrail(toy, "calibrate", "--null", "1", "--planted", "400", *FEW, "--", *COMMAND)
    assert said.code == 0, said.text
    null, slow = trials(said).values()
    assert null["verdict"] in ("equivalent", "inconclusive")
    # HEAD sleeps 20 ms, and four times as long again, which a busy machine does not shorten.
    assert slow["verdict"] in ("slower", "inconclusive")
    assert slow["benchmark"] == "wall_s"
    assert slow["head_value"] >= 0.1
    assert said.record["settings"]["commit"]["hash"] == toy.git("rev-parse", "HEAD")


def noise_in(folder: Path) -> dict[int, list[float]]:
    """The differences that are kept of the one metric, by session."""
    found: dict[int, list[float]] = {}
    [path] = folder.iterdir()
    for entry in map(json.loads, path.read_text().splitlines()):
        found.setdefault(entry["session"], []).extend(entry["differences"]["tpot_ms"])
    return found


def test_the_noise_says_what_a_minute_finds_and_is_kept_for_compare(
    kvtrail, declared, tmp_path: Path
) -> None:
    made = declared(TABLES, tpot(5.0))
    arguments = ("--null", "2", "--planted", "20", "--within", "0.001,15", *FEW)
    said = kvtrail(made, "calibrate", *arguments)
    assert (said.code, list(trials(said))) == (0, ["itself, 1 of 2", "itself, 2 of 2"])
    words = " ".join(said.text.split())
    assert "told to wait by $KVTRAIL_DELAY_S did not move it" in words
    [noise] = said.record["results"]["noise"]
    assert (noise["metric"], noise["pairs"]) == ("tpot_ms", 12)
    # Two figures, each evenly spread over 0.2 %.
    assert noise["deviation"] == pytest.approx(0.0008, rel=0.6)
    none, all_pairs = noise["reaches"]
    assert (none["pairs"], none["effect"], all_pairs["pairs"]) == (0, None, 6)
    assert 0.01 <= all_pairs["effect"] < 0.02
    assert "In 0.001 min compare measures at most 0 pairs and finds no change" in words
    assert "In 15 min compare measures at most 6 pairs and finds a change of 1." in words
    [(_, learnt)] = noise_in(tmp_path / "work/noise").items()
    assert learnt == [one["log_ratio"] for one in said.record["samples"]]


@pytest.mark.thorough
def test_after_it_a_clear_case_ends_at_five_pairs(kvtrail, declared) -> None:
    made = declared(TABLES, tpot(5.0), tpot(5.5))
    kvtrail(made, "calibrate", "--null", "7", "--planted", "none")
    answer = kvtrail(made, "compare", "HEAD~1", "HEAD").answers["tpot_ms"]
    assert (answer["verdict"], answer["pairs_used"]) == ("slower", 5)


def test_a_commit_that_cannot_be_measured(kvtrail, declared) -> None:
    made = declared(TABLES, "raise SystemExit(125)", "1 / 0")
    said = kvtrail(made, "calibrate", "--commit", "HEAD~1")
    assert (said.code, "cannot be measured" in said.text) == (5, True)
    failed = kvtrail(made, "calibrate")
    assert (failed.code, "ZeroDivisionError" in failed.text) == (1, True)


@pytest.mark.usefixtures("lives_in_process")
def test_an_interrupted_calibration_goes_on_with_the_pairs_of_the_commit_with_itself(
    kvtrail, declared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = declared(TABLES, "tpot_ms = 5")
    measure, lived = CommandLife.live, []

    def interrupted(self, laid, *others):
        if len(lived) == 20:
            raise KeyboardInterrupt
        lived.append(laid)
        return measure(self, laid, *others)

    monkeypatch.setattr(CommandLife, "live", interrupted)
    arguments = ("calibrate", "--null", "2", "--planted", "none", *FEW)
    said = kvtrail(made, *arguments)
    assert (said.code, len(said.record["results"]["trials"])) == (130, 1)
    before = said.record["samples"]
    monkeypatch.setattr(CommandLife, "live", measure)
    said = kvtrail(made, *arguments)
    assert (said.code, len(said.record["results"]["trials"])) == (0, 2), said.text
    assert f"going on with {len(before)} pairs" in said.text
    assert said.record["samples"][: len(before)] == before
    # Each trial's noise is learnt once.
    # What another command measures is of another session.
    first, second = noise_in(tmp_path / "work/noise").values()
    assert [*first, *second] == [one["log_ratio"] for one in said.record["samples"]]


def test_nothing_to_compare_is_refused(kvtrail, declared) -> None:
    made = declared(TABLES, "pass")
    with pytest.raises(Refused, match="leaves nothing to compare"):
        kvtrail(made, "calibrate", "--null", "0", "--planted", "none")
