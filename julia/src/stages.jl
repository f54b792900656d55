# The stages of explicit Runge-Kutta methods, from their tableaux.

# y = theta + dt sum_j weight_j slope_j; the sum is rounded before it is added, so that two such results lie
# on one grid and their difference is that of the stored numbers.
@inline function combine(theta, dt, weights, count, w, i)
    sum = zero(Lanes)
    for j in 1:count
        weight = @inbounds weights[j]
        if weight != 0
            sum = muladd(load(w.slopes, (j - 1) * padded(w.n) + i), splat(weight), sum)
        end
    end
    return load(theta, i) + sum * splat(dt)
end

# Stages 2 ... of the method from the first slope; leaves y, wrapped, in `next`. Tells whether y is finite.
@noinline function advance!(next, theta, w, method, knm, dt)
    inner = method.stages - method.adaptive
    for stage in 2:inner
        weights = @inbounds method.a[stage]
        for i in Blocks(w.n)
            store(w.stage, i, combine(theta, dt, weights, stage - 1, w, i))
        end
        sincos!(w.n, w.stage, w.sine, w.cosine)
        drift!(element(w.slopes, (stage - 1) * padded(w.n) + 1), w, knm)
    end
    excess = zero(Lanes)
    for i in Blocks(w.n)
        y = combine(theta, dt, method.b, inner, w, i)
        excess += y - y
        store(w.stage, i, y)
        store(next, i, wrap(y))
    end
    return equal(excess, zero(Lanes)) == ALL_LANES
end

# The last stage of the adaptive method, taken at the wrapped y, so that its slope is, bit for bit, the first
# one of the next step; returns the largest error in units of the tolerance (NaN or infinity when it cannot
# be told).
@noinline function estimate_error!(next, theta, w, method, knm, dt, atol, rtol)
    sincos!(w.n, next, w.sine, w.cosine)
    drift!(element(w.slopes, (method.stages - 1) * padded(w.n) + 1), w, knm)
    worst = trouble = zero(Lanes)
    for i in Blocks(w.n)
        y = load(w.stage, i)
        lower = combine(theta, dt, method.embedded, method.stages, w, i)
        size = larger(abs(load(theta, i)), abs(y))
        ratio = abs(y - lower) / muladd(splat(rtol), size, splat(atol))
        ratio = keep(less(iota(), splat(Float64(w.n - i + 1))), ratio)
        trouble += ratio - ratio
        worst = larger(ratio, worst)
    end
    return equal(trouble, zero(Lanes)) == ALL_LANES ? largest(worst) : NaN
end
