"""The codegen check: good kernels pass, each kind of bad one is named.

Compiling happens in fresh processes, because a test run under Triton's interpreter has defined
its kernels as interpreted ones.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from asv_bench.lab.codegen.compiled import FLOAT_ATOMIC, KernelFigures, stores_on_barriers
from asv_bench.lab.codegen.rules import MAX_COMPILE_S, violations
from asv_bench.lab.codegen.sass import (
    ASYNC_COPY,
    DEPENDENCY_WAIT,
    GLOBAL_LOAD,
    LOCAL_MEMORY,
    Disassembly,
    parse_sass,
)
from tests.fresh_python import fresh_python

ATTENTION = KernelFigures(
    name="decode-x",
    dtype="fp16",
    family="attention",
    is_dependent=False,
    rows=(),
    registers=80,
    stack_bytes=0,
    spill_instructions=0,
    shared_bytes=36864,
    instructions=700,
    tensor_core=16,
    async_copies=24,
    loop_tensor_core=16,
    loop_async_copies=8,
    loop_narrowest_load=4,
    widest_load=16,
    narrowest_store=16,
    dependency_waits=0,
    accesses_before_wait=0,
    consumer_releases=0,
    float_atomics=0,
    stores_on_barriers=0,
    cubin_sha256="0" * 64,
    compile_s=0.5,
)
APPEND = dataclasses.replace(
    ATTENTION,
    name="append-x",
    family="append",
    is_dependent=True,
    dependency_waits=1,
    consumer_releases=1,
    tensor_core=0,
    async_copies=0,
    loop_tensor_core=0,
    loop_async_copies=0,
    loop_narrowest_load=0,
)
FLOAT32 = dataclasses.replace(ATTENTION, dtype="fp32", tensor_core=0, loop_tensor_core=0)
# Loops of linear maps may be unrolled to their end.
LINEAR = dataclasses.replace(
    ATTENTION,
    name="linear-x",
    family="linear",
    is_dependent=True,
    dependency_waits=1,
    consumer_releases=1,
    rows=(4, 8),
    loop_tensor_core=0,
    loop_async_copies=0,
    loop_narrowest_load=0,
)
HEAD = dataclasses.replace(LINEAR, name="head-x", family="head")
VECTOR = dataclasses.replace(
    LINEAR, name="vector-x", family="vector", tensor_core=0, async_copies=0
)
ROWS = dataclasses.replace(VECTOR, name="rows-x", family="rows", widest_load=8, narrowest_store=4)
GOOD = [ATTENTION, APPEND, FLOAT32, LINEAR, HEAD, VECTOR, ROWS]


def test_stores_that_begin_at_a_barrier_are_counted() -> None:
    ptx = """
        mov.b32 \t%r9, global_smem;
        add.s32 \t%r2, %r9, 98304;
        @%p1 mbarrier.init.shared::cta.b64 [%r2], 1;
        @%p1 mbarrier.init.shared::cta.b64 [%r2+8], 1;
        st.shared.v2.b32 \t[%r7+98304], {%r1, %r3};
        add.s32 \t%r8, %r7, 98312;
        st.shared.b32 [ %r8 + 0 ], { %r1 };
        st.shared.b32 \t[%r7+98320], %r1;
        st.shared.b32 \t[%r7], %r1;
    """
    assert stores_on_barriers(ptx) == 2


@pytest.mark.parametrize("figures", GOOD, ids=lambda one: f"{one.family}-{one.dtype}")
def test_a_good_kernel_breaks_no_rule(figures: KernelFigures) -> None:
    assert violations(figures) == []


@pytest.mark.parametrize(
    ("figures", "changes", "sentence"),
    [
        (ATTENTION, {"spill_instructions": 3}, "decode-x spills registers (3 local-memory"),
        (APPEND, {"spill_instructions": 1}, "append-x spills registers"),
        (ATTENTION, {"stack_bytes": 8}, "uses a stack frame of 8 bytes"),
        (ATTENTION, {"compile_s": MAX_COMPILE_S + 1}, "took 21.0 CPU seconds to compile"),
        (ATTENTION, {"loop_tensor_core": 0}, "multiplies without tensor cores"),
        (FLOAT32, {"tensor_core": 4}, "multiplies float32 on tensor cores"),
        (ATTENTION, {"loop_async_copies": 0}, "without asynchronous copies"),
        (ATTENTION, {"loop_narrowest_load": 2}, "loads 2 bytes at a time inside a loop"),
        (APPEND, {"widest_load": 4}, "reads new keys without 16-byte loads"),
        (APPEND, {"narrowest_store": 2}, "writes the cache 2 bytes at a time instead of 16"),
        (APPEND, {"dependency_waits": 0}, "never waits for them (no ACQBULK)"),
        (APPEND, {"accesses_before_wait": 2}, "before it waits for its producers (2 LDG or STG)"),
        (LINEAR, {"tensor_core": 0}, "multiplies without tensor cores"),
        (LINEAR, {"async_copies": 0}, "loads weights without asynchronous copies"),
        (LINEAR, {"loop_narrowest_load": 2}, "loads 2 bytes at a time inside a loop"),
        (HEAD, {"tensor_core": 0}, "multiplies without tensor cores"),
        (HEAD, {"async_copies": 0}, "loads weights without asynchronous copies"),
        (VECTOR, {"widest_load": 8}, "reads weights without 16-byte loads"),
        (ROWS, {"tensor_core": 1}, "multiplies matrices"),
        (HEAD, {"spill_instructions": 2}, "head-x spills registers"),
        (LINEAR, {"dependency_waits": 0}, "never waits for them (no ACQBULK)"),
        (HEAD, {"consumer_releases": 0}, "never lets the kernel after it start"),
        (ROWS, {"float_atomics": 1}, "adds floating-point numbers atomically"),
        (LINEAR, {"stores_on_barriers": 2}, "stores values where its barriers lie"),
    ],
)
def test_each_rule_is_a_sentence(
    figures: KernelFigures, changes: dict[str, Any], sentence: str
) -> None:
    (broken,) = violations(dataclasses.replace(figures, **changes))
    assert sentence in broken


KNOWN = {("head-x", "3.6"): (8, 2)}


@pytest.mark.parametrize(
    ("stack", "spills", "triton", "sentence"),
    [
        (8, 2, "3.6.0", None),
        (16, 2, "3.6.0", "uses 16 bytes of stack and 2 local-memory instructions"),
        (8, 3, "3.6.1", "where the known exception is 8 and 2"),
        (0, 0, "3.6.0", "no longer spills on Triton 3.6: take it out of KNOWN_SPILLS"),
        (0, 0, "3.7.1", None),
        (8, 0, "3.7.1", "uses a stack frame of 8 bytes"),
    ],
)
def test_a_known_exception_holds_exactly_and_nowhere_else(
    stack: int, spills: int, triton: str, sentence: str | None
) -> None:
    figures = dataclasses.replace(HEAD, stack_bytes=stack, spill_instructions=spills)
    broken = violations(figures, triton, KNOWN)
    assert len(broken) == (0 if sentence is None else 1)
    assert sentence is None or sentence in broken[0]
    other = dataclasses.replace(HEAD, name="head-y", stack_bytes=8)
    assert len(violations(other, triton, KNOWN)) == 1


@pytest.mark.parametrize(
    ("instruction", "is_float"),
    [
        ("@%p1 atom.global.gpu.acq_rel.add.f32 %f1, [ %rd1 + 0 ], %f2;", True),
        ("atom.global.gpu.acq_rel.add.noftz.f16 %rs33, [ %rd12 + 0 ], %rs34;", True),
        ("red.relaxed.gpu.global.add.noftz.bf16x2 [%rd1], %r1;", True),
        ("red.shared::cluster.add.f64 [%r1], %fd1;", True),
        ("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%rd1], [%r1], %r2;", True),
        ("atom.global.gpu.acq_rel.add.u32 %r1, [ %rd1 + 0 ], 1;", False),
        ("atom.global.gpu.acq_rel.cas.b32 %r1, [ %rd1 + 0 ], %r2, %r3;", False),
        ("redux.sync.add.s32 %r1, %r2, %r3;", False),
        ("add.f32 %f1, %f2, %f3;", False),
    ],
)
def test_floating_point_atomics_are_told_from_others(instruction: str, is_float: bool) -> None:
    assert bool(FLOAT_ATOMIC.search(instruction)) == is_float


LISTING = """
	.headerflags	@"EF_CUDA_SM90"
        /*0000*/                   LDC R1, c[0x0][0x28] ;            /* 0x00000a00ff017b82 */
                                                                     /* 0x000fe20000000800 */
        /*0010*/                   LDG.E.128 R4, desc[UR4][R2.64] ;  /* 0x0000000402047981 */
        /*0020*/              @!P0 LDGSTS.E.BYPASS.128 [R9], desc[UR6][R2.64] ;
        /*0030*/                   LDG.E.U16 R5, desc[UR4][R8.64] ;
        /*0040*/               @P1 BRA 0x20 ;
        /*0050*/                   EXIT ;
        /*0060*/                   BRA 0x60;
        /*0070*/                   NOP;
