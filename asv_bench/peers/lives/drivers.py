"""Engines through their offline faces. Each is imported where it is made: only one is here."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from asv_bench.peers.lives.life import PeerTask

Ids = list[list[int]]


class Driver:
    """An engine that has loaded the model.

    `settings` says in words what was asked of it, from which a reader judges whether it is fair.
    `choices` are what it chose itself, such as which CUDA graphs: by the name to print, attributes
    from `engine` on; those that a version lacks are left out. `packages` are distributions whose
    versions matter. `unreported` counts tokens of each request that it does not tell.
    """

    settings = ""
    choices: ClassVar[dict[str, str]] = {}
    packages: tuple[str, ...] = ()
    unreported = 0
    engine: Any
    params: Callable[..., Any]
    """Of a request, by its `max_tokens`."""
    run: Callable[[Ids, list[Any]], list[Any]]
    """The new ids of each request."""

    def generate(self, prompts: Ids, new_tokens: list[int]) -> Ids:
        """Run all requests, greedily, to their last token; the new ids of each."""
        params = [self.params(max_tokens=count) for count in new_tokens]
        return [list(ids) for ids in self.run(prompts, params)]


class Kvtrail(Driver):
    """kvtrail's own engine: that of the tree, in the place of any installed one."""

    packages = ("nvtx",)
    choices: ClassVar[dict[str, str]] = {
        "decode": "decode_mode",
        "prefill_tokens": "config.prefill_max_tokens",
        "steps_in_flight": "config.steps_in_flight",
        "kv_blocks": "num_kv_blocks",
    }

    def __init__(self, label: str, task: PeerTask) -> None:
        sys.path.insert(0, os.environ["KVTRAIL_TREE"])
        from engine import Engine, EngineConfig, SamplingParams

        self.params = lambda max_tokens: SamplingParams(max_new_tokens=max_tokens, ignore_eos=True)
        config = {"model": task.model, "device": task.device, "dtype": task.dtype, **task.engine}
        self.engine = Engine(EngineConfig(**config))
        self.run = lambda *asked: [one.token_ids for one in self.engine.generate(*asked)]
        how = "eager" if task.device == "cpu" else "CUDA graphs"
        self.settings = f"{how}, no prefix cache"


class Transformers(Driver):
    """transformers' `generate`, with the cache it takes by default or with the static one.

    Prompts of a batch are padded on the left to the longest.
    """

    packages = ("transformers",)
    choices: ClassVar[dict[str, str]] = {"attention": "config._attn_implementation"}

    def __init__(self, label: str, task: PeerTask) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        is_static = label.endswith("static")
        self._tensor = partial(torch.tensor, device=task.device)
        self._batch = task.batch
        self._cache = "static" if is_static else None
        dtype = getattr(torch, task.dtype)
        self.engine = AutoModelForCausalLM.from_pretrained(task.model, dtype=dtype)
        self.engine.to(task.device).eval()
        # Only its length ends a sequence; padding on the left is masked.
        self.engine.generation_config.eos_token_id = None
        self.engine.generation_config.pad_token_id = 0
        self.settings = "static cache, compiled" if is_static else "not compiled"
        if is_static and task.device == "cpu":
            self.settings = "static cache; it compiles on GPUs only"

    def generate(self, prompts: Ids, new_tokens: list[int]) -> Ids:
        """See `Driver`; one call for each batch."""
        if len(set(new_tokens)) > 1:
            raise SystemExit(
                "generate gives every sequence of a batch the same number of new tokens."
            )
        ids: Ids = []
        for first in range(0, len(prompts), self._batch):
            ids += self._generate(prompts[first : first + self._batch], new_tokens[0])
        return ids

    def _generate(self, batch: Ids, new_tokens: int) -> Ids:
        longest = max(map(len, batch))
        padding = [longest - len(prompt) for prompt in batch]
        output = self.engine.generate(
            self._tensor([[0] * pad + prompt for pad, prompt in zip(padding, batch, strict=True)]),
            attention_mask=self._tensor([[0] * pad + [1] * (longest - pad) for pad in padding]),
            max_new_tokens=new_tokens,
            do_sample=False,
            cache_implementation=self._cache,
        )
        generated: Ids = output[:, longest:].tolist()
        return generated


