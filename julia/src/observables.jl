# The order parameter.

# |sum| / n of n unit vectors from the sums of their sines and cosines, in [0, 1].
radius(n, sine, cosine) = n > 0 ? min(c_hypot(sine, cosine) / n, 1.0) : 0.0

# The direction of the sum, in [0, 2 pi).
function mean_phase(n, sine, cosine)
    angle = n > 0 ? c_atan2(sine, cosine) : 0.0
    angle = angle < 0 ? angle + TWO_PI : angle
    return angle == TWO_PI ? 0.0 : angle
end

# The sum of a padded array with zeros behind the n-th entry.
function sum_exactly(n, x)
    sum = error = zero(Lanes)
    for i in Blocks(n)
        sum, error = add_exactly(sum, error, load(x, i))
    end
    return total(sum, error)
end

# order_sums(n, theta) -> (sine, cosine):
# The sums of sines and cosines of n phases.
@noinline function order_sums(n, theta)
    sine = sine_error = cosine = cosine_error = zero(Lanes)
    for i in Blocks(n)
        left = n - i + 1
        s, c = sincos_lanes(load_left(theta, i, left))
        real = left >= LANES ? ALL_LANES : ~(ALL_LANES << left)
        sine, sine_error = add_exactly(sine, sine_error, keep(real, s))
        cosine, cosine_error = add_exactly(cosine, cosine_error, keep(real, c))
    end
    return total(sine, sine_error), total(cosine, cosine_error)
end
