"""What a server refuses, and in which words: bad bodies, fields, places and keys."""

from __future__ import annotations

import json
import random
import socket
from collections import Counter

import pytest
from served import served_here

from engine.serving.bodies import ChatBody, CompletionBody

pytest.importorskip("uvicorn")

BODY = {"model": "tiny", "prompt": "the fox", "temperature": 0, "ignore_eos": True}
MESSAGES = [{"role": "user", "content": "the fox"}]


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"", 400, "no JSON"),
        (b'{"prompt": "x"', 400, "no JSON"),
        (b"\xff\xfe", 400, "no JSON"),
        (b'{"prompt": ' + b"[" * 100_000, 400, "nested too deep"),
        (b"[]", 422, "does not fit"),
        (b"{}", 422, "prompt"),
        (b'{"prompt": null}', 422, "prompt must be"),
        (b'{"prompt": "\\ud800"}', 400, "no JSON"),
        (b'{"prompt": "x", "n": 1000}', 400, "n is 1000"),
        (b'{"prompt": "x", "max_tokens": 1e3}', 422, "max_tokens"),
        (b'{"prompt": [1, true]}', 422, "prompt must be"),
        (b'{"prompt": [-1]}', 400, "not in the vocabulary"),
        (b'{"prompt": [99999999999999999999]}', 400, "vocabulary"),
        (b'{"prompt": []}', 400, "empty"),
        (b'{"prompt": "x", "temperature": 1e400}', 400, "out of range"),
        (b'{"prompt": "x", "prompt_logprobs": 0}', 400, "prompt_logprobs is not served"),
    ],
    ids=lambda one: repr(one)[:40],
)
def test_bad_bodies_are_refused_in_openais_shape(served, body, status, said):
    got, told, _ = served.post("/v1/completions", body)
    assert (got, set(told["error"])) == (status, {"message", "type", "param", "code"})
    assert said in told["error"]["message"]


@pytest.mark.parametrize(
    ("path", "fields", "param", "said"),
    [
        ("completions", {"n": 0}, "n", "n is 0"),
        ("completions", {"min_tokens": -1}, "min_tokens", "min_tokens is -1"),
        ("completions", {"max_tokens": 10**6}, None, "lower max_tokens"),
        ("completions", {"top_k": 2**31}, "top_k", "below 2**31"),
        ("chat/completions", {"max_tokens": -1}, "max_tokens", "max_tokens is -1"),
        (
            *("chat/completions", {"max_completion_tokens": -1}),
            *("max_completion_tokens", "max_completion_tokens is -1"),
        ),
        (
            *("chat/completions", {"max_completion_tokens": 10**6}),
            *(None, "lower max_completion_tokens"),
        ),
        (
            *("chat/completions", {"logprobs": True, "top_logprobs": 21}),
            *("top_logprobs", "top_logprobs is 21"),
        ),
        ("chat/completions", {"prompt_logprobs": 1}, "prompt_logprobs", "is not served"),
        ("chat/completions", {"tool_choice": "required"}, "tool_choice", "there are none"),
    ],
)
def test_a_refusal_names_the_field_as_the_client_does(served, path, fields, param, said):
    asked = {"prompt": "x"} if path == "completions" else {"messages": MESSAGES}
    status, told, _ = served.post(f"/v1/{path}", {**asked, **fields})
    assert (status, told["error"]["param"]) == (400, param)
    assert said in told["error"]["message"]


@pytest.mark.parametrize("name", ["messages", "template", "self", "tools", "add_generation_prompt"])
def test_variables_of_a_template_may_have_any_name(served, name):
    body = {"messages": MESSAGES, "max_tokens": 2}
    _, usual, _ = served.post("/v1/chat/completions", body)
    body["chat_template_kwargs"] = {name: False}
    status, told, _ = served.post("/v1/chat/completions", body)
    assert status == 200
    is_shorter = told["usage"]["prompt_tokens"] < usual["usage"]["prompt_tokens"]
    assert is_shorter == (name == "add_generation_prompt")


@pytest.mark.parametrize("seed", range(4))
def test_no_body_is_the_servers_fault(served, seed):
    """Fields of any type and value are answered, or refused in words."""
    chance = random.Random(seed)
    kinds = {"/v1/completions": CompletionBody, "/v1/chat/completions": ChatBody}
    values = [None, True, 0, -1, 1, 2, 1.5, -0.1, 1e400, 2**63, "", "x", "0", [], [1], ["x"], [[1]]]
    values += [{}, {"type": "text"}, {"include_usage": True}, [{"role": "user", "content": "x"}]]
    values += [[{"role": "user"}], [{"role": 1}], [[]], [1, "x"], [-1], [2**40], "<|im_start|>"]
    statuses = Counter()
    for _ in range(120):
        path, kind = chance.choice([*kinds.items()])
        body = {"max_tokens": 2, "prompt": "x", "messages": [{"role": "user", "content": "x"}]}
        for name in chance.sample(kind.__struct_fields__, k=chance.randint(1, 3)):
            body[name] = chance.choice(values)
        if body.get("stream") is True:
            continue
        if body["max_tokens"] is None or body.get("max_completion_tokens", 1) is None:
            continue
        data = json.dumps(body).encode()
        status, told, _ = served.post(path, data)
        assert status in (200, 400, 404, 422), (data, told)
        assert status == 200 or told["error"]["message"].endswith((".", "?")), told
        statuses[status] += 1
    assert min(statuses[200], statuses[400], statuses[422]) > 0


def test_a_body_that_is_too_long_is_refused_before_it_is_read(served):
    with socket.create_connection((served.host, served.port)) as connection:
        length = 33 << 20
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % length
        )
        sent, piece = 0, b" " * (1 << 20)
        try:
            while sent < length:
                connection.sendall(piece)
                sent += len(piece)
        except OSError:
            pass
        assert connection.recv(64).startswith(b"HTTP/1.1 413 ")


def test_unknown_places_and_methods_are_refused(served):
    status, told, _ = served.post("/v1/embeddings", {})
    assert (status, told["error"]["type"]) == (404, "not_found_error")
    status, told, headers = served.post("/health", {})
    assert (status, told["error"]["type"]) == (405, "invalid_request_error")
    assert set(headers["Allow"].split(", ")) == {"GET", "HEAD"}


def test_a_key_is_asked_for_where_there_is_one(checkpoint):
    with served_here(checkpoint, served_model_name="tiny", api_key="sëcret") as served:
        served.wait_until_ready()
        body = {**BODY, "max_tokens": 2}
        assert served.post("/v1/completions", body)[0] == 401
        wrong = {"Authorization": "Bearer other"}
        assert served.post("/v1/completions", body, wrong)[0] == 401
        right = {"Authorization": "Bearer sëcret".encode().decode("latin-1")}
        assert served.post("/v1/completions", body, right)[0] == 200
        right["Authorization"] = right["Authorization"].replace("Bearer", "bearer")
        assert served.post("/v1/completions", body, right)[0] == 200
        bare = {"Authorization": right["Authorization"].removeprefix("bearer ")}
        assert served.post("/v1/completions", body, bare)[0] == 401
        assert json.loads(served.get("/health")) == {"status": "ok"}
        assert served.metrics()["requests_running"] == 0
