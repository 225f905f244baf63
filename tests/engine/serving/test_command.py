"""The two ways to type the command have the same options and start the same server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import MISSING, fields

import pytest
from served import ROOT

from asv_bench.cli.serve import Serving
from asv_bench.errors import Refused
from engine.serving.options import ServerOptions, make_parser, read_options


def test_both_commands_have_the_same_options():
    theirs = {one.name: one for one in fields(Serving)}
    ours = {one.name: one for one in fields(ServerOptions)[1:]}
    assert [*theirs] == [*ours]
    hints = Serving.__annotations__
    for name, one in ours.items():
        assert theirs[name].default == one.default is not MISSING
        # Their helps are compared as text: both are Python, and neither imports the other.
        help_text = one.metadata["help"]
        assert help_text in hints[name].replace('"\n', ""), name
    parsed = make_parser().parse_args([*Serving().words(), "--", "m"])
    assert read_options(["m"]) == ServerOptions(**vars(parsed))


def test_words_are_read_back():
    given = Serving(port=9, served_model_name="-x y", max_model_len=7, api_key="k")
    read = read_options([*given.words(), "--", "-odd model"])
    assert (read.model, read.name, read.port) == ("-odd model", "-x y", 9)
    assert (read.max_model_len, read.api_key) == (7, "k")
    assert read.engine_config().max_model_len == 7


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
        serve.serve("m", options=Serving())
