"""One life of an engine on a model: it loads, and on each workload warms up and runs its windows.

Run as `python life.py TASK`, by the engine's own interpreter: it needs the standard library and the
engine alone. Which engine it is stands behind the slash of $KVTRAIL_LABEL; the time to load goes to
$KVTRAIL_RESULT, the rest to a file beside the task. In a window all requests run twice: for one new
token each, which is the time to first token, and for all their tokens.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from operator import attrgetter
from pathlib import Path
from typing import Any

Ids = list[list[int]]


@dataclass(frozen=True)
class Demand:
    """A workload: prompts as token ids, new tokens of each, which nothing ends earlier, and tokens
    of a sequence, for every filling of the batch."""

    prompts: Ids
    new_tokens: list[int]
    steps: int


@dataclass(frozen=True)
class PeerTask:
    """What every engine does with the model in a folder of Hugging Face's format."""

    model: str
    dtype: str
    device: str
    demands: dict[str, Demand]  # by the workload's name
    batch: int  # requests at once, at most
    max_length: int  # tokens of a request, at most
    engine: dict[str, Any]  # what the workloads fix of kvtrail's own engine
    options: dict[str, Any]  # what every engine is asked for that takes part, such as ranks
    warmups: int
    windows: int

    @classmethod
    def read(cls, path: str) -> PeerTask:
        """The task in a file."""
        told = json.loads(Path(path).read_text())
        demands = {name: Demand(**one) for name, one in told.pop("demands").items()}
        return cls(demands=demands, **told)


@dataclass(frozen=True)
class Driver:
    """An engine that has loaded the model; it is imported there, as only one is here."""

    engine: Any
    # Given prompts and the new tokens of each, it runs all of them greedily; the new ids of each.
    run: Callable[[Ids, list[int]], Iterable[Sequence[int]]]
    settings: str  # what was asked of it, from which a reader judges whether it is fair
    # What it chose itself, such as which CUDA graphs: attributes, from `engine` on. Those that a
    # version lacks are left out.
    choices: Sequence[str] = ()
    unreported: int = 0  # tokens of each request that it does not tell

    def timed(self, prompts: Ids, new_tokens: list[int]) -> tuple[float, Ids]:
        """Seconds of a run, and its ids."""
        started = time.perf_counter()
        ids = [list(new) for new in self.run(prompts, new_tokens)]
        seconds = time.perf_counter() - started
        for request, (generated, wanted) in enumerate(zip(ids, new_tokens, strict=True)):
            if len(generated) != wanted - self.unreported:
                sys.exit(
                    f"request {request} got {len(generated)} tokens where {wanted} were asked for; "
                    f"this run measures something else."
                )
        return seconds, ids


def load_kvtrail(task: PeerTask) -> Driver:
    """kvtrail's own engine."""
    from engine import Engine, EngineConfig, SamplingParams

    config = {"model": task.model, "device": task.device, "dtype": task.dtype, **task.engine}
    engine = Engine(EngineConfig(**config, **task.options))

    def run(prompts: Ids, new_tokens: list[int]) -> Iterable[Sequence[int]]:
        params = [SamplingParams(max_new_tokens=count, ignore_eos=True) for count in new_tokens]
        return [one.token_ids for one in engine.generate(prompts, params)]

    how = "eager" if task.device == "cpu" else "CUDA graphs"
    choices = ("decode_mode", "config.prefill_max_tokens", "config.steps_in_flight")
    return Driver(engine, run, f"{how}, no prefix cache", (*choices, "num_kv_blocks"))


def in_batches(run: Callable[[Ids, list[int], list[int]], Ids], size: int) -> Callable[..., Ids]:
    """What runs one batch after another: `run` is given prompts padded on the left to the longest
    of a batch, the padding before each, and how many new tokens each needs at least."""

    def run_all(prompts: Ids, new_tokens: list[int]) -> Ids:
        ids: Ids = []
        for first in range(0, len(prompts), size):
            batch, wanted = prompts[first : first + size], new_tokens[first : first + size]
            longest = max(map(len, batch))
            padding = [longest - len(prompt) for prompt in batch]
            padded = [[0] * pad + prompt for pad, prompt in zip(padding, batch, strict=True)]
            generated = run(padded, padding, wanted)
            ids += [row[:count] for row, count in zip(generated, wanted, strict=True)]
        return ids

    return run_all


