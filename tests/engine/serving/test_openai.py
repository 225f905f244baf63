"""The server as OpenAI's own client sees it, over a socket."""

from __future__ import annotations

import asyncio
import codecs
import math
import re

import pytest

from engine import Engine, EngineConfig, SamplingParams

openai = pytest.importorskip("openai")
pytest.importorskip("uvicorn")

MESSAGES = [{"role": "user", "content": "the quick brown fox"}]


@pytest.fixture(scope="module")
def client(served):
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as one:
        yield one


@pytest.fixture(scope="module")
def engine(checkpoint):
    """What the server runs, without a server."""
    return Engine(EngineConfig(model=checkpoint, device="cpu"))


def _greedy(count, **options):
    return SamplingParams(max_new_tokens=count, **options)


def test_the_model_is_listed(client):
    (model,) = client.models.list()
    assert model.id == "tiny"
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError, match="this server has 'tiny'"):
        client.models.retrieve("other")


def test_a_completion_is_what_the_engine_generates(client, engine):
    made = client.completions.create(model="tiny", prompt="the fox", max_tokens=20, temperature=0)
    (expected,) = engine.generate(["the fox"], _greedy(20))
    (choice,) = made.choices
    assert (choice.text, choice.finish_reason) == (expected.text, expected.finish_reason)
    assert made.usage.prompt_tokens == len(expected.prompt_ids)
    assert made.usage.completion_tokens == len(expected.token_ids)
    assert made.usage.total_tokens == made.usage.prompt_tokens + made.usage.completion_tokens
    assert (made.object, made.model) == ("text_completion", "tiny")


