"""vLLM's offline engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from asv_bench.peers.lives.life import Task


class Vllm:
    """See `life.Peer`."""

    packages = ("vllm", "flashinfer-python", "flash-attn")
    choices: ClassVar[dict[str, str]] = {
        "graphs": "_engine.llm_engine.vllm_config.compilation_config.cudagraph_mode",
        "graph_sizes": "_engine.llm_engine.vllm_config.compilation_config.cudagraph_capture_sizes",
        "batched_tokens": "_engine.llm_engine.vllm_config.scheduler_config.max_num_batched_tokens",
        "chunked_prefill": "_engine.llm_engine.vllm_config.scheduler_config.enable_chunked_prefill",
        "asynchronous": "_engine.llm_engine.vllm_config.scheduler_config.async_scheduling",
        "policy": "_engine.llm_engine.vllm_config.scheduler_config.policy",
        "attention": "_engine.llm_engine.vllm_config.attention_config.backend",
    }
    unreported = 0
    settings = "CUDA graphs as it chooses them, no prefix cache, no detokenization"

    def __init__(self, label: str, task: Task) -> None:
        from vllm import LLM, SamplingParams

        self._params = SamplingParams
        self._engine = LLM(
            model=task.model,
            dtype=task.dtype,
            skip_tokenizer_init=True,
            enable_prefix_caching=False,
            max_model_len=task.max_length,
            max_num_seqs=task.batch,
            seed=0,
        )

    def generate(self, prompts: list[list[int]], new_tokens: list[int]) -> list[list[int]]:
        """See `life.Peer`."""
        params = [
            self._params(temperature=0.0, max_tokens=count, ignore_eos=True, detokenize=False)
            for count in new_tokens
        ]
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        done = self._engine.generate(asked, params, use_tqdm=False)
        return [list(request.outputs[0].token_ids) for request in done]


load = Vllm
