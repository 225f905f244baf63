"""The rules of machine code: good kernels pass, each kind of bad one is named.

Compiling happens in fresh processes, because a test run under Triton's interpreter has defined
its kernels as interpreted ones.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.fresh_python import forked_python, fresh_python
from tests.kernels.codegen.figures import (
    ASYNC_COPY,
    DEPENDENCY_WAIT,
    FLOAT_ATOMIC,
    GLOBAL_LOAD,
    GLOBAL_STORE,
    KernelFigures,
    before,
    in_loops,
    parse_sass,
    stores_on_barriers,
    widths,
)
from tests.kernels.codegen.rules import MAX_COMPILE_S, violations

ATTENTION = KernelFigures(
    name="decode-x",
    dtype="fp16",
    family="attention",
    tensor_core=16,
    async_copies=24,
    loop_tensor_core=16,
    loop_async_copies=8,
    loop_narrowest_load=4,
    widest_load=16,
    narrowest_store=16,
)
FLOAT32 = dataclasses.replace(ATTENTION, dtype="fp32", tensor_core=0, loop_tensor_core=0)
VECTOR = KernelFigures(
    name="vector-x",
    dtype="fp16",
    family="vector",
    is_dependent=True,
    dependency_waits=1,
    consumer_releases=1,
    widest_load=16,
    narrowest_store=16,
)
APPEND = dataclasses.replace(VECTOR, name="append-x", family="append")
APPEND_FP8 = dataclasses.replace(APPEND, dtype="fp8", narrowest_store=8)
# Loops of linear maps may be unrolled to their end.
LINEAR = dataclasses.replace(
    VECTOR, name="linear-x", family="linear", tensor_core=16, async_copies=24
)
HEAD = dataclasses.replace(LINEAR, name="head-x", family="head")
ROWS = dataclasses.replace(VECTOR, name="rows-x", family="rows", widest_load=8, narrowest_store=4)
GOOD = [ATTENTION, APPEND, APPEND_FP8, FLOAT32, LINEAR, HEAD, VECTOR, ROWS]


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
        (APPEND_FP8, {"narrowest_store": 4}, "writes the cache 4 bytes at a time instead of 8"),
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
    code = parse_sass(LISTING)
    assert [one.name for one in code][-3:] == ["EXIT", "BRA", "NOP"]
    assert widths(code, GLOBAL_LOAD) == [16, 2]
    loops = in_loops(code)
    assert [one.address for one in loops] == [0x20, 0x30, 0x40]
    assert len(widths(loops, ASYNC_COPY)) == 1
    assert widths(loops, GLOBAL_LOAD) == [2]


WAITING = """
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P0 LDG.E R4, desc[UR4][R2.64] ;
        /*0020*/                   ACQBULK ;
        /*0030*/                   LDG.E.128 R8, desc[UR4][R6.64] ;
        /*0040*/                   ACQBULK ;
"""


def test_what_stands_before_the_first_wait_is_told_from_what_follows() -> None:
    code = parse_sass(WAITING)
    early = before(code, DEPENDENCY_WAIT)
    assert [one.address for one in early] == [0, 0x10]
    assert len(widths(early, GLOBAL_LOAD)) == 1
    assert before(code, GLOBAL_STORE) == ()


COMPILED = """
import dataclasses
from rich.console import Console
from asv_bench.lab.launched_kernels import compile_kernel
from tests.kernels.codegen.every_kernel import compile_all, described_kernel
from kernels.tiles.variants import kernel_variants
from tests.kernels.codegen.figures import figures_of
from tests.kernels.codegen.rules import violations

chosen = {v.name: v for v in kernel_variants()}
decode = chosen["decode-serial-gpt2-fp16"]
huge = {**decode.constants, "BLOCK_N": 256}
append = chosen["append-full-gpt2-fp16"]
variants = [
    decode,
    dataclasses.replace(decode, name="too-large", constants=huge, num_warps=1),
    dataclasses.replace(decode, name="unaligned", divisible=frozenset()),
    dataclasses.replace(append, name="narrow", divisible=frozenset()),
    dataclasses.replace(chosen["decode-serial-gpt2-fp32"], name="cores", dtype="fp16"),
    dataclasses.replace(decode, name="wrong", constants={**decode.constants, "BLOCK_N": 48}),
]
kernels = {v.name: described_kernel(v) for v in variants}
compiled, failures = compile_all(list(kernels.values()), Console(stderr=True))
again = compile_kernel(kernels[decode.name])
assert again.figures == compiled[0].figures, "figures that do not repeat"
for one in compiled:
    print(*violations(figures_of(kernels[one.name], one)), sep="\\n")
print(*failures, sep="\\n")
"""


@pytest.mark.thorough
def test_kernels_that_spill_or_lose_their_wide_accesses_are_caught() -> None:
    done = forked_python(COMPILED)
    assert done.returncode == 0, done.stdout + done.stderr
    sentences = done.stdout.splitlines()
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
        assert any(expected in sentence for sentence in sentences), (expected, done.stdout)
    assert not any(sentence.startswith("decode-serial-gpt2-fp16") for sentence in sentences)


def test_the_interpreter_is_refused() -> None:
    find = "from tests.kernels.codegen.every_kernel import every_kernel; every_kernel()"
    done = fresh_python("-c", find, TRITON_INTERPRET="1")
    assert done.returncode == 1
    assert "TRITON_INTERPRET must not be set" in done.stderr
