"""Kernels that are compiled ahead are all that captures launch, on a pretended GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fresh_python import forked_python

BODY = """
from types import SimpleNamespace
from unittest.mock import patch

from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

run = JITFunction.run  # The pretended GPU has its own.

import kernels.compilation as compilation
from asv_bench.lab.pretend_cuda import pretended_cuda
from engine import Engine, EngineConfig

driver.set_active(
    SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_stream=lambda device: 0,
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
    )
)
launched, ahead = set(), []

def note_or_launch(kernel, *arguments, **options):
    if knobs.runtime.jit_cache_hook is not None:
        return run(kernel, *arguments, **options)
    [wanted] = compilation.wanted_kernels(lambda: run(kernel, *arguments, **options))
    launched.add(wanted)
    return SimpleNamespace(metadata=SimpleNamespace(num_warps=4, shared=0))

with (
    pretended_cuda(),
    patch.object(JITFunction, "run", note_or_launch),
    patch.object(compilation, "compile_in_parallel", ahead.extend),
):
    Engine(
        EngineConfig(
            model="random:gpt2-tiny", device="cuda", fuse={fuse}, max_batch_size=17,
            num_kv_blocks=200, prefill_max_tokens=180,
        )
    )
assert launched and launched == set(ahead), [one.name for one in launched ^ set(ahead)]
"""


@pytest.mark.parametrize("fuse", [True, False])
def test_all_that_captures_launch_is_compiled_ahead(fuse: bool, tmp_path: Path) -> None:
    done = forked_python(BODY.format(fuse=fuse), TRITON_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
