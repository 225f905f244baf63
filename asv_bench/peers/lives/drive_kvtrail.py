"""kvtrail's own engine."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from asv_bench.peers.lives.life import Task


class Kvtrail:
    """See `life.Peer`."""

    packages = ("nvtx",)
    choices: ClassVar[dict[str, str]] = {
        "decode": "_engine.decode_mode",
        "prefill_tokens": "_engine.config.prefill_max_tokens",
        "steps_in_flight": "_engine.config.steps_in_flight",
        "kv_blocks": "_engine.num_kv_blocks",
    }
    unreported = 0
    settings = "CUDA graphs, no prefix cache"

    def __init__(self, label: str, task: Task) -> None:
        # The engine of the tree, in the place of any installed one.
        sys.path.insert(0, os.environ["KVTRAIL_TREE"])
        from engine import Engine, EngineConfig, SamplingParams

        self._params = SamplingParams
        self._engine = Engine(
            EngineConfig(
                **{"model": task.model, "device": task.device, "dtype": task.dtype, **task.engine}
            )
        )
        if task.device == "cpu":
            self.settings = "eager, no prefix cache"

    def generate(self, prompts: list[list[int]], new_tokens: list[int]) -> list[list[int]]:
        """See `life.Peer`."""
        params = [self._params(max_new_tokens=count, ignore_eos=True) for count in new_tokens]
        return [list(done.token_ids) for done in self._engine.generate(prompts, params)]


load = Kvtrail
