"""Results beside speed: whether the head computes what the base computes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from asv_bench.errors import NothingSelected

TABLES = """
    [subject]
    name = "toy"
    measure = "python bench.py"

    [metrics.step]
    path = "step"

    [check.tokens]
    path = "out.tokens"

    [check.score]
    path = "score"
    must = "not-worse"
    tolerance = 0.01
    """
BENCH = """
import random
step, more = {step}, {more}
out, score = {{"tokens": {tokens}}}, {score} + {noise} * random.choice([-1, 0, 1])
out |= more
"""
pytestmark = pytest.mark.usefixtures("lives_in_process")
RIGHT = "[[5, 7], {'text': 'so it goes on and on, and ends here'}]"


def bench(
    step: float = 10.0,
    tokens: str = RIGHT,
    score: float = 0.52,
    noise: float = 0.001,
    more: dict[str, Any] | None = None,
) -> str:
    return BENCH.format(step=step, tokens=tokens, score=score, noise=noise, more=more or {})


def checks_of(said) -> dict[str, dict[str, Any]]:
    return {one["check"]: one for one in said.record["results"]["checks"]}


@pytest.mark.parametrize(
    ("head", "code", "verdicts", "words"),
    [
        (bench(9.0), 0, ("same", "same"), ["step: faster (-", ", same result"]),
        (
            bench(9.0, RIGHT.replace("7", "8")),
            6,
            ("differs", "same"),
            [", other result", "tokens: other result, [0][1] was 7 and is 8 in 6 of 6 lives"],
        ),
        (bench(9.0, RIGHT.replace("here", "there")), 6, ("differs", "same"), ["and ends there"]),
        (bench(9.0, "[[5, 7]]"), 6, ("differs", "same"), ["[1] was {", "} and is missing"]),
        (bench(9.0, "[random.random()]"), 6, ("differs", "same"), [", other result"]),
        (
            bench(9.0, score=0.5),
            6,
            ("same", "differs"),
            ["score: worse, 0.5", " → 0.", "(-0.0", "0.01 is tolerated"],
        ),
        (bench(9.0, score=0.56), 0, ("same", "same"), ["score: better, "]),
        (bench(9.0, score=-1, noise=0), 6, ("same", "differs"), ["→ -1 (-1.52"]),
        (bench(9.0) + "out = {}", 6, ("differs", "same"), ["its JSON has no out.tokens"]),
    ],
    ids=["same", "tokens", "text", "fewer", "random", "worse", "better", "negative", "gone"],
)
def test_every_answer_says_whether_the_result_is_the_same(
    kvtrail, declared, head: str, code: int, verdicts: tuple[str, str], words: list[str]
) -> None:
    said = kvtrail(declared(TABLES, bench(), head), "compare", "HEAD~1", "HEAD")
    assert said.verdicts == {"step": "faster"}
    checks = checks_of(said)
    assert (checks["tokens"]["verdict"], checks["score"]["verdict"]) == verdicts
    assert said.code == said.record["results"]["exit_code"] == code
    for word in words:
        assert word in said.text
    assert "Margins of their own" not in said.text


def test_a_base_that_differs_from_itself_tells_nothing_of_the_head(kvtrail, declared) -> None:
    toy = declared(TABLES, bench(tokens="[random.random()]"), bench(9.0))
    said = kvtrail(toy, "compare", "HEAD~1", "HEAD")
    assert (said.code, checks_of(said)["tokens"]["verdict"]) == (0, "unstable")
    assert "tokens: unstable result, 6 lives of the base gave 6: [0] was 0." in said.text
    assert "step: faster (-" in said.text


def test_a_fall_is_told_from_noise(kvtrail, declared) -> None:
    toy = declared(TABLES, bench(noise=0.005), bench(9.0, score=0.495, noise=0.005))
    said = kvtrail(toy, "compare", "HEAD~1", "HEAD")
    assert checks_of(said)["score"]["verdict"] == "differs"
    assert said.answers["step"]["pairs_used"] == 6 <= checks_of(said)["score"]["lives"]


def scored(folder: Path, line: str = "", check: str = "grade") -> str:
    """Tables whose score is 0.9 of tokens with a 7 and 0.5 of others; each writes down a line."""
    grade = "grep -q 7 $KVTRAIL_RESULT && one=0.9 || one=0.5"
    left = f"""{grade}; printf '{{"{check}": %s}}' $one > $KVTRAIL_RESULT"""
    return f"""
    [subject]
    name = "toy"
    measure = "python bench.py"

    [metrics.step]
    path = "step"

    [check.{check}]
    path = "out.tokens"
    must = "not-worse"
    tolerance = 0.01
    score = '''echo asked >> {folder}/asked; {line or left}'''
    """


@pytest.mark.parametrize(
    ("tokens", "code", "verdict", "words", "asked"),
    [
        (RIGHT, 0, "same", "grade: same result, in 6 lives of either end", 1),
        ("[7, 8]", 0, "same", "grade: same result, in 6 lives of either end", 2),
        ("[8]", 6, "differs", "grade: worse, 0.9 → 0.5 (-0.4, ", 2),
        ("[8, random.choice([1, 2])]", 6, "differs", "grade: worse, 0.9 → 0.5 (-0.4, ", 3),
        ("[8] * 9999", 6, "differs", "grade: worse, 0.9 → 0.5 (-0.4, ", 2),
    ],
    ids=["equal", "other, as good", "worse", "worse and unsteady", "longer than what is kept"],
)
def test_each_result_is_scored_once(
    kvtrail, declared, tmp_path: Path, tokens: str, code: int, verdict: str, words: str, asked: int
) -> None:
    toy = declared(scored(tmp_path), bench(), bench(9.0, tokens))
    said = kvtrail(toy, "compare", "HEAD~1", "HEAD")
    assert said.verdicts == {"step": "faster"}
    [check] = checks_of(said).values()
    assert (said.code, check["verdict"], check["lives"]) == (code, verdict, 6)
    assert words in said.text
    assert (tmp_path / "asked").read_text().count("\n") == asked
    assert "also measured" not in said.text


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("echo no room >&2; exit 3", "what scores it: it ended with exit code 3: no room"),
        ("echo {} > $KVTRAIL_RESULT", "what scores it: null is no number"),
        ("echo 1, > $KVTRAIL_RESULT", "what scores it: Extra data"),
    ],
)
def test_a_score_that_fails_leaves_the_check_open_and_speed_as_it_is(
    kvtrail, declared, tmp_path: Path, line: str, words: str
) -> None:
    toy = declared(scored(tmp_path, line), bench(), bench(9.0, "[8]"))
    said = kvtrail(toy, "compare", "HEAD~1", "HEAD")
    assert (said.code, said.verdicts) == (0, {"step": "faster"})
    assert checks_of(said)["grade"]["verdict"] == "inconclusive"
    assert ", result not told" in said.text
    assert words in said.text


def test_the_first_worse_score_is_found_and_a_history_keeps_scores(
    kvtrail, declared, tmp_path: Path
) -> None:
    tokens = [RIGHT, RIGHT, "[7, 8]", "[8]"]
    texts = [bench(tokens=one, more={"n": number}) for number, one in enumerate(tokens)]
    toy = declared(scored(tmp_path), *texts)
    assert kvtrail(toy, "bisect", "HEAD~3", "HEAD").code == 0
    assert not (tmp_path / "asked").exists()
    said = kvtrail(toy, "bisect", "HEAD~3", "HEAD", "--check", "grade")
    assert said.code == 3
    assert f"first commit with worse grade: {toy.subject.resolve('HEAD').short}" in said.text
    first = toy.git("rev-list", "--max-parents=0", "HEAD").strip()
    said = kvtrail(toy, "history", f"{first}..HEAD", "--rounds", "2")
    graded = [one["samples"] for one in said.record["samples"] if "grade" in one["series"]]
    assert sorted(graded) == [pytest.approx([0.5] * 2), *[pytest.approx([0.9] * 2)] * 2]


def test_a_gate_may_let_another_result_pass(kvtrail, declared) -> None:
    toy = declared(TABLES, bench(), bench(9.0, "[]"))
    assert kvtrail(toy, "compare", "HEAD~1", "HEAD", "--gate", "slower").code == 0


def test_a_longer_result_is_told_apart_behind_what_is_kept(kvtrail, declared) -> None:
    toy = declared(TABLES, bench(tokens="['x' * 99999]"), bench(9.0, "['x' * 99998 + 'y']"))
    said = kvtrail(toy, "compare", "HEAD~1", "HEAD")
    assert (said.code, checks_of(said)["tokens"]["verdict"]) == (6, "differs")
    assert "and what follows" in said.text


def test_explain_says_of_a_comparison_whether_the_result_is_the_same(kvtrail, declared) -> None:
    toy = declared(TABLES, bench(), bench(9.0, "[]"))
    said = kvtrail(toy, "explain", "HEAD~1", "HEAD", "--traces", "0", "--compare")
    words = " ".join(said.text.split())
    assert re.search(r"step: faster, -\S+ % .* on .*, \d{4}-\d\d-\d\d, other result", words)
    assert "tokens: other result, [0] was [5, 7] and is missing in 6 of 6 lives" in words
    checks = said.record["results"]["effect"]["checks"]
    assert [one["verdict"] for one in checks] == ["differs", "same"]
    assert said.record["results"]["answer"][0] == f"tokens: {checks[0]['what']}"


def test_fixed_says_whether_the_result_is_back(kvtrail, declared) -> None:
    toy = declared(TABLES, bench(), bench(12.0, "[]"), bench(10.001))
    said = kvtrail(toy, "fixed", "HEAD~")
    assert said.code == 0
    checks = {name: one["verdict"] for name, one in checks_of(said).items() if "tokens" in name}
    assert list(checks.values()) == ["differs", "same", "differs"]
    assert ", same result" in said.text


def test_bisect_finds_the_first_commit_with_another_result(kvtrail, declared) -> None:
    texts = [bench(more={"n": number}) for number in range(6)]
    texts[2] = "raise SystemExit(1)"
    texts[4:] = [bench(tokens="[]", more={"n": number}) for number in (4, 5)]
    toy = declared(TABLES, *texts)
    said = kvtrail(toy, "bisect", "HEAD~5", "HEAD", "--check", "tokens")
    assert said.code == 3
    finding = said.record["results"]["finding"]
    assert finding["commit"] == toy.subject.resolve("HEAD~1").hash
    assert "first commit with another result: " in said.text
    assert "tokens: [0] was [5, 7] and is missing" in said.text
    same = kvtrail(toy, "bisect", "HEAD~5", "HEAD~2", "--check", "tokens")
    assert (same.code, same.record["results"]["finding"]["outcome"]) == (0, "none")
    with pytest.raises(NothingSelected, match="no check is called nope; there is tokens, score"):
        kvtrail(toy, "bisect", "HEAD~5", "HEAD", "--check", "nope")


def test_what_differs_from_life_to_life_has_no_first_commit(kvtrail, declared) -> None:
    toy = declared(TABLES, *[bench(tokens="[random.random()]", step=number) for number in (5, 6)])
    said = kvtrail(toy, "bisect", "HEAD~1", "HEAD", "--check", "tokens")
    assert said.code == 4
    assert "inconclusive: the good end gives different results: [0] was 0." in said.text


def test_bisect_finds_where_a_number_got_worse(kvtrail, declared) -> None:
    texts = [bench(score=0.52 if number < 2 else 0.49, more={"n": number}) for number in range(4)]
    toy = declared(TABLES, *texts)
    said = kvtrail(toy, "bisect", "HEAD~3", "HEAD", "--check", "score")
    assert said.code == 3
    assert "first commit with worse score: " in said.text
    assert "1 % of score stands for its tolerance, 0.01" in said.text


def test_a_history_says_where_the_result_changes_and_keeps_numbers(kvtrail, declared) -> None:
    texts = [bench(), bench(more={"n": 1}), bench(tokens="[]", score=0.4)]
    toy = declared(TABLES, *texts, bench(tokens="[random.random()]"))
    first = toy.git("rev-list", "--max-parents=0", "HEAD").strip()
    said = kvtrail(toy, "history", f"{first}..HEAD~2", "--rounds", "2")
    assert "another result" not in said.text
    said = kvtrail(toy, "history", f"{first}..HEAD", "--rounds", "2")
    hashes = [one[:8] for one in toy.git("rev-list", "--reverse", "HEAD").split()][-4:]
    assert f"tokens: another result from {hashes[2]} on, [0] was [5, 7] and is missing" in said.text
    assert f"tokens: unstable result at {hashes[3]}, [0] was 0." in said.text
    samples = said.record["samples"]
    stored = {one["commit"][:8]: one["samples"] for one in samples if "score" in one["series"]}
    assert stored[hashes[2]] == pytest.approx([0.4, 0.4], abs=0.002)
    assert not [one for one in samples if "tokens" in one["series"]]
