# Eight numbers at a time. LLVM cuts them to the vectors of the processor that it finds when it compiles, so
# that nothing has to be chosen here.

const LANES = 8
const Packed = NTuple{LANES,VecElement{Float64}}
const HalfPacked = NTuple{4,VecElement{Float64}}

# Eight numbers that are worked on at once.
struct Lanes
    x::Packed
end

# One bit for each lane, the first lane lowest.
const Mask = UInt8
const ALL_LANES = 0xff

# Arrays are bare pointers, their indices count from 1.
@inline element(p, i) = p + 8 * (i - 1)
@inline number(p, i) = unsafe_load(p, i)
@inline load(p, i) = Lanes(unsafe_load(Ptr{Packed}(element(p, i))))
@inline store(p, i, x::Lanes) = unsafe_store!(Ptr{Packed}(element(p, i)), x.x)
@inline lane(x::Lanes, l) = x.x[l].value

# The first `count` numbers from index i on, zeros behind them; memory past them is not touched.
@noinline function load_first(p, i, count)
    q = element(p, i)
    return Lanes(ntuple(l -> VecElement(l <= count ? number(q, l) : 0.0), Val(LANES)))
end

@noinline function store_first(p, i, x::Lanes, count)
    q = element(p, i)
    ntuple(l -> (l <= count && unsafe_store!(q, lane(x, l), l); nothing), Val(LANES))
    return nothing
end

# for i in Blocks(n, step=LANES, from=1):
# Every step-th index up to n.
struct Blocks
    n::Int
    step::Int
    from::Int
end
Blocks(n) = Blocks(n, LANES, 1)
@inline Base.iterate(blocks::Blocks, i=blocks.from) = i <= blocks.n ? (i, i + blocks.step) : nothing

# A whole vector, or as much of it as is left.
@inline load_left(p, i, left) = left >= LANES ? load(p, i) : load_first(p, i, left)
@inline store_left(p, i, x, left) = left >= LANES ? store(p, i, x) : store_first(p, i, x, left)

# Words of LLVM, and functions that it knows.

@inline Base.:+(a::Lanes, b::Lanes) = Lanes(Base.llvmcall(
    "%r = fadd <8 x double> %0, %1\nret <8 x double> %r", Packed, Tuple{Packed,Packed}, a.x, b.x))
@inline Base.:-(a::Lanes, b::Lanes) = Lanes(Base.llvmcall(
    "%r = fsub <8 x double> %0, %1\nret <8 x double> %r", Packed, Tuple{Packed,Packed}, a.x, b.x))
@inline Base.:*(a::Lanes, b::Lanes) = Lanes(Base.llvmcall(
    "%r = fmul <8 x double> %0, %1\nret <8 x double> %r", Packed, Tuple{Packed,Packed}, a.x, b.x))
@inline Base.:/(a::Lanes, b::Lanes) = Lanes(Base.llvmcall(
    "%r = fdiv <8 x double> %0, %1\nret <8 x double> %r", Packed, Tuple{Packed,Packed}, a.x, b.x))

@inline splat(x::Float64) = Lanes(Base.llvmcall("""
    %first = insertelement <8 x double> undef, double %0, i32 0
    %all = shufflevector <8 x double> %first, <8 x double> undef, <8 x i32> zeroinitializer
    ret <8 x double> %all""", Packed, Tuple{Float64}, x))

@inline iota() = Lanes(Base.llvmcall("""
    ret <8 x double> <double 0.0, double 1.0, double 2.0, double 3.0,
                      double 4.0, double 5.0, double 6.0, double 7.0>""", Packed, Tuple{}))

@inline Base.zero(::Type{Lanes}) = splat(0.0)

# Fused where the processor can.
@inline Base.muladd(a::Lanes, b::Lanes, c::Lanes) =
    Lanes(ccall("llvm.fmuladd.v8f64", llvmcall, Packed, (Packed, Packed, Packed), a.x, b.x, c.x))
