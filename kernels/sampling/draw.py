# ruff: noqa: RUF005 (Triton unpacks no tuples in a tuple)
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, assignment"
"""Tokens drawn from logits by thresholds, without sorting a vocabulary.

Tokens are ordered by likelihood, and equally likely ones by id. A token's place in this order is an
int64, its rank: the bits of how far its scaled logit lies below the best one, a float32 of at least
0, above as many bits as an id has. What a draw looks for is a rank: the k-th token, the last one of
the nucleus, the one at which the cumulative probability passes a random number. Each is found by
counting tokens, and adding up their weights, up to seven pivots at a time, until few tokens lie
between two pivots; these are gathered, and the search goes on among them alone.

Sums are of float64, in an order that depends on the vocabulary alone, so a row draws the same token
in any batch.
"""

import torch
import triton
import triton.language as tl

from kernels.backend import device_of
from kernels.sampling.reference import SHORT_OF_TOP_P

_CAPACITY = 4096
"""Tokens that are gathered at most."""

_LANES, _EACH = 256, 4
"""Sums that are kept side by side, and tokens that each takes of a tile: 16 bytes of float32. More
lanes would leave too few registers for the sums of seven pivots."""

_PIVOTS = tl.constexpr(7)
_FIRST_PIVOT = tl.constexpr(0x3E800000)
"""The bits of 0.25. The first pivots lie an octave apart, from here to 16: with a weight of e^-16
and less a token hardly ever matters."""

_OCTAVE = tl.constexpr(0x00800000)
_INFINITE = tl.constexpr(0x7F800000)
"""The bits of infinity, which lies above every other distance."""

_NO_RANK = tl.constexpr(0x7FFFFFFFFFFFFFFF)
_NO_TOKEN = tl.constexpr(0x7FFFFFFF)

_LIKELIEST, _NUCLEUS, _DRAW = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
"""What is sought, one after the other: the k-th token, the last of the nucleus, the drawn one."""

_LARGEST_NUMBER = 1 - 2**-44
"""What a random number is lowered to: sums of weights in two orders differ by less."""


@triton.jit
def _ranks(logits, best, temperature, place, num_tokens, ID_BITS: tl.constexpr):
    """The ranks of the tokens at `place`; those of padding lie beyond every other."""
    inside = place < num_tokens
    logit = tl.load(logits + place, mask=inside, other=0.0).to(tl.float32)
    below = tl.div_rn(best - logit, temperature + tl.zeros_like(logit))
    rank = (below.to(tl.int32, bitcast=True).to(tl.int64) << ID_BITS) | place
    return tl.where(inside, rank, _NO_RANK)


@triton.jit
def _weight(rank, ID_BITS: tl.constexpr):
    """The weight in the softmax of tokens of these ranks; the best token's is 1."""
    below = (rank >> ID_BITS).to(tl.int32).to(tl.float32, bitcast=True)
    return tl.exp(-below.to(tl.float64))


@triton.jit
def _elements(
    source,
    best,
    temperature,
    place,
    length,
    IS_ROW: tl.constexpr,
    ID_BITS: tl.constexpr,
):
    """Ranks, of a row's logits or as they were gathered."""
    if IS_ROW:
        return _ranks(source, best, temperature, place, length, ID_BITS)
    else:
        return tl.load(source + place, mask=place < length, other=_NO_RANK)


@triton.jit
def _pivots(low, high, ID_BITS: tl.constexpr):
    """Seven ranks from `low` to `high`, ascending: evenly spaced, or at first an octave apart."""
    pivots = ()
    width = high - low
    is_first = (low < 0) & (high >> ID_BITS > _FIRST_PIVOT + _PIVOTS * _OCTAVE)
    for index in tl.static_range(_PIVOTS):
        # An eighth of the width times index + 1, without overflow.
        even = low + (width >> 3) * (index + 1) + (((width & 7) * (index + 1)) >> 3)
        octave = tl.full((), _FIRST_PIVOT + index * _OCTAVE, tl.int64) << ID_BITS
        pivots = pivots + (tl.where(is_first, octave, even),)
    return pivots


