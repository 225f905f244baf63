"""What only a GPU shows: captured graphs, tokens read back late, half precision."""

from __future__ import annotations

import gc
import time

import numpy as np
import pytest
import torch

from engine import Engine, EngineConfig, SamplingParams
from engine.transport.mapped_memory import mapped_memory
from tests.fresh_python import fresh_python

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA GPU: run `nox -s kernels` on one"
)

PARAMS = SamplingParams(max_new_tokens=24, ignore_eos=True)


def _engine(**options: object) -> Engine:
    defaults = {"device": "cuda", "dtype": "float32", "block_size": 16, "max_batch_size": 16}
    return Engine(EngineConfig(**(defaults | options)))


def _outputs(engine, prompts, params=PARAMS):
    outputs = [completion.token_ids for completion in engine.generate(prompts, params)]
    engine.check_integrity()
    return outputs


@pytest.fixture(scope="module")
def on_the_cpu(prompts):
    engine = Engine(EngineConfig(device="cpu", block_size=16, max_batch_size=16))
    return _outputs(engine, prompts)


@pytest.mark.parametrize(
    "options",
    [
        {"decode": "graph"},
        {"decode": "eager"},
        {"decode": "graph", "max_batch_size": 5},
        {"decode": "graph", "prefix_cache": False, "prefill_max_tokens": 50},
        {"decode": "graph", "num_kv_blocks": 15},
        {"decode": "graph", "decode_first": True, "block_size": 64},
        {"decode": "graph", "mixed_prefill_tokens": 16, "max_batch_size": 5},
        {"decode": "eager", "mixed_prefill_tokens": 8, "num_kv_blocks": 15},
    ],
    ids=str,
)
def test_greedy_output_equals_the_cpus(prompts, on_the_cpu, options):
    engine = _engine(**options)
    assert _outputs(engine, prompts) == on_the_cpu
    assert _outputs(engine, prompts[::-1]) == on_the_cpu[::-1]


@pytest.mark.parametrize("decode", ["graph", "eager"])
def test_sequences_that_fill_every_position_of_the_model(decode):
    prompt = np.random.default_rng(6).integers(0, 1000, 1024).tolist()
    on_the_gpu = _engine(decode=decode, num_kv_blocks=2 * 64)
    on_the_cpu = Engine(EngineConfig(device="cpu", block_size=16, num_kv_blocks=64))
    for missing in (0, 1, 5):
        params = SamplingParams(max_new_tokens=missing + 1, ignore_eos=True)
        prompts = [prompt[: 1024 - missing]]
        expected = _outputs(on_the_cpu, prompts, params)
        for _ in range(2):
            assert _outputs(on_the_gpu, prompts, params) == expected


def test_a_replayed_prefill_stores_what_its_launches_do():
    """Below, at and above the sizes of buckets, of one sequence, of several and of many."""
    replaying, launching = (
        _engine(decode=mode, prefix_cache=False, max_batch_size=80) for mode in ("graph", "eager")
    )
    once = SamplingParams(max_new_tokens=1, ignore_eos=True)
    random = np.random.default_rng(5)
    for lengths in (
        [9],
        [63],
        [64],
        [65],
        [200],
        [128, 129],
        [16, 16, 32],
        [150, 200, 14, 10],
        [9] * 30,
        [9] * 70,
    ):
        prompts = [random.integers(0, 1000, length).tolist() for length in lengths]
        tokens = [_outputs(engine, prompts, once) for engine in (replaying, launching)]
        assert tokens[0] == tokens[1], lengths
        for name in ("keys", "values"):
            stored = [
                getattr(engine._loop.worker._cache, name) for engine in (replaying, launching)
            ]
            torch.testing.assert_close(*stored, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("options", [{}, {"mixed_prefill_tokens": 16}], ids=str)
def test_sampled_output_is_the_same_in_any_batch(prompts, options):
    params = [
        SamplingParams(max_new_tokens=24, temperature=0.9, top_k=40, seed=i, ignore_eos=True)
        for i in range(len(prompts))
    ]
    together = _outputs(_engine(**options), prompts, params)
    single = _engine(max_batch_size=1)
    alone = [
        _outputs(single, [prompt], [one])[0] for prompt, one in zip(prompts, params, strict=True)
    ]
    assert together == alone


def test_stop_tokens_seen_late_leave_no_trace(prompts, on_the_cpu):
    engine = _engine()
    for prompt, full in zip(prompts, on_the_cpu, strict=True):
        stop = full[9]
        params = SamplingParams(max_new_tokens=24, stop_token_ids=(stop,), ignore_eos=True)
        (completion,) = engine.generate([prompt], params)
        assert completion.token_ids == full[: full.index(stop) + 1]
        assert completion.finish_reason == "stop"
    # Rows and blocks of requests that overran their end serve the next ones rightly.
    assert _outputs(engine, prompts) == on_the_cpu


def test_abort_in_flight_leaves_the_others_alone(prompts, on_the_cpu):
    engine = _engine()
    ids = [engine.submit(prompt, PARAMS) for prompt in prompts]
    outputs: dict[int, list[int]] = {}
    step = 0
    while engine.has_unfinished:
        for event in engine.step():
            outputs.setdefault(event.request_id, []).append(event.token_id)
        step += 1
        if step == 6:
            for request_id in ids[::3]:
                engine.abort(request_id)
            engine.check_integrity()
    for place, request_id in enumerate(ids):
        if place % 3:
            assert outputs[request_id] == on_the_cpu[place]


@pytest.mark.parametrize("mixed", [0, 16])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_loop_never_synchronizes(prompts, temperature, mixed):
    engine = _engine(mixed_prefill_tokens=mixed)
    params = SamplingParams(max_new_tokens=24, temperature=temperature, ignore_eos=True)
    _outputs(engine, prompts, params)
    torch.cuda.set_sync_debug_mode("error")
    try:
        _outputs(engine, prompts, params)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_sampling_without_memory_ends_with_an_error_and_the_greedy_requests_go_on():
    """All that is reserved is all there is: sorting the vocabulary of 32 rows finds no room."""
    random = np.random.default_rng(2)
    prompts = [random.integers(0, 50257, 40).tolist() for _ in range(32)]
    params = [
        SamplingParams(max_new_tokens=16, temperature=0.9 * (place % 2), ignore_eos=True)
        for place in range(32)
    ]
    engine = _engine(model="random:gpt2", dtype="float16", max_batch_size=32, num_kv_blocks=400)
    greedy = SamplingParams(max_new_tokens=16, ignore_eos=True)
    alike = _outputs(engine, prompts, greedy)
    gc.collect()
    torch.cuda.empty_cache()
    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved() / total)
    try:
        completions = engine.generate(prompts, params)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    engine.check_integrity()
    reasons = [completion.finish_reason for completion in completions]
    assert reasons == ["length", "error"] * 16
    assert [one.token_ids for one in completions[::2]] == alike[::2]
    again = engine.generate(prompts, params)
    assert {completion.finish_reason for completion in again} == {"length"}
    assert [one.token_ids for one in again[::2]] == alike[::2]


