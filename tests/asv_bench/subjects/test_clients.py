"""What clients leave: figures of presets, requests that failed, and files that are none."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from declared_repository import DeclaredRepository
from measured_rounds import one_life
from mutated_files import altered, mutants_of

from asv_bench.errors import BenchError
from asv_bench.measure.processes import Ended, LifeFailed, Processes
from asv_bench.measure.samples import CommitUnusable, Reading, SampleFailed
from asv_bench.subjects.presets import PRESETS

CLIENTS = [name for name, one in PRESETS.items() if one.requests]
WINDOWS = 3


class Client:
    """Lives whose client leaves what it is told, each time that it runs; see `runs`."""

    def __init__(self, folder: Path, preset: str, metrics: str = "") -> None:
        self._subject = DeclaredRepository.make(
            folder / "toy",
            f"""
            [subject]
            name = "toy"

            [server]
            start = "serve"
            ready = {{ regex = "serving" }}

            [client]
            run = "ask"
            windows = {WINDOWS}
            preset = "{preset}"
            {metrics}
            """,
            "",
        ).subject
        self._left: Iterator[tuple[bytes, str]] = iter(())

    @contextmanager
    def started(self, *_: Any) -> Iterator[Mock]:
        """A server that is ready and serves."""
        serving = Mock(begun=0.0, code=None, peak_rss_bytes=2**20, process=os.getpid(), by_rank={})
        serving.has_ended.return_value, serving.text.return_value = False, "serving"
        serving.memory_peaks.return_value = []
        yield serving

    def run(self, processes: Processes, job: Any, timeout_s: float) -> Ended:
        if job.command != "ask":
            raise LifeFailed("nothing but the client runs.")
        content, said = next(self._left)
        Path(job.variables["KVTRAIL_RESULT"]).write_bytes(content)
        return Ended(1.0, 2**20, said)

    def runs(self, *left: Any, said: str = "it said this") -> Mapping[str, Reading]:
        """The figures of one life, in whose last runs of the client it leaves these; JSON or bytes.

        The runs before those leave the first of them.
        """
        files = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in left]
        # A life that is not measured, and one that is, each with a warm-up.
        before = [files[0]] * (2 * (1 + WINDOWS) - len(files))
        self._left = ((one, said) for one in (*before, *files))
        with self._subject.pairs() as source:
            return one_life(source, self._subject.resolve("HEAD").hash)


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Client]:
    """A client of a preset, and of tables that come behind it."""

    def make(preset: str, metrics: str = "") -> Client:
        made = Client(tmp_path, preset, metrics)
        monkeypatch.setattr(Processes, "run", lambda *given: made.run(*given))
        monkeypatch.setattr(Processes, "started", made.started)
        return made

    return make


VLLM = {
    "duration": 57.1, "completed": 200, "failed": 0, "num_prompts": 200, "request_rate": "inf",
    "median_ttft_ms": 20.5, "median_tpot_ms": 7.5, "median_itl_ms": 7.4, "p99_itl_ms": 9.0,
    "p99_ttft_ms": 41.0, "p99_tpot_ms": 9.5, "median_e2el_ms": 980.0, "p99_e2el_ms": 1210.0,
    "request_throughput": 3.5, "output_throughput": 450.0, "request_goodput": None, "rtfx": 0.0,
}  # fmt: skip
TIMES = {
    "total": {"mean": 1.7, "median": 1.8},
    "successful": {"mean": 1.5, "median": 1.0, "percentiles": {"p95": 1.8, "p99": 2.0}},
}
NAMES = (
    *("time_to_first_token_ms", "time_per_output_token_ms", "inter_token_latency_ms"),
    *("requests_per_second", "output_tokens_per_second", "request_latency"),
)
TOTALS = {"successful": 200, "errored": 0, "incomplete": 3, "total": 203}
ERROR = {"error_details": {"code": 500, "type": "Internal Server Error"}, "count": 2}
RESULTS: dict[str, Any] = {
    "vllm-bench": VLLM,
    # Whose default rate is written as Infinity.
    "sglang-bench": {
        **{key: value for key, value in VLLM.items() if key not in ("failed", "num_prompts")},
        **{f"{one}_e2e_latency_ms": 980.0 for one in ("median", "p99")},
        "request_rate": float("inf"),
    },
    "guidellm": {
        "benchmarks": [{"metrics": {"request_totals": TOTALS, **dict.fromkeys(NAMES, TIMES)}}]
    },
    "aiperf": {
        "error_summary": [],
        **{"request_count": {"avg": 200.0}, "error_request_count": {"avg": 0.0}},
        "time_to_first_token": {"unit": "ms", "avg": 21.0, "p50": 20.0, "p99": 41.0},
        "inter_token_latency": {"unit": "ms", "avg": 7.0, "p50": 6.9, "p99": 9.1},
        "request_latency": {"unit": "ms", "avg": 990.0, "p50": 980.0, "p99": 1210.0},
        **{"request_throughput": {"avg": 3.0}, "output_token_throughput": {"avg": 400.0}},
    },
}


GUIDED = "benchmarks.0.metrics.request_totals.errored"
LOST = "1 requests were completed in window 2, and 200 in another: it said this"


@pytest.mark.parametrize("preset", CLIENTS)
def test_the_figures_of_known_clients_are_found(client: Callable[..., Client], preset: str) -> None:
    readings = client(preset).runs(RESULTS[preset])
    assert set(readings) == set(PRESETS[preset].metrics)
    assert all(len(one.samples) == WINDOWS for one in readings.values())


@pytest.mark.parametrize(
    ("preset", "values", "words"),
    [
        ("vllm-bench", {"failed": None, "completed": 2}, "198 of 200 requests failed in"),
        ("vllm-bench", {"errors": ["", "refused", "refused"]}, "2 of 202 requests failed"),
        ("vllm-bench", {"completed": 0}, "0 requests were completed in"),
        ("vllm-bench", {"failed": "x"}, "'x' is no count of requests"),
        ("sglang-bench", {"errors": [""] * 3 + ["refused"]}, "1 of 201 requests failed in"),
        ("sglang-bench", {"completed": 1}, LOST),
        ("guidellm", {GUIDED: 98}, "98 of 298 requests failed in"),
        ("guidellm", {"benchmarks.0.run_stats": {"requests_made": {"errored": 1}}}, ""),
        ("aiperf", {"error_request_count.avg": 98.0}, "98 of 298 requests failed"),
        ("aiperf", {"error_summary": [ERROR], "error_request_count": None}, "1 of 201 requests"),
    ],
)
def test_requests_that_failed_are_no_figure(
    client: Callable[..., Client], preset: str, values: dict[str, Any], words: str
) -> None:
    made, good = client(preset), RESULTS[preset]
    left = good
    for path, value in values.items():
        keys = [int(key) if key.isdecimal() else key for key in path.split(".")]
        left = altered(left, keys, value)
    if not words:
        assert made.runs(good, left, good)
        return
    with pytest.raises(SampleFailed, match=words.replace("failed in", "failed in window 2: it")):
        made.runs(good, left, good)
    if "in another" not in words:
        with pytest.raises(CommitUnusable, match=words.replace("failed in", "failed in the warm")):
            made.runs(left)


def test_a_client_that_prints_how_many_it_asks_is_believed(client: Callable[..., Client]) -> None:
    said = "benchmark_args=Namespace(backend='sglang', num_prompts=250, seed=1)"
    with pytest.raises(CommitUnusable, match="50 of 250 requests failed in the warm-up"):
        client("sglang-bench").runs(RESULTS["sglang-bench"], said=said)


OWN = """
            [metrics.own]
            path = "own"
            [metrics.other]
            path = "other"
