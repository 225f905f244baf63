"""Kernels compiled ahead: what is wanted is noted, not launched, and what is missing is compiled.

For a Hopper GPU that is only pretended, in processes of their own.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fresh_python import forked_python

PRELUDE = """
import multiprocessing
from types import SimpleNamespace
from unittest.mock import patch

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

run = JITFunction.run  # The pretended GPU has its own.

from asv_bench.lab.pretend_cuda import pretended_cuda
from kernels.compilation import compile_in_parallel, wanted_kernels
from kernels.step.rows import begin_step, embed_rows

driver.set_active(
    SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_stream=lambda device: 0,
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
    )
)

def embed(launch=begin_step):
    rows = torch.zeros(64, dtype=torch.int32, device="cuda")
    for width in (64, 128, 64):
        table = torch.zeros(8, width, dtype=torch.float16, device="cuda")
        launch(rows, rows, rows, table, table, table, torch.zeros(8, 2, 1, device="cuda"))
"""


def _run(body: str, cache: Path) -> None:
    done = forked_python(PRELUDE + body, TRITON_CACHE_DIR=str(cache))
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_wanted_is_noted_and_neither_compiled_nor_launched(tmp_path: Path) -> None:
    _run(
        """
with pretended_cuda(), patch.object(JITFunction, "run", run):
    wanted = wanted_kernels(embed)
assert [(one.module, one.name) for one in wanted] == [("kernels.step.rows", "embed_rows")] * 2
assert len(set(wanted)) == 2 and not any(one.is_stored for one in wanted)
assert knobs.runtime.jit_cache_hook is None
with patch.object(multiprocessing, "get_context", lambda *_: 1 / 0):
    compile_in_parallel([])
    # One alone is as quickly compiled by its launch.
    compile_in_parallel(wanted[:1])
""",
        tmp_path,
    )


@pytest.mark.thorough
def test_what_is_missing_is_compiled_elsewhere_and_found_by_its_launch(tmp_path: Path) -> None:
    _run(
        """
compiled = []
def note(*, src, cache_hit, **_):
    compiled.append((src.name, cache_hit))

with pretended_cuda(), patch.object(JITFunction, "run", run):
    compile_in_parallel(wanted_kernels(embed))
    knobs.compilation.listener = note
    assert all(one.is_stored for one in wanted_kernels(embed)) and not compiled
    # As a launch compiles, without the launch itself.
    def compile_only(*arguments, warmup, **options):
        return run(*arguments, warmup=True, **options)

    with patch.object(JITFunction, "run", compile_only):
        embed()
assert compiled == [("embed_rows", True)] * 2
""",
        tmp_path,
    )


@pytest.mark.thorough
def test_a_kernel_that_does_not_compile_leaves_the_others(tmp_path: Path) -> None:
    _run(
        """
from dataclasses import replace
with pretended_cuda(), patch.object(JITFunction, "run", run):
    first, second = wanted_kernels(embed)
    compile_in_parallel([replace(first, specialization="{}"), second, replace(first, name="none")])
    assert [one.is_stored for one in wanted_kernels(embed)] == [False, True]
""",
        tmp_path,
    )
