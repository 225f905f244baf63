"""Engines on the CPU that the engine's tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from engine_cases import GREEDY

from engine import Engine, EngineConfig
from engine.kv import memory

MakeEngine = Callable[..., Engine]


@pytest.fixture(scope="session", autouse=True)
def small_caches() -> Iterator[None]:
    """Caches of unnamed size hold one longest sequence and more, not hundreds of megabytes."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(memory, "_MOST_CPU_BYTES", 32 << 20)
        yield


@pytest.fixture
def make_engine() -> Iterator[MakeEngine]:
    """Builds CPU engines; each must end the test with sound KV bookkeeping."""
    engines: list[Engine] = []

    def make(**options: object) -> Engine:
        engine = Engine(EngineConfig(**({"device": "cpu", "block_size": 16} | options)))
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.check_integrity()


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """Twelve prompts of 1 to 200 tokens, around block boundaries and away from them."""
    random = np.random.default_rng(11)
    lengths = [1, 2, 15, 16, 17, 31, 32, 33, 64, 65, 127, 200]
    return [random.integers(0, 1000, length).tolist() for length in lengths]


@pytest.fixture(scope="session")
def greedy_alone(prompts: list[list[int]]) -> list[list[int]]:
    """Twenty greedy tokens for each prompt, each run by itself: what every batch must repeat."""
    engine = Engine(EngineConfig(device="cpu", prefix_cache=False, max_batch_size=1))
    return [engine.generate([prompt], GREEDY)[0].token_ids for prompt in prompts]
