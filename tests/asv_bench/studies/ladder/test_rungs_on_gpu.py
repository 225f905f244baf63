"""What only a GPU shows of the rungs: real append kernels, graphs, and fused kernels' tokens."""

from __future__ import annotations

import pytest
import torch

from asv_bench.studies.ladder.rungs import RUNGS
from asv_bench.studies.ladder.token_check import check_fused, check_rung

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA GPU: run `nox -s tests` on one"
)
MODEL = "random:gpt2-tiny"


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.label)
def test_rungs_generate_on_a_gpu_what_they_do_on_a_cpu(rung):
    assert check_rung(rung, MODEL, "cuda") == check_rung(RUNGS[0], MODEL, "cpu")


@pytest.mark.parametrize("number", [9, 10])
def test_fused_rungs_part_at_near_ties_only(number):
    assert check_fused(RUNGS[number], "random:gpt2", "cuda") <= 4
