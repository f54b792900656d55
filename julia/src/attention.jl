# Attention over phases, row by row.
#
# A lane is a query i; the keys j follow one after the other, so no sum runs across lanes and no row has a
# remainder: the last block of queries overlaps the one before. Logits are kept in units of ln 2: log2(e) /
# (sqrt(d_h) tau_h) is folded into the queries and the exponential is 2^t. From each query's logits its bound
# |q_i| max_j |k_j| is subtracted, by Cauchy-Schwarz the cheapest number that no logit exceeds; where that is
# too far above the logits, their largest one is sought first.

# Bound of the logits, in powers of two, up to which it replaces their maximum: weights stay above 2^-64.
const BOUND_LIMIT = 32.0
# Weights below 2^-1000 of the largest are raised to it: they cannot be seen in a sum that is at least 1.
const LEAST_EXPONENT = -1000.0

# Keeps ||O|| > 0 in the unit output O / (||O|| + NORM_FLOOR): part of the definition of the modulation.
const NORM_FLOOR = 1e-12

# The projections of one head: rows (width, stride) of queries, keys and values.
struct Projections
    stride::Int
    q::Ptr{Float64}
    k::Ptr{Float64}
    v::Ptr{Float64}
end

# x_2m = cos((m + 1) theta), x_2m+1 = sin((m + 1) theta) into x (d_model, padded), by the addition theorem
# from the first pair. Tells whether all phases are finite.
@noinline function harmonics!(x, n, d_model, theta)
    excess = zero(Lanes)
    for i in Blocks(n)
        phase = load_left(theta, i, n - i + 1)
        excess += phase - phase
        s1, c1 = sincos_lanes(phase)
        s, c = s1, c1
        for m in Blocks(d_model, 2, 1)
            store(x, (m - 1) * padded(n) + i, c)
            store(x, m * padded(n) + i, s)
            c, s = muladd(c, c1, -(s * s1)), muladd(s, c1, c * s1)
        end
    end
    return equal(excess, zero(Lanes)) == ALL_LANES
end

# q = scale x W_Q, k = x W_K, v = x W_V for one head with weights (d_model, width). The three sums of a row
# share each load of x and do not wait for one another. Returns the length of the longest key.
@noinline function project!(head::Projections, d_model, width, x, w_q, w_k, w_v, scale)
    longest = zero(Lanes)
    for i in Blocks(head.stride)
        length = zero(Lanes)
        for e in 1:width
            query = key = value = zero(Lanes)
            for m in 1:d_model
                feature = load(x, (m - 1) * head.stride + i)
                query = muladd(feature, splat(number(w_q, (m - 1) * width + e)), query)
                key = muladd(feature, splat(number(w_k, (m - 1) * width + e)), key)
                value = muladd(feature, splat(number(w_v, (m - 1) * width + e)), value)
            end
            length = muladd(key, key, length)
            row = (e - 1) * head.stride + i
            store(head.q, row, splat(scale) * query)
            store(head.k, row, key)
            store(head.v, row, value)
        end
        longest = larger(length, longest)
    end
    return sqrt(largest(longest))
end

# Which keys a query sees: all of them, or those that share an edge with it within the band. The diagonal is
# left to the caller.

struct Complete end

struct Edges
    knm::Ptr{Float64} # its row j tells which queries see key j
    n::Int
    reach::Float64    # |i - j| up to it is seen
end

@inline seen(::Complete, i, j) = ALL_LANES
@inline function seen(edges::Edges, i, j)
    row = load_left(edges.knm, (j - 1) * edges.n + i, edges.n - i + 1)
    distance = abs(iota() + splat(Float64(i - j)))
    return unequal(row, zero(Lanes)) & at_most(distance, splat(edges.reach))
end

# The keys within reach of the block of queries from i on.
@inline key_range(::Complete, n, i) = 1, n
@inline function key_range(edges::Edges, n, i)
    first, last = i - edges.reach, i + LANES - 1 + edges.reach
    return first > 1 ? unsafe_trunc(Int, first) : 1, last < n ? unsafe_trunc(Int, last) : n
end

# The vectors of one head, an entry for each of its dimensions: in registers, as a tuple, where the width is
# a constant, else in memory, row after row.

struct Rows
    p::Ptr{Float64}
    stride::Int
    width::Int
end

@inline row(x::Rows, e) = load(x.p, (e - 1) * x.stride + 1)
@inline set_row(x::Rows, e, value) = store(x.p, (e - 1) * x.stride + 1, value)

@inline in_registers(x::Rows, ::Val{W}) where {W} = ntuple(e -> row(x, e), Val(W))
in_registers(x::Rows, ::Nothing) = x

@inline no_sums(::Rows, ::Val{W}) where {W} = ntuple(e -> zero(Lanes), Val(W))
function no_sums(room::Rows, ::Nothing)
    for e in 1:room.width
        set_row(room, e, zero(Lanes))
    end
    return room
end

# start + sum_e x_e p[1 + (e - 1) stride]
@inline add_dot(x::Tuple{Lanes}, p, stride, start) = muladd(x[1], splat(number(p, 1)), start)
@inline function add_dot(x::Tuple, p, stride, start)
    sum = muladd(x[1], splat(number(p, 1)), start)
    return add_dot(Base.tail(x), element(p, stride + 1), stride, sum)
end
function add_dot(x::Rows, p, stride, sum)
    for e in 1:x.width
        sum = muladd(row(x, e), splat(number(p, (e - 1) * stride + 1)), sum)
    end
    return sum
end

