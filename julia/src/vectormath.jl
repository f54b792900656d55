# 2^t, sine and cosine, and the wrap into [0, 2 pi), on lanes. The reductions need rounding to nearest.

# Added to |x| < 2^51 it leaves round(x) in the low bits of the significand.
const ROUNDER = 0x1.8p52
const LOG2_E = 0x1.71547652b82fep0

# Polynomials by their coefficients, lowest power first.
@inline horner(z, a, b, c, d, e) = muladd(muladd(muladd(
    muladd(splat(e), z, splat(d)), z, splat(c)), z, splat(b)), z, splat(a))
@inline horner(z, a, b, c, d, e, f) = muladd(horner(z, b, c, d, e, f), z, splat(a))

# 2^k x, where k stands in the low bits of the significand of `shifted`.
@inline times_power_of_two(x, shifted) = Lanes(Base.llvmcall("""
    %p = bitcast <8 x double> %0 to <8 x i64>
    %k = bitcast <8 x double> %1 to <8 x i64>
    %e = shl <8 x i64> %k, <i64 52, i64 52, i64 52, i64 52, i64 52, i64 52, i64 52, i64 52>
    %s = add <8 x i64> %p, %e
    %r = bitcast <8 x i64> %s to <8 x double>
    ret <8 x double> %r""", Packed, Tuple{Packed,Packed}, x.x, shifted.x))

# 2^t for -1021 <= t <= 1023 (not checked): 2^r by a polynomial, r in [-1/2, 1/2], then round(t) added to the
# exponent. Even and odd powers make two chains, since one chain would wait for itself.
@inline function power_of_two(t)
    shifted = t + splat(ROUNDER)
    r = t - (shifted - splat(ROUNDER))
    z = r * r
    even = horner(z, EXP2[1], EXP2[3], EXP2[5], EXP2[7], EXP2[9], EXP2[11])
    odd = horner(z, EXP2[2], EXP2[4], EXP2[6], EXP2[8], EXP2[10])
    return times_power_of_two(muladd(muladd(odd, r, even), r, splat(1.0)), shifted)
end

# pi / 2 in three parts: with fused products the first two leave nothing behind.
const TWO_OVER_PI = 0x1.45f306dc9c883p-1
const HALF_PI = (0x1.921fb54442d18p0, 0x1.1a62633145c07p-54, -0x1.f1976b7ed8fbcp-110)
const SINCOS_LIMIT = 0x1p19

# The two lowest bits of a quadrant k, which stands in the low bits of the significand.
@inline odd(shifted) = Base.llvmcall("""
    %b = bitcast <8 x double> %0 to <8 x i64>
    %k = and <8 x i64> %b, <i64 1, i64 1, i64 1, i64 1, i64 1, i64 1, i64 1, i64 1>
    %c = icmp ne <8 x i64> %k, zeroinitializer
    %m = bitcast <8 x i1> %c to i8
    ret i8 %m""", Mask, Tuple{Packed}, shifted.x)
@inline upper(shifted) = Base.llvmcall("""
    %b = bitcast <8 x double> %0 to <8 x i64>
    %k = and <8 x i64> %b, <i64 2, i64 2, i64 2, i64 2, i64 2, i64 2, i64 2, i64 2>
    %c = icmp ne <8 x i64> %k, zeroinitializer
    %m = bitcast <8 x i1> %c to i8
    ret i8 %m""", Mask, Tuple{Packed}, shifted.x)

# The functions of the C library, which know every size and never throw: NaN for what is not finite.
c_sin(x) = ccall(:sin, Float64, (Float64,), x)
c_cos(x) = ccall(:cos, Float64, (Float64,), x)
c_fmod(x, y) = ccall(:fmod, Float64, (Float64, Float64), x, y)
c_pow(x, y) = ccall(:pow, Float64, (Float64, Float64), x, y)
c_hypot(x, y) = ccall(:hypot, Float64, (Float64, Float64), x, y)
c_atan2(y, x) = ccall(:atan2, Float64, (Float64, Float64), y, x)

each_lane(f, x) = Lanes(ntuple(l -> VecElement{Float64}(f(lane(x, l))), Val(LANES)))

# sincos_lanes(x) -> (sine, cosine): r + tail = x - k pi / 2 in [-pi / 4, pi / 4]; sin r and cos r by
# polynomials; the quadrant k mod 4 swaps and signs them. Lanes beyond 2^19 go one by one to the C library.
@inline function sincos_lanes(x)
    shifted = fma(x, splat(TWO_OVER_PI), splat(ROUNDER))
    k = shifted - splat(ROUNDER)
    r1 = fma(k, splat(-HALF_PI[1]), x)
    part = k * splat(HALF_PI[2])
    rest = fma(k, splat(HALF_PI[3]), fma(k, splat(HALF_PI[2]), -part))
    r = r1 - part
    tail = ((r1 - r) - part) - rest
    z = r * r
    half = splat(0.5) * z
    w = splat(1.0) - half
    s = r + muladd(horner(z, SIN...) * z, r, tail * w)
    c = w + muladd(horner(z, COS...) * z, z, muladd(-r, tail, (splat(1.0) - w) - half))
    swap, negative = odd(shifted), upper(shifted)
    sine, cosine = select(swap, c, s), select(swap, s, c)
    sine, cosine = select(negative, -sine, sine), select(negative ⊻ swap, -cosine, cosine)
    far = exceeds(abs(x), splat(SINCOS_LIMIT))
    if far != 0
        sine = select(far, when_needed(each_lane, c_sin, x)::Lanes, sine)
        cosine = select(far, when_needed(each_lane, c_cos, x)::Lanes, cosine)
    end
    return sine, cosine
end

const TWO_PI = 0x1.921fb54442d18p2
# Up to here round(x / 2 pi) is exact to the last unit, which the wrap mends; farther goes to the remainder.
const WRAP_LIMIT = 0x1p30

# x modulo 2 pi into [0, 2 pi); a result that rounds to 2 pi becomes 0. NaN for what is not finite.
@noinline function wrap(x::Float64)
    y = c_fmod(x, TWO_PI)
    y = y < 0 ? y + TWO_PI : y
    return y == TWO_PI ? 0.0 : y
end

@inline function wrap(x::Lanes)
    turns = x * splat(1 / TWO_PI)
    whole = (turns + splat(ROUNDER)) - splat(ROUNDER)
    y = fma(whole, splat(-TWO_PI), x)
    y += keep(less(y, zero(Lanes)), splat(TWO_PI))
    y = keep(less(y, splat(TWO_PI)), y)
    return exceeds(abs(x), splat(WRAP_LIMIT)) == 0 ? y : when_needed(each_lane, wrap, x)::Lanes
end
