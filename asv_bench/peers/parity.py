"""How many tokens that engines generated a model in double precision finds the likeliest.

Run as `python -m asv_bench.peers.parity TASK TOKENS RECORD`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from asv_bench.output.record import write_json
from asv_bench.peers.lives.drive_torch import PlainDecoder
from asv_bench.peers.lives.life import read_task

_MOST_TOKENS = {"cuda": 8192, "cpu": 256}
"""Of an engine on a workload, from the beginning of every request on."""


def likelihood(
    model: PlainDecoder, prompts: Sequence[Sequence[int]], generated: Sequence[Sequence[int]]
) -> dict[str, Any]:
    """Of `tokens`, each after the very ones before it, `argmax` is the share that are likeliest.

    `largest_gap` is by how much the score of one was below the highest at most.
    """
    device = model.embedding.device
    distinct = dict.fromkeys((*map(tuple, pair),) for pair in zip(prompts, generated, strict=True))
    most = max(1, _MOST_TOKENS[device.type] // len(distinct))
    gaps = []
    for prompt, new in list(distinct)[: _MOST_TOKENS[device.type]]:
        ids = torch.tensor([[*prompt, *new[:most]]], device=device)
        places = torch.arange(ids.shape[1], device=device)
        mask = (places <= places[:, None])[None, None]
        shape = (model.layers, 2, 1, model.groups, ids.shape[1], model.width)
        cache = torch.zeros(shape, dtype=torch.float64, device=device)
        hidden = model.hidden(ids, places[None], places, mask, cache)
        scores = F.linear(hidden[0, len(prompt) - 1 : -1], model.head)
        gaps.append(scores.amax(-1) - scores.gather(-1, ids[0, len(prompt) :, None])[:, 0])
    gap = torch.cat(gaps)
    return {
        "tokens": len(gap),
        "argmax": float((gap == 0).double().mean()),
        "largest_gap": float(gap.max()),
    }


@torch.inference_mode()
def compare(
    task_path: str, generated: Mapping[str, Mapping[str, Sequence[Sequence[int]]]]
) -> dict[str, dict[str, Any]]:
    """Likelihoods by workload and engine; `generated` are token ids in the same order."""
    task = read_task(task_path)
    model = PlainDecoder(Path(task.model), torch.float64, task.device)
    return {
        workload: {
            name: likelihood(model, task.cells[workload].prompts, ids)
            for name, ids in engines.items()
        }
        for workload, engines in generated.items()
    }


if __name__ == "__main__":
    write_json(Path(sys.argv[3]), compare(sys.argv[1], json.loads(Path(sys.argv[2]).read_text())))
