"""Passes over a coupling matrix: what it is, its symmetric part, its transpose.

All walk pairs of square tiles, (I, J) and (J, I), so that both are read along rows; a tile is one square of
lanes.
"""

from std.utils.numerics import isfinite

from lanes import (
    Doubles,
    LANES,
    Lanes,
    MutDoubles,
    Square,
    Words,
    ZERO,
    all_but_lane,
    any_of,
    bits,
    load,
    nonzero,
    store,
    transpose_square,
)
from structures import ASYMMETRIC_COUPLING, NONFINITE_COUPLING, NONZERO_DIAGONAL, OK

comptime SYMMETRY_TOLERANCE = 1e-12
"""Entries K_ij and K_ji count as equal when they differ by no more than this, absolute and relative."""


@fieldwise_init
struct Traits(TrivialRegisterPassable):
    """What is known of an acceptable K."""

    var exactly_symmetric: Bool
    var all_edges: Bool
    """No zero off the diagonal."""
    var symmetric_pattern: Bool
    """No edge that is zero on one side only."""

    def __init__(out self):
        self.exactly_symmetric = True
        self.all_edges = True
        self.symmetric_pattern = True


def unequal(a: Float64, b: Float64) -> Bool:
    return not abs(a - b) <= SYMMETRY_TOLERANCE * (1.0 + min(abs(a), abs(b)))


def coupling_fault(n: Int, knm: Doubles) -> Int32:
    """Which of the three promises a refused matrix breaks; in their order, for one number is reported."""
    for entry in range(n * n):
        if not isfinite(knm[unsafe_offset=entry]):
            return NONFINITE_COUPLING
    for i in range(n):
        for j in range(i):
            if unequal(knm[unsafe_offset=i * n + j], knm[unsafe_offset=j * n + i]):
                return ASYMMETRIC_COUPLING
    return NONZERO_DIAGONAL


@always_inline
def load_mirror(n: Int, knm: Doubles, i: Int, j: Int) -> Square:
    """Square (J, I), transposed: row r lies against row i + r, columns j ..., of square (I, J)."""
    var mirror = Square(uninitialized=True)
    comptime for r in range(LANES):
        mirror[r] = load(knm, (j + r) * n + i)
    transpose_square(mirror)
    return mirror^


struct ExactFindings(Copyable):
    """What `scan_exact` has seen so far: differing bits, zeros off the diagonal, entries not finite."""

    var differs: Words
    var zero: Words
    var excess: Lanes

    def __init__(out self):
        self.differs = Words(0)
        self.zero = Words(0)
        self.excess = ZERO

    @always_inline
    def add_square[on_diagonal: Bool](mut self, n: Int, knm: Doubles, i: Int, j: Int):
        var mirror = load_mirror(n, knm, i, j)
        comptime for r in range(LANES):
            var a = load(knm, (i + r) * n + j)
            var zero = a.eq(0.0)
            comptime if on_diagonal:
                zero = zero & all_but_lane(r)
            self.differs |= bits(a) ^ bits(mirror[r])
            self.zero |= zero.select(Words(-1), Words(0))
            self.excess += a - a


def scan_exact(n: Int, knm: Doubles, mut traits: Traits) -> Bool:
    """The common case: equal to its transpose bit for bit, and finite; traits then tells of missing edges."""
    var found = ExactFindings()
    var whole = n - n % LANES
    for tile in range(whole // LANES):
        var i = tile * LANES
        found.add_square[True](n, knm, i, i)
        for j in range(i + LANES, whole, LANES):
            found.add_square[False](n, knm, i, j)
    var different = any_of(found.differs.ne(0))
    traits.all_edges = not any_of(found.zero.ne(0))
    for i in range(whole, n):
        for j in range(i):
            var a = knm[unsafe_offset=i * n + j]
            different |= a != knm[unsafe_offset=j * n + i]
            traits.all_edges &= a != 0.0
            found.excess += a - a
    return not different and not any_of(nonzero(found.excess))


def scan_pairs(n: Int, knm: Doubles, mut traits: Traits) -> Bool:
    """Any other matrix, pair by pair; False for an acceptable one."""
    var fault = False
    traits = Traits()
    for i in range(n):
        for j in range(i):
            var a = knm[unsafe_offset=i * n + j]
            var b = knm[unsafe_offset=j * n + i]
            fault |= unequal(a, b)
            traits.exactly_symmetric &= a == b
            traits.all_edges &= a != 0.0 and b != 0.0
            traits.symmetric_pattern &= (a == 0.0) == (b == 0.0)
    return fault


def scan(n: Int, knm: Doubles, mut traits: Traits) -> Int32:
    """`OK` and the traits of K (n, n), or the first promise that it breaks."""
    var fault = False
    traits = Traits()
    if not scan_exact(n, knm, traits):
        fault = scan_pairs(n, knm, traits)
    for i in range(n):
        fault |= not abs(knm[unsafe_offset=i * n + i]) <= SYMMETRY_TOLERANCE
    return coupling_fault(n, knm) if fault else OK


@always_inline
def mix_with_transpose[own: Float64, mirrored: Float64](n: Int, knm: Doubles, target: MutDoubles):
    """The target becomes own K + mirrored K^T."""
    var whole = n - n % LANES
    for i in range(0, whole, LANES):
        for j in range(0, whole, LANES):
            var mirror = load_mirror(n, knm, i, j)
            comptime for r in range(LANES):
                var at = (i + r) * n + j
                store(target, at, own * load(knm, at) + mirrored * mirror[r])
    for i in range(n):
        for j in range(whole if i < whole else 0, n):
            var at = i * n + j
            target[unsafe_offset=at] = own * knm[unsafe_offset=at] + mirrored * knm[unsafe_offset=j * n + i]


def symmetrise(n: Int, knm: Doubles, target: MutDoubles):
    mix_with_transpose[0.5, 0.5](n, knm, target)


def transpose(n: Int, knm: Doubles, target: MutDoubles):
    mix_with_transpose[0.0, 1.0](n, knm, target)
