"""nano-vllm."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from asv_bench.peers.lives.life import Task

_ALMOST_GREEDY = 1e-5
"""It refuses a temperature of 0. This leaves every other token no chance that a float can hold,
unless its score is within a ten-thousandth of the highest."""


class NanoVllm:
    """See `life.Peer`. Its prefix cache cannot be switched off."""

    packages = ("nano-vllm", "flash-attn")
    choices: ClassVar[dict[str, str]] = {
        "graph_sizes": "_engine.model_runner.graph_bs",
        "batched_tokens": "_engine.scheduler.max_num_batched_tokens",
    }
    unreported = 0
    settings = "CUDA graphs, its prefix cache, temperature 1e-5 as 0 is refused"

    def __init__(self, label: str, task: Task) -> None:
        from nanovllm import LLM, SamplingParams

        self._params = SamplingParams
        self._engine = LLM(
            task.model,
            enforce_eager=False,
            max_model_len=task.max_length,
            max_num_seqs=task.batch,
        )

    def generate(self, prompts: list[list[int]], new_tokens: list[int]) -> list[list[int]]:
        """See `life.Peer`."""
        params = [
            self._params(temperature=_ALMOST_GREEDY, max_tokens=count, ignore_eos=True)
            for count in new_tokens
        ]
        done = self._engine.generate(prompts, params, use_tqdm=False)
        return [list(request["token_ids"]) for request in done]


load = NanoVllm