def test_a_stream_brings_the_same_text(client, engine):
    chunks = list(
        client.completions.create(
            model="tiny",
            prompt="naïve 🦊",
            max_tokens=40,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    (expected,) = engine.generate(["naïve 🦊"], _greedy(40))
    *parts, last = chunks
    assert "".join(chunk.choices[0].text for chunk in parts) == expected.text
    assert [chunk.usage for chunk in parts] == [None] * len(parts)
    assert last.choices == []
    assert last.usage.completion_tokens == len(expected.token_ids)
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    reasons = [chunk.choices[0].finish_reason for chunk in parts]
    assert reasons == [None] * (len(parts) - 1) + [expected.finish_reason]


def test_a_chat_is_rendered_by_the_template(client, engine):
    expected = engine.chat(MESSAGES, _greedy(30))
    options = {"model": "tiny", "messages": MESSAGES, "max_tokens": 30, "temperature": 0}
    made = client.chat.completions.create(**options)
    assert made.choices[0].message.content == expected.text
    assert made.choices[0].message.role == "assistant"
    assert made.usage.prompt_tokens == len(expected.prompt_ids)
    chunks = list(client.chat.completions.create(**options, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content for chunk in chunks) == expected.text
    assert {chunk.usage for chunk in chunks} == {None}


def test_an_answer_without_a_limit_fills_the_context(client, engine):
    made = client.chat.completions.create(
        model="tiny", messages=MESSAGES, temperature=0, extra_body={"ignore_eos": True}
    )
    assert made.usage.total_tokens == engine.max_model_len + 1


@pytest.mark.parametrize(
    "prompt",
    [
        ["the fox", "to be"],
        [5, 6, 7],
        [[5, 6, 7], [8]],
    ],
    ids=repr,
)
def test_prompts_are_texts_or_ids(client, engine, prompt):
    made = client.completions.create(model="tiny", prompt=prompt, max_tokens=6, temperature=0)
    prompts = [prompt] if isinstance(prompt[0], int) else prompt
    expected = engine.generate(prompts, _greedy(6))
    assert [choice.text for choice in made.choices] == [one.text for one in expected]
    assert [choice.index for choice in made.choices] == list(range(len(prompts)))


def test_several_answers_of_several_prompts(client, engine):
    options = {"n": 2, "seed": 4, "temperature": 0.9, "top_p": 0.9}
    params = SamplingParams(max_new_tokens=8, **options)
    expected = [one.text for one in engine.generate(["the", "be"], params)]
    made = client.completions.create(model="tiny", prompt=["the", "be"], max_tokens=8, **options)
    assert [choice.text for choice in made.choices] == expected
    texts = [""] * 4
    for chunk in client.completions.create(
        model="tiny", prompt=["the", "be"], max_tokens=8, **options, stream=True
    ):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == expected


def test_options_of_vllms_reach_the_engine(client, engine):
    extra = {"top_k": 9, "min_p": 0.01, "repetition_penalty": 1.3, "ignore_eos": True}
    both = {"presence_penalty": 0.5, "frequency_penalty": 0.25, "seed": 11}
    params = SamplingParams(max_new_tokens=16, temperature=1.0, **extra, **both)
    (expected,) = engine.generate(["the fox"], params)
    made = client.completions.create(
        model="tiny", prompt="the fox", max_tokens=16, **both, extra_body=extra
    )
    assert made.choices[0].text == expected.text


def test_fields_that_are_null_are_as_if_they_were_not_there(client):
    names = ("n", "stop", "stream", "echo", "logprobs", "ignore_eos", "seed", "logit_bias", "user")
    made = client.completions.create(
        model="tiny", prompt="x", max_tokens=3, extra_body=dict.fromkeys(names)
    )
    assert made.usage.completion_tokens == 3


def test_a_stop_string_ends_text_and_stream(client, engine):
    (whole,) = engine.generate(["the fox"], _greedy(60, ignore_eos=True))
    stop = whole.text[9:12]
    expected = whole.text[: whole.text.index(stop)]
    options = {"model": "tiny", "prompt": "the fox", "max_tokens": 60, "temperature": 0}
    options |= {"stop": [stop], "extra_body": {"ignore_eos": True}}
    (choice,) = client.completions.create(**options).choices
    assert (choice.text, choice.finish_reason) == (expected, "stop")
    chunks = list(client.completions.create(**options, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == expected


def test_no_end_comes_before_the_least_length(client, engine):
    token_ids = engine.generate(["the fox"], _greedy(20, ignore_eos=True))[0].token_ids
    stops = {"stop_token_ids": token_ids[:3]}
    options = {"model": "tiny", "prompt": "the fox", "max_tokens": 20, "temperature": 0}
    made = client.completions.create(**options, extra_body=stops)
    assert made.usage.completion_tokens == 1
    made = client.completions.create(**options, extra_body={**stops, "min_tokens": 15})
    assert made.usage.completion_tokens >= 15


def _num_characters(raw):
    """What is whole of them; what is no character counts as one."""
    return len(codecs.getincrementaldecoder("utf-8")("replace").decode(raw))


@pytest.mark.parametrize("is_streamed", [False, True])
def test_logprobs_of_a_completion(client, engine, is_streamed):
    params = _greedy(10, logprobs=3, ignore_eos=True)
    (expected,) = engine.generate(["the fox"], params)
    options = {"model": "tiny", "prompt": "the fox", "max_tokens": 10, "temperature": 0}
    options |= {"logprobs": 3, "extra_body": {"ignore_eos": True}}
    if is_streamed:
        chunks = list(client.completions.create(**options, stream=True))
        told = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices[0].logprobs]
    else:
        told = [client.completions.create(**options).choices[0].logprobs]
    logprobs = [one for some in told for one in some.token_logprobs]
    assert logprobs == pytest.approx([one.logprob for one in expected.logprobs], abs=1e-3)
    raw = [engine.tokenizer.token_bytes(one) for one in expected.token_ids]
    offsets = [one for some in told for one in some.text_offset]
    assert offsets == [_num_characters(b"".join(raw[:place])) for place in range(10)]
    for some in (one for part in told for one in part.top_logprobs):
        assert 1 <= len(some) <= 3


def test_logprobs_of_a_chat(client):
    made = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=12, logprobs=True, top_logprobs=2, seed=1
    )
    content = made.choices[0].logprobs.content
    assert len(content) == made.usage.completion_tokens
    for one in content:
        assert len(one.top_logprobs) == 2
        assert -math.inf < one.logprob <= 1e-6
    told = b"".join(bytes(one.bytes) for one in content)
    # Texts are without special tokens.
    told = re.sub(rb"<\|\w+\|>", b"", told)
    assert told.decode(errors="replace") == made.choices[0].message.content


def test_echo_begins_with_the_prompt(client):
    options = {"model": "tiny", "prompt": "the fox", "max_tokens": 4, "temperature": 0}
    plain = client.completions.create(**options).choices[0].text
    assert client.completions.create(**options, echo=True).choices[0].text == "the fox" + plain
    chunks = list(client.completions.create(**options, echo=True, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "the fox" + plain


def test_many_clients_at_once_get_what_each_gets_alone(served, engine):
    prompts = [[place % 250 + 3, place % 7 + 3] for place in range(60)]
    expected = [one.text for one in engine.generate(prompts, _greedy(12))]

    async def ask_all():
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none") as client:

            async def ask(place):
                options = {"model": "tiny", "prompt": prompts[place], "max_tokens": 12}
                made = await client.completions.create(
                    **options, temperature=0, stream=bool(place % 2)
                )
                if place % 2:
                    return "".join([chunk.choices[0].text async for chunk in made])
                return made.choices[0].text

            return await asyncio.gather(*map(ask, range(60)))

    assert asyncio.run(ask_all()) == expected


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"model": "gpt-5"}, openai.NotFoundError, "no model 'gpt-5'"),
        ({"max_tokens": 100_000}, openai.BadRequestError, "lower max_tokens"),
        ({"max_tokens": 0}, openai.BadRequestError, "max_tokens is 0"),
        ({"prompt": []}, openai.BadRequestError, "empty"),
        ({"prompt": ""}, openai.BadRequestError, "empty"),
        ({"prompt": [10**6]}, openai.BadRequestError, "not in the vocabulary"),
        ({"temperature": -1}, openai.BadRequestError, "temperature"),
        ({"top_p": "high"}, openai.UnprocessableEntityError, "top_p"),
        ({"logprobs": 21}, openai.BadRequestError, "0 to 20"),
        ({"logit_bias": {"5": 1}}, openai.BadRequestError, "logit_bias is not served"),
        ({"echo": True, "logprobs": 1}, openai.BadRequestError, "new tokens only"),
        ({"stream_options": {}}, openai.BadRequestError, "set stream"),
        ({"best_of": 3}, openai.BadRequestError, "best_of"),
        ({"extra_body": {"guided_regex": "a*"}}, openai.BadRequestError, "guided_regex"),
        ({"extra_body": {"skip_special_tokens": False}}, openai.BadRequestError, "special"),
    ],
    ids=repr,
)
def test_what_is_wrong_is_refused_in_words(client, options, error, said):
    with pytest.raises(error, match=said) as refused:
        client.completions.create(**({"model": "tiny", "prompt": "x"} | options))
    assert refused.value.body["message"]


def test_a_prompt_beyond_the_context_has_a_code_of_its_own(client):
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="tiny", prompt=[5] * 1000)
    assert refused.value.code == "context_length_exceeded"
    # Not so what only quotes its sentence.
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="tiny", prompt="x", stop=["5 prompt tokens and", ""])
    assert refused.value.code is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"messages": []}, "empty"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "text only"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tool_choice"),
        ({"top_logprobs": 2}, "needs logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
    ids=repr,
)
def test_chats_that_are_not_served_are_refused(client, options, said):
    with pytest.raises(openai.BadRequestError, match=said):
        client.chat.completions.create(**({"model": "tiny", "messages": MESSAGES} | options))