@triton.jit
def _sums(
    source,
    best,
    temperature,
    length,
    pivots,
    IS_ROW: tl.constexpr,
    LANES: tl.constexpr,
    EACH: tl.constexpr,
    ID_BITS: tl.constexpr,
):
    """For each pivot the number of tokens of at most that rank, and their weights together."""
    lane_counts, lane_masses = (), ()
    for _ in tl.static_range(len(pivots)):
        lane_counts = lane_counts + (tl.zeros([LANES], tl.int32),)
        lane_masses = lane_masses + (tl.zeros([LANES], tl.float64),)
    lane = tl.arange(0, LANES)[:, None] * EACH + tl.arange(0, EACH)[None, :]
    for start in range(0, length, LANES * EACH):
        rank = _elements(source, best, temperature, start + lane, length, IS_ROW, ID_BITS)
        weight = _weight(rank, ID_BITS)
        counts, masses = (), ()
        for index in tl.static_range(len(pivots)):
            is_in = rank <= pivots[index]
            counts = counts + (lane_counts[index] + tl.sum(is_in.to(tl.int32), 1),)
            masses = masses + (lane_masses[index] + tl.sum(tl.where(is_in, weight, 0.0), 1),)
        lane_counts, lane_masses = counts, masses
    counts, masses = (), ()
    for index in tl.static_range(len(pivots)):
        counts = counts + (tl.sum(lane_counts[index], 0),)
        masses = masses + (tl.sum(lane_masses[index], 0),)
    return counts, masses


@triton.jit
def _narrowed(
    bracket,
    sought,
    target,
    source,
    best,
    temperature,
    length,
    before,
    IS_ROW: tl.constexpr,
    LANES: tl.constexpr,
    EACH: tl.constexpr,
    ID_BITS: tl.constexpr,
):
    """The bracket cut down to what lies between two neighbouring pivots.

    A bracket is (low, high, tokens and weight up to low, tokens up to high): up to `low` the target
    is not reached, up to `high` it is. `before` is the number and weight of tokens before all of
    the source.
    """
    low, high, count_low, mass_low, count_high = bracket
    pivots = _pivots(low, high, ID_BITS)
    counts, masses = _sums(source, best, temperature, length, pivots, IS_ROW, LANES, EACH, ID_BITS)
    for index in tl.static_range(_PIVOTS):
        pivot, count, mass = pivots[index], counts[index] + before[0], masses[index] + before[1]
        reached = tl.where(sought == _LIKELIEST, count.to(tl.float64), mass)
        is_short = (reached < target) | ((sought == _DRAW) & (reached == target))
        # The first pivot that reaches the target ends the bracket; `high` is above all pivots.
        is_end = (not is_short) & (pivot < high)
        high = tl.where(is_end, pivot, high)
        count_high = tl.where(is_end, count, count_high)
        low = tl.where(is_short, pivot, low)
        count_low = tl.where(is_short, count, count_low)
        mass_low = tl.where(is_short, mass, mass_low)
    return low, high, count_low, mass_low, count_high


@triton.jit
def _gather(
    logits,
    best,
    temperature,
    num_tokens,
    low,
    high,
    gathered,
    CAPACITY: tl.constexpr,
    ID_BITS: tl.constexpr,
):
    """Store the ranks above `low` and up to `high`."""
    # What was gathered before is read no more, by any warp.
    tl.debug_barrier()
    found = 0
    for start in range(0, num_tokens, CAPACITY):
        rank = _ranks(
            logits, best, temperature, start + tl.arange(0, CAPACITY), num_tokens, ID_BITS
        )
        is_in = (rank > low) & (rank <= high)
        count = tl.sum(is_in.to(tl.int32), 0)
        if count > 0:
            place = found + tl.cumsum(is_in.to(tl.int32), 0) - 1
            tl.store(gathered + place, rank, mask=is_in)
        found += count
    tl.debug_barrier()


@triton.jit
def _first_reaching(
    sought,
    target,
    limit,
    count_limit,
    logits,
    best,
    temperature,
    num_tokens,
    gathered,
    CAPACITY: tl.constexpr,
    LANES: tl.constexpr,
    EACH: tl.constexpr,
    ID_BITS: tl.constexpr,
):
    """The least rank up to which there are `target` tokens, or that much weight.

    For a draw there is more than that. `limit` is a rank up to which this is so, with `count_limit`
    tokens. Returns the rank, the number and the weight of tokens up to it.
    """
    none = tl.full((), 0, tl.int32), tl.full((), 0.0, tl.float64)
    bracket = tl.full((), -1, tl.int64), limit, none[0], none[1], count_limit
    while bracket[4] - bracket[2] > CAPACITY:
        bracket = _narrowed(
            bracket,
            sought,
            target,
            logits,
            best,
            temperature,
            num_tokens,
            none,
            True,
            LANES,
            EACH,
            ID_BITS,
        )
    low, high, count_low, mass_low, count_high = bracket
    _gather(logits, best, temperature, num_tokens, low, high, gathered, CAPACITY, ID_BITS)
    before, length = (count_low, mass_low), count_high - count_low
    while bracket[4] - bracket[2] > 1:
        bracket = _narrowed(
            bracket,
            sought,
            target,
            gathered,
            best,
            temperature,
            length,
            before,
            False,
            LANES,
            EACH,
            ID_BITS,
        )
    place = tl.arange(0, CAPACITY)
    rank = tl.load(gathered + place, mask=place < length, other=_NO_RANK)
    # One token is left; or none, where a sum in another order fell short, and then the one before.
    found = tl.max(tl.where(rank <= bracket[1], rank, -1), 0)
    is_in = rank <= found
    count = count_low + tl.sum(is_in.to(tl.int32), 0)
    mass = mass_low + tl.sum(tl.where(is_in, _weight(rank, ID_BITS), 0.0), 0)
    return found, count, mass


