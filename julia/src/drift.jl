# The Kuramoto-Sakaguchi drift without a sine per pair.
#
# sin(theta_j - theta_i - alpha_ij) is a sum of products of functions of i and of j, so with s = sin theta,
# c = cos theta
#
#   f_i = omega_i + cos theta_i P_i - sin theta_i Q_i + zeta sin(psi - theta_i)
#   uniform lag a:  S = K s, C = K c;  P = S cos a - C sin a,  Q = C cos a + S sin a
#   a lag a pair:   P = (K cos alpha) s - (K sin alpha) c,  Q = (K cos alpha) c + (K sin alpha) s

# Where a run keeps what it needs: arrays of oscillators, padded, zeros behind the n-th, and two matrices
# where each pair has its own lag.
struct Workspace
    n::Int
    omega::Ptr{Float64}
    stage::Ptr{Float64}        # argument of a stage
    sine::Ptr{Float64}         # of the last argument
    cosine::Ptr{Float64}
    pull::Ptr{Float64}         # P
    push::Ptr{Float64}         # Q
    slopes::Ptr{Float64}       # (stages, padded)
    lag_cosine::Ptr{Float64}   # (n, n): K cos alpha; NULL when the lag is uniform
    lag_sine::Ptr{Float64}     # (n, n): K sin alpha
    alpha_cosine::Ptr{Float64} # (n, n): cos alpha, kept only when K changes too
    alpha_sine::Ptr{Float64}   # (n, n): sin alpha
    modulation::Ptr{Float64}   # scratch of the modulation
    turn::NTuple{2,Float64}    # cosine and sine of the uniform lag
    drive::NTuple{2,Float64}   # zeta times sine and cosine of psi
end

# What lanes of K (or of K cos alpha) add to P and Q of their row, and what those of K sin alpha add.
@inline add_pull(p, q, k, s, c) = muladd(k, s, p), muladd(k, c, q)
@inline add_lag(p, q, l, s, c) = muladd(-l, c, p), muladd(l, s, q)

# P and Q of four rows: two matrix-vector products with one matrix (l nothing) or four with two, before the
# turn of a uniform lag. K is read once, and each load of s and c serves four rows. Past the n-th row it is
# repeated, into the padding.
@inline function pull_rows!(w, k, l, i)
    n = w.n
    @nexprs 4 r -> k_r = element(k, (min(i + r - 1, n) - 1) * n + 1)
    @nexprs 4 r -> l_r = l === nothing ? nothing : element(l, (min(i + r - 1, n) - 1) * n + 1)
    @nexprs 4 r -> p_r = q_r = zero(Lanes)
    for j in Blocks(n - LANES + 1)
        s, c = load(w.sine, j), load(w.cosine, j)
        @nexprs 4 r -> (p_r, q_r) = add_pull(p_r, q_r, load(k_r, j), s, c)
        if l !== nothing
            @nexprs 4 r -> (p_r, q_r) = add_lag(p_r, q_r, load(l_r, j), s, c)
        end
    end
    if n % LANES != 0
        # The last columns, without those that are counted already; fewer than a vector are all there is.
        j, count = max(n - LANES + 1, 1), min(n, LANES)
        fresh = n < LANES ? ALL_LANES : ALL_LANES << (LANES - n % LANES)
        s, c = keep(fresh, load(w.sine, j)), keep(fresh, load(w.cosine, j))
        @nexprs 4 r -> (p_r, q_r) = add_pull(p_r, q_r, load_left(k_r, j, count), s, c)
        if l !== nothing
            @nexprs 4 r -> (p_r, q_r) = add_lag(p_r, q_r, load_left(l_r, j, count), s, c)
        end
    end
    sums = lane_sums(p_1, p_2, p_3, p_4, q_1, q_2, q_3, q_4)
    store_half(w.pull, i, sums)
    store_half(w.push, i, second_halves(sums, sums))
end

@noinline function pull_all!(w, k, l)
    for i in Blocks(w.n, 4, 1)
        pull_rows!(w, k, l, i)
    end
end

# sin and cos of padded phases; zeros behind the n-th, so that sums over whole vectors are sums over
# oscillators.
@noinline function sincos!(n, theta, sine, cosine)
    for i in Blocks(n)
        s, c = sincos_lanes(load(theta, i))
        real = n - i >= LANES - 1 ? ALL_LANES : ~(ALL_LANES << (n - i + 1))
        store(sine, i, keep(real, s))
        store(cosine, i, keep(real, c))
    end
end

# f at the phases whose sine and cosine stand in the workspace; knm is K or K' in force.
@noinline function drift!(f, w::Workspace, knm)
    if w.lag_cosine == C_NULL
        pull_all!(w, knm, nothing)
    else
        when_needed(pull_all!, w, w.lag_cosine, w.lag_sine)
    end
    for i in Blocks(w.n)
        p, q, sine, cosine = load(w.pull, i), load(w.push, i), load(w.sine, i), load(w.cosine, i)
        along = muladd(p, splat(w.turn[1]), -(q * splat(w.turn[2]))) + splat(w.drive[1])
        across = muladd(q, splat(w.turn[1]), p * splat(w.turn[2])) + splat(w.drive[2])
        store(f, i, muladd(cosine, along, muladd(-sine, across, load(w.omega, i))))
    end
end
