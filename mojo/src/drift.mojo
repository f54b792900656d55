"""The Kuramoto-Sakaguchi drift without a sine per pair.

sin(theta_j - theta_i - alpha_ij) is a sum of products of functions of i and of j, so with s = sin theta, c =
cos theta

  f_i = omega_i + cos theta_i P_i - sin theta_i Q_i + zeta sin(psi - theta_i)
  uniform lag a:  S = K s, C = K c;  P = S cos a - C sin a,  Q = C cos a + S sin a
  a lag a pair:   P = (K cos alpha) s - (K sin alpha) c,  Q = (K cos alpha) c + (K sin alpha) s
"""

from std.ffi import external_call
from std.math import fma
from std.sys.intrinsics import PrefetchOptions, prefetch

from lanes import Doubles, LANES, Lanes, MutDoubles, ZERO, load, load_first, padded, store, sum_of, sums_of
from structures import Network
from vectormath import sincos

comptime FETCH_AHEAD_LIMIT = 512
"""Rows of up to so many entries are fetched a group ahead: shorter ones end before the processor has seen
that they are streams, longer ones would push each other out of the first cache."""


@fieldwise_init
struct Drive(Copyable):
    """The constants of the drift: the turn of a uniform lag, and zeta sin(psi - theta) = sine cos theta -
    cosine sin theta."""

    var turn_cosine: Float64
    var turn_sine: Float64
    var sine: Float64
    var cosine: Float64

    def __init__(out self, network: Network):
        var turn = 0.0 if network.alpha else network.uniform_alpha
        self.turn_cosine = external_call["cos", Float64](turn)
        self.turn_sine = external_call["sin", Float64](turn)
        self.sine = network.zeta * external_call["sin", Float64](network.psi)
        self.cosine = network.zeta * external_call["cos", Float64](network.psi)


@fieldwise_init
struct Matrices(Copyable):
    """K in force (n, n), or with a lag a pair K cos alpha and K sin alpha, and what their rows multiply."""

    var n: Int
    var k: Doubles
    var l: Doubles
    """K sin alpha; unused when the lag is uniform."""
    var sine: MutDoubles
    """Shape (padded), zeros behind the n-th; like cosine."""
    var cosine: MutDoubles
    var pull: MutDoubles
    """Shape (padded): P, for the uniform lag before its rotation."""
    var push: MutDoubles
    """Shape (padded): Q, likewise."""

    @always_inline
    def rows[count: Int, lag: Bool, ahead: Bool](self, first: Int):
        """Rows first ... first + count - 1 of two matrix-vector products with one matrix, or four with two.

        K is read once, and each load of s and c serves all the rows.
        """
        var n = self.n
        var p = Array[Lanes, count](fill=ZERO)
        var q = Array[Lanes, count](fill=ZERO)
        var k = self.k.unsafe_offset(first * n)
        var l = self.l.unsafe_offset(first * n)
        var blocks = n // LANES
        for block in range(blocks):
            var j = block * LANES
            var s = load(self.sine, j)
            var c = load(self.cosine, j)
            comptime for r in range(count):
                var pulled = load(k, r * n + j)
                comptime if ahead:
                    fetch(k.unsafe_offset((count + r) * n + j))
                p[r] = fma(pulled, s, p[r])
                q[r] = fma(pulled, c, q[r])
                comptime if lag:
                    var lagging = load(l, r * n + j)
                    comptime if ahead:
                        fetch(l.unsafe_offset((count + r) * n + j))
                    p[r] = fma(-lagging, c, p[r])
                    q[r] = fma(lagging, s, q[r])
        var whole = blocks * LANES
        if whole < n:
            var s = load(self.sine, whole)
            var c = load(self.cosine, whole)
            comptime for r in range(count):
                var pulled = load_first(k, r * n + whole, n - whole)
                p[r] = fma(pulled, s, p[r])
                q[r] = fma(pulled, c, q[r])
                comptime if lag:
                    var lagging = load_first(l, r * n + whole, n - whole)
                    p[r] = fma(-lagging, c, p[r])
                    q[r] = fma(lagging, s, q[r])
        comptime if count == 4:
            self.pull.unsafe_store(first, sums_of(p[0], p[1], p[2], p[3]))
            self.push.unsafe_store(first, sums_of(q[0], q[1], q[2], q[3]))
        else:
            self.pull[unsafe_offset=first] = sum_of(p[0])
            self.push[unsafe_offset=first] = sum_of(q[0])

    def all_rows[lag: Bool](self):
        var whole = self.n - self.n % 4
        var fetched = whole - 4 if self.n <= FETCH_AHEAD_LIMIT else 0
        for first in range(0, fetched, 4):
            self.rows[4, lag, True](first)
        for first in range(max(fetched, 0), whole, 4):
            self.rows[4, lag, False](first)
        for first in range(whole, self.n):
            self.rows[1, lag, False](first)


@always_inline
def fetch(p: Doubles):
    prefetch[PrefetchOptions().for_read().high_locality().to_data_cache()](p)


def sincos_padded(n: Int, theta: Doubles, sine: MutDoubles, cosine: MutDoubles):
    """Sine and cosine of padded phases; zeros behind the n-th, so that sums over whole vectors are sums over
    oscillators."""
    for i in range(0, padded(n), LANES):
        var both = sincos(load(theta, i))
        store(sine, i, both.sine)
        store(cosine, i, both.cosine)
    for i in range(n, padded(n)):
        sine[unsafe_offset=i] = 0.0
        cosine[unsafe_offset=i] = 0.0


def drift[lag: Bool](matrices: Matrices, drive: Drive, omega: Doubles, f: MutDoubles):
    """Slopes f (padded) at the phases whose sine and cosine are given: the uniform lag turns P and Q, the
    drive joins them."""
    matrices.all_rows[lag]()
    for i in range(0, padded(matrices.n), LANES):
        var p = load(matrices.pull, i)
        var q = load(matrices.push, i)
        var turn = Lanes(drive.turn_cosine)
        var along = fma(p, turn, -(q * drive.turn_sine)) + drive.sine
        var across = fma(q, turn, p * drive.turn_sine) + drive.cosine
        var rest = fma(-load(matrices.sine, i), across, load(omega, i))
        store(f, i, fma(load(matrices.cosine, i), along, rest))