# Fused, if need be by a library.
@inline Base.fma(a::Lanes, b::Lanes, c::Lanes) =
    Lanes(ccall("llvm.fma.v8f64", llvmcall, Packed, (Packed, Packed, Packed), a.x, b.x, c.x))
@inline Base.sqrt(a::Lanes) = Lanes(ccall("llvm.sqrt.v8f64", llvmcall, Packed, (Packed,), a.x))
@inline Base.abs(a::Lanes) = Lanes(ccall("llvm.fabs.v8f64", llvmcall, Packed, (Packed,), a.x))

# Comparisons.
@inline less(a::Lanes, b::Lanes) = Base.llvmcall(
    "%c = fcmp olt <8 x double> %0, %1\n%m = bitcast <8 x i1> %c to i8\nret i8 %m",
    Mask, Tuple{Packed,Packed}, a.x, b.x)
@inline at_most(a::Lanes, b::Lanes) = Base.llvmcall(
    "%c = fcmp ole <8 x double> %0, %1\n%m = bitcast <8 x i1> %c to i8\nret i8 %m",
    Mask, Tuple{Packed,Packed}, a.x, b.x)
@inline equal(a::Lanes, b::Lanes) = Base.llvmcall(
    "%c = fcmp oeq <8 x double> %0, %1\n%m = bitcast <8 x i1> %c to i8\nret i8 %m",
    Mask, Tuple{Packed,Packed}, a.x, b.x)
@inline unequal(a::Lanes, b::Lanes) = Base.llvmcall( # true for a NaN
    "%c = fcmp une <8 x double> %0, %1\n%m = bitcast <8 x i1> %c to i8\nret i8 %m",
    Mask, Tuple{Packed,Packed}, a.x, b.x)
@inline exceeds(a::Lanes, b::Lanes) = Base.llvmcall( # true for a NaN
    "%c = fcmp ugt <8 x double> %0, %1\n%m = bitcast <8 x i1> %c to i8\nret i8 %m",
    Mask, Tuple{Packed,Packed}, a.x, b.x)

@inline select(mask::Mask, yes::Lanes, no::Lanes) = Lanes(Base.llvmcall("""
    %c = bitcast i8 %0 to <8 x i1>
    %r = select <8 x i1> %c, <8 x double> %1, <8 x double> %2
    ret <8 x double> %r""", Packed, Tuple{Mask,Packed,Packed}, mask, yes.x, no.x))

@inline Base.:-(x::Lanes) = zero(Lanes) - x
@inline keep(mask, x) = select(mask, x, zero(Lanes))

# The larger of two; `y` where either is NaN.
@inline larger(x::Lanes, y::Lanes) = select(less(y, x), x, y)

# The steps from which a square of lanes is transposed: blocks of 1, 2 and 4 lanes change places.
@inline even_lanes(a::Lanes, b::Lanes) = Lanes(Base.llvmcall("""
    %r = shufflevector <8 x double> %0, <8 x double> %1,
        <8 x i32> <i32 0, i32 8, i32 2, i32 10, i32 4, i32 12, i32 6, i32 14>
    ret <8 x double> %r""", Packed, Tuple{Packed,Packed}, a.x, b.x))
@inline odd_lanes(a::Lanes, b::Lanes) = Lanes(Base.llvmcall("""
    %r = shufflevector <8 x double> %0, <8 x double> %1,
        <8 x i32> <i32 1, i32 9, i32 3, i32 11, i32 5, i32 13, i32 7, i32 15>
    ret <8 x double> %r""", Packed, Tuple{Packed,Packed}, a.x, b.x))
@inline even_pairs(a::Lanes, b::Lanes) = Lanes(Base.llvmcall("""
    %r = shufflevector <8 x double> %0, <8 x double> %1,
        <8 x i32> <i32 0, i32 1, i32 8, i32 9, i32 4, i32 5, i32 12, i32 13>
    ret <8 x double> %r""", Packed, Tuple{Packed,Packed}, a.x, b.x))
