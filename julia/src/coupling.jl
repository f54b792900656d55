# What a coupling matrix is.

# Entries K_ij and K_ji count as equal when they differ by no more than this, absolute and relative.
const SYMMETRY_TOLERANCE = 1e-12

differ(a, b) = !(abs(a - b) <= SYMMETRY_TOLERANCE * (1 + min(abs(a), abs(b))))

# What a matrix that was accepted is known to be; the diagonal is left aside.
struct Traits
    symmetric::Bool         # exactly
    complete::Bool          # no edge is missing
    symmetric_pattern::Bool # K_ij is an edge where K_ji is one
end

# Which of the three promises a refused matrix breaks; in their order, for one number is reported.
function coupling_fault(n, knm)
    for e in 1:n*n
        isfinite(number(knm, e)) || return NONFINITE_COUPLING
    end
    for i in 1:n, j in 1:i-1
        differ(number(knm, (i - 1) * n + j), number(knm, (j - 1) * n + i)) && return ASYMMETRIC_COUPLING
    end
    return NONZERO_DIAGONAL
end

# scan_exact(n, knm) -> (exact, complete):
# The common case, in squares of lanes: is K, of n >= 8 rows, equal to its transpose, and finite? The last
# squares overlap those before.
@noinline function scan_exact(n, knm)
    unlike = absent = 0x00
    excess = zero(Lanes)
    for i0 in Blocks(n)
        i = min(i0, n - LANES + 1)
        for j0 in Blocks(n, LANES, i0)
            j = min(j0, n - LANES + 1)
            @nexprs 8 r -> row_r = load(knm, (j + r - 2) * n + i)
            columns = transposed(row_1, row_2, row_3, row_4, row_5, row_6, row_7, row_8)
            @nexprs 8 r -> begin
                a = load(knm, (i + r - 2) * n + j)
                unlike |= unequal(a, columns[r])
                absent |= equal(a, zero(Lanes)) & ~(0x01 << (i + r - 1 - j))
                excess += a - a
            end
        end
    end
    return unlike == 0 && equal(excess, zero(Lanes)) == ALL_LANES, absent == 0
end

# scan_pairs(n, knm) -> (fault, traits):
# Any other matrix, pair by pair.
function scan_pairs(n, knm)
    fault, symmetric, complete, symmetric_pattern = false, true, true, true
    for i in 1:n, j in 1:i-1
        a, b = number(knm, (i - 1) * n + j), number(knm, (j - 1) * n + i)
        fault |= differ(a, b)
        symmetric &= a == b
        complete &= (a != 0) & (b != 0)
        symmetric_pattern &= (a != 0) == (b != 0)
    end
    return fault, Traits(symmetric, complete, symmetric_pattern)
end

# scan(n, knm) -> (status, traits)
function scan(n, knm)
    exact, complete = n < LANES ? (false, false) : scan_exact(n, knm)
    fault, traits = false, Traits(true, complete, true)
    if !exact
        fault, traits = when_needed(scan_pairs, n, knm)::Tuple{Bool,Traits}
    end
    for i in 1:n
        fault |= !(abs(number(knm, (i - 1) * n + i)) <= SYMMETRY_TOLERANCE)
    end
    return fault ? when_needed(coupling_fault, n, knm)::Int32 : OK, traits
end

# out = K transposed.
function transpose!(out, n, knm)
    for i in 1:n, j in 1:n
        unsafe_store!(out, number(knm, (j - 1) * n + i), (i - 1) * n + j)
    end
end

# The mean of a matrix and its transpose, in place.
function symmetrise!(n, matrix)
    for i in 1:n, j in 1:i-1
        here, there = (i - 1) * n + j, (j - 1) * n + i
        mean = 0.5 * number(matrix, here) + 0.5 * number(matrix, there)
        unsafe_store!(matrix, mean, here)
        unsafe_store!(matrix, mean, there)
    end
end
