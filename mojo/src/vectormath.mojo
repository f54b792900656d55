"""exp2, sincos and the wrapping of phases, on lanes of double.

Worst errors in units in the last place: exp2 on [-1021, 1023] 1.2; sin and cos 0.8 up to |x| = 2^19. Farther
lanes go one by one to the C library. exp2(0) = cos 0 = 1 and sin 0 = 0 exactly. The reductions need rounding
to nearest, the mode of every process that did not change it.
"""

from std.ffi import external_call
from std.math import fma

from lanes import LANES, Lanes, ZERO, any_of, bits, from_bits, keep
from polynomials import COS, EXP2, SIN

comptime ROUNDER = 6755399441055744.0
"""1.5 * 2^52: added to |x| < 2^51 it leaves round(x) in the low bits of the significand."""
comptime LOG2_E = 1.4426950408889634
comptime TWO_OVER_PI = 0.6366197723675814
comptime HALF_PI_1 = 1.5707963267948966
"""pi / 2 in parts of 53 bits."""
comptime HALF_PI_2 = 6.123233995736766e-17
comptime HALF_PI_3 = -1.4973849048591698e-33
comptime TWO_PI = 6.283185307179586
comptime INVERSE_TWO_PI = 0.15915494309189535
comptime SINCOS_LIMIT = 524288.0
"""2^19: up to here the product of a quadrant number with the parts of pi / 2 leaves nothing behind."""
comptime WRAP_LIMIT = 1073741824.0
"""2^30: up to here floor(x / 2 pi) is exact to the last unit, which `wrap` mends."""


@always_inline
def exp2(t: Lanes) -> Lanes:
    """2^t for -1021 <= t <= 1023 (not checked).

    2^r by polynomial, r in [-1/2, 1/2], then round(t) added to the exponent. Even and odd powers are two
    chains, since one chain would wait for itself.
    """
    var shifted = t + ROUNDER
    var r = t - (shifted - ROUNDER)
    var z = r * r
    comptime highest = EXP2[10]
    comptime second = EXP2[9]
    var even = Lanes(highest)
    var odd = Lanes(second)
    comptime for k in range(8, -1, -2):
        comptime coefficient = EXP2[k]
        even = fma(even, z, Lanes(coefficient))
    comptime for k in range(7, 0, -2):
        comptime coefficient = EXP2[k]
        odd = fma(odd, z, Lanes(coefficient))
    var p = fma(fma(odd, r, even), r, Lanes(1.0))
    return from_bits(bits(p) + (bits(shifted) << 52))


@fieldwise_init
struct SinCos(TrivialRegisterPassable):
    var sine: Lanes
    var cosine: Lanes


@always_inline
def sincos(x: Lanes) -> SinCos:
    """Sine and cosine of x.

    With k = round(2 x / pi), r + tail = x - k pi / 2 in [-pi / 4, pi / 4]; sin r and cos r by polynomial; the
    quadrant k mod 4 swaps and signs them.
    """
    var shifted = fma(x, Lanes(TWO_OVER_PI), Lanes(ROUNDER))
    var k = shifted - ROUNDER
    var quadrant = bits(shifted)
    var r1 = fma(k, Lanes(-HALF_PI_1), x)
    var part = k * HALF_PI_2
    var rest = fma(k, Lanes(HALF_PI_3), fma(k, Lanes(HALF_PI_2), -part))
    var r = r1 - part
    var tail = ((r1 - r) - part) - rest
    var z = r * r
    comptime highest_s = SIN[5]
    comptime highest_c = COS[5]
    var s = Lanes(highest_s)
    var c = Lanes(highest_c)
    comptime for j in range(4, -1, -1):
        comptime of_s = SIN[j]
        comptime of_c = COS[j]
        s = fma(s, z, Lanes(of_s))
        c = fma(c, z, Lanes(of_c))
    var half = 0.5 * z
    var w = 1.0 - half
    s = r + fma(s * z, r, tail * w)
    c = w + fma(c * z, z, fma(-r, tail, (1.0 - w) - half))
    var swap = (quadrant & 1).ne(0)
    var sine = from_bits(bits(swap.select(c, s)) ^ ((quadrant & 2) << 62))
    var cosine = from_bits(bits(swap.select(s, c)) ^ (((quadrant + 1) & 2) << 62))
    if any_of(~abs(x).le(SINCOS_LIMIT)):
        return sincos_far(x, SinCos(sine, cosine))
    return SinCos(sine, cosine)


@no_inline
def sincos_far(x: Lanes, near: SinCos) -> SinCos:
    """The C library's sine and cosine in the lanes that are too large (or not finite)."""
    var result = near
    comptime for lane in range(LANES):
        if not abs(x[lane]) <= SINCOS_LIMIT:
            result.sine[lane] = external_call["sin", Float64](x[lane])
            result.cosine[lane] = external_call["cos", Float64](x[lane])
    return result


def wrap_one(x: Float64) -> Float64:
    """The remainder of x modulo 2 pi in [0, 2 pi); one that rounds to 2 pi becomes 0, NaN stays."""
    var y = external_call["fmod", Float64](x, Float64(TWO_PI))
    if y < 0.0:
        y += TWO_PI
    return 0.0 if y == TWO_PI else y


@always_inline
def wrap(x: Lanes) -> Lanes:
    """The same, for lanes; what is not finite becomes NaN."""
    var whole = (x * INVERSE_TWO_PI + ROUNDER) - ROUNDER
    var y = fma(whole, Lanes(-TWO_PI), x)
    y += keep(y.lt(0.0), Lanes(TWO_PI))
    y = y.ge(TWO_PI).select(ZERO, y)
    if any_of(~abs(x).le(WRAP_LIMIT)):
        return wrap_far(x)
    return y


@no_inline
def wrap_far(x: Lanes) -> Lanes:
    var y = ZERO
    comptime for lane in range(LANES):
        y[lane] = wrap_one(x[lane])
    return y


def radius(n: Int, sine: Float64, cosine: Float64) -> Float64:
    """The order parameter R of n phases from the sums of their sines and cosines."""
    if n == 0:
        return 0.0
    var length = external_call["hypot", Float64](sine, cosine) / Float64(n)
    return 1.0 if length > 1.0 else length


def mean_phase(n: Int, sine: Float64, cosine: Float64) -> Float64:
    """The argument of their mean, in [0, 2 pi)."""
    if n == 0:
        return 0.0
    var angle = external_call["atan2", Float64](sine, cosine)
    if angle < 0.0:
        angle += TWO_PI
    return 0.0 if angle == TWO_PI else angle