class Vllm(Driver):
    """vLLM's offline engine."""

    packages = ("vllm", "flashinfer-python", "flash-attn")
    choices: ClassVar[dict[str, str]] = {
        name: f"llm_engine.vllm_config.{path}"
        for name, path in {
            "graphs": "compilation_config.cudagraph_mode",
            "graph_sizes": "compilation_config.cudagraph_capture_sizes",
            "batched_tokens": "scheduler_config.max_num_batched_tokens",
            "chunked_prefill": "scheduler_config.enable_chunked_prefill",
            "asynchronous": "scheduler_config.async_scheduling",
            "policy": "scheduler_config.policy",
            "attention": "attention_config.backend",
        }.items()
    }
    settings = "CUDA graphs as it chooses them, no prefix cache, no detokenization"

    def __init__(self, label: str, task: PeerTask) -> None:
        from vllm import LLM, SamplingParams

        self.params = partial(SamplingParams, temperature=0.0, ignore_eos=True, detokenize=False)
        self.engine = LLM(
            model=task.model,
            dtype=task.dtype,
            skip_tokenizer_init=True,
            enable_prefix_caching=False,
            max_model_len=task.max_length,
            max_num_seqs=task.batch,
            seed=0,
        )
        self.run = self._run

    def _run(self, prompts: Ids, params: list[Any]) -> list[Any]:
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        done = self.engine.generate(asked, params, use_tqdm=False)
        return [one.outputs[0].token_ids for one in done]


class Sglang(Driver):
    """SGLang's offline engine."""

    packages = ("sglang", "sgl-kernel", "flashinfer-python")
    choices: ClassVar[dict[str, str]] = {
        "graph_sizes": "server_args.cuda_graph_bs",
        "batched_tokens": "server_args.chunked_prefill_size",
        "policy": "server_args.schedule_policy",
        "no_overlap": "server_args.disable_overlap_schedule",
        "attention": "server_args.attention_backend",
    }
    settings = "CUDA graphs up to the batch, no prefix cache, no detokenization"

    def __init__(self, label: str, task: PeerTask) -> None:
        import sglang

        self.params = lambda max_tokens: {
            "temperature": 0.0,
            "max_new_tokens": max_tokens,
            "ignore_eos": True,
        }
        self.engine = sglang.Engine(
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
        self.run = lambda prompts, params: [
            one["output_ids"]
            for one in self.engine.generate(input_ids=prompts, sampling_params=params)
        ]


class NanoVllm(Driver):
    """nano-vllm. Its prefix cache cannot be switched off, and it refuses a temperature of 0.

    The one it is given leaves every other token no chance that a float can hold, unless its score
    is within a ten-thousandth of the highest.
    """

    packages = ("nano-vllm", "flash-attn")
    choices: ClassVar[dict[str, str]] = {
        "graph_sizes": "model_runner.graph_bs",
        "batched_tokens": "scheduler.max_num_batched_tokens",
    }
    settings = "CUDA graphs, its prefix cache, temperature 1e-5 as 0 is refused"

    def __init__(self, label: str, task: PeerTask) -> None:
        from nanovllm import LLM, SamplingParams

        self.params = partial(SamplingParams, temperature=1e-5, ignore_eos=True)
        limits = {"max_model_len": task.max_length, "max_num_seqs": task.batch}
        self.engine = LLM(task.model, enforce_eager=False, **limits)
        generate = partial(self.engine.generate, use_tqdm=False)
        self.run = lambda *asked: [one["token_ids"] for one in generate(*asked)]


class MiniSglang(Driver):
    """mini-sglang. Its offline face leaves out the last token of each request."""

    packages = ("minisgl", "sgl-kernel", "flashinfer-python")
    choices: ClassVar[dict[str, str]] = {
        "batched_tokens": "config.max_extend_tokens",
        "attention": "config.attention_backend",
    }
    unreported = 1
    settings = "CUDA graphs up to the batch, naive cache"

    def __init__(self, label: str, task: PeerTask) -> None:
        import torch
        from minisgl.core import SamplingParams
        from minisgl.llm import LLM

        self.params = partial(SamplingParams, temperature=0.0, ignore_eos=True)
        self.engine = LLM(
            task.model,
            dtype=getattr(torch, task.dtype),
            max_seq_len_override=task.max_length,
            max_running_req=task.batch,
            cuda_graph_max_bs=task.batch,
            cache_type="naive",
        )
        self.run = lambda *asked: [one["token_ids"] for one in self.engine.generate(*asked)]
