"""mini-sglang."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from asv_bench.peers.lives.life import Task


class MiniSglang:
    """See `life.Peer`. Its offline face leaves out the last token of each request."""

    packages = ("minisgl", "sgl-kernel", "flashinfer-python")
    choices: ClassVar[dict[str, str]] = {
        "batched_tokens": "_engine.config.max_extend_tokens",
        "attention": "_engine.config.attention_backend",
    }
    unreported = 1
    settings = "CUDA graphs up to the batch, naive cache"

    def __init__(self, label: str, task: Task) -> None:
        import torch
        from minisgl.core import SamplingParams
        from minisgl.llm import LLM

        self._params = SamplingParams
        self._engine = LLM(
            task.model,
            dtype=getattr(torch, task.dtype),
            max_seq_len_override=task.max_length,
            max_running_req=task.batch,
            cuda_graph_max_bs=task.batch,
            cache_type="naive",
        )

    def generate(self, prompts: list[list[int]], new_tokens: list[int]) -> list[list[int]]:
        """See `life.Peer`."""
        params = [
            self._params(temperature=0.0, max_tokens=count, ignore_eos=True) for count in new_tokens
        ]
        done = self._engine.generate(prompts, params)
        return [list(request["token_ids"]) for request in done]


load = MiniSglang