def load_transformers(task: PeerTask, *, cache: str | None = None) -> Driver:
    """transformers' `generate`, with the cache it takes by default or with the static one."""
    import torch
    from transformers import AutoModelForCausalLM

    engine = AutoModelForCausalLM.from_pretrained(task.model, dtype=getattr(torch, task.dtype))
    engine.to(task.device).eval()
    # Only its length ends a sequence; padding on the left is masked.
    engine.generation_config.eos_token_id = None
    engine.generation_config.pad_token_id = 0

    def run(padded: Ids, padding: list[int], new_tokens: list[int]) -> Ids:
        if len(set(new_tokens)) > 1:
            sys.exit("generate gives every sequence of a batch the same number of new tokens.")
        longest = len(padded[0])
        mask = [[0] * pad + [1] * (longest - pad) for pad in padding]
        output = engine.generate(
            torch.tensor(padded, device=task.device),
            attention_mask=torch.tensor(mask, device=task.device),
            max_new_tokens=new_tokens[0],
            do_sample=False,
            cache_implementation=cache,
        )
        generated: Ids = output[:, longest:].tolist()
        return generated

    settings = "static cache, compiled" if cache else "not compiled"
    if cache and task.device == "cpu":
        settings = "static cache; it compiles on GPUs only"
    return Driver(engine, in_batches(run, task.batch), settings, ("config._attn_implementation",))


def load_torch(task: PeerTask) -> Driver:
    """A decoder in plain torch, which lies beside this file."""
    generator = import_module("plain_decoder").PlainGenerator
    engine = generator(task.model, task.dtype, task.device, task.batch, task.max_length)
    return Driver(engine, in_batches(engine.generate, task.batch), engine.settings)


def load_vllm(task: PeerTask) -> Driver:
    """vLLM's offline engine."""
    from vllm import LLM, SamplingParams

    engine = LLM(
        model=task.model,
        dtype=task.dtype,
        skip_tokenizer_init=True,
        enable_prefix_caching=False,
        max_model_len=task.max_length,
        max_num_seqs=task.batch,
        seed=0,
        # What vLLM calls fp8 rounds rows, too.
        **{name: "fp8" if one == "fp8-dynamic" else one for name, one in task.options.items()},
    )

    greedy = {"temperature": 0.0, "ignore_eos": True, "detokenize": False}

    def run(prompts: Ids, new_tokens: list[int]) -> Iterable[Sequence[int]]:
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        params = [SamplingParams(max_tokens=count, **greedy) for count in new_tokens]
        done = engine.generate(asked, params, use_tqdm=False)
        return [one.outputs[0].token_ids for one in done]

    choices = (
        *("compilation_config.cudagraph_mode", "compilation_config.cudagraph_capture_sizes"),
        *("scheduler_config.max_num_batched_tokens", "scheduler_config.enable_chunked_prefill"),
        *("scheduler_config.async_scheduling", "scheduler_config.policy"),
        "attention_config.backend",
    )
    return Driver(
        engine,
        run,
        "CUDA graphs as it chooses them, no prefix cache, no detokenization",
        [f"llm_engine.vllm_config.{path}" for path in choices],
    )


