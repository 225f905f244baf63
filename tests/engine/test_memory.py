"""What memory cannot hold is refused in a sentence, before anything is allocated."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from asv_bench.lab.pretend_cuda import pretended_cuda
from engine import ConfigError, Engine, EngineConfig
from engine.kv import memory
from engine.memory import allocating, host_bytes, in_words, require_bytes
from engine.worker.graph_capture import GraphPool

CPU = torch.device("cpu")
GIB = 1 << 30
OWN_BYTES = memory._MOST_CPU_BYTES


@pytest.fixture(autouse=True)
def own_caches() -> Iterator[None]:
    """Caches of unnamed size are as large as they are for users, unlike in other tests."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(memory, "_MOST_CPU_BYTES", OWN_BYTES)
        yield


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({"num_kv_blocks": 10**9}, "The KV cache of 1000000000 blocks of 64 tokens"),
        ({"num_kv_blocks": 10**40}, "The KV cache of 10{40} blocks of 64 tokens"),
        ({"num_kv_blocks": 1, "block_size": 10**12}, "The KV cache of 1 blocks of 1000000000000"),
        ({"block_size": 10**12}, "The KV cache of one longest sequence takes 1 blocks of"),
        ({"block_size": 10**400}, "The KV cache of one longest sequence takes 1 blocks of"),
        ({"max_batch_size": 10**9}, "batch of max_batch_size=1000000000 sequences"),
        ({"max_batch_size": 10**9, "max_model_len": 1}, "batch of max_batch_size=1000000000"),
        ({"max_batch_size": 10**40, "num_kv_blocks": 1}, "batch of max_batch_size=10{40} "),
    ],
    ids=str,
)
def test_what_no_machine_holds_is_refused_at_once(options, asked):
    started = time.process_time()
    with pytest.raises(ConfigError, match=asked) as refusal:
        Engine(EngineConfig(device="cpu", **options))
    assert time.process_time() - started < 4
    sentence = str(refusal.value)
    assert " TiB" in sentence or "10000" in sentence  # what was asked for
    assert "GiB" in sentence  # and what there is
    assert ": lower " in sentence
    assert sentence.endswith(".")


def test_what_is_there_decides(monkeypatch):
    """The same engine is built where memory has room for it."""
    options = EngineConfig(device="cpu", num_kv_blocks=2048, max_batch_size=2, block_size=16)
    for available, is_refused in ((GIB, False), (60 << 20, True)):
        monkeypatch.setattr("engine.memory.host_bytes", lambda room=available: room)
        if is_refused:
            with pytest.raises(ConfigError, match=r"64\.0 MiB, but cpu has 60\.0 MiB"):
                Engine(options)
        else:
            Engine(options)


def test_a_cache_of_no_given_size_fits_into_what_is_there(monkeypatch):
    options = EngineConfig(device="cpu")
    monkeypatch.setattr("engine.memory.host_bytes", lambda: 64 << 20)
    little = Engine(options).num_kv_blocks
    monkeypatch.undo()
    assert 16 <= little < Engine(options).num_kv_blocks


def test_weights_that_do_not_fit_are_named(monkeypatch):
    monkeypatch.setattr("engine.memory.host_bytes", lambda: GIB)
    with pytest.raises(
        ConfigError, match=r"weights of random:gpt2-xl as float32 would take 5\.8 G"
    ):
        Engine(EngineConfig(model="random:gpt2-xl", device="cpu"))


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to"),
        RuntimeError("CUDA error: out of memory"),
    ],
    ids=repr,
)
def test_running_out_of_memory_is_said_with_what_was_asked_for(error):
    sentence = r"^A cake would take 3\.0 KiB and scratch.*; eat less\."
    with (
        pytest.raises(ConfigError, match=sentence),
        allocating("A cake", 3072, CPU, "eat less"),
    ):
        raise error


