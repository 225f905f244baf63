"""SGLang's offline engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from asv_bench.peers.lives.life import Task


class Sglang:
    """See `life.Peer`."""

    packages = ("sglang", "sgl-kernel", "flashinfer-python")
    choices: ClassVar[dict[str, str]] = {
        "graph_sizes": "_engine.server_args.cuda_graph_bs",
        "batched_tokens": "_engine.server_args.chunked_prefill_size",
        "policy": "_engine.server_args.schedule_policy",
        "no_overlap": "_engine.server_args.disable_overlap_schedule",
        "attention": "_engine.server_args.attention_backend",
    }
    unreported = 0
    settings = "CUDA graphs up to the batch, no prefix cache, no detokenization"

    def __init__(self, label: str, task: Task) -> None:
        import sglang

        self._engine = sglang.Engine(
            model_path=task.model,
            dtype=task.dtype,
            skip_tokenizer_init=True,
            disable_radix_cache=True,
            context_length=task.max_length,
            max_running_requests=task.batch,
            cuda_graph_max_bs=task.batch,
            random_seed=0,
            log_level="error",
        )

    def generate(self, prompts: list[list[int]], new_tokens: list[int]) -> list[list[int]]:
        """See `life.Peer`."""
        params = [
            {"temperature": 0.0, "max_new_tokens": count, "ignore_eos": True}
            for count in new_tokens
        ]
        done = self._engine.generate(input_ids=prompts, sampling_params=params)
        return [list(request["output_ids"]) for request in done]


load = Sglang
