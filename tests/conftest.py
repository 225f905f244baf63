"""What holds for every test: no network, one thread, reproducible properties, a header of facts."""

from __future__ import annotations

import gc
import importlib.metadata
import os
import platform
import signal
import sys
import tempfile
from collections.abc import Iterator

import hypothesis
import pytest
from browser import chromium

# A test that reaches for a network is broken: it must fail here as it would on an offline host.
os.environ["HF_HUB_OFFLINE"] = "1"

# pytest-xdist tells its workers a width, which commands would take for that of a user's terminal.
os.environ.pop("COLUMNS", None)

# A job in the background of a shell ignores Ctrl-C, and so would all that its tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The tests' tensors are tiny: threads cost more than they bring, and a busy machine far more.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Triton's interpreter multiplies with numpy. OpenBLAS's kernels for AVX2 round a row of a product
# by where it lies, and kernels promise that a row does not depend on its neighbours.
if platform.machine() == "x86_64":
    os.environ["OPENBLAS_CORETYPE"] = "Sandybridge"

# Sessions of other tests, and of a user, are on another machine, as far as a test can see.
_state = tempfile.TemporaryDirectory(prefix="kvtrail-tests-")
os.environ["XDG_STATE_HOME"] = _state.name

_MOST_KEPT_BYTES = 1 << 30

# Derandomised, so that a red run can be repeated; the search for new cases is `thorough`'s.
hypothesis.settings.register_profile("kvtrail", deadline=None, derandomize=True)
hypothesis.settings.register_profile("search", deadline=None, max_examples=1000)
hypothesis.settings.load_profile(os.environ.get("KVTRAIL_HYPOTHESIS", "kvtrail"))


@pytest.fixture(scope="session", autouse=True)
def _rounding_to_eight_bits() -> Iterator[None]:
    """The interpreter's own conversion of e4m3 is wrong."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        yield
        return
    from interpreted_launches import rounding_to_eight_bits

    with rounding_to_eight_bits():
        yield


def pytest_sessionstart() -> None:
    """Fail at once where what is demanded is missing: its tests would only be skipped."""
    if os.environ.get("KVTRAIL_REQUIRE") == "chromium" and chromium() is None:
        raise pytest.UsageError(
            "KVTRAIL_REQUIRE=chromium, but there is no Chromium here; unset it, or install the "
            "browser (apt-get install chromium)"
        )
    if os.environ.get("KVTRAIL_REQUIRE") == "gpu":
        import torch

        if not torch.cuda.is_available():
            raise pytest.UsageError(
                "KVTRAIL_REQUIRE=gpu, but torch finds no GPU that it can use; unset it, or repair "
                "the driver or torch"
            )


def pytest_collection_finish() -> None:
    """Hide modules and tests from the collector, or each full collection looks through them."""
    _hide()


@pytest.fixture
def nothing_hidden() -> Iterator[None]:
    """For a test of what is hidden from the garbage collector."""
    gc.unfreeze()
    yield
    _hide()


def _hide() -> None:
    gc.collect()
    gc.freeze()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Keep tests that share a fixture of their module in one process, which makes it once."""
    scopes = {one.scope for same in item._fixtureinfo.name2fixturedefs.values() for one in same}
    if "module" in scopes and not item.get_closest_marker("xdist_group"):
        item.add_marker(pytest.mark.xdist_group(item.module.__name__))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Give back what a test had of a GPU's memory: tests in other processes share the GPU."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    if torch.cuda.memory_allocated() > _MOST_KEPT_BYTES:
        gc.collect()
    if torch.cuda.memory_reserved() > _MOST_KEPT_BYTES:
        torch.cuda.empty_cache()


def pytest_report_header() -> list[str]:
    """State what the tests run on, without importing any of it."""
    packages = ("torch", "triton", "numpy", "transformers")
    installed = {dist.name.lower(): dist.version for dist in importlib.metadata.distributions()}
    versions = ", ".join(f"{name} {installed.get(name, 'absent')}" for name in packages)
    triton = "interpreted" if os.environ.get("TRITON_INTERPRET") == "1" else "compiled"
    required = os.environ.get("KVTRAIL_REQUIRE", "nothing")
    return [
        f"kvtrail: Python {platform.python_version()}, {versions}, {os.cpu_count()} CPUs",
        f"kvtrail: Triton kernels {triton}; KVTRAIL_REQUIRE demands {required}",
    ]
