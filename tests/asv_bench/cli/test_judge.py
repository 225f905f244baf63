"""`judge` says of files what `compare` says of lives, and refuses what does not compare."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from simulated_pairs import Answer

import record_schema
from asv_bench.errors import Refused

FILES = Path(__file__).parents[1] / "subjects" / "files"
VLLM = {
    "model_id": "Qwen/Qwen3-0.6B", "num_prompts": 200, "max_concurrency": 32, "completed": 200,
    "request_rate": "inf", "failed": 0, "total_input_tokens": 102_400,
}  # fmt: skip
Judge = Callable[..., Answer]


@pytest.fixture
def judge(invoke: Callable[..., Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Judge:
    """Judge files of a base and a head, by what each of them holds."""
    monkeypatch.chdir(tmp_path)

    def run(base: list[Any], head: list[Any], *options: str) -> Answer:
        names = []
        for side, contents in (("base", base), ("head", head)):
            for number, content in enumerate(contents):
                path = Path(f"{side}-{number}.json")
                text = content if isinstance(content, bytes) else json.dumps(content).encode()
                path.write_bytes(text)
                names.append(str(path))
        sides = names[: len(base)], names[len(base) :]
        return invoke(None, "judge", *sides[0], "--", *sides[1], *options)

    return run


def runs(count: int, effect: float = 0.0, scatter: float = 0.02, seed: int = 0) -> list[Any]:
    """Files of vLLM's client whose throughput differs by an effect."""
    draws = np.random.default_rng([seed, count, round(1000 * (1 + effect))]).normal(
        0, scatter, count
    )
    return [{**VLLM, "output_throughput": 500 * math.exp(draw) * (1 + effect)} for draw in draws]


def test_files_that_lie_apart_are_slower(judge: Judge) -> None:
    code, said, record = judge(runs(5), runs(5, -0.15), "--preset", "vllm-bench")
    assert code == 3
    assert "output_throughput: slower (-1" in said
    assert "5 + 5 files" in said
    assert "(2 in 1,000 comparisons without one would say so" in said
    assert "confidence where there are four files a side or more" in said
    _, said, _ = judge(runs(5), runs(5, -0.15), "--preset", "vllm-bench", "--format", "gab")
    assert '5 files a side", "better": "higher"' in said
    assert "were not measured in turns by kvtrail" in said
    assert "model 'Qwen/Qwen3-0.6B', number of requests 200, request rate 'inf'" in said
    content = msgspec.convert(record, record_schema.Record)
    assert content.command == "judge"
    assert record["results"]["exit_code"] == 3
    assert record["results"]["gate"].startswith("slower,inconclusive")
    (answer,) = content.results.comparisons
    told = answer.benchmark, answer.verdict, answer.unit
    assert told == ("output_throughput", "slower", "tokens/s")
    assert answer.files == [5, 5]
    assert answer.test == "ranks and Welch"
    assert answer.effect == pytest.approx(-0.15, abs=0.05)
    assert len(content.samples) == 10
    assert any("not measured in turns" in one for one in content.warnings)


def test_a_rise_of_what_should_be_high_is_faster(judge: Judge) -> None:
    metric = "tokens=output_throughput:tok/s:higher"
    assert judge(runs(6), runs(6, 0.3), "--metric", metric)[:1] == (0,)
    code, said, _ = judge(runs(6), runs(6, 0.3), "--metric", "tokens=output_throughput:tok/s")
    assert (code, "tokens: slower (+" in said) == (3, True)


@pytest.mark.parametrize(
    ("count", "level", "tenths"), [(3, "3.12 %", "31.2"), (4, "0.78 %", "7.81")]
)
def test_so_few_files_say_the_level_that_they_keep(
    judge: Judge, count: int, level: str, tenths: str
) -> None:
    code, said, record = judge(runs(count, scatter=0.005), runs(count, -0.3, 0.005))
    assert code == 3
    assert f"So few files keep a level of {level}, and no test keeps a lower one" in said
    assert f"({tenths} in 1,000 comparisons without one" in said
    assert record["settings"]["plan"]["alpha"] == 2 * 4.0**-count


def test_files_that_overlap_are_inconclusive_and_alike_ones_equivalent(judge: Judge) -> None:
    assert judge(runs(5), runs(5, seed=1))[0] == 4
    alike = runs(12, scatter=0.001), runs(12, scatter=0.001, seed=1)
    code, said, _ = judge(*alike, "--margin", "2")
    assert (code, "output_throughput: equivalent" in said) == (0, True)


def test_a_narrow_gap_of_few_files_says_what_is_missing(judge: Judge) -> None:
    base, head = ([{"own": one} for one in side] for side in ((10, 11, 12), (12.1, 13, 14)))
    code, said, _ = judge(base, head, "--metric", "own=own")
    assert code == 4
    assert "the two do not overlap, but after 3 files a side only a gap that is wide" in said


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"model_id": "other"}, "is of another model than base-0.json: 'other' in place of 'Qwen"),
        ({"max_concurrency": 64}, "of another concurrency than base-0.json: 64 in place of 32"),
        ({"max_concurrency": None}, "of another concurrency than base-0.json: null in place"),
        ({"request_rate": 4.0}, "of another request rate than"),
        ({"num_prompts": 400, "completed": 400}, "of another number of requests than"),
        ({"total_input_tokens": 120_000}, "of another number of prompt tokens than"),
        ({"completed": 150}, "another number of completed requests than base-0.json: 150 in place"),
        ({"gpu": "H200"}, "is of another GPU than base-0.json: 'H200' in place of 'H100'"),
        ({"failed": 2, "completed": 198}, "another share of failed requests than base-0.json: 1.0"),
        ({"failed": "x"}, "head-2.json: 'x' is no count of requests"),
    ],
)
def test_files_of_unlike_cells_are_refused(
    judge: Judge, changed: dict[str, Any], words: str
) -> None:
    base, head = ([{"gpu": "H100", **one} for one in runs(3, effect)] for effect in (0, 0.1))
    with pytest.raises(Refused, match=words):
        judge(base, [*head[:2], {**head[2], **changed}])


