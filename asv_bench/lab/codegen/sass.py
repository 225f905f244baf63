"""The resources and the machine instructions of a compiled kernel."""

from __future__ import annotations

import re
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from asv_bench.errors import MeasurementFailed, Refused

_INSTRUCTION = re.compile(
    r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*);", re.M
)
_RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One machine instruction: its address, its name with modifiers, and its operands."""

    address: int
    name: str
    operands: str


@dataclass(frozen=True, slots=True)
class Disassembly:
    """The instructions and resources of one kernel."""

    instructions: tuple[Instruction, ...]
    registers: int = 0
    local_bytes: int = 0  # of stack and local memory

    def count(self, *mnemonics: str) -> int:
        """How many instructions have one of these names, whatever their modifiers."""
        return sum(one.name.partition(".")[0] in mnemonics for one in self.instructions)


def disassemble(cubins: Sequence[bytes]) -> list[Disassembly]:
    """Read cubins with the tools that Triton brings.

    The disassembler, which starts for longer than it reads a kernel, reads the code of all in one
    run. So addresses go on from one kernel to the next.
    """
    codes = [_code_of(cubin) for cubin in cubins]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernels")
        path.write_bytes(b"".join(codes))
        listed = parse_sass(_run("nvdisasm", "--binary", "SM90", path)) if codes else ()
        found, end = [], 0
        for cubin, code in zip(cubins, codes, strict=True):
            start, end = end, end + len(code)
            own = tuple(one for one in listed if start <= one.address < end)
            path.write_bytes(cubin)
            resources = _RESOURCES.search(_run("cuobjdump", "--dump-resource-usage", path))
            if resources is None or not own:
                raise MeasurementFailed(
                    "Triton's tools must print a kernel's instructions and resource usage, in a "
                    "form known here"
                )
            registers, stack, _, local = map(int, resources.groups())
            found.append(Disassembly(own, registers, stack + local))
    return found


def _code_of(cubin: bytes) -> bytes:
    """The machine code of the one kernel in a cubin, which is an ELF file of 64 bits."""
    table = struct.unpack_from("<Q", cubin, 0x28)[0]
    count, names = struct.unpack_from("<HH", cubin, 0x3C)
    sections = [struct.unpack_from("<I20xQQ", cubin, table + 64 * place) for place in range(count)]
    base = sections[names][1]
    [code] = [
        cubin[offset : offset + size]
        for name, offset, size in sections
        if cubin.startswith(b".text.", base + name)
    ]
    return code


def parse_sass(text: str) -> tuple[Instruction, ...]:
    """The instructions in a listing of nvdisasm."""
    return tuple(
        Instruction(int(address, 16), name, operands.strip())
        for address, name, operands in _INSTRUCTION.findall(text)
    )


def _run(tool: str, *words: str | Path) -> str:
    import triton

    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / tool
    if not path.exists():
        raise Refused(
            f"the installed Triton must bring {tool}, as its Linux wheels do, but has none at "
            f"backends/nvidia/bin ({triton.__version__})"
        )
    command = [str(path), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MeasurementFailed(f"{tool} {words[0]} failed: {done.stderr.strip()}")
    return done.stdout
