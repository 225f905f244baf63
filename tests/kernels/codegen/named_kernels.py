"""Launched kernels under the names by which rules, counters and people know them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from asv_bench.errors import MeasurementFailed
from asv_bench.lab.launched_kernels import LaunchedKernel, engine_launches, specialised
from asv_bench.lab.pretend_cuda import HOPPER, Launch

_LINEAR = ("N", "K", "BLOCK_M", "BLOCK_N", "BLOCK_K", "SPLIT_K", "X_TILES")
_HEAD = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "X_TILES")
_ATTENTION = ("D", "G", "SERIAL")

# Kernel -> the family of rules it is held to, and the constants that tell its variants apart, in
# the order in which a name shows them.
_KERNELS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "embed_rows": ("rows", ("TILES",)),
    "linear_tiles": ("linear", (*_LINEAR, "EVEN")),
    "linear_stream": ("linear", _LINEAR),
    "linear_row": ("vector", ("N", "K", "BLOCK_N")),
    "row_stream": ("vector", ("N", "K")),
    "row_attention": ("vector", ("K", "HEADS")),
    "ring_attention": ("attention", (*_ATTENTION, "APPEND", "LATE", "STAGES", "SPARE", "CLUSTER")),
    "decode_attention_append": ("attention", _ATTENTION),
    "head_row": ("vector", ("K", "BLOCK_N")),
    "head_tiles": ("head", (*_HEAD, "EVEN")),
    "head_stream": ("head", _HEAD),
    "pick_tokens": ("rows", ("TILES",)),
    "rms_norm_rows": ("rows", ("E",)),
    "dequantized_rows": ("rows", ("N", "K")),
    "halve_rows": ("rows", ("K", "TILE", "GATED")),
    "gated_rows": ("rows", ("N", "PACKED")),
    "turn_rows": ("rows", ("H", "D")),
    "statistics_rows": ("rows", ("N", "TILES")),
    "add_norm_rows": ("rows", ("E",)),
    "append_rows": ("append", ("H", "D", "ROWS", "COMMON")),
    "decode_attention": ("attention", _ATTENTION),
    "prefill_attention": ("attention", ("D", "G")),
    "draw_rows": ("rows", ("LANES",)),
}
_SHORT = {
    "BLOCK_M": "M",
    "BLOCK_N": "n",
    "BLOCK_K": "k",
    "SPLIT_K": "split",
    "X_TILES": "stats",
    "STAGES": "stages",
    "SPARE": "spare",
    "CLUSTER": "cluster",
    "ROWS": "rows",
}
# Values that go without saying, and the words for False and True.
_UNSAID = {"SPLIT_K": 1, "SPARE": 0, "CLUSTER": 1, "ROWS": 1}
_FLAGS = {
    "COMMON": ("", "common"),
    "EVEN": ("ragged", "even"),
    "GATED": ("", "gated"),
    "SERIAL": ("parallel", "serial"),
    "APPEND": ("cached", "append"),
    "LATE": ("", "late"),
}


@dataclass(slots=True)
class NamedKernel(LaunchedKernel):
    """A compilation whose name shows the constants that tell it from others."""

    family: str  # which rules it is held to, see `rules.py`
    dtype: str
    # Launched by programmatic dependent launch: it starts before its producers have ended.
    is_dependent: bool
    # Batch buckets whose fused step launches it; empty for a kernel of the unfused path.
    rows: list[int] = field(default_factory=list)


def engine_kernels(batch_sizes: Iterable[int]) -> list[NamedKernel]:
    """Every distinct kernel of engines of these sizes on a Hopper GPU.

    Raises MeasurementFailed if an engine launches a kernel that no rules are written for.
    """
    return distinct(one for size in batch_sizes for one in with_rows(engine_launches(size, HOPPER)))


def with_rows(launches: Iterable[Launch]) -> Iterator[tuple[Launch, int | None]]:
    """Launches with the bucket of the fused step that they are of; None: they are of none."""
    rows: int | None = None
    for launch in launches:
        if launch.name == "embed_rows":
            rows = launch.grid[0]
        yield launch, rows
        if launch.name == "pick_tokens":
            rows = None


def distinct(launches: Iterable[tuple[Launch, int | None]]) -> list[NamedKernel]:
    """Each compilation once, with the buckets that launch it."""
    found: dict[str, NamedKernel] = {}
    for launch, rows in launches:
        kernel = specialised(launch)
        known = found.setdefault(kernel.key, _named(kernel, bool(launch.options.get("launch_pdl"))))
        if rows is not None and rows not in known.rows:
            known.rows.append(rows)
    # Those that only their arguments' types and alignment tell apart get a number.
    seen: Counter[str] = Counter()
    for named in found.values():
        named.rows.sort()
        seen[named.name] += 1
        if (count := seen[named.name]) > 1:
            named.name = f"{named.name}-{count}"
    return sorted(found.values(), key=lambda one: one.name)


def _named(kernel: LaunchedKernel, is_dependent: bool) -> NamedKernel:
    if kernel.name not in _KERNELS:
        raise MeasurementFailed(
            f"the engine launches the kernel {kernel.name}, which {__name__} does not know: add it "
            f"there, with the family of rules that it must keep."
        )
    family, shown = _KERNELS[kernel.name]
    names, places = kernel.source.fn.arg_names, kernel.source.constants.items()
    constants = {names[place[0]]: value for place, value in places if len(place) == 1}
    parts = [kernel.name]
    for constant in shown:
        value = constants.get(constant)
        if constant in _FLAGS and value is not None:
            parts.append(_FLAGS[constant][value])
        # The kernel of an older commit may lack it.
        elif value not in (None, _UNSAID.get(constant)):
            parts.append(f"{_SHORT.get(constant, constant)}{value}")
    name = "-".join(filter(None, parts))
    return NamedKernel(name, kernel.source, kernel.options, family, "fp16", is_dependent)