@triton.jit
def _likeliest(logits, num_tokens, TILE: tl.constexpr):
    """The best logit of a row, the lowest id that has it, and whether a logit is NaN."""
    place = tl.arange(0, TILE)
    best = tl.full([TILE], float("-inf"), tl.float32)
    token = tl.full([TILE], _NO_TOKEN, tl.int32)
    is_nan = tl.zeros([TILE], tl.int32)
    for start in range(0, num_tokens, TILE):
        inside = start + place < num_tokens
        logit = tl.load(logits + start + place, mask=inside, other=float("-inf")).to(tl.float32)
        is_nan |= (logit != logit).to(tl.int32)
        is_better = (logit > best) | (inside & (token == _NO_TOKEN))
        token = tl.where(is_better, start + place, token)
        best = tl.where(is_better, logit, best)
    top = tl.max(best, 0)
    return top, tl.min(tl.where(best == top, token, _NO_TOKEN), 0), tl.max(is_nan, 0) > 0


@triton.jit
def draw_rows(
    logits,
    row_stride,
    num_tokens,
    temperature,
    top_k,
    top_p,
    number,
    gathered,
    drawn,
    SHORT_OF_TOP_P: tl.constexpr,
    LARGEST_NUMBER: tl.constexpr,
    CAPACITY: tl.constexpr,
    LANES: tl.constexpr,
    EACH: tl.constexpr,
    ID_BITS: tl.constexpr,
):
    """One row a program: its token, the likeliest one at a temperature of 0, or -1 for NaN."""
    row = tl.program_id(0)
    logits += row.to(tl.int64) * row_stride
    gathered += row.to(tl.int64) * CAPACITY
    heat = tl.load(temperature + row)
    best, token, is_nan = _likeliest(logits, num_tokens, CAPACITY)
    tl.store(drawn + row, tl.where(is_nan, -1, token))
    # Among infinite logits, and among tokens that all are impossible, the lowest id is drawn.
    if (heat > 0) & (not is_nan) & (tl.abs(best) < float("inf")):
        rank = tl.full((), _INFINITE + 1, tl.int64) << ID_BITS
        count = tl.full((), 0, tl.int32) + num_tokens
        _, masses = _sums(logits, best, heat, num_tokens, (rank,), True, LANES, EACH, ID_BITS)
        mass = masses[0]
        for sought in range(3):
            if sought == _LIKELIEST:
                top = tl.load(top_k + row)
                target = top.to(tl.float64)
                is_asked = (top > 0) & (top < num_tokens)
            elif sought == _NUCLEUS:
                nucleus = tl.load(top_p + row)
                target = nucleus.to(tl.float64) * (1 - SHORT_OF_TOP_P) * mass
                is_asked = nucleus < 1
            else:
                target = tl.minimum(tl.load(number + row), LARGEST_NUMBER) * mass
                is_asked = True
            if is_asked:
                rank, count, mass = _first_reaching(
                    sought,
                    target,
                    rank,
                    count,
                    logits,
                    best,
                    heat,
                    num_tokens,
                    gathered,
                    CAPACITY,
                    LANES,
                    EACH,
                    ID_BITS,
                )
        tl.store(drawn + row, (rank & ((1 << ID_BITS) - 1)).to(tl.int32))


def launch_draw(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    number: torch.Tensor,
) -> torch.Tensor:
    """As `kernels.sampling.reference.draw_tokens`, without a wait for the device.

    Rows of `logits` are contiguous, but may lie further apart than they are long.
    """
    rows, num_tokens = logits.shape
    drawn = torch.empty(rows, dtype=torch.int32, device=logits.device)
    gathered = torch.empty(rows, _CAPACITY, dtype=torch.int64, device=logits.device)
    with device_of(logits):
        draw_rows[(rows,)](
            logits,
            logits.stride(0),
            num_tokens,
            temperature,
            top_k,
            top_p,
            number,
            gathered,
            drawn,
            SHORT_OF_TOP_P=SHORT_OF_TOP_P,
            LARGEST_NUMBER=_LARGEST_NUMBER,
            CAPACITY=_CAPACITY,
            LANES=_LANES,
            EACH=_EACH,
            ID_BITS=max(num_tokens - 1, 1).bit_length(),
            num_warps=8,
        )
    return drawn