@inline odd_pairs(a::Lanes, b::Lanes) = Lanes(Base.llvmcall("""
    %r = shufflevector <8 x double> %0, <8 x double> %1,
        <8 x i32> <i32 2, i32 3, i32 10, i32 11, i32 6, i32 7, i32 14, i32 15>
    ret <8 x double> %r""", Packed, Tuple{Packed,Packed}, a.x, b.x))
@inline first_halves(a::Lanes, b::Lanes) = Lanes(Base.llvmcall("""
    %r = shufflevector <8 x double> %0, <8 x double> %1,
        <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 8, i32 9, i32 10, i32 11>
    ret <8 x double> %r""", Packed, Tuple{Packed,Packed}, a.x, b.x))
@inline second_halves(a::Lanes, b::Lanes) = Lanes(Base.llvmcall("""
    %r = shufflevector <8 x double> %0, <8 x double> %1,
        <8 x i32> <i32 4, i32 5, i32 6, i32 7, i32 12, i32 13, i32 14, i32 15>
    ret <8 x double> %r""", Packed, Tuple{Packed,Packed}, a.x, b.x))

# Stores the first four lanes.
@inline store_half(p, i, x::Lanes) = unsafe_store!(Ptr{HalfPacked}(element(p, i)), Base.llvmcall("""
    %r = shufflevector <8 x double> %0, <8 x double> undef, <4 x i32> <i32 0, i32 1, i32 2, i32 3>
    ret <4 x double> %r""", HalfPacked, Tuple{Packed}, x.x))

# The transpose of a square of eight vectors.
@inline function transposed(a, b, c, d, e, f, g, h)
    a, b, c, d = even_lanes(a, b), odd_lanes(a, b), even_lanes(c, d), odd_lanes(c, d)
    e, f, g, h = even_lanes(e, f), odd_lanes(e, f), even_lanes(g, h), odd_lanes(g, h)
    a, b, c, d = even_pairs(a, c), even_pairs(b, d), odd_pairs(a, c), odd_pairs(b, d)
    e, f, g, h = even_pairs(e, g), even_pairs(f, h), odd_pairs(e, g), odd_pairs(f, h)
    return (
        first_halves(a, e), first_halves(b, f), first_halves(c, g), first_halves(d, h),
        second_halves(a, e), second_halves(b, f), second_halves(c, g), second_halves(d, h),
    )
end

# The sums over the lanes of eight vectors, as lanes.
@inline function lane_sums(a, b, c, d, e, f, g, h)
    a, b = even_lanes(a, b) + odd_lanes(a, b), even_lanes(c, d) + odd_lanes(c, d)
    c, d = even_lanes(e, f) + odd_lanes(e, f), even_lanes(g, h) + odd_lanes(g, h)
    a, b = even_pairs(a, b) + odd_pairs(a, b), even_pairs(c, d) + odd_pairs(c, d)
    return first_halves(a, b) + second_halves(a, b)
end

# The largest of the lanes; 0 if none is above it.
function largest(x::Lanes)
    y = 0.0
    for l in 1:LANES
        y = lane(x, l) > y ? lane(x, l) : y
    end
    return y
end

# A sum that carries its rounding errors along (A. Neumaier, Z. Angew. Math. Mech. 54 (1974) 39; the error of
# one addition by D. E. Knuth, The Art of Computer Programming 2, 4.2.2).

@inline function add_exactly(sum, error, x)
    both = sum + x
    from_x = both - sum
    return both, error + ((sum - (both - from_x)) + (x - from_x))
end

# The lanes added up, errors included.
@inline function total(sum::Lanes, error::Lanes)
    whole, left = 0.0, 0.0
    for l in 1:LANES
        whole, left = add_exactly(whole, left, lane(sum, l))
        left += lane(error, l)
    end
    return whole + left
end
