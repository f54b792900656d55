# The modulation: multi-head attention over the phases rescales K.

# Sizes whose squares and products could overflow are refused.
const LARGEST_SIZE = 1 << 28

# Multi-head attention over the phases that rescales K: the parameters, laid out as `spo_modulation`.
struct Modulation
    n_heads::Int64              # >= 1, divides d_model
    d_model::Int64              # even, >= 2
    block_size::Int64           # pairs with |i - j| > block_size keep K_ij; -1: no limit
    w_q::Ptr{Float64}           # (n_heads, d_model, d_h)
    w_k::Ptr{Float64}           # (n_heads, d_model, d_h)
    w_v::Ptr{Float64}           # (n_heads, d_model, d_h)
    w_o::Ptr{Float64}           # (d_model, d_model)
    temperature::Ptr{Float64}   # (n_heads), each > 0
    lambda::Float64             # >= 0
end

function acceptable(n, modulation::Ptr{Modulation})
    (n < 0 || n > LARGEST_SIZE || modulation == C_NULL) && return false
    m = unsafe_load(modulation)
    (m.n_heads < 1 || m.d_model < 2 || m.d_model > LARGEST_SIZE || isodd(m.d_model)) && return false
    m.d_model % m.n_heads == 0 || return false
    m.block_size >= -1 && m.lambda >= 0 && isfinite(m.lambda) || return false
    any_null(m.w_q, m.w_k, m.w_v, m.w_o, m.temperature) && return false
    for h in 1:m.n_heads
        temperature = number(m.temperature, h)
        temperature > 0 && isfinite(temperature) || return false
    end
    return true
end

# Doubles that a modulation works in: harmonics (later unit outputs), queries, keys, values; one block of
# heads' outputs and the room of one head.
function modulation_scratch(n, m::Modulation)
    return 4 * m.d_model * padded(n) + LANES * (m.d_model + m.d_model ÷ m.n_heads) + padded(m.n_heads)
end

# The type that carries a common head width, so that its vectors stay in registers; nothing for any other.
head_width(width) =
    width == 1 ? Val(1) : width == 2 ? Val(2) : width == 4 ? Val(4) : width == 8 ? Val(8) : nothing

# Unit outputs (d_model, padded) of all oscillators in place of the harmonics x.
function attend_all!(x, n, m::Modulation, mask, head_width)
    stride, width = padded(n), m.d_model ÷ m.n_heads
    all_rows, rows, weights = m.d_model * stride, width * stride, m.d_model * width
    q, k, v = element(x, all_rows + 1), element(x, 2all_rows + 1), element(x, 3all_rows + 1)
    whole = Projections(stride, q, k, v)
    y = element(x, 4all_rows + 1)
    room = Rows(element(y, m.d_model * LANES + 1), LANES, width)
    longest = element(room.p, width * LANES + 1)
    for h in 1:m.n_heads
        at = (h - 1) * weights + 1
        w_q, w_k, w_v = element(m.w_q, at), element(m.w_k, at), element(m.w_v, at)
        scale = LOG2_E / (sqrt(Float64(width)) * number(m.temperature, h))
        length = project!(part(whole, (h - 1) * rows), m.d_model, width, x, w_q, w_k, w_v, scale)
        unsafe_store!(longest, length, h)
    end
    for i0 in Blocks(n)
        i = max(min(i0, n - LANES + 1), 1)
        for h in 1:m.n_heads
            out = Rows(element(y, (h - 1) * width * LANES + 1), LANES, width)
            attend!(out, part(whole, (h - 1) * rows), number(longest, h), n, mask, head_width, room, i)
        end
        unit_outputs!(x, stride, m.d_model, y, m.w_o, i) # the harmonics have served
    end
end

# The projections from a later number on.
part(p::Projections, skip) =
    Projections(p.stride, element(p.q, skip + 1), element(p.k, skip + 1), element(p.v, skip + 1))

# out_ij = K_ij (1 + lambda / 2 + u_i . u_j), u = sqrt(lambda / 2) unit. Spoils unit.
function scale!(out, n, knm, m::Modulation, unit)
    root, base, stride = sqrt(0.5 * m.lambda), 1.0 + 0.5 * m.lambda, padded(n)
    for e in Blocks(m.d_model * stride)
        store(unit, e, splat(root) * load(unit, e))
    end
    if 0 <= m.block_size < n - 1
        when_needed(scale_band!, out, n, knm, m.d_model, stride, unit, base, m.block_size)
    else
        scale_all!(out, n, knm, m.d_model, stride, unit, base)
    end
end

function scale_band!(out, n, knm, d_model, stride, u, base, reach)
    unsafe_copyto!(out, knm, n * n)
    for i in 1:n
        low, high = max(i - reach, 1), min(i + reach, n)
        for j0 in Blocks(high, LANES, low)
            j = max(min(j0, high - LANES + 1), low)
            factor = splat(base)
            for e in 1:d_model
                line = element(u, (e - 1) * stride + 1)
                factor = muladd(splat(number(line, i)), load_left(line, j, high - j + 1), factor)
            end
            at = (i - 1) * n + j
            store_left(out, at, load_left(knm, at, high - j + 1) * factor, high - j + 1)
        end
    end
end

# out = K', from the phases and an accepted K.
function modulate!(out, n, knm, traits, theta, m::Modulation, scratch)
    harmonics!(scratch, n, m.d_model, theta) || return NONFINITE_PHASE
    reach, edges = m.block_size < 0 ? n : m.block_size, knm
    if !traits.symmetric_pattern
        edges = out # the mask is read by columns: as rows of the transpose
        when_needed(transpose!, out, n, knm)
    end
    mask = traits.complete && reach >= n - 1 ? Complete() : Edges(edges, n, reach)
    # One of many masks and widths: only those in use are compiled.
    when_needed(attend_all!, scratch, n, m, mask, head_width(m.d_model ÷ m.n_heads))
    if m.lambda == 0
        unsafe_copyto!(out, knm, n * n)
        return OK
    end
    scale!(out, n, knm, m, scratch)
    traits.symmetric || when_needed(symmetrise!, n, out)
    for i in 1:n
        unsafe_store!(out, 0.0, (i - 1) * n + i)
    end
    return OK
end