def test_tokens_do_not_depend_on_the_streams_of_the_caller(prompts, on_the_cpu):
    """A caller whose streams are busy, another one at every step, as a server of many parts is."""
    busy = [torch.cuda.Stream() for _ in range(3)]
    with torch.cuda.stream(busy[0]):
        engine = _engine(num_kv_blocks=40)
    ids = [engine.submit(prompt, PARAMS) for prompt in prompts]
    outputs: dict[int, list[int]] = {request_id: [] for request_id in ids}
    step = 0
    while engine.has_unfinished:
        with torch.cuda.stream(busy[step % 3]):
            torch.cuda._sleep(2_000_000)
            for event in engine.step():
                outputs[event.request_id].append(event.token_id)
            assert torch.cuda.current_stream() == busy[step % 3]
        step += 1
    assert list(outputs.values()) == on_the_cpu


def test_nothing_is_copied_in_the_steady_state():
    engine = _engine(block_size=64)
    for length in (3, 9, 20):
        engine.submit([1] * length, SamplingParams(max_new_tokens=30, ignore_eos=True))
    for _ in range(4):
        engine.step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(10):
            engine.step()
        torch.cuda.synchronize()
    names = [event.key for event in profile.key_averages()]
    assert names
    assert not [name for name in names if "Memcpy" in name]


def test_the_host_sees_what_any_device_wrote_once_its_event_has_come_about():
    """Also where the memory was pinned for another device before."""
    for _ in range(2):
        for index in range(torch.cuda.device_count()):
            device = torch.device("cuda", index)
            with torch.cuda.device(device):
                on_host, on_device = mapped_memory((300, 7), torch.int32, device)
                assert on_device.device == device
                assert not on_host.any()
                torch.cuda._sleep(20_000_000)
                on_device.copy_(torch.arange(2100, device=device).view(300, 7))
                written = torch.cuda.Event()
                written.record()
                assert not on_host.any()
                written.synchronize()
                assert on_host.flatten().tolist() == list(range(2100))
            del on_host, on_device


def test_half_precision_logits_are_as_close_to_fp32_as_transformers(tmp_path):
    """At most twice the error that transformers makes in fp16, both against fp64."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=6, n_embd=384, n_head=6, vocab_size=5000)
    reference = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            if "ln_" not in name:
                parameter.normal_(std=0.08)
    reference.save_pretrained(tmp_path)
    prompt = np.random.default_rng(1).integers(0, 5000, 150).tolist()
    # The fused step makes no logits: this is about the model that all steps share.
    engine = Engine(EngineConfig(model=str(tmp_path), device="cuda", decode="eager", fuse=False))
    ours, token_ids = _logits_and_tokens(engine, prompt)

    fed = torch.tensor([prompt + token_ids[:-1]])
    with torch.inference_mode():
        exact = reference.double()(fed).logits[0]
        theirs = reference.half().cuda()(fed.cuda()).logits[0].double().cpu()
    for part in (slice(0, 150), slice(150, None)):  # prefilled, then decoded
        their_error = (theirs[part] - exact[part]).norm() / exact[part].norm()
        our_error = (ours[part] - exact[part]).norm() / exact[part].norm()
        assert 0 < our_error <= 2 * their_error


def _logits_and_tokens(engine: Engine, prompt: list[int]) -> tuple[torch.Tensor, list[int]]:
    """Logits at every position of `prompt` and of 40 tokens after it, and those tokens."""
    hidden_states: list[torch.Tensor] = []
    forward = engine.model.forward

    def recorded(token_ids, positions, attend, kept=None):
        hidden_states.append(forward(token_ids, positions, attend))
        return hidden_states[-1] if kept is None else hidden_states[-1].index_select(0, kept)

    engine.model.forward = recorded
    params = SamplingParams(max_new_tokens=40, ignore_eos=True)
    (completion,) = engine.generate([prompt], params)
    logits = torch.cat([engine.model.logits(hidden) for hidden in hidden_states])
    return logits.double().cpu(), completion.token_ids


@pytest.mark.thorough
def test_a_cold_start_compiles_its_kernels_in_parallel(tmp_path):
    """Eight seconds at most on a host of 16 cores, where one after another they take 25 to 30."""
    body = """