# sums_e + x p[1 + (e - 1) stride]
@inline add_products(sums::NTuple{W,Lanes}, p, stride, x) where {W} =
    ntuple(e -> muladd(x, splat(number(p, (e - 1) * stride + 1)), sums[e]), Val(W))
function add_products(sums::Rows, p, stride, x)
    for e in 1:sums.width
        set_row(sums, e, muladd(x, splat(number(p, (e - 1) * stride + 1)), row(sums, e)))
    end
    return sums
end

@inline store_scaled(out::Rows, x::NTuple{W,Lanes}, factor) where {W} =
    ntuple(e -> set_row(out, e, x[e] * factor), Val(W))
function store_scaled(out::Rows, x::Rows, factor)
    for e in 1:x.width
        set_row(out, e, row(x, e) * factor)
    end
end

# What is subtracted from the logits of the queries.

struct Bound
    x::Lanes
end
@inline exponent(shift::Bound, head, q, j) = add_dot(q, element(head.k, j), head.stride, -shift.x)

struct Maximum
    x::Lanes
end
# A logit of any size must round as it did when the largest was sought: the exponent is then never above 0.
@inline exponent(shift::Maximum, head, q, j) =
    larger(add_dot(q, element(head.k, j), head.stride, zero(Lanes)) - shift.x, splat(LEAST_EXPONENT))

# Adds the keys of a range, seen by the lanes of `own` and of the mask, to the sums of the queries from i on.
@inline function add_key(sums, total, head, mask, shift, q, i, j, own)
    weight = keep(own & seen(mask, i, j), power_of_two(exponent(shift, head, q, j)))
    return add_products(sums, element(head.v, j), head.stride, weight), total + weight
end

# The sums of the weighted values and of the weights, the queries' own block of keys first.
@inline function add_keys(sums, head, mask, shift, q, i, low, high)
    total = zero(Lanes)
    for j in i:min(i + LANES - 1, high)
        sums, total = add_key(sums, total, head, mask, shift, q, i, j, ~(0x01 << (j - i)))
    end
    for side in 1:2, j in (side == 1 ? (low:i-1) : (i+LANES:high))
        sums, total = add_key(sums, total, head, mask, shift, q, i, j, ALL_LANES)
    end
    return sums, total
end

# The same from the largest logit that each query sees, 0 where it sees none.
function add_keys_from_maximum(sums, head, mask, q, i, low, high)
    none = splat(-Inf)
    largest = none
    for j in low:high
        wanted = seen(mask, i, j) & ~(0x01 << (j - i))
        logit = add_dot(q, element(head.k, j), head.stride, zero(Lanes))
        largest = larger(select(wanted, logit, none), largest)
    end
    return add_keys(sums, head, mask, Maximum(keep(~equal(largest, none), largest)), q, i, low, high)
end

# y = the softmax-weighted mean of the values for the queries i, i + 1, ... of one head.
@noinline function attend!(y::Rows, head, longest_key, n, mask, head_width, room, i)
    low, high = key_range(mask, n, i)
    q = in_registers(Rows(element(head.q, i), head.stride, y.width), head_width)
    sums = no_sums(room, head_width)
    length = zero(Lanes)
    for e in 1:y.width
        entry = load(head.q, (e - 1) * head.stride + i)
        length = muladd(entry, entry, length)
    end
    bound = sqrt(length) * splat(longest_key)
    if exceeds(bound, splat(BOUND_LIMIT)) == 0 # true for a NaN, too: infinity times a key of length 0
        sums, total = add_keys(sums, head, mask, Bound(bound), q, i, low, high)
    else
        both = when_needed(add_keys_from_maximum, sums, head, mask, q, i, low, high)
        sums, total = both::Tuple{typeof(sums),Lanes}
    end
    store_scaled(y, sums, keep(less(zero(Lanes), total), splat(1.0) / total))
    return nothing
end

# unit column i = O / (||O|| + NORM_FLOOR), O = y W_O, for one block; y (d_model, LANES).
@noinline function unit_outputs!(unit, stride, d_model, y, w_o, i)
    squares = zero(Lanes)
    for e in 1:d_model
        sum = zero(Lanes)
        for r in 1:d_model
            sum = muladd(load(y, (r - 1) * LANES + 1), splat(number(w_o, (r - 1) * d_model + e)), sum)
        end
        squares = muladd(sum, sum, squares)
        store(unit, (e - 1) * stride + i, sum)
    end
    inverse = splat(1.0) / (sqrt(squares) + splat(NORM_FLOOR))
    for e in 1:d_model
        at = (e - 1) * stride + i
        store(unit, at, load(unit, at) * inverse)
    end
end

# out_ij = K_ij (base + u_i . u_j), four rows at a time: symmetric where K is, since products commute and the
# sums run in one order. u (d_model, stride); the last columns overlap those before.
@noinline function scale_all!(out, n, knm, d_model, stride, u, base)
    count = min(n, LANES)
    for i in Blocks(n, 4, 1), j0 in Blocks(n)
        j = max(min(j0, n - LANES + 1), 1)
        @nexprs 4 r -> factor_r = splat(base)
        for e in 1:d_model
            line = element(u, (e - 1) * stride + 1)
            column = load(line, j)
            @nexprs 4 r -> factor_r = muladd(splat(number(line, i + r - 1)), column, factor_r)
        end
        @nexprs 4 r -> if i + r - 1 <= n
            at_r = (i + r - 2) * n + j
            store_left(out, at_r, load_left(knm, at_r, count) * factor_r, count)
        end
    end
end