def load_sglang(task: PeerTask) -> Driver:
    """SGLang's offline engine."""
    import sglang

    engine = sglang.Engine(
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

    greedy = {"temperature": 0.0, "ignore_eos": True}

    def run(prompts: Ids, new_tokens: list[int]) -> Iterable[Sequence[int]]:
        params = [{**greedy, "max_new_tokens": count} for count in new_tokens]
        done = engine.generate(input_ids=prompts, sampling_params=params)
        return [one["output_ids"] for one in done]

    choices = (
        *("cuda_graph_bs", "chunked_prefill_size", "schedule_policy"),
        *("disable_overlap_schedule", "attention_backend"),
    )
    return Driver(
        engine,
        run,
        "CUDA graphs up to the batch, no prefix cache, no detokenization",
        [f"server_args.{name}" for name in choices],
    )


def load_nano_vllm(task: PeerTask) -> Driver:
    """nano-vllm. Its prefix cache cannot be switched off, and it refuses a temperature of 0.

    The one it is given leaves every other token no chance that a float can hold, unless its score
    is within a ten-thousandth of the highest.
    """
    from nanovllm import LLM, SamplingParams

    limits = {"max_model_len": task.max_length, "max_num_seqs": task.batch}
    engine = LLM(task.model, enforce_eager=False, **limits)
    greedy = {"temperature": 1e-5, "ignore_eos": True}

    def run(prompts: Ids, new_tokens: list[int]) -> Iterable[Sequence[int]]:
        params = [SamplingParams(max_tokens=count, **greedy) for count in new_tokens]
        return [one["token_ids"] for one in engine.generate(prompts, params, use_tqdm=False)]

    settings = "CUDA graphs, its prefix cache, temperature 1e-5 as 0 is refused"
    choices = ("model_runner.graph_bs", "scheduler.max_num_batched_tokens")
    return Driver(engine, run, settings, choices)


def load_mini_sglang(task: PeerTask) -> Driver:
    """mini-sglang. Its offline face leaves out the last token of each request."""
    import torch
    from minisgl.core import SamplingParams
    from minisgl.llm import LLM

    engine = LLM(
        task.model,
        dtype=getattr(torch, task.dtype),
        max_seq_len_override=task.max_length,
        max_running_req=task.batch,
        cuda_graph_max_bs=task.batch,
        cache_type="naive",
    )
    greedy = {"temperature": 0.0, "ignore_eos": True}

    def run(prompts: Ids, new_tokens: list[int]) -> Iterable[Sequence[int]]:
        params = [SamplingParams(max_tokens=count, **greedy) for count in new_tokens]
        return [one["token_ids"] for one in engine.generate(prompts, params)]

    settings = "CUDA graphs up to the batch, naive cache"
    choices = ("config.max_extend_tokens", "config.attention_backend")
    return Driver(engine, run, settings, choices, unreported=1)


KVTRAIL = "kvtrail"
KINDS: dict[str, tuple[Callable[[PeerTask], Driver], str]] = {
    KVTRAIL: (load_kvtrail, "torch"),
    "transformers-dynamic": (load_transformers, "transformers"),
    "transformers-static": (partial(load_transformers, cache="static"), "transformers"),
    "torch": (load_torch, "torch"),
    "vllm": (load_vllm, "vllm"),
    "sglang": (load_sglang, "sglang"),
    "nano-vllm": (load_nano_vllm, "nanovllm"),
    "mini-sglang": (load_mini_sglang, "minisgl"),
}
"""How each is loaded, and the package that its interpreter must have; in the order of tables."""
DISTRIBUTIONS = (
    *("torch", "triton", "transformers", "vllm", "sglang", "nano-vllm", "minisgl"),
    *("sgl-kernel", "flashinfer-python", "flash-attn"),
)
"""Whose versions matter, where an interpreter has them."""


def live(label: str, task: PeerTask) -> dict[str, Any]:
    """What an engine gave: seconds to start, figures and tokens of each workload, settings."""
    if label in (KVTRAIL, "torch"):
        # The engine of the tree, in the place of any installed one.
        sys.path.insert(0, os.environ["KVTRAIL_TREE"])
    load, _ = KINDS[label]
    peer = load(task)
    # Of this process, its interpreter's start included.
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    startup_s = time.clock_gettime(time.CLOCK_BOOTTIME) - started
    figures, tokens, failed = {}, {}, {}
    for name, demand in task.demands.items():
        try:
            figures[name], tokens[name] = _measured(peer, demand, task)
        except SystemExit as refusal:  # of this workload alone
            failed[name] = str(refusal)
    chosen, versions = {}, {}
    for path in peer.choices:
        with suppress(AttributeError):
            if (value := attrgetter(path)(peer.engine)) is not None:
                chosen[path.rpartition(".")[2]] = str(getattr(value, "name", value))
    for package in DISTRIBUTIONS:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return {
        "startup_s": startup_s,
        "figures": figures,
        "tokens": tokens,
        "failed": failed,
        "settings": ", ".join([peer.settings, *map("{0[0]} {0[1]}".format, task.options.items())]),
        "chosen": chosen,
        "versions": versions,
    }


def _measured(peer: Driver, demand: Demand, task: PeerTask) -> tuple[dict[str, list[float]], Ids]:
    """Windows of each metric on a workload, and the tokens of the last."""
    steps, new_tokens = demand.steps, demand.new_tokens
    further = max(1, steps - steps // max(new_tokens))
    windows: list[tuple[float, float]] = []
    ids: Ids = []
    for number in range(-task.warmups, task.windows):
        if number == 0:
            gc.collect()
            gc.freeze()
        first_s, _ = peer.timed(demand.prompts, [1] * len(new_tokens))
        whole_s, ids = peer.timed(demand.prompts, new_tokens)
        windows.append((first_s, whole_s))
    counted = windows[task.warmups :]
    figures = {
        "step_ms": [1e3 * whole_s / steps for _, whole_s in counted],
        "tokens_per_s": [sum(new_tokens) / whole_s for _, whole_s in counted],
        "ttft_ms": [1e3 * first_s for first_s, _ in counted],
        "tpot_ms": [1e3 * (whole_s - first_s) / further for first_s, whole_s in counted],
    }
    return figures, ids


def main(path: str) -> None:
    """Live once, as the engine that the environment names."""
    startup_s = 1.0
    # The first life only shows which figures there are, and loads nothing.
    if "KVTRAIL_TRIAL" not in os.environ:
        label = Path(os.environ["KVTRAIL_LABEL"]).name
        told = live(label, PeerTask.read(path))
        startup_s = told["startup_s"]
        # Nothing else of a life reaches its reader, so this names the file.
        Path(path).with_name(f"{label}-{startup_s!r}.json").write_text(json.dumps(told))
    Path(os.environ["KVTRAIL_RESULT"]).write_text(json.dumps({"startup_s": startup_s}))


if __name__ == "__main__":
    main(sys.argv[1])
