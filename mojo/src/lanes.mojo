"""Lanes of double: the widest vectors of the processor that the build names.

Everything is written for `LANES` of them. Arrays of oscillators inside a scratch are padded to `PAD`
entries, so that loops over oscillators have no remainder. Products and sums are rounded one by one unless
`fma` says otherwise: build with `--fp-mode contract=off`.
"""

from std.math import iota
from std.memory import bitcast
from std.sys import simd_width_of
from std.sys.intrinsics import masked_load, masked_store

comptime LANES = simd_width_of[DType.float64]()
comptime Lanes = SIMD[DType.float64, LANES]
comptime Words = SIMD[DType.int64, LANES]
comptime Mask = SIMD[DType.bool, LANES]

comptime Doubles = Pointer[Float64, ImmUntrackedOrigin]
"""Doubles of the caller that are only read."""
comptime MutDoubles = Pointer[Float64, MutUntrackedOrigin]

comptime PAD = 8
comptime ZERO = Lanes(0.0)


def padded(count: Int) -> Int:
    """The smallest multiple of `PAD` that holds count."""
    return (count + PAD - 1) // PAD * PAD


@always_inline
def load(p: Doubles, at: Int = 0) -> Lanes:
    return p.unsafe_load[width=LANES](at)


@always_inline
def store(p: MutDoubles, at: Int, x: Lanes):
    p.unsafe_store(at, x)


@always_inline
def lane_numbers() -> Lanes:
    """0, 1, 2, ..."""
    return iota[DType.float64, LANES]()


@always_inline
def first_lanes(count: Int) -> Mask:
    return lane_numbers().lt(Lanes(Float64(count)))


@always_inline
def all_but_lane(lane: Int) -> Mask:
    return lane_numbers().ne(Lanes(Float64(lane)))


@always_inline
def load_first(p: Doubles, at: Int, count: Int) -> Lanes:
    """The first count doubles from `at`, zeros behind them; memory past them is not touched."""
    if count >= LANES:
        return load(p, at)
    return masked_load[LANES](p.unsafe_offset(at), first_lanes(count), ZERO)


@always_inline
def store_first(p: MutDoubles, at: Int, x: Lanes, count: Int):
    if count >= LANES:
        store(p, at, x)
    else:
        masked_store[LANES](x, p.unsafe_offset(at), first_lanes(count))


@always_inline
def bits(x: Lanes) -> Words:
    return bitcast[DType.int64, LANES](x)


@always_inline
def from_bits(x: Words) -> Lanes:
    return bitcast[DType.float64, LANES](x)


@always_inline
def keep(mask: Mask, x: Lanes) -> Lanes:
    """The value x where the mask holds, else +0."""
    return mask.select(x, ZERO)


@always_inline
def larger(x: Lanes, y: Lanes) -> Lanes:
    """The larger of two; y where either is NaN."""
    return x.gt(y).select(x, y)


@always_inline
def largest_of(x: Lanes) -> Float64:
    var largest = x[0]
    comptime for lane in range(1, LANES):
        largest = x[lane] if x[lane] > largest else largest
    return largest


@always_inline
def nonzero(x: Lanes) -> Mask:
    """The lanes that are not zero, NaN among them: `ne` is False for NaN."""
    return ~x.eq(0.0)


@always_inline
def any_of(mask: Mask) -> Bool:
    return Bool(mask.reduce_or())


comptime Quad = SIMD[DType.float64, 4]


@always_inline
def quad_of(x: Lanes) -> Quad:
    """The lanes added up to four."""
    comptime if LANES == 2:
        return Quad(x[0], x[1], 0.0, 0.0)
    else:
        return x.reduce_add[size_out=4]()


@always_inline
def sums_of(a: Lanes, b: Lanes, c: Lanes, d: Lanes) -> Quad:
    """The four sums over the lanes of a, b, c, d."""
    var p = quad_of(a)
    var q = quad_of(b)
    var r = quad_of(c)
    var s = quad_of(d)
    var pq = p.shuffle[0, 4, 2, 6](q) + p.shuffle[1, 5, 3, 7](q)
    var rs = r.shuffle[0, 4, 2, 6](s) + r.shuffle[1, 5, 3, 7](s)
    return pq.shuffle[2, 3, 4, 5](rs) + pq.shuffle[0, 1, 6, 7](rs)


@always_inline
def sum_of(x: Lanes) -> Float64:
    return sums_of(x, ZERO, ZERO, ZERO)[0]


@fieldwise_init
struct ExactSum(TrivialRegisterPassable):
    """A sum that carries its rounding errors along (A. Neumaier, Z. Angew. Math. Mech. 54 (1974) 39; the
    error of one addition by D. E. Knuth, The Art of Computer Programming 2, 4.2.2)."""

    var sum: Lanes
    var error: Lanes

    def __init__(out self):
        self.sum = ZERO
        self.error = ZERO

    @always_inline
    def add(mut self, x: Lanes):
        var sum = self.sum + x
        var from_x = sum - self.sum
        self.error += (self.sum - (sum - from_x)) + (x - from_x)
        self.sum = sum

    def total(self) -> Float64:
        return total_of[LANES](self.sum, sum_of(self.error))


def total_of[width: Int](sum: SIMD[DType.float64, width], error: Float64) -> Float64:
    """The lanes of sum added up in pairs, then pairs of pairs, and the error of all that."""
    comptime if width == 1:
        return sum[0] + error
    else:
        var a = sum.slice[width // 2]()
        var b = sum.slice[width // 2, offset=width // 2]()
        var both = a + b
        var from_b = both - a
        var lost = (a - (both - from_b)) + (b - from_b)
        return total_of[width // 2](both, error + lost.reduce_add())


comptime Square = Array[Lanes, LANES]
"""A square of lanes, row by row."""


def lanes_with_bit(bit: Int) -> Mask:
    var mask = Mask(fill=False)
    for lane in range(LANES):
        mask[lane] = lane & bit != 0
    return mask


@always_inline
def transpose_square(mut row: Square):
    """Blocks of 1, 2, 4 ... lanes change places between pairs of rows."""
    exchange[1](row)
    comptime if LANES > 2:
        exchange[2](row)
    comptime if LANES > 4:
        exchange[4](row)


@always_inline
def exchange[block: Int](mut row: Square):
    """The upper blocks of each row r change places with the lower ones of row r + block."""
    comptime upper = lanes_with_bit(block)
    comptime for r in range(LANES):
        comptime if r & block == 0:
            var above = row[r]
            var below = row[r + block]
            row[r] = upper.select(below.rotate_right[block](), above)
            row[r + block] = upper.select(below, above.rotate_left[block]())
