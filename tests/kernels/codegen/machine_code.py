"""Every kernel compiled for sm_90, GPU or not, and held to its rules: `nox -s codegen`.

They are those that the engine launches for GPT-2, at every batch bucket, those of fused steps of
other families at some, and the plain kernels for the head shapes and dtypes of other models.

No session but this one collects the file, which is not called test_...: to find and to compile the
kernels takes minutes.
"""

from __future__ import annotations

import pytest
import triton
from rich.console import Console

from asv_bench.lab.launched_kernels import CompiledKernel
from tests.kernels.codegen.every_kernel import compile_all, every_kernel
from tests.kernels.codegen.figures import figures_of
from tests.kernels.codegen.rules import violations

KERNELS = {one.name: one for one in every_kernel()}


@pytest.fixture(scope="session")
def compiled(request: pytest.FixtureRequest) -> dict[str, CompiledKernel | str]:
    """What was selected, compiled at once on all cores; a sentence for what does not compile."""
    selected = {item.callspec.params["name"] for item in request.session.items}
    done, failures = compile_all([KERNELS[name] for name in sorted(selected)], Console())
    return {one.name: one for one in done} | {one.partition(" ")[0]: one for one in failures}


@pytest.mark.timeout(0)  # the first one waits for all
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_keeps_its_rules(name: str, compiled: dict[str, CompiledKernel | str]) -> None:
    found = compiled[name]
    assert isinstance(found, CompiledKernel), found
    broken = violations(figures_of(KERNELS[name], found), triton.__version__)
    assert not broken, "; ".join(broken)
