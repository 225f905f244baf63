"""Chat templates: rendered as transformers renders them, in a sandbox."""

from __future__ import annotations

import json

import pytest
from speaking_checkpoints import CHAT_TEMPLATE
from tokenizer_formats import byte_level

from engine.errors import ModelError, RequestError
from engine.text.chat import ChatTemplate
from engine.text.tokenizer import Tokenizer

MESSAGES = [
    {"role": "system", "content": "Be  brief.\n"},
    {"role": "user", "content": "naïve 🦊 <b>?"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": ""},
]

TEMPLATES = {
    "chatml": CHAT_TEMPLATE,
    "blocks": """
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content %}
    {%- set messages = messages[1:] %}
{%- endif %}
{{ bos_token }}{% for message in messages %}
    {% if loop.first and system is defined %}
[{{ system | trim }}]
    {% endif %}
    {% if message.role == 'assistant' %}{% generation %}
A {{ message.content }}{% endgeneration %}
    {% else %}
U {{ message | tojson }}
    {% endif %}
    {% if loop.index > 9 %}{% break %}{% endif %}
{% endfor %}
{% if add_generation_prompt %}
A{% if enable_thinking is defined and not enable_thinking %}!{% endif %}
{% endif %}""",
    "tools": "{{ tools | tojson(indent=2) }}{{ documents }}{{ eos_token }}{{ messages | length }}",
}


def _directory(path, template, *, where="tokenizer_config.json"):
    byte_level().save(str(path / "tokenizer.json"))
    config = {"bos_token": "<|endoftext|>", "eos_token": {"content": "<call>"}}
    if where == "chat_template.jinja":
        (path / where).write_text(template, encoding="utf-8")
    elif where == "chat_template.json":
        (path / where).write_text(json.dumps({"chat_template": template}), encoding="utf-8")
    else:
        config["chat_template"] = template
    (path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return path


@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("name", TEMPLATES)
def test_text_is_that_of_transformers(tmp_path, name, add_generation_prompt):
    from transformers import PreTrainedTokenizerFast

    _directory(tmp_path, TEMPLATES[name])
    theirs = PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "tokenizer.json"),
        bos_token="<|endoftext|>",
        eos_token="<call>",
        chat_template=TEMPLATES[name],
    )
    ours = ChatTemplate.in_directory(tmp_path)
    options = {
        "add_generation_prompt": add_generation_prompt,
        "tools": [{"type": "function", "function": {"name": "f", "description": "ü"}}],
        "enable_thinking": False,
    }
    expected = theirs.apply_chat_template(MESSAGES, tokenize=False, **options)
    assert ours.render(MESSAGES, **options) == expected


@pytest.mark.parametrize("where", ["chat_template.jinja", "chat_template.json"])
def test_a_template_may_be_a_file_of_its_own(tmp_path, where):
    _directory(tmp_path, "{{ messages[0].content }}", where=where)
    assert ChatTemplate.in_directory(tmp_path).render([{"role": "user", "content": "a"}]) == "a"


def test_of_several_templates_tools_have_one_of_their_own(tmp_path):
    _directory(
        tmp_path,
        [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}],
    )
    template = ChatTemplate.in_directory(tmp_path)
    assert template.render(MESSAGES) == "plain"
    assert template.render(MESSAGES, tools=[{}]) == "tools"


def test_the_tokens_are_those_of_the_text_alone(tmp_path):
    tokenizer = Tokenizer(_directory(tmp_path, "<|endoftext|>{{ messages[0].content }}"))
    token_ids = tokenizer.encode_chat([{"role": "user", "content": "the fox"}])
    assert token_ids == [0, *tokenizer.encode("the fox")]
    other = tokenizer.template_of("{{ bos_token }}the fox")
    assert tokenizer.encode_chat(MESSAGES, other) == [0, *tokenizer.encode("the fox")]
    # Clients of a server may give variables any name.
    odd = dict.fromkeys(("self", "messages", "template"))
    assert tokenizer.encode_chat(MESSAGES, other, **odd) == tokenizer.encode_chat(MESSAGES, other)


def test_parts_of_text_are_joined(tmp_path):
    template = ChatTemplate({"default": "{{ messages[0].content }}"}, {})
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert template.render([{"role": "user", "content": parts}]) == "ab"


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([], "empty"),
        ("hello", "list of messages"),
        ([{"content": "no role"}], "Message 0 must be an object with a role"),
        ([{"role": "user", "content": 7}], "content of message 0"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "models of text only"),
    ],
)
def test_what_is_no_conversation_is_refused(messages, said):
    with pytest.raises(RequestError, match=said):
        ChatTemplate({"default": "x"}, {}).render(messages)


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% for one in range(100000000) %}{% endfor %}",
        "{{ missing.attribute }}",
        "{% include 'other' %}",
        "{{ 1 / 0 }}",
        "{{ 'a' * 10**15 }}",
    ],
)
def test_a_template_can_refuse_and_reaches_nothing(template):
    with pytest.raises(RequestError, match="refuses these messages"):
        ChatTemplate({"default": template}, {}).render(MESSAGES)


def test_a_damaged_template_is_named(tmp_path):
    with pytest.raises(ModelError, match="no valid jinja"):
        ChatTemplate.in_directory(_directory(tmp_path, "{% for %}"))


def test_without_a_template_there_is_no_chat(tmp_path):
    byte_level().save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(RequestError, match="no chat template"):
        Tokenizer(tmp_path).encode_chat(MESSAGES)
