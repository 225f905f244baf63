"""The two ways to type the command have the same options and start the same server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import fields

import pytest
from served import ROOT

from asv_bench.cli.commands import build_app
from asv_bench.errors import Refused
from engine.serving.options import ServerOptions, read_options


@pytest.fixture
def handed_over(monkeypatch):
    """What `kvtrail serve` hands to the server: its words, and the variables."""

    def hand(*words):
        def execve(program, command, environment):
            start = command.index("engine.serving") + 1
            handed.append((command[start:], environment))

        handed = []
        monkeypatch.setattr(os, "execve", execve)
        build_app("serve")(["serve", *words], standalone_mode=False)
        return handed[0]

    return hand


def test_both_commands_have_the_same_options_and_defaults(handed_over):
    words, _ = handed_over("m")
    assert read_options(words) == read_options(["m"])
    assert {word.partition("=")[0] for word in words[:-2]} == {
        f"--{one.name.replace('_', '-')}"
        for one in fields(ServerOptions)[1:]
        if one.default is not None
    }


def test_words_are_read_back(handed_over):
    options = ("--port", "9", "--served-model-name=-x y", "--max-model-len", "7")
    options += ("--kv-cache-dtype", "fp8")
    words, variables = handed_over(*options, "--api-key", "k", "--", "-odd model")
    read = read_options(words)
    assert (read.model, read.name, read.port) == ("-odd model", "-x y", 9)
    assert read.engine_config().max_model_len == 7
    assert read.engine_config().kv_cache_dtype == "fp8"
    assert read.engine_config().mixed_prefill_tokens is None
    # A list of processes does not show it.
    assert read.api_key is None
    assert variables["KVTRAIL_API_KEY"] == "k"


def test_help_is_there_without_the_engine(tmp_path):
    """Torch takes seconds, and who measures their own repository has none."""
    (tmp_path / "torch.py").write_text("raise RuntimeError('imported')")
    command = [sys.executable, "-m", "asv_bench", "serve", "--help"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "COLUMNS": "200"}
    said = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    for one in fields(ServerOptions)[1:]:
        assert f"--{one.name.replace('_', '-')}" in said.stdout
        assert one.metadata["help"].split()[0] in said.stdout


def test_a_key_may_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("KVTRAIL_API_KEY", "kept")
    assert read_options(["m"]).api_key == "kept"
    assert read_options(["m", "--api-key", "given"]).api_key == "given"


def test_kvtrail_serve_serves_this_engine_anywhere(tmp_path):
    """A package of the same name, where the command is typed, is somebody else's."""
    pytest.importorskip("uvicorn")
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "__init__.py").write_text("raise RuntimeError('not this one')")
    command = [sys.executable, "-P", "-m", "asv_bench", "serve", "random:gpt2-tiny"]
    process = subprocess.Popen(
        [*command, "--port", "0", "--device", "cpu", "--max-model-len", "64"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        lines = []
        deadline = time.monotonic() + 120
        while not any("serving random:gpt2-tiny" in line for line in lines):
            assert time.monotonic() < deadline
            lines.append(process.stderr.readline())
            assert lines[-1], lines
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.stderr.close()
        process.wait()


def test_what_is_missing_is_named(monkeypatch):
    from asv_bench.cli import serve

    monkeypatch.setattr(serve, "find_spec", lambda name: None if name == "uvicorn" else name)
    with pytest.raises(Refused, match=r"needs uvicorn.*kvtrail\[serve\]"):
        serve.serve("m")
