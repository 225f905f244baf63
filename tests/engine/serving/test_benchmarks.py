"""Benchmarks that people use, asking the server: what they send, and what they read."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import pytest
from served import exchange

pytest.importorskip("uvicorn")


@pytest.mark.parametrize("is_chat", [False, True])
def test_the_requests_of_vllms_benchmark(served, is_chat):
    """As `vllm bench serve` builds and reads them, whose own package is too large to install."""
    body = {"model": "tiny", "stream": True, "stream_options": {"include_usage": True}}
    body |= {"ignore_eos": True, "temperature": 0.0}
    if is_chat:
        content = [{"type": "text", "text": "the quick brown fox"}]
        body |= {"messages": [{"role": "user", "content": content}], "max_completion_tokens": 24}
    else:
        body |= {"prompt": "the fox", "repetition_penalty": 1.0, "max_tokens": 24, "logprobs": None}
    path = "/v1/chat/completions" if is_chat else "/v1/completions"

    async def ask():
        async with exchange(served, path, body) as made:
            return [event async for event in made.events()]

    *parts, last, done = asyncio.run(ask())
    assert done == "[DONE]"
    # A chunk has tokens or the usage; it tells of no choice where it has none.
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 24
    assert 1 <= len(parts) <= 24
    for part in parts:
        (choice,) = part["choices"]
        assert isinstance(choice["delta"]["content"] if is_chat else choice["text"], str)


@pytest.mark.thorough
def test_guidellm_measures_the_server(served, checkpoint, tmp_path):
    """Every request comes to its end, with as many tokens as GuideLLM asked for."""
    pytest.importorskip("guidellm")
    written = tmp_path / "guidellm.json"
    options = {
        "backend": f"kind=openai_http,target={served.url},model=tiny",
        "profile": "kind=concurrent,streams=4",
        "constraint": "kind=max_requests,count=24",
        "tokenizer": f"kind=hf_auto,model={checkpoint}",
        "data": "kind=synthetic_text,prompt_tokens=20,output_tokens=16",
        "output": f"kind=json,path={written}",
    }
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    command = [sys.executable, "-m", "guidellm", "run", *words, "--disable-progress"]
    subprocess.run(command, check=True, timeout=280)
    (benchmark,) = json.loads(written.read_text("utf-8"))["benchmarks"]
    told = benchmark["metrics"]
    assert told["request_totals"] == {"successful": 24, "errored": 0, "incomplete": 0, "total": 24}
    output = told["output_token_count"]["successful"]
    assert (output["min"], output["max"]) == (16, 16)