"""


@pytest.mark.parametrize(
    ("left", "words"),
    [
        ({"other": 1}, "in window 2 its JSON has no own"),
        ({"own": [], "other": 1}, "in window 2 its JSON has no own"),
        *(
            ({"own": value, "other": 1}, f"in window 2 it gave {shown}")
            for value, shown in [
                *((0, "0"), (-1.5, "-1.5"), (float("nan"), "nan"), (float("inf"), "inf")),
                *((None, "null"), ("5_0", "'5_0'"), ([1, 0], "0"), (True, "true")),
                *((10**400, "10000"), (1e-320, "1e-320"), ("nan", "'nan'"), ({}, "{}")),
            ]
        ),
        pytest.param(b"[" * 100_000, "in window 2 what it left .* nested too deeply", id="deep"),
        (b'{"own": 1, "oth', "in window 2 what it left .* is no JSON"),
        (b"\xff\xfe", "in window 2 (what|its)"),
        (b"", "in window 2 what it left .* is empty"),
    ],
)
def test_a_window_without_a_figure_is_told(
    client: Callable[..., Client], left: Any, words: str
) -> None:
    made, good = client("", OWN), {"own": 1.0, "other": 2.0}
    with pytest.raises(SampleFailed, match=words):
        made.runs(good, left, good)


def test_results_of_a_server_are_those_of_all_its_windows(client: Callable[..., Client]) -> None:
    made = client("", f'{OWN}\n[check.tokens]\npath = "tokens"')
    told = [{"own": 1, "other": 2, "tokens": tokens} for tokens in ("ab", "ab", "ac")]
    assert made.runs(*told)["tokens"].results == ('"ab"', '"ab"', '"ac"')


def test_an_empty_match_is_no_figure(client: Callable[..., Client]) -> None:
    made = client("", "[metrics.own]\n            regex = 'own: ([0-9.]*)'")
    with pytest.raises(CommitUnusable, match="it gave '', and only positive"):
        made.runs({}, said="own: 1.5\nown: none")


@pytest.mark.parametrize(
    ("path", "left", "value"),
    [
        ("a.b", {"a.b": 1, "a": {"b": 2}}, 1),
        ("a.b.c", {"a.b": {"d": 1}, "a": {"b": {"c": 2}}}, 2),
        ("a.0.b.c", {"a": [{"b": 5, "b.c": 3}]}, 3),
        ("own", b'{"own": 1}\n{"text": "\xff\xe2\x80\xa8", "own": 2}\r\n', 2),
        ("own", b'\xef\xbb\xbf{"own": 1}\n\xef\xbb\xbf{"own": 2}', 2),
        ("own", '{"own": 2}'.encode("utf-16"), 2),
        ("own", {"own": " 2.5e0 "}, 2.5),
    ],
)
def test_a_figure_is_found_where_others_stand_beside_it(
    client: Callable[..., Client], path: str, left: Any, value: float
) -> None:
    readings = client("", f'[metrics.own]\n            path = "{path}"').runs(left)
    assert readings["own"].samples == (value,) * WINDOWS


@pytest.mark.parametrize("count", [4, pytest.param(130, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("preset", CLIENTS)
def test_an_altered_result_gives_a_sentence_or_the_right_figure(
    client: Callable[..., Client], preset: str, count: int
) -> None:
    made, good = client(preset), RESULTS[preset]
    truth = {name: one.value for name, one in made.runs(good).items()}
    sentences = []
    for number, mutant in enumerate(mutants_of(json.dumps(good).encode(), count)):
        try:
            readings = made.runs(*([good, mutant] if number % 4 else [mutant]))
        except BenchError as error:
            sentences.append(str(error))
            continue
        assert {name: one.value for name, one in readings.items()}.items() <= truth.items(), mutant
    assert len(sentences) > count / 4
    assert all(one.endswith((".", "it said this")) and len(one) < 400 for one in sentences)
