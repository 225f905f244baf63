"""A tiny checkpoint with random weights that reads and writes text, and has a chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from decoder_checkpoints import save_reference
from tokenizer_formats import byte_level

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""That of ChatML."""


def save_speaking(directory: Path, *, template: str | None = CHAT_TEMPLATE, **options: Any) -> Path:
    """Write a Llama of three layers with a byte-level tokenizer into `directory`."""
    tokenizer = byte_level()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    end = tokenizer.token_to_id("<|im_end|>")
    sizes: dict[str, Any] = {"vocab_size": tokenizer.get_vocab_size(), "eos_token_id": end}
    sizes |= {"max_position_embeddings": 512, "bos_token_id": None}
    save_reference(directory, "llama", **(sizes | options))
    tokenizer.save(str(directory / "tokenizer.json"))
    config: dict[str, Any] = {"eos_token": "<|im_end|>"}
    if template is not None:
        config["chat_template"] = template
    (directory / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return directory
