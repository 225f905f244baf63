"""The implementations under test, and what a session may demand of the machine.

``KVTRAIL_REQUIRE=gpu`` (or ``interpreter``) makes the run fail where that is missing, so that a
session cannot pass by leaving tests out.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from kernels.backend import interpreting

REQUIRED = os.environ.get("KVTRAIL_REQUIRE", "")
HAS_GPU = torch.cuda.is_available() and not interpreting()


@dataclass(frozen=True, slots=True)
class Implementation:
    """One way to run the public operations: where its tensors live and what it takes."""

    name: str
    device: torch.device
    dtypes: tuple[torch.dtype, ...]
    is_bitwise: bool


def _implementations() -> list[Implementation]:
    half = (torch.float32, torch.float16)
    every = (*half, torch.bfloat16)
    cpu = torch.device("cpu")
    found = [Implementation("torch", cpu, every, is_bitwise=False)]
    if HAS_GPU:
        found.append(Implementation("triton", torch.device("cuda"), every, is_bitwise=True))
    elif interpreting():
        # bfloat16 is wrong in the interpreter; it is tested on the GPU.
        found.append(Implementation("triton", cpu, half, is_bitwise=True))
    return found


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Stop the whole run where the machine lacks what the session demands; mark spare cells."""
    if REQUIRED == "gpu" and not HAS_GPU:
        raise pytest.UsageError(
            "KVTRAIL_REQUIRE=gpu needs a GPU that torch can use and no TRITON_INTERPRET"
        )
    if REQUIRED == "interpreter" and not interpreting():
        raise pytest.UsageError("KVTRAIL_REQUIRE=interpreter, but TRITON_INTERPRET=1 is not set")
    if HAS_GPU:
        return
    grids: dict[tuple[str, int], list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            implementation = item.callspec.params.get("implementation")
            grids[item.nodeid.partition("[")[0], id(implementation)].append(item)
    for cells in grids.values():
        for cell in _spare_cells(cells):
            cell.add_marker(pytest.mark.spare)


def _spare_cells(cells: Sequence[pytest.Function]) -> Iterator[pytest.Function]:
    """All but a few cells of a grid that show every value of every parameter."""
    values = {
        cell: [(name, id(value)) for name, value in cell.callspec.params.items()] for cell in cells
    }
    shown = Counter[tuple[str, int]]()
    while unseen := set[tuple[str, int]]().union(*values.values()) - shown.keys():
        # Of those that show as many new values, the one whose other values were shown least.
        telling = max(
            values,
            key=lambda cell: (
                len(unseen.intersection(values[cell])),
                -sum(shown[value] for value in values[cell]),
            ),
        )
        shown.update(values.pop(telling))
    yield from values


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    names = metafunc.fixturenames
    found = _implementations()
    if "implementation" in names and "dtype" in names:
        cases = [(one, dtype) for one in found for dtype in one.dtypes]
        ids = [f"{one.name}-{str(dtype).removeprefix('torch.')}" for one, dtype in cases]
        metafunc.parametrize(
            ("implementation", "dtype"), cases, ids=ids, indirect=["implementation"]
        )
    elif "implementation" in names:
        metafunc.parametrize(
            "implementation", found, ids=[one.name for one in found], indirect=True
        )


@pytest.fixture
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The implementation that the public operations use in this test."""
    chosen: Implementation = request.param
    if chosen.name == "torch":
        for module in ("attention.plans", "attention.rotation", "linear.norm", "linear.gate"):
            monkeypatch.setattr(f"kernels.{module}.uses_triton", lambda tensor: False)
    return chosen


@pytest.fixture(scope="session")
def triton_device() -> torch.device:
    """Where Triton kernels run; a test that asks for it has no meaning without Triton."""
    if HAS_GPU:
        return torch.device("cuda")
    if interpreting():
        return torch.device("cpu")
    pytest.skip("needs a GPU or TRITON_INTERPRET=1: `nox -s kernels` sets what the machine has")


@pytest.fixture
def gpu() -> torch.device:
    """The GPU; without one the test is skipped, or not reached under KVTRAIL_REQUIRE=gpu."""
    if not HAS_GPU:
        pytest.skip("needs a GPU")
    return torch.device("cuda")


@pytest.fixture
def hopper(gpu: torch.device) -> torch.device:
    """A GPU that the kernels of `kernels.*.hopper` are for."""
    if torch.cuda.get_device_capability(gpu) != (9, 0):
        pytest.skip("needs a GPU of compute capability 9.0")
    return gpu


@pytest.fixture
def poisoned() -> Callable[..., torch.Tensor]:
    """A strided view in the middle of a larger buffer of NaN, and a check of what surrounds it."""

    def make(shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        rows, heads, dim = shape
        buffer = torch.full(
            (rows + 2, heads + 1, dim + 16), float("nan"), dtype=dtype, device=device
        )
        return buffer[1:-1, :heads, :dim]

    return make
