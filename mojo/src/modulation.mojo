"""Attention over phases, row by row, and the matrix it rescales.

A lane is a query i; the keys j follow one after the other, so no sum runs across lanes and no row has a
remainder. Logits are kept in units of ln 2: log2(e) / (sqrt(d_h) tau_h) is folded into the queries and the
exponential is 2^t. From each query's logits its bound |q_i| max_j |k_j| is subtracted, by Cauchy-Schwarz
the cheapest number that no logit exceeds; where that is too far above the logits, their largest one is
sought first.
"""

from std.math import fma, sqrt
from std.memory import stack_allocation, unsafe_memcpy
from std.utils.numerics import inf, isfinite

from coupling import Traits, symmetrise, transpose
from lanes import (
    Doubles,
    LANES,
    Lanes,
    Mask,
    MutDoubles,
    PAD,
    ZERO,
    all_but_lane,
    any_of,
    keep,
    lane_numbers,
    larger,
    largest_of,
    load,
    load_first,
    nonzero,
    padded,
    store,
    store_first,
)
from memory import Cursor
from structures import Modulation, NONFINITE_PHASE, OK
from vectormath import LOG2_E, exp2, sincos

comptime BOUND_LIMIT = 32.0
"""Bound of the logits, in powers of two, up to which it replaces their maximum: weights stay above 2^-64 and
t rounds to 2^-48."""
comptime LEAST_EXPONENT = -1000.0
"""Weights below 2^-1000 of the largest are raised to it: they cannot be seen in a sum that is at least 1, and
2^t stays normal."""
comptime NORM_FLOOR = 1e-12
"""Keeps ||O|| > 0 in the unit output O / (||O|| + NORM_FLOOR): part of the definition of the modulation."""
comptime ANY = 0
"""As a comptime count: known only at run time."""


