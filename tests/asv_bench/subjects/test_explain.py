"""`explain` on a repository of one's own: planted causes in traces and in what a life runs with."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from declared_repository import DeclaredRepository, along, in_ms
from mutated_files import mutants_of
from toy_project import git

from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.explain.explaining import Explaining, why
from asv_bench.explain.trace import read_traces
from asv_bench.session.time_limit import whole_process
from asv_bench.subjects.declared import DeclaredSubject

TABLES = f"""{in_ms("step_ms")}
    [trace]
    run = "python bench.py --trace $KVTRAIL_TRACE"
    """
# Four steps of a model of two layers, as a device would run them.
BENCH = """
    import gzip, json, os, random, sys

    LAYER = [("gemm", 4, 20.0), ("attention", 1, 15.0), ("norm", 2, 5.0)]
    STEP, GAP = [("sample", 1, 8.0)], 1.0
    {change}

    def step(number, begin, events):
        at = begin
        for name, calls, each in 2 * LAYER + STEP:
            for _ in range(calls):
                us = each * random.gauss(1, 0.02)
                kind = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
                events.append(dict(ph="X", cat=kind, name=name, ts=at, dur=us, pid=0, tid=7))
                at += us + GAP * random.gauss(1, 0.02)
        mark = dict(name=f"ProfilerStep#{{number}}", ts=begin, dur=at - begin, pid=1, tid=1)
        events.append(dict(ph="X", cat="user_annotation", **mark))
        return at

    events, at = [], 0.0
    for number in range(4):
        at = step(number, at, events)
    if "--trace" in sys.argv:
        text = json.dumps(dict(traceEvents=events)).encode()
        with open(sys.argv[2], "wb") as file:
            file.write(gzip.compress(text))
    else:
        with open(os.environ["KVTRAIL_RESULT"], "w") as file:
            json.dump(dict(step_ms=at / 4000 * random.gauss(1, 0.001)), file)
    """


def repository(folder: Path, change: str, tables: str = TABLES) -> DeclaredRepository:
    """A repository whose second commit holds the change."""
    benches = [BENCH.format(change=one) for one in ("", change)]
    return DeclaredRepository.make(folder / "toy", tables, *benches)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ('LAYER.append(("relu", 1, 6.0))', "relu is launched 2 more times (0 → 2) a step"),
        (
            'STEP.append(("Memcpy DtoH (Device -> Pageable)", 1, 30.0))',
            "Memcpy DtoH (Device -> Pageable) is launched 1 more time (0 → 1) a step",
        ),
        ('LAYER[0] = ("gemm", 4, 25.0)', "A call of gemm takes"),
        ("GAP = 4.0", "Gaps between kernels and copies take"),
    ],
    ids=["operator", "copy", "slower kernel", "host loop"],
)
def test_a_planted_cause_is_named_first(kvtrail, tmp_path: Path, change: str, cause: str) -> None:
    made = repository(tmp_path, change)
    said = kvtrail(made, "explain", "HEAD~1", "HEAD", "--traces", "2")
    assert said.code == 0, said.text
    results = said.record["results"]
    assert results["causes"][0]["sentence"].startswith(cause), said.text
    assert results["explained"] == pytest.approx(1, abs=0.2)
    assert "bench.py (+1 -1)" in said.text
    assert "change 1 (Test)" in said.text


def test_a_variable_is_named_before_what_it_does(kvtrail, declared) -> None:
    tables = TABLES.replace("[metrics", 'env = { GEMM_WAYS = "$KVTRAIL_LABEL" }\n    [metrics')
    slower = 'LAYER[0] = ("gemm", 4, 10.0 * int(os.environ["GEMM_WAYS"]))'
    made = declared(tables + along("1", "2"), BENCH.format(change=slower))
    first, second = kvtrail(made, "explain", "1", "2").record["results"]["causes"][:2]
    assert first["sentence"] == "GEMM_WAYS is 2 in place of 1"
    assert second["name"] == "gemm"


def test_the_same_files_differ_in_nothing(kvtrail, tmp_path: Path) -> None:
    said = kvtrail(repository(tmp_path, ""), "explain", "HEAD~1", "HEAD")
    assert (said.code, said.record["results"]["causes"]) == (0, []), said.text
    assert "No cause was found. Looked at: files, variables, packages, 3 traces" in said.text


def test_the_change_is_that_of_a_comparison_and_the_page_holds_it_all(
    kvtrail, tmp_path: Path
) -> None:
    made = repository(tmp_path, 'LAYER[0] = ("gemm", 4, 25.0)')
    page = tmp_path / "page.md"
    said = kvtrail(made, "explain", "HEAD~1", "HEAD", "--compare", "--markdown", str(page))
    results = said.record["results"]
    assert results["effect"]["verdict"] == "slower", said.text
    assert results["effect"]["effect"] == pytest.approx(0.17, abs=0.03)
    assert results["explained"] == pytest.approx(1, abs=0.2)
    text = page.read_text("utf-8")
    assert text.startswith("### Why: step_ms: slower, +1")
    assert re.search(r"^1\. A call of gemm takes 2[45]", text, re.MULTILINE)
    assert text.index("1. A call of gemm") < text.index("| gemm") < text.index("Environment")
    # The record is found again, and refused for other commits.
    records = list((tmp_path / "runs").glob("compare-*.json"))
    again = kvtrail(made, "explain", "HEAD~1", "HEAD", "--traces", "0")
    assert again.record["results"]["effect"] == results["effect"]
    made.commit(BENCH.format(change="GAP = 2.0"), "wait longer")
    with pytest.raises(Refused, match="holds no comparison of"):
        kvtrail(made, "explain", "HEAD~1", "HEAD", "--record", str(records[0]))


def test_without_a_trace_or_with_a_broken_one_the_rest_is_told(kvtrail, tmp_path: Path) -> None:
    made = repository(tmp_path, "sys.exit('no profiler here') if sys.argv[1:] else None")
    said = kvtrail(made, "explain", "HEAD~1", "HEAD")
    assert said.code == 0
    assert "The traces are left out: the head gave no trace" in said.text
    assert "no profiler here" in said.text
    bare = TABLES.partition("[trace]")[0]
    without = repository(tmp_path / "bare", "", bare)
    said = kvtrail(without, "explain", "HEAD~1", "HEAD")
    assert "the subject declares none: [trace] run in kvtrail.toml" in said.text


def test_an_explanation_in_time_says_what_it_did_not_look_at(kvtrail, tmp_path: Path) -> None:
    made = repository(tmp_path, "import time; time.sleep(60 if sys.argv[1:] else 0)")
    said = kvtrail(made, "explain", "HEAD~1", "HEAD", "--minutes", "0.05")
    results = said.record["results"]
    assert (said.code, results["so_far"]) == (0, True)
    assert results["looked_at"] == ["files", "variables", "packages"]
    assert "Time is up (--minutes): what was not looked at is missing." in said.text


# The loop makes a Markup of each part, or of the whole; what it measures is how many it made.
MARKUP = """
    import json, os

    class Markup(str):
        made = 0
        def __new__(cls, text):
            for _ in range({rounds}):
                cls.made += 1
            return str.__new__(cls, text)

    def render(parts):
        {body}

    render(map(str, range(181)))
    with open(os.environ["KVTRAIL_RESULT"], "w") as file:
        noise = 1 + int.from_bytes(os.urandom(1), "big") / 1e5
        json.dump(dict(step_ms=Markup.made * noise), file)
    """
WHOLE, PARTS = 'return Markup("".join(parts))', 'return "".join([Markup(one) for one in parts])'
PLAIN = TABLES.partition("[trace]")[0]


def of_markup(folder: Path, *changes: dict[str, Any], tables: str = PLAIN) -> DeclaredRepository:
    benches = [MARKUP.format(**{"body": WHOLE, "rounds": 2000, **one}) for one in changes]
    return DeclaredRepository.make(folder / "toy", tables, *benches)


@pytest.mark.parametrize(
    "command",
    [(), ("--", "python", "bench.py"), ("--", "true && PYTHONPATH=. python bench.py")],
    ids=["measured", "compared", "line"],
)
def test_more_calls_of_a_function_are_named_first(kvtrail, tmp_path: Path, command) -> None:
    made = of_markup(tmp_path, {}, {"body": PARTS})
    said = kvtrail(made, "explain", "HEAD~1", "HEAD", *command)
    results = said.record["results"]
    assert "1. Markup.__new__ 1 → 181 calls a life: " in said.text, said.text
    assert sum(results["account"].values()) == pytest.approx(1)
    assert results["explained"] == pytest.approx(1, abs=0.3)
    assert "the subject declares none: [trace] run in kvtrail.toml" in said.text


def test_a_function_that_became_slower_is_named_without_more_calls(kvtrail, tmp_path: Path) -> None:
    made = of_markup(tmp_path, {"rounds": 20_000}, {"rounds": 2_000_000})
    said = kvtrail(made, "explain", "HEAD~1", "HEAD")
    cause = said.record["results"]["causes"][0]
    assert (cause["name"], cause["what"]) == ("Markup.__new__", "µs a call"), said.text
    assert cause["after"] > 5 * cause["before"]
    assert "% of the change as profiled, +" in said.text


@pytest.mark.thorough
@pytest.mark.parametrize("verb", ["compare", "bisect"])
def test_a_verdict_says_which_function_did_it(kvtrail, tmp_path: Path, verb: str) -> None:
    made, written = of_markup(tmp_path, {}, {"body": PARTS}), tmp_path / "written"
    git(made.root, "config", "filter.counted.smudge", f"echo >> {written}; cat")
    attributes = made.root / ".git" / "info" / "attributes"
    attributes.parent.mkdir()
    attributes.write_text("bench.py filter=counted\n")
    said = kvtrail(made, verb, "HEAD~1", "HEAD")
    why = said.record["results"]["why"]
    assert len(written.read_text()) == 2, "the files of each commit are written once"
    assert any("rofiled: Markup.__new__ 1 → 181 calls a life: " in line for line in why), said.text
    assert "kvtrail explain" in why[-1]


@pytest.mark.parametrize("verb", ["compare", "bisect"])
def test_a_verdict_looks_why_within_the_time_that_is_left(
    kvtrail,
    declared: Callable[..., DeclaredRepository],
    lives_in_process: None,
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
) -> None:
    made, left = declared(PLAIN, "step_ms = 1.0", "step_ms = 1.0 * 2"), []
    looking = "asv_bench.explain.explaining.why"
    monkeypatch.setattr(looking, lambda *_, seconds, **__: left.append(seconds) or ["Look."])
    for words in ((), ("--minutes", "60")):
        assert kvtrail(made, verb, "HEAD~1", "HEAD", "--fresh", *words).code in (0, 3)
    assert left[0] is None
    assert 0 < left[1] < 3600


def test_a_comparison_leaves_half_of_the_minutes_to_what_is_explained(
    kvtrail,
    declared: Callable[..., DeclaredRepository],
    lives_in_process: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, left = declared(PLAIN, "step_ms = 1.0", "step_ms = 1.0 * 2"), []
    monkeypatch.setattr(Explaining, "look", lambda one: left.append(one._how.limit.left()))
    # The command is ten minutes old.
    with whole_process(time.monotonic() - 600):
        kvtrail(made, "explain", "HEAD~1", "HEAD", "--compare", "--minutes", "60")
    assert 1800 < left[0] < 3000


def test_it_is_looked_at_the_ends_where_their_comparison_had_no_time(
    kvtrail,
    declared: Callable[..., DeclaredRepository],
    lives_in_process: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, looked = declared(PLAIN, "step_ms = 1.0", "step_ms = 1.0 * 2"), []
    monkeypatch.setattr(Explaining, "look", lambda one: looked.append(one))
    # The comparison's half of the minutes is over.
    with whole_process(time.monotonic() - 1860):
        said = kvtrail(made, "explain", "HEAD~1", "HEAD", "--compare", "--minutes", "60")
    assert (said.code, len(looked)) == (0, 1), said.text
    assert said.record["results"]["effect"] is None
    assert "The comparison ended without an answer." in said.text


def test_where_no_time_is_left_a_verdict_profiles_no_life(tmp_path: Path) -> None:
    made = of_markup(tmp_path, {}, {"body": PARTS})
    subject = DeclaredSubject.of_command(made.root, ["python", "bench.py"])
    with subject.lying():
        ends = [subject.resolve(name) for name in ("HEAD~1", "HEAD")]
        lines = why(subject, *ends, (), seconds=0.0)
    assert lines[0] == "1 file differs: bench.py (+1 -1)."
    assert lines[-1].startswith("Why: kvtrail explain ")
    assert not any("Profiled" in line for line in lines)


def test_functions_of_forks_count_and_the_users_own_sitecustomize_runs(
    kvtrail, tmp_path: Path
) -> None:
    tables = PLAIN.replace("[metrics", 'env = { PYTHONPATH = "$KVTRAIL_TREE" }\n    [metrics')
    body = "os.fork() or os._exit(len([Markup(one) for one in parts]) - COUNT); os.wait()"
    made = of_markup(tmp_path, {}, {"body": body}, tables=tables)
    made.change("own", {"sitecustomize.py": "import builtins\nbuiltins.COUNT = 181\n"})
    said = kvtrail(made, "explain", "HEAD~2", "HEAD", "--traces", "1")
    assert "Markup.__new__ 1 → 181 calls" in said.text, said.text


def test_a_command_that_starts_no_python_is_told_so(kvtrail, tmp_path: Path) -> None:
    made = of_markup(tmp_path, {}, {"body": PARTS})
    said = kvtrail(made, "explain", "HEAD~1", "HEAD", "--", "true")
    assert said.code == 0
    assert "the base gave no trace: no Python ran that could be profiled." in said.text
    assert "the subject declares none: [trace] run in kvtrail.toml" in said.text


def timed(**changed: Any) -> dict[str, Any]:
    event = {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1.0, "dur": 2.0, "pid": 0, "tid": 7}
    return {**event, **changed}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        *(
            (json.dumps({"traceEvents": [timed(), timed(**{key: value})]}).encode(), words)
            for key, value, words in [
                ("dur", float("nan"), "of its events with a duration: Expected `float` >= 0.0"),
                ("dur", 10**400, r"out of range - at `\$\[1\].dur`"),
                ("name", ["gemm"], r"got `array` - at `\$\[1\].name`"),
                ("pid", {}, r"at `\$\[1\].pid`"),
            ]
        ),
        pytest.param(b"[" * 100_000, "nested too deeply", id="deep"),
        (b"[3]", r"Expected `object`, got `int` - at `\$\[0\]`"),
        (b"{}", "it holds no list of events"),
        (b"\x1f\x8bhardly", "trace.json is no Chrome trace"),
        (json.dumps([timed(cat="python_function")]).encode(), "no kernel, copy or operator"),
        (json.dumps([timed(dur=0)]).encode(), "no event of the trace takes any time"),
    ],
)
def test_a_trace_that_is_none_is_a_sentence(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(MeasurementFailed, match=words):
        read_traces(path)


def test_no_altered_trace_makes_its_reader_stumble(tmp_path: Path) -> None:
    kinds = ("kernel", "cpu_op", "cuda_runtime", "user_annotation")
    events = [timed(cat=kind, ts=float(at), name=f"{kind}s") for at, kind in enumerate(kinds)]
    path = tmp_path / "trace.json"
    for mutant in mutants_of(json.dumps({"traceEvents": events}).encode(), 300):
        path.write_bytes(mutant)
        with contextlib.suppress(MeasurementFailed):
            assert 0 < sum(one.span_us for one in read_traces(path)) < 1e102