def test_what_every_file_says_alike_is_no_reason_to_refuse(judge: Judge) -> None:
    failed = {"failed": 2, "completed": 198, "total_input_tokens": 101_000}
    base, head = ([{**one, **failed} for one in runs(3, effect)] for effect in (0, -0.4))
    head[0]["total_input_tokens"] = 103_000
    code, said, _ = judge(base, head)
    assert code == 3
    assert "In every file 1.0 % of the requests failed" in said
    assert "do not say on which machine or GPU" in said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--metric own=own a.json b.json c.json", "judge needs two sides"),
        ("--metric own=own a.json -- b.json -- c.json", "judge needs two sides"),
        ("--metric own=own a.json b.json -- c.json d.json e.json", "2 and 3 files are too few"),
        ("--metric own=own a.json a a -- b b b", "a.json is no file"),
        ("--preset nope a a a -- b b b", "--preset is 'nope'; there"),
        ("--metric nope a a a -- b b b", "--metric is 'nope'; it takes"),
    ],
)
def test_what_is_no_question_is_refused(
    invoke: Callable[..., Answer], words: str, sentence: str
) -> None:
    with pytest.raises(Refused, match=sentence):
        invoke(None, "judge", *words.split())


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({**runs(3)[0]}, "base-0.json and head-2.json hold the same"),
        (b"", "head-2.json is empty"),
        (b"[" * 100_000, "head-2.json is no JSON: it is nested too deeply"),
        (b'{"own": 1', "head-2.json is no JSON"),
    ],
)
def test_a_file_that_is_none_is_refused(judge: Judge, content: Any, sentence: str) -> None:
    with pytest.raises(Refused, match=sentence):
        judge(runs(3), [*runs(2, 0.1), content])


def test_files_that_nobody_knows_need_a_metric(judge: Judge) -> None:
    base, head = ([{"own": place + one} for one in range(3)] for place in (1, 100))
    with pytest.raises(Refused, match=r"no preset knows base-0.json; name a figure with --metric"):
        judge(base, head)
    code, said, _ = judge(base, head, "--metric", "other=other")
    assert (code, "base-0.json: its JSON has no other." in said) == (5, True)
    code, said, _ = judge(base, [*head[:2], {"other": 1}], "--metric", "own=own")
    assert (code, "head-2.json: its JSON has no own." in said) == (1, True)


@pytest.mark.parametrize("preset", sorted(path.stem for path in FILES.glob("*.json")))
def test_the_program_that_wrote_a_file_is_known(judge: Judge, preset: str) -> None:
    content = (FILES / f"{preset}.json").read_bytes()
    noted = [content.replace(b"{", b'{"note": %d, ' % number, 1) for number in range(6)]
    _, _, record = judge(noted[:3], noted[3:])
    assert record["settings"]["preset"] == preset
    found = {one["benchmark"]: one["verdict"] for one in record["results"]["comparisons"]}
    assert len(found) >= 2
    assert set(found.values()) <= {"equivalent", "failed"}


def test_a_client_says_of_its_cell_what_its_files_hold(judge: Judge) -> None:
    written = json.loads((FILES / "aiperf.json").read_text())
    noted = [{**written, "note": number} for number in range(6)]
    assert judge(noted[:3], noted[3:])[2]["settings"]["cell"] == {
        "model": "m",
        "number of requests": "20",
        "kind of load": "concurrency",
        "concurrency": "2",
        "number of prompt tokens": 20.0,
        "number of output tokens": 8.0,
        "number of completed requests": 20.0,
    }
    (phase,) = written["input_config"]["phases"]
    more = {"models": written["input_config"]["models"], "phases": [{**phase, "concurrency": 4}]}
    with pytest.raises(Refused, match=r"of another concurrency than base-0.json: '4' in place of"):
        judge(noted[:3], [*noted[3:5], {**written, "input_config": more}])


def test_the_page_repeats_the_command_wherever_options_stood(judge: Judge, tmp_path: Path) -> None:
    judge(runs(3), runs(3, -0.4), "--markdown", "page.md", "--margin", "5", "--csv", "table.csv")
    page = (tmp_path / "page.md").read_text()
    files = [" ".join(f"{side}-{one}.json" for one in range(3)) for side in ("base", "head")]
    assert f"kvtrail judge --margin=5 {files[0]} -- {files[1]}\n" in page
    assert "| output\\_throughput | slower |" in page or "| output_throughput | slower |" in page
    assert "not measured in turns" in page
    assert (tmp_path / "table.csv").read_text().startswith("benchmark,verdict,effect")