import time, torch
from engine import Engine, EngineConfig
torch.zeros(1, device="cuda")
begun = time.perf_counter()
Engine(EngineConfig(model="random:gpt2", device="cuda")).generate([[1]])
print(time.perf_counter() - begun)
"""
    cold, warm = (fresh_python("-c", body, TRITON_CACHE_DIR=str(tmp_path)) for _ in range(2))
    assert cold.returncode == warm.returncode == 0, cold.stderr + warm.stderr
    assert float(cold.stdout) <= 8, warm.stdout
    assert float(warm.stdout) < float(cold.stdout)


@pytest.mark.xdist_group("most-memory")
def test_captures_of_all_batch_sizes_up_to_256_take_at_most_ten_seconds():
    """With kernels compiled, as they are wherever an engine ran before."""
    options = {"model": "random:gpt2", "dtype": "float16", "max_batch_size": 256}
    _engine(**options)
    gc.collect()
    started = time.perf_counter()
    _engine(**options)
    torch.cuda.synchronize()
    assert time.perf_counter() - started <= 10


def test_an_earlier_engine_that_is_garbage_spoils_no_capture(prompts, on_the_cpu):
    """Freeing what it held in the middle of a capture would invalidate the capture."""
    thresholds = gc.get_threshold()
    gc.set_threshold(20, 2, 2)
    try:
        for _ in range(3):
            earlier = _engine()
            earlier.itself = earlier
            del earlier
            engine = _engine()
        assert _outputs(engine, prompts) == on_the_cpu
    finally:
        gc.set_threshold(*thresholds)


SHAPED = [
    PARAMS,
    SamplingParams(24, ignore_eos=True, presence_penalty=1.0, frequency_penalty=0.5),
    SamplingParams(24, ignore_eos=True, repetition_penalty=1.3, logprobs=3),
    SamplingParams(24, ignore_eos=True, logprobs=0),
]


@pytest.mark.parametrize(
    "options",
    [
        {"decode": "graph"},
        {"decode": "eager"},
        {"decode": "graph", "num_kv_blocks": 15},
        {"decode": "graph", "mixed_prefill_tokens": 16},
    ],
    ids=str,
)
def test_tokens_chosen_again_equal_the_cpus(prompts, options):
    """Steps run ahead of the host: what a row has said is counted on the device."""
    each = [SHAPED[place % 4] for place in range(len(prompts))]
    on_the_cpu = Engine(EngineConfig(device="cpu", block_size=16, max_batch_size=16))
    expected = on_the_cpu.generate(prompts, each)
    on_the_gpu = _engine(**options)
    for _ in range(2):
        made = on_the_gpu.generate(prompts, each)
        assert [one.token_ids for one in made] == [one.token_ids for one in expected]
        for one, other in zip(made, expected, strict=True):
            told = [entry.logprob for entry in one.logprobs or ()]
            assert told == pytest.approx(
                [entry.logprob for entry in other.logprobs or ()], abs=1e-2
            )
    on_the_gpu.check_integrity()


def test_draws_chosen_again_are_the_same_captured_and_launched(prompts):
    params = SamplingParams(24, 1.2, seed=3, ignore_eos=True, min_p=0.02, presence_penalty=0.5)
    replaying, launching = (_engine(decode=mode) for mode in ("graph", "eager"))
    assert _outputs(replaying, prompts, params) == _outputs(launching, prompts, params)


def test_a_stop_string_ends_requests_whose_steps_run_ahead(tmp_path):
    from speaking_checkpoints import save_speaking

    save_speaking(tmp_path)
    engine = _engine(model=tmp_path)
    (whole,) = engine.generate(["the fox"], SamplingParams(60, ignore_eos=True))
    stop = whole.text[20:23]
    params = SamplingParams(60, ignore_eos=True, stop=stop)
    for _ in range(3):
        (completion,) = engine.generate(["the fox"], params)
        assert completion.text == whole.text[: whole.text.index(stop)]
        assert completion.finish_reason == "stop"
    engine.check_integrity()
    assert engine.load[:3] == (0, 0, 0.0)