"""


def test_what_lies_in_a_loop_is_told_from_what_does_not() -> None:
    code = Disassembly(parse_sass(LISTING))
    assert [one.name for one in code.instructions][-3:] == ["EXIT", "BRA", "NOP"]
    assert code.widths(GLOBAL_LOAD) == [16, 2]
    loops = code.in_loops()
    assert [one.address for one in loops.instructions] == [0x20, 0x30, 0x40]
    assert loops.count(ASYNC_COPY) == 1
    assert loops.widths(GLOBAL_LOAD) == [2]


WAITING = """
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P0 LDG.E R4, desc[UR4][R2.64] ;
        /*0020*/                   ACQBULK ;
        /*0030*/                   LDG.E.128 R8, desc[UR4][R6.64] ;
        /*0040*/                   ACQBULK ;
"""


def test_what_stands_before_the_first_wait_is_told_from_what_follows() -> None:
    code = Disassembly(parse_sass(WAITING))
    early = code.before(DEPENDENCY_WAIT)
    assert [one.address for one in early.instructions] == [0, 0x10]
    assert early.count(GLOBAL_LOAD) == 1
    assert code.before(LOCAL_MEMORY).instructions == ()


# What the engine launches takes seconds to find, and is no matter of these tests.
DESCRIBED_ONLY = """
import typer
from asv_bench.lab.codegen import check