def test_a_capture_that_runs_out_of_memory_while_an_engine_is_built(monkeypatch):
    def fail(self, launch):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(GraphPool, "capture", fail)
    options = {"num_kv_blocks": 40, "max_batch_size": 4, "block_size": 16}
    with pretended_cuda(), pytest.raises(ConfigError, match=r"KV cache of 40 .*decode='eager'\."):
        Engine(EngineConfig(device="cuda", **options))


def test_other_failures_stay_what_they_are():
    with (
        pytest.raises(RuntimeError, match="shapes") as raised,
        allocating("A cake", 3072, CPU, "eat less"),
    ):
        raise RuntimeError("shapes do not match")
    assert not isinstance(raised.value, ConfigError)


def _machine(root: Path, groups: dict[str, dict[str, str]], cgroup: str) -> tuple[Path, Path]:
    """The kernel's files of a machine with 8 GiB available and 1 GiB of swap."""
    proc, cgroups = root / "proc", root / "cgroup"
    (proc / "self").mkdir(parents=True)
    available = f"MemTotal: 9 kB\nMemAvailable: {8 << 20} kB\nSwapFree: {1 << 20} kB\n"
    (proc / "meminfo").write_text(available)
    (proc / "self" / "cgroup").write_text(cgroup)
    for path, files in groups.items():
        (cgroups / path).mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (cgroups / path / name).write_text(content)
    return proc, cgroups


def _second(limit: str, usage: int, stat: str = "") -> dict[str, str]:
    return {"memory.max": limit, "memory.current": str(usage), "memory.stat": stat}


def _first(limit: int) -> dict[str, str]:
    return {"memory.limit_in_bytes": str(limit), "memory.usage_in_bytes": "0"}


@pytest.mark.parametrize(
    ("groups", "cgroup", "expected"),
    [
        ({}, "", 9 * GIB),
        ({"": _second("max", GIB)}, "0::/\n", 9 * GIB),
        ({"": _second(str(4 * GIB), GIB)}, "0::/\n", 3 * GIB),
        # Cached files are dropped where memory is asked for.
        ({"": _second(str(4 * GIB), GIB, f"anon 5\ninactive_file {GIB}\n")}, "0::/\n", 4 * GIB),
        ({"a": _second(str(4 * GIB), 0), "a/b": _second("max", 0)}, "0::/a/b\n", 4 * GIB),
        ({"a": _second(str(4 * GIB), 0), "a/b": _second(str(GIB), 0)}, "0::/a/b\n", GIB),
        # A container's own group may be seen as the root.
        ({"": _second(str(2 * GIB), 0)}, "0::/docker/1234\n", 2 * GIB),
        ({"": _second(str(GIB), 2 * GIB)}, "0::/\n", 0),
        ({"cpu,memory": _first(GIB)}, "3:cpu,memory:/\n0::/\n", GIB),
        (
            {
                "memory/a": {
                    "memory.limit_in_bytes": str(3 * GIB),
                    "memory.usage_in_bytes": str(GIB),
                    "memory.stat": "total_inactive_file 1024\n",
                }
            },
            "5:devices:/a\n4:memory:/a\n0::/\n",
            2 * GIB + 1024,
        ),
    ],
)
def test_the_least_of_machine_and_control_groups_is_there(groups, cgroup, expected, tmp_path):
    assert host_bytes(*_machine(tmp_path, groups, cgroup)) == expected


def test_a_limit_of_the_process_counts():
    in_use = 4096 * int(Path("/proc/self/statm").read_text().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (in_use + (256 << 20), limits[1]))
    try:
        assert host_bytes() <= 256 << 20
        with pytest.raises(ConfigError, match=r"would take .* GiB, but cpu has .* MiB free"):
            Engine(EngineConfig(device="cpu", num_kv_blocks=60_000))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def test_this_machine_has_memory():
    assert host_bytes() > 0
    require_bytes("A byte", 1, CPU, "give up")


@pytest.mark.parametrize(
    ("num_bytes", "words"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1536, "1.5 KiB"),
        (GIB, "1.0 GiB"),
        (1 << 52, "4096.0 TiB"),
    ],
)
def test_bytes_in_words(num_bytes, words):
    assert in_words(num_bytes) == words
