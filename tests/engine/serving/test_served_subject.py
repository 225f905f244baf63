"""The served workloads of kvtrail's own suite: their client, their servers and their files."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from served import ROOT

from asv_bench.subjects.declared import DeclaredSubject

SUBJECT = ROOT / "reports" / "subjects" / "served"
FILES = ("kvtrail.toml", "qwen3-8b.toml")
FIGURES = {"ttft_ms", "ttft_p99_ms", "itl_ms", "itl_p99_ms", "goodput", "tokens_per_s"}


@pytest.fixture(scope="module")
def client():
    return SimpleNamespace(**runpy.run_path(str(SUBJECT / "client.py")))


def told(count):
    """An event after so many tokens, as a chunk of a body."""
    event = f"data: {json.dumps({'choices': [], 'usage': {'completion_tokens': count}})}\n\n"
    return f"{len(event):x}\r\n{event}\r\n".encode()


def test_tokens_are_timed_when_they_come_and_not_by_the_event(client):
    """Two of one event came at once; an event in two pieces came with the second."""
    whole = told(4)
    pieces = [
        (10.5, b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + told(1)),
        (10.7, told(3) + whole[:20]),
        (10.8, whole[20:] + told(4) + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"),
    ]
    answer = client.Answer(10.0, pieces)
    assert answer.token_times() == [10.5, 10.7, 10.7, 10.8]
    found = client.figures([answer], 4, ttft_limit=600, itl_limit=101)
    assert found == pytest.approx(
        {
            **dict.fromkeys(("ttft_ms", "ttft_mean_ms", "ttft_p99_ms"), 500.0),
            **{"itl_ms": 100.0, "itl_mean_ms": 100.0, "itl_p99_ms": 200.0},
            **{"tokens_per_s": 5.0, "goodput": 1.25, "requests": 1},
        }
    )


@pytest.mark.parametrize("limits", [(499, 101), (600, 99)])
def test_goodput_has_the_requests_that_came_in_time(client, limits):
    """Also where none did: a figure of 0 could not be compared."""
    answer = client.Answer(0.0, [(0.5, told(1)), (0.6, told(2))])
    assert client.figures([answer], 2, *limits)["goodput"] == pytest.approx(0.5 / 0.6)
    late = client.Answer(0.0, [(0.9, told(1)), (1.5, told(2))])
    # Of two, one a second and a half.
    assert client.figures([answer, late], 2, 501, 101)["goodput"] == pytest.approx(1 / 1.5)


def test_tokens_that_come_at_once_have_a_gap_that_can_be_compared(client):
    answer = client.Answer(0.0, [(0.5, told(4))])
    found = client.figures([answer], 4, 1e9, 1e9)
    assert [found[name] for name in ("itl_ms", "itl_mean_ms", "itl_p99_ms")] == [1e-3] * 3


def test_an_answer_without_all_of_its_tokens_is_no_figure(client):
    answer = client.Answer(0.0, [(0.5, told(1))])
    with pytest.raises(ValueError, match="got 1 tokens where 2"):
        client.figures([answer], 2, 1e9, 1e9)
    failed = client.Answer(0.0, [(0.5, told(1)), (0.6, b'data: {"error": {"code": 500}}\n')])
    with pytest.raises(ValueError, match="500"):
        client.figures([failed], 2, 1e9, 1e9)
    uncounted = client.Answer(0.0, [(0.5, b'data: {"choices": [], "usage": null}\n')])
    with pytest.raises(ValueError, match="lack usage"):
        client.figures([uncounted], 2, 1e9, 1e9)


def ask(port, *options, **variables):
    return subprocess.run(
        [sys.executable, str(SUBJECT / "client.py"), *options],
        env=os.environ | {"KVTRAIL_PORT": str(port)} | variables,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_client_asks_the_server(served, tmp_path):
    result = tmp_path / "result.json"
    options = ("--model", "tiny", "--prompt", "8", "--new", "5")
    done = ask(
        *(served.port, *options, "--concurrency", "3", "--requests", "7"),
        *("--ttft-limit", "1e9", "--itl-limit", "1e9"),
        KVTRAIL_RESULT=str(result),
    )
    assert done.returncode == 0, done.stderr
    written = json.loads(result.read_text())
    assert json.loads(done.stdout) == written
    assert written["requests"] == 7
    assert written.keys() >= FIGURES
    assert all(value > 0 for value in written.values())
    assert written["tokens_per_s"] == pytest.approx(5 * written["goodput"])


def test_a_request_that_is_refused_is_a_sentence(served):
    done = ask(served.port, "--model", "other", "--prompt", "8")
    assert done.returncode == 1
    assert done.stderr.startswith("error: the server refused a request: HTTP/1.1 404")
    nobody = ask(1)
    assert (nobody.returncode, nobody.stderr[:7]) == (1, "error: ")


def become(folder, label, **variables):
    """What server.py starts in a folder for a label: its words, or how it ended."""
    python = folder / "python"
    python.write_text('#!/bin/sh\necho "$PWD" "$@"\n')
    python.chmod(0o755)
    command = [sys.executable, str(folder / "server.py"), "tiny", "--dtype", "float32"]
    return subprocess.run(
        [*command, "--length", "128", "--batch", "9", "--threads", "1"],
        cwd=folder,
        env={"KVTRAIL_LABEL": label, "KVTRAIL_PORT": "7", "PATH": f"{folder}:/usr/bin:/bin"}
        | variables,
        capture_output=True,
        text=True,
    )


def test_a_commit_or_a_label_is_served(tmp_path):
    (tmp_path / "server.py").write_text((SUBJECT / "server.py").read_text())
    lacking = become(tmp_path, "0123abc")
    assert lacking.returncode == 125
    (tmp_path / "engine" / "serving").mkdir(parents=True)
    same = "--dtype float32 --max-model-len 128 --port 7 --served-model-name served"
    own = f"{same} --max-batch-size 9 --threads 1\n"
    assert become(tmp_path, "0123abc").stdout == f"{tmp_path} -m engine.serving random:tiny {own}"
    model = tmp_path / "model" / "tiny-float32"
    model.mkdir(parents=True)
    assert become(tmp_path, "kvtrail").stdout == f"{tmp_path} -m engine.serving {model} {own}"
    other = become(tmp_path, "vllm", VLLM_PYTHON=str(tmp_path / "python")).stdout
    assert other.startswith(f"/ -P -m vllm.entrypoints.openai.api_server --model {model} {same}")
    assert other.endswith("--max-num-seqs 9\n")


def test_labels_load_a_checkpoint_that_is_written_once(tmp_path):
    (tmp_path / "engine" / "serving").mkdir(parents=True)
    text = (SUBJECT / "server.py").read_text()
    (tmp_path / "server.py").write_text(text)
    script = Path(tmp_path, "server.py")
    command = [sys.executable, str(script), "qwen3-tiny", "--dtype", "float32"]
    (tmp_path / "python").write_text("#!/bin/sh\n")
    (tmp_path / "python").chmod(0o755)
    variables = {"KVTRAIL_LABEL": "kvtrail", "KVTRAIL_PORT": "7", "KVTRAIL_TREE": str(ROOT)}
    subprocess.run(
        [*command, "--length", "9", "--batch", "1"],
        cwd=tmp_path,
        env=os.environ | variables | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        check=True,
    )
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
        path.name for path in (tmp_path / "model" / "qwen3-tiny-float32").iterdir()
    }
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["qwen3-tiny-float32"]


@pytest.mark.parametrize("name", FILES)
def test_a_file_asks_at_four_points_and_reads_what_the_client_leaves(name):
    subject = DeclaredSubject.of_file(SUBJECT / name)
    points = ("c1", "c8", "c64", "c256")
    assert {metric.name for metric in subject.metrics} == {
        f"{figure}@{point}" for figure in FIGURES for point in points
    }
    assert subject.repository == ROOT
    labels = DeclaredSubject.of_file(SUBJECT / name, "labels")
    assert list(labels.labels) == ["kvtrail", "vllm"]