@always_inline
def each[Visit: def(Int) -> None, //, known: Int](count: Int, visit: Visit):
    """Visits 0 ... count - 1, in line where the count is known to the compiler."""
    comptime if known == ANY:
        for e in range(count):
            visit(e)
    else:
        comptime for e in range(known):
            visit(e)


@fieldwise_init
struct Head(Copyable):
    """One head's queries, keys and values, each (width, stride), and what its queries see."""

    var n: Int
    var stride: Int
    """Doubles from one row of q, k, v to the next."""
    var width: Int
    var q: MutDoubles
    var k: MutDoubles
    var v: MutDoubles
    var longest_key: Float64
    var knm: Doubles
    """Its row j tells which queries see key j; unused when all do."""
    var block_size: Float64
    """|i - j| up to it is seen."""

    @always_inline
    def seen(self, first: Int, key: Int) -> Mask:
        """The queries of the block from `first` that see a key: an edge, within the band. The diagonal is
        left to the caller."""
        var edges = load_first(self.knm, key * self.n + first, self.n - first)
        var distance = abs(lane_numbers() + Float64(first - key))
        return nonzero(edges) & distance.le(self.block_size)

    @always_inline
    def logit[width: Int](self, q: MutDoubles, key: Int, start: Lanes) -> Lanes:
        var t = start

        @always_inline
        def add_product(e: Int) {mut t, imm}:
            t = fma(load(q, e * LANES), Lanes(self.k[unsafe_offset=e * self.stride + key]), t)

        each[width](self.width, add_product)
        return t


struct Sums(Copyable):
    """Of the weights, and of the weighted values (width, LANES), over the keys taken in so far."""

    var total: Lanes
    var values: MutDoubles

    def __init__(out self, values: MutDoubles):
        self.total = ZERO
        self.values = values

    @always_inline
    def add[
        width: Int, masked: Bool, clamped: Bool, own: Bool
    ](mut self, head: Head, first: Int, keys: Tuple[Int, Int], q: MutDoubles, shift: Lanes):
        """Takes in the keys [keys[0], keys[1]); own tells that the block's own lanes are among them."""
        var total = self.total
        for key in range(keys[0], keys[1]):
            var t: Lanes
            comptime if clamped:
                # A logit of any size must round as it did when the largest was sought: then t <= 0 exactly.
                t = larger(head.logit[width](q, key, ZERO) - shift, Lanes(LEAST_EXPONENT))
            else:
                t = head.logit[width](q, key, -shift)
            var weight = exp2(t)
            comptime if masked:
                weight = keep(head.seen(first, key), weight)
            comptime if own:
                weight = keep(all_but_lane(key - first), weight)
            total += weight

            @always_inline
            def add_value(e: Int) {imm}:
                var value = Lanes(head.v[unsafe_offset=e * head.stride + key])
                store(self.values, e * LANES, fma(weight, value, load(self.values, e * LANES)))

            each[width](head.width, add_value)
        self.total = total

    @always_inline
    def add_all[
        width: Int, masked: Bool, clamped: Bool
    ](mut self, head: Head, first: Int, keys: Tuple[Int, Int], q: MutDoubles, shift: Lanes):
        var own_end = min(first + LANES, keys[1])
        self.add[width, masked, clamped, False](head, first, (keys[0], first), q, shift)
        self.add[width, masked, clamped, True](head, first, (first, own_end), q, shift)
        self.add[width, masked, clamped, False](head, first, (own_end, keys[1]), q, shift)


@always_inline
def largest_logit[
    width: Int, masked: Bool
](head: Head, first: Int, keys: Tuple[Int, Int], q: MutDoubles) -> Lanes:
    """The largest logit that each query of a block sees; 0 where it sees none."""
    var none = Lanes(-inf[DType.float64]())
    var largest = none
    for key in range(keys[0], keys[1]):
        var seen = all_but_lane(key - first)
        comptime if masked:
            seen = seen & head.seen(first, key)
        largest = larger(seen.select(head.logit[width](q, key, ZERO), none), largest)
    return largest.eq(none).select(ZERO, largest)


@no_inline
def attend[width: Int, masked: Bool](head: Head, first: Int, room: MutDoubles, y: MutDoubles):
    """The softmax-weighted mean of the values for the queries first ... first + LANES - 1: y (width, LANES).

    A width that is a constant keeps its vectors in registers; any other keeps them in room (2 width, LANES).
    """
    var q = room
    var values = room.unsafe_offset(head.width * LANES)
    comptime if width != ANY:
        q = stack_allocation[width * LANES, Float64]()
        values = stack_allocation[width * LANES, Float64]()
    var sums = Sums(values)
    var keys = (0, head.n)
    comptime if masked:
        var lowest = Float64(first) - head.block_size
        var end = Float64(first + LANES) + head.block_size
        keys = (Int(lowest) if lowest > 0.0 else 0, Int(end) if end < Float64(head.n) else head.n)
    var length = ZERO

    @always_inline
    def take_query(e: Int) {mut length, imm}:
        var query = load(head.q, e * head.stride + first)
        length = fma(query, query, length)
        store(q, e * LANES, query)
        store(sums.values, e * LANES, ZERO)

    each[width](head.width, take_query)
    var bound = sqrt(length) * head.longest_key
    if not any_of(~bound.le(BOUND_LIMIT)):  # false for a NaN, too: infinity times a key of length 0
        sums.add_all[width, masked, False](head, first, keys, q, bound)
    else:
        var shift = largest_logit[width, masked](head, first, keys, q)
        sums.add_all[width, masked, True](head, first, keys, q, shift)
    var share = sums.total.gt(0.0).select(1.0 / sums.total, ZERO)

    @always_inline
    def give_mean(e: Int) {imm}:
        store(y, e * LANES, load(sums.values, e * LANES) * share)

    each[width](head.width, give_mean)


def attend_block[masked: Bool](head: Head, first: Int, room: MutDoubles, y: MutDoubles):
    """One function for each common head width, and one for the others."""
    if head.width == 1:
        attend[1, masked](head, first, room, y)
    elif head.width == 2:
        attend[2, masked](head, first, room, y)
    elif head.width == 4:
        attend[4, masked](head, first, room, y)
    elif head.width == 8:
        attend[8, masked](head, first, room, y)
    else:
        attend[ANY, masked](head, first, room, y)


def harmonics(n: Int, d_model: Int, theta: Doubles, x: MutDoubles) -> Bool:
    """x_2m = cos((m + 1) theta), x_2m+1 = sin((m + 1) theta), by the addition theorem from the first pair; x
    is (d_model, padded). False where a phase is not finite."""
    var stride = padded(n)
    var excess = ZERO
    for i in range(0, stride, LANES):
        var phase = load_first(theta, i, n - i) if i < n else ZERO
        excess += phase - phase
        var one = sincos(phase)
        var s = one.sine
        var c = one.cosine
        for m in range(0, d_model, 2):
            store(x, m * stride + i, c)
            store(x, (m + 1) * stride + i, s)
            var next = fma(c, one.cosine, -(s * one.sine))
            s = fma(s, one.cosine, c * one.sine)
            c = next
    return not any_of(nonzero(excess))


def project(
    modulation: Modulation, h: Int, stride: Int, x: MutDoubles, q: MutDoubles, k: MutDoubles, v: MutDoubles
) -> Float64:
    """q = scale x W_Q, k = x W_K, v = x W_V for head h, each (width, stride); the length of the longest key.

    The three sums of a row share each load of x and do not wait for one another.
    """
    var width = modulation.width()
    var d_model = modulation.d_model
    var w_q = modulation.w_q.unsafe_value().unsafe_offset(h * d_model * width)
    var w_k = modulation.w_k.unsafe_value().unsafe_offset(h * d_model * width)
    var w_v = modulation.w_v.unsafe_value().unsafe_offset(h * d_model * width)
    var temperature = modulation.temperature.unsafe_value()[unsafe_offset=h]
    var scale = LOG2_E / (sqrt(Float64(width)) * temperature)
    var longest = ZERO
    for i in range(0, stride, LANES):
        var length = ZERO
        for e in range(width):
            var query = ZERO
            var key = ZERO
            var value = ZERO
            for m in range(d_model):
                var feature = load(x, m * stride + i)
                query = fma(feature, Lanes(w_q[unsafe_offset=m * width + e]), query)
                key = fma(feature, Lanes(w_k[unsafe_offset=m * width + e]), key)
                value = fma(feature, Lanes(w_v[unsafe_offset=m * width + e]), value)
            length = fma(key, key, length)
            store(q, e * stride + i, scale * query)
            store(k, e * stride + i, key)
            store(v, e * stride + i, value)
        longest = larger(length, longest)
    return sqrt(largest_of(longest))


def unit_outputs(d_model: Int, stride: Int, y: MutDoubles, w_o: Doubles, unit: MutDoubles):
    """One block's columns of unit (d_model, stride), O / (||O|| + NORM_FLOOR) with O = y W_O, from its y
    (d_model, LANES)."""
    var squares = ZERO
    for e in range(d_model):
        var sum = ZERO
        for r in range(d_model):
            sum = fma(load(y, r * LANES), Lanes(w_o[unsafe_offset=r * d_model + e]), sum)
        squares = fma(sum, sum, squares)
        store(unit, e * stride, sum)
    var inverse = 1.0 / (sqrt(squares) + NORM_FLOOR)
    for e in range(d_model):
        store(unit, e * stride, load(unit, e * stride) * inverse)


struct Scratch(Copyable):
    """The arrays of one modulation: the harmonics (later the unit outputs), then q, k and v of all heads."""

    var x: MutDoubles
    var q: MutDoubles
    var k: MutDoubles
    var v: MutDoubles
    """Each (d_model, padded)."""
    var longest: MutDoubles
    """Shape (n_heads): the longest key of each."""
    var y: MutDoubles
    """Shape (d_model, LANES): what one block attends to."""
    var room: MutDoubles
    """Shape (2 width, LANES)."""
    var phases: MutDoubles
    """Shape (padded)."""

    def __init__(out self, n: Int, modulation: Modulation, mut cursor: Cursor):
        var lines = modulation.d_model * padded(n)
        self.x = cursor.take(lines)
        self.q = cursor.take(lines)
        self.k = cursor.take(lines)
        self.v = cursor.take(lines)
        self.longest = cursor.take(padded(modulation.n_heads))
        self.y = cursor.take(modulation.d_model * PAD)
        self.room = cursor.take(2 * modulation.width() * PAD)
        self.phases = cursor.take(padded(n))


def scratch_doubles(n: Int, modulation: Modulation) -> Int:
    """What `Scratch` takes."""
    var lines = 4 * modulation.d_model * padded(n)
    var blocks = PAD * (modulation.d_model + 2 * modulation.width())
    return lines + padded(modulation.n_heads) + blocks + padded(n)


def units(
    n: Int, knm: Doubles, traits: Traits, theta: Doubles, modulation: Modulation, room: Scratch
) -> Int32:
    """Unit outputs (d_model, padded) of all oscillators, in room.x. K has a symmetric pattern, or is the
    transpose."""
    var stride = padded(n)
    var width = modulation.width()
    if not harmonics(n, modulation.d_model, theta, room.x):
        return NONFINITE_PHASE
    for h in range(modulation.n_heads):
        var q = room.q.unsafe_offset(h * width * stride)
        var k = room.k.unsafe_offset(h * width * stride)
        var v = room.v.unsafe_offset(h * width * stride)
        room.longest[unsafe_offset=h] = project(modulation, h, stride, room.x, q, k, v)
    var reach = n if modulation.block_size < 0 else modulation.block_size
    var masked = reach < n - 1 or not traits.all_edges
    for first in range(0, n, LANES):
        for h in range(modulation.n_heads):
            var rows = h * width * stride
            var head = Head(
                n=n,
                stride=stride,
                width=width,
                q=room.q.unsafe_offset(rows),
                k=room.k.unsafe_offset(rows),
                v=room.v.unsafe_offset(rows),
                longest_key=room.longest[unsafe_offset=h],
                knm=knm,
                block_size=Float64(reach),
            )
            var y = room.y.unsafe_offset(h * width * LANES)
            if masked:
                attend_block[True](head, first, room.room, y)
            else:
                attend_block[False](head, first, room.room, y)
        var column = room.x.unsafe_offset(first)  # the harmonics have served
        unit_outputs(modulation.d_model, stride, room.y, modulation.w_o.unsafe_value(), column)
    return OK


@fieldwise_init
struct Scaling(Copyable):
    """The factor of each pair, base + u_i . u_j with u = sqrt(lambda / 2) unit: symmetric to the last bit,
    since products commute and the sums run in one order."""

    var n: Int
    var d_model: Int
    var u: MutDoubles
    """Shape (d_model, padded)."""
    var base: Float64

    @always_inline
    def rows[
        count: Int, d_model: Int
    ](self, source: Doubles, i: Int, columns: Tuple[Int, Int], target: MutDoubles):
        """The rows i ... i + count - 1 of source, scaled, on the columns [columns[0], columns[1])."""
        var stride = padded(self.n)
        for j in range(columns[0], columns[1], LANES):
            var left = columns[1] - j
            var factor = Array[Lanes, count](fill=Lanes(self.base))

            @always_inline
            def add_product(e: Int) {mut factor, imm}:
                var line = self.u.unsafe_offset(e * stride)
                var column = load_first(line, j, left)
                comptime for r in range(count):
                    factor[r] = fma(Lanes(line[unsafe_offset=i + r]), column, factor[r])

            each[d_model](self.d_model, add_product)
            comptime for r in range(count):
                var at = (i + r) * self.n + j
                store_first(target, at, load_first(source, at, left) * factor[r], left)


def scale(n: Int, source: Doubles, modulation: Modulation, unit: MutDoubles, target: MutDoubles):
    """K' (n, n); source is the symmetric part of K, or the target itself. Spoils unit."""
    var d_model = modulation.d_model
    var reach = modulation.block_size
    var root = sqrt(0.5 * modulation.strength)
    for entry in range(0, d_model * padded(n), LANES):
        store(unit, entry, root * load(unit, entry))
    var scaling = Scaling(n, d_model, unit, 1.0 + 0.5 * modulation.strength)
    if 0 <= reach < n - 1:
        if Int(target) != Int(source):
            unsafe_memcpy(dest=target, src=source, count=n * n)
        for i in range(n):
            scaling.rows[1, ANY](source, i, (max(i - reach, 0), min(i + reach + 1, n)), target)
    else:
        var whole = n - n % 4
        for i in range(0, whole, 4):
            if d_model == 8:
                scaling.rows[4, 8](source, i, (0, n), target)
            else:
                scaling.rows[4, ANY](source, i, (0, n), target)
        for i in range(whole, n):
            scaling.rows[1, ANY](source, i, (0, n), target)
    for i in range(n):
        target[unsafe_offset=i * n + i] = 0.0


def modulate(
    n: Int,
    knm: Doubles,
    traits: Traits,
    theta: Doubles,
    modulation: Modulation,
    room: Scratch,
    target: MutDoubles,
) -> Int32:
    """The target (n, n) becomes K' of an acceptable K at the phases theta (n)."""
    if n == 0:
        return OK
    var seen = knm
    var phases = theta
    if not traits.symmetric_pattern:
        # The mask is read by columns, as rows of the transpose, for which the target is the room; theta,
        # which may lie in it, is taken and judged before.
        for i in range(n):
            if not isfinite(theta[unsafe_offset=i]):
                return NONFINITE_PHASE
        unsafe_memcpy(dest=room.phases, src=theta, count=n)
        phases = room.phases
        transpose(n, knm, target)
        seen = target
    var status = units(n, seen, traits, phases, modulation, room)
    if status != OK:
        return status
    if modulation.strength == 0.0:
        unsafe_memcpy(dest=target, src=knm, count=n * n)
        return OK
    var source = knm
    if not traits.exactly_symmetric:
        symmetrise(n, knm, target)
        source = target
    scale(n, source, modulation, room.x, target)
    return OK
