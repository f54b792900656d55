"""Which way the Numba backend computes the attention: pair by pair or through order parameters.

Costs are in nanoseconds, fitted to the kernels' minimal times at N = 32 ... 512 with 1 to 8 heads of width 1
to 8, d = 4 ... 16, on a Xeon of the Emerald Rapids generation, 2.5 GHz, Numba 0.68, LLVM's 256-bit vectors;
other processors differ in the unit more than in the ratios.
"""

from __future__ import annotations

from spo_fast.kernels.daido import Series
from spo_fast.validation import ModulationParameters

GROUP = 16  # queries that go together in both
PAIR_COST = 1.45  # an exponential of the direct path with its logit and sums, where a head has two numbers,
KEY_COST = 2.9  # and where it has another number of them,
KEY_FIELD_COST = 0.75  # for each
PROJECTION_COST = 35.0  # of one feature of an oscillator to query, key and value
COEFFICIENT_COST = 0.08  # a coefficient of the series times one moment
OUTPUT_COST = 0.106  # a coefficient of an output at one query
HARMONIC_COST = 0.96
HEAD_COST = 21.0  # own term and estimate of the error of one query
CALL_COST = 12e3
TOGETHER = 3  # fields that go together

# Series of the default projections, which stand for others until their own are known.
TYPICAL_COEFFICIENTS = 15000.0  # of a head
TYPICAL_HARMONICS = 80.0
TYPICAL_LINE = 144.0  # of a head


def _direct_cost(pairs: float, heads: int, per_head: int) -> float:
    each = PAIR_COST if per_head == 2 else KEY_COST + KEY_FIELD_COST * per_head
    return pairs * heads * each


def _moments_cost(
    n: int, heads: int, per_head: int, coefficients: float, harmonics: float, line: float
) -> float:
    """Cost for all edges, less what the direct path spends on projections."""
    fields = -(-(1 + per_head) // TOGETHER) * TOGETHER
    each = OUTPUT_COST * fields * line + HARMONIC_COST * harmonics + HEAD_COST * heads
    spared = PROJECTION_COST * heads * per_head
    return CALL_COST + COEFFICIENT_COST * coefficients * fields + n * (each - spared)


def moments_possible(n: int, parameters: ModulationParameters) -> bool:
    """Whether order parameters may be faster at this size, for a K with all edges. Needs no series."""
    heads, per_head = parameters.n_heads, parameters.d_model // parameters.n_heads
    if not reaches_all(n, parameters):
        return False
    expected = _moments_cost(
        n, heads, per_head, TYPICAL_COEFFICIENTS * heads, TYPICAL_HARMONICS, TYPICAL_LINE * heads
    )
    return _direct_cost(n * n, heads, per_head) > expected


def moments_pay(n: int, parameters: ModulationParameters, series: Series, hidden: int) -> bool:
    """Whether they are with this series, where `hidden` pairs of a group and a key miss an edge."""
    heads, per_head = parameters.n_heads, parameters.d_model // parameters.n_heads
    cost = _moments_cost(n, heads, per_head, series.coefficients, series.harmonics, series.line)
    return _direct_cost(n * n, heads, per_head) > cost + _direct_cost(GROUP * hidden, heads, per_head)


def reaches_all(n: int, parameters: ModulationParameters) -> bool:
    """Whether the band, if any, leaves no pair out."""
    return not 0 <= parameters.block_size < n - 1
