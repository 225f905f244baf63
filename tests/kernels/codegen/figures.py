"""What the rules say something of: figures of a compiled kernel, read in its PTX and SASS."""

from __future__ import annotations

import re
from dataclasses import dataclass

from asv_bench.lab.launched_kernels import CompiledKernel
from tests.kernels.codegen.named_kernels import NamedKernel

TENSOR_CORE = re.compile(r"(HMMA|HGMMA)\b")
ASYNC_COPY = re.compile(r"(LDGSTS|UTMALDG)\b")
GLOBAL_LOAD = re.compile(r"LDG\b")
GLOBAL_STORE = re.compile(r"STG\b")
# What `griddepcontrol.wait` becomes: the kernel waits until its producers' writes are visible.
DEPENDENCY_WAIT = re.compile(r"ACQBULK\b")
# What `griddepcontrol.launch_dependents` becomes: the next kernel may start.
CONSUMER_RELEASE = re.compile(r"PREEXIT\b")
_TARGET = re.compile(r"0x([0-9a-f]+)\s*$")
_WIDTHS = ((".128", 16), (".64", 8), (".U16", 2), (".S16", 2), (".U8", 1), (".S8", 1))

FLOAT_ATOMIC = re.compile(r"\b(?:atom|red|cp\.reduce)(?:\.\w+(?:::\w+)*)*\.b?f(?:16|32|64)")
"""In PTX: in machine code, that of a single half is a loop that compares and swaps whole words."""

_SUM = re.compile(r"add\.s32\s+(%r\d+), %r\d+, (\d+);")
_PLACE = r"\[\s*(%r\d+)(?:\s*\+\s*(\d+))?\s*\]"
_BARRIER = re.compile(r"mbarrier\.init\.shared::cta\.b64 " + _PLACE)
_SHARED_STORE = re.compile(r"\bst\.shared[.\w]*\s+" + _PLACE)

_INSTRUCTION = re.compile(
    r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*);", re.M
)


@dataclass(frozen=True, slots=True)
class Instruction:
    """One machine instruction: its address, its name with modifiers, and its operands."""

    address: int
    name: str
    operands: str


Code = tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class KernelFigures:
    """Facts about one compiled variant. All but `compile_s` depend on the Triton version only.

    The `loop_` figures count instructions inside loops. Widths are bytes per thread, 0 without such
    an access. An `is_dependent` kernel starts before its producers have ended: it waits for them
    `dependency_waits` times, after `accesses_before_wait` global loads and stores, and lets the
    next kernel start `consumer_releases` times. `compile_s` is CPU seconds.
    """

    name: str
    dtype: str
    family: str
    is_dependent: bool = False
    stack_bytes: int = 0
    spill_instructions: int = 0
    tensor_core: int = 0
    async_copies: int = 0
    loop_tensor_core: int = 0
    loop_async_copies: int = 0
    loop_narrowest_load: int = 0
    widest_load: int = 0
    narrowest_store: int = 0
    dependency_waits: int = 0
    accesses_before_wait: int = 0
    consumer_releases: int = 0
    float_atomics: int = 0
    stores_on_barriers: int = 0
    compile_s: float = 0.0


def figures_of(kernel: NamedKernel, compiled: CompiledKernel) -> KernelFigures:
    code, counters = parse_sass(compiled.listing), compiled.figures
    loops, early = in_loops(code), before(code, DEPENDENCY_WAIT)
    return KernelFigures(
        name=kernel.name,
        dtype=kernel.dtype,
        family=kernel.family,
        is_dependent=kernel.is_dependent,
        stack_bytes=counters["stack_bytes"],
        spill_instructions=counters["spill_instructions"],
        tensor_core=len(widths(code, TENSOR_CORE)),
        async_copies=len(widths(code, ASYNC_COPY)),
        loop_tensor_core=len(widths(loops, TENSOR_CORE)),
        loop_async_copies=len(widths(loops, ASYNC_COPY)),
        loop_narrowest_load=min(widths(loops, GLOBAL_LOAD), default=0),
        widest_load=max(widths(code, GLOBAL_LOAD), default=0),
        narrowest_store=min(widths(code, GLOBAL_STORE), default=0),
        dependency_waits=len(widths(code, DEPENDENCY_WAIT)),
        accesses_before_wait=len(widths(early, GLOBAL_LOAD) + widths(early, GLOBAL_STORE)),
        consumer_releases=len(widths(code, CONSUMER_RELEASE)),
        float_atomics=len(FLOAT_ATOMIC.findall(compiled.ptx)),
        stores_on_barriers=stores_on_barriers(compiled.ptx),
        compile_s=round(compiled.seconds, 3),
    )


def parse_sass(text: str) -> Code:
    """The instructions in a listing."""
    return tuple(
        Instruction(int(address, 16), name, operands.strip())
        for address, name, operands in _INSTRUCTION.findall(text)
    )


def widths(code: Code, pattern: re.Pattern[str]) -> list[int]:
    """Bytes a thread moves with each instruction whose name begins with `pattern`."""
    return [
        next((width for suffix, width in _WIDTHS if suffix in one.name), 4)
        for one in code
        if pattern.match(one.name)
    ]


def in_loops(code: Code) -> Code:
    """Only the instructions within loops: those that a backward branch repeats."""
    loops = [
        range(target, one.address + 1)
        for one in code
        if one.name.split(".")[0] == "BRA"
        and (found := _TARGET.search(one.operands))
        # A branch to itself ends a kernel; it repeats nothing.
        and (target := int(found[1], 16)) < one.address
    ]
    return tuple(one for one in code if any(one.address in loop for loop in loops))


def before(code: Code, pattern: re.Pattern[str]) -> Code:
    """Only the instructions before the first match; none without a match."""
    matches = [place for place, one in enumerate(code) if pattern.match(one.name)]
    return code[: matches[0] if matches else 0]


def stores_on_barriers(ptx: str) -> int:
    """Stores to shared memory that begin where a barrier of the kernel lies.

    The compiler gives memory to something else after its last use that it knows of. A barrier's
    may be changed later: values that were exchanged there have come back wrong.
    """
    sums = {register: int(constant) for register, constant in _SUM.findall(ptx)}

    def begin(pattern: re.Pattern[str]) -> list[int]:
        return [sums.get(base, 0) + int(offset or 0) for base, offset in pattern.findall(ptx)]

    barriers = set(begin(_BARRIER))
    return sum(place in barriers for place in begin(_SHARED_STORE))