for of_engine in ("launched", "plain", "wide_head", "family"):
    setattr(check.launched, f"{of_engine}_kernels", lambda: [])
typer.run(check.run)
"""


@pytest.mark.thorough
def test_the_command_passes_good_kernels_and_gives_the_same_figures_twice(tmp_path: Path) -> None:
    written = []
    for run in range(2):
        path = tmp_path / f"{run}.json"
        done = fresh_python(
            "-c", DESCRIBED_ONLY, "--only", "decode-serial-gpt2-fp16", "--json", str(path)
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "every rule holds" in done.stdout
        (figures,) = json.loads(path.read_text())
        assert figures.pop("compile_s") > 0
        assert figures["async_copies"] > 0
        assert figures["tensor_core"] > 0
        written.append(figures)
    assert written[0] == written[1]


SPILLING = """
import dataclasses, typer
from kernels.tiles import variants

chosen = {v.name: v for v in variants.kernel_variants()}
decode = chosen["decode-serial-gpt2-fp16"]
huge = {**decode.constants, "BLOCK_N": 256}
append = chosen["append-full-gpt2-fp16"]
bad = [
    dataclasses.replace(decode, name="too-large", constants=huge, num_warps=1),
    dataclasses.replace(decode, name="unaligned", divisible=frozenset()),
    dataclasses.replace(append, name="narrow", divisible=frozenset()),
    dataclasses.replace(chosen["decode-serial-gpt2-fp32"], name="cores", dtype="fp16"),
    dataclasses.replace(decode, name="wrong", constants={**decode.constants, "BLOCK_N": 48}),
]
variants.kernel_variants = lambda: iter(bad)
from asv_bench.lab.codegen import check as codegen
for of_engine in ("launched", "plain", "family"):
    setattr(codegen.launched, f"{of_engine}_kernels", lambda: [])
typer.run(codegen.run)
"""


@pytest.mark.thorough
def test_kernels_that_spill_or_lose_their_wide_accesses_are_caught() -> None:
    done = fresh_python("-c", SPILLING)
    assert done.returncode == 1, done.stdout + done.stderr
    sentences = done.stderr.splitlines()
    for expected in (
        "too-large spills registers",
        "too-large uses a stack frame",
        "unaligned loads 2 bytes at a time inside a loop",
        "unaligned loads keys without asynchronous copies",
        "narrow reads new keys without 16-byte loads",
        "narrow writes the cache 2 bytes at a time",
        "cores multiplies without tensor cores",
        "wrong does not compile on Triton",
    ):
        assert any(expected in sentence for sentence in sentences), (expected, done.stderr)


def test_the_interpreter_is_refused() -> None:
    done = fresh_python("-m", "asv_bench.lab.codegen", TRITON_INTERPRET="1")
    assert done.returncode == 2
    assert "TRITON_INTERPRET must not be set" in done.stderr


@pytest.mark.thorough
def test_an_unknown_variant_is_refused() -> None:
    done = fresh_python("-c", DESCRIBED_ONLY, "--only", "no-such-kernel")
    assert done.returncode == 2
    assert "no kernel variant has 'no-such-kernel' in its name" in done.stderr
