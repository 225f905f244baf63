"""transformers' `generate`, with the cache it takes by default or with the static one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from asv_bench.peers.lives.life import Task


class Transformers:
    """See `life.Peer`. Prompts of a batch are padded on the left to the longest."""

    packages = ("transformers",)
    choices: ClassVar[dict[str, str]] = {
        "attention": "_model.config._attn_implementation",
    }
    unreported = 0

    def __init__(self, label: str, task: Task) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        is_static = label.endswith("static")
        self._torch = torch
        self._batch = task.batch
        self._cache = "static" if is_static else None
        self._model: Any = AutoModelForCausalLM.from_pretrained(
            task.model, dtype=getattr(torch, task.dtype)
        )
        self._model.to(task.device).eval()
        # Only its length ends a sequence; padding on the left is masked.
        self._model.generation_config.eos_token_id = None
        self._model.generation_config.pad_token_id = 0
        is_compiled = is_static and task.device != "cpu"
        self.settings = "static cache, compiled" if is_compiled else "not compiled"
        if is_static and not is_compiled:
            self.settings = "static cache; it compiles on GPUs only"

    def generate(self, prompts: list[list[int]], new_tokens: list[int]) -> list[list[int]]:
        """See `life.Peer`; one call for each batch."""
        if len(set(new_tokens)) > 1:
            raise SystemExit(
                "generate gives every sequence of a batch the same number of new tokens."
            )
        ids: list[list[int]] = []
        for first in range(0, len(prompts), self._batch):
            ids += self._generate(prompts[first : first + self._batch], new_tokens[0])
        return ids

    def _generate(self, batch: list[list[int]], new_tokens: int) -> list[list[int]]:
        longest = max(map(len, batch))
        padded = [[0] * (longest - len(prompt)) + prompt for prompt in batch]
        mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in batch]
        tensor, device = self._torch.tensor, self._model.device
        output = self._model.generate(
            tensor(padded, device=device),
            attention_mask=tensor(mask, device=device),
            max_new_tokens=new_tokens,
            do_sample=False,
            cache_implementation=self._cache,
        )
        generated: list[list[int]] = output[:, longest:].tolist()
        return generated


load = Transformers
