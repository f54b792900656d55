# julia --startup-file=no julia/test/runtests.jl: the C functions against golden vectors and plain loops.

using Test

include("../src/SpoFast.jl")
using .SpoFast: Modulation, Network, Integrator, State, Record
using .SpoFast.Kernels: Lanes, LANES, lane, load, store, load_left, store_left, load_first, store_first
using .SpoFast.Kernels: power_of_two, sincos_lanes, wrap, transposed, lane_sums

const GOLDEN = get(ENV, "SPO_FAST_GOLDEN", joinpath(@__DIR__, "..", "..", "build", "golden"))
const C = SpoFast.exports()
const SIZES = (1, 2, 3, 7, 8, 9, 15, 16, 17, 33)

# ---------------------------------------------------------------- golden vectors

"The named arrays of a case, in C order as flat vectors; numbers are vectors of one entry."
function read_case(path)
    case = Dict{String,Vector{Float64}}()
    for line in eachline(path)
        words = split(line)
        rank = parse(Int, words[2])
        case[words[1]] = [reinterpret(Float64, parse(UInt64, w, base = 16)) for w in words[3+rank:end]]
    end
    return case
end

if !isdir(GOLDEN)
    println(stderr, "$GOLDEN is missing: write it by python tools/export_golden.py, or name another folder in ",
            "SPO_FAST_GOLDEN")
    exit(1)
end

cases(kind) = [(name, read_case(joinpath(GOLDEN, kind, name))) for name in readdir(joinpath(GOLDEN, kind))]

# ---------------------------------------------------------------- calls

struct Parameters
    n_heads::Int
    d_model::Int
    block_size::Int
    weights::NTuple{4,Vector{Float64}}
    temperature::Vector{Float64}
    lambda::Float64
end

"Repeatable weights of about unit size."
noise(count, seed) = [sin(12.9898 * (k + 1) + 78.233 * seed) for k in 1:count]

function parameters(; n_heads = 4, d_model = 8, block_size = -1, temperature = ones(n_heads), lambda = 0.5)
    weights = ntuple(seed -> 0.6 * noise(d_model^2, seed), 4)
    return Parameters(n_heads, d_model, block_size, weights, temperature, lambda)
end

raw(p::Parameters) = Modulation(
    p.n_heads, p.d_model, p.block_size, map(pointer, p.weights)..., pointer(p.temperature), p.lambda)

call_modulate(n, knm, theta, m, out) = ccall(
    C.spo_modulate, Int32, (Int64, Ptr{Float64}, Ptr{Float64}, Ptr{Modulation}, Ptr{Float64}),
    n, knm, theta, m, out)

function modulate(knm, theta, p::Parameters; out = fill(NaN, length(knm)))
    GC.@preserve p begin
        status = call_modulate(length(theta), knm, theta, [raw(p)], out)
    end
    return status, out
end

call_order_parameter(n, theta, r, psi) = ccall(
    C.spo_order_parameter, Int32, (Int64, Ptr{Float64}, Ptr{Float64}, Ptr{Float64}), n, theta, r, psi)

function order_parameter(theta)
    r, psi = [NaN], [NaN]
    status = call_order_parameter(length(theta), theta, r, psi)
    return status, r[1], psi[1]
end

Base.@kwdef mutable struct Run
    omega::Vector{Float64}
    knm::Vector{Float64}
    theta::Vector{Float64}
    alpha::Union{Nothing,Vector{Float64}} = nothing
    uniform_alpha::Float64 = 0.0
    zeta::Float64 = 0.0
    psi::Float64 = 0.0
    parameters::Union{Nothing,Parameters} = nothing
    modulate_every::Int = 1
    method::Int = 0
    dt::Float64 = 0.01
    atol::Float64 = 1e-6
    rtol::Float64 = 1e-3
    modulated::Vector{Float64} = fill(NaN, length(knm))
    t::Float64 = 0.0
    next_dt::Float64 = dt
    step::Int = 0
end

call_run(network, integrator, state, n_steps, record) = ccall(
    C.spo_kuramoto_run, Int32, (Ptr{Network}, Ptr{Integrator}, Ptr{State}, Int64, Ptr{Record}),
    network, integrator, state, n_steps, record)

"Advances a run; kept arrays are given as (every, theta, t, r, psi, t_observe)."
function advance!(run::Run, n_steps, kept = nothing)
    p = run.parameters
    modulation = p === nothing ? Modulation[] : [raw(p)]
    GC.@preserve run p modulation kept begin
        alpha = run.alpha === nothing ? C_NULL : pointer(run.alpha)
        m = p === nothing ? C_NULL : pointer(modulation)
        network = [Network(length(run.theta), pointer(run.omega), pointer(run.knm), alpha, run.uniform_alpha,
                           run.zeta, run.psi, m, run.modulate_every)]
        state = [State(pointer(run.theta), pointer(run.modulated), run.t, run.next_dt, run.step)]
        record = kept === nothing ? Record[] : [Record(kept[1], map(pointer, kept[2:end])...)]
        integrator = [Integrator(run.method, run.dt, run.atol, run.rtol)]
        status = call_run(network, integrator, state, n_steps, kept === nothing ? C_NULL : pointer(record))
        run.t, run.next_dt, run.step = state[1].t, state[1].dt, state[1].step
    end
    return status
end

# ---------------------------------------------------------------- plain loops

entry(matrix, n, i, j) = matrix[(i-1)*n+j]

function symmetric_matrix(n; missing_pairs = false)
    k = [i == j ? 0.0 : 1.0 + sin(i * j + i + j) / 2 for i in 1:n, j in 1:n]
    if missing_pairs
        for i in 1:n, j in 1:i-1
            (3i + j) % 4 == 0 && (k[i, j] = k[j, i] = 0.0)
        end
    end
    return vec(k)
end

"K' by its definition, after MATH: softmax, outputs, unit outputs, mean of both sides."
function modulated_plainly(knm, theta, p::Parameters)
    n, d, width = length(theta), p.d_model, p.d_model ÷ p.n_heads
    x = [isodd(m) ? cos((m + 1) ÷ 2 * theta[i]) : sin(m ÷ 2 * theta[i]) for i in 1:n, m in 1:d]
    seen(i, j) = i != j && entry(knm, n, i, j) != 0 && (p.block_size < 0 || abs(i - j) <= p.block_size)
    heads = zeros(n, d)
    for h in 1:p.n_heads
        head(w) = x * [w[((h-1)*d+m-1)*width+e] for m in 1:d, e in 1:width]
        q, k, v = head(p.weights[1]), head(p.weights[2]), head(p.weights[3])
        for i in 1:n
            keys = filter(j -> seen(i, j), 1:n)
            isempty(keys) && continue
            logits = [sum(q[i, :] .* k[j, :]) / (sqrt(width) * p.temperature[h]) for j in keys]
            w = exp.(logits .- maximum(logits))
            heads[i, (h-1)*width+1:h*width] = (w' * v[keys, :]) ./ sum(w)
        end
    end
    o = heads * [p.weights[4][(r-1)*d+e] for r in 1:d, e in 1:d]
    unit = o ./ (sqrt.(sum(abs2, o, dims = 2)) .+ 1e-12)
    scaled(i, j) = entry(knm, n, i, j) * (1 + p.lambda * seen(i, j) * (1 + sum(unit[i, :] .* unit[j, :])) / 2)
    return [i == j ? 0.0 : (scaled(i, j) + scaled(j, i)) / 2 for j in 1:n for i in 1:n]
end

drift(run, knm, theta) = [
    run.omega[i] + run.zeta * sin(run.psi - theta[i]) + sum(
        entry(knm, length(theta), i, j) * sin(theta[j] - theta[i] - (
            run.alpha === nothing ? run.uniform_alpha : entry(run.alpha, length(theta), i, j)))
        for j in eachindex(theta))
    for i in eachindex(theta)]

"One step of a fixed-step method."
function step_plainly(run, knm, theta)
    f(x) = drift(run, knm, x)
    a = f(theta)
    run.method == 0 && return mod2pi.(theta + run.dt * a)
    b = f(theta + run.dt / 2 * a)
    c = f(theta + run.dt / 2 * b)
    return mod2pi.(theta + run.dt / 6 * (a + 2b + 2c + f(theta + run.dt * c)))
end

angle_between(a, b) = abs.(rem2pi.(a - b, RoundNearest))
relative(a, b) = isempty(b) ? 0.0 : maximum(abs, a - b) / max(maximum(abs, b), 1e-300)

# ---------------------------------------------------------------- tests

@testset "golden modulate" begin
    for (name, g) in cases("modulate")
        p = Parameters(g["n_heads"][1], g["d_model"][1], g["block_size"][1],
                       (g["w_q"], g["w_k"], g["w_v"], g["w_o"]), g["temperature"], g["lambda"][1])
        knm, theta = copy(g["knm"]), copy(g["theta"])
        status, out = modulate(knm, theta, p)
        @test status == 0
        @test isempty(out) || maximum(abs.(out - g["expected"]) .- g["tolerance"]) <= 0
        @test knm == g["knm"] && theta == g["theta"]
    end
end

@testset "golden runs" begin
    for (name, g) in cases("step")
        n, steps = Int(g["n"][1]), Int(g["steps"][1])
        fresh() = Run(omega = copy(g["omega"]), knm = copy(g["knm"]), alpha = copy(g["alpha"]),
                      theta = g["trajectory"][1:n], zeta = g["zeta"][1], psi = g["psi"][1],
                      method = g["method"][1], dt = g["dt"][1], atol = g["atol"][1], rtol = g["rtol"][1])
        single, dts = fresh(), Float64[]
        states = Float64[]
        for s in 1:steps
            @test advance!(single, 1) == 0
            append!(states, single.theta)
            push!(dts, single.next_dt)
        end
        @test all(angle_between(states, g["trajectory"][n+1:end]) .<= g["state_tolerance"][1])
        @test relative(dts, g["dt_after"][end-steps+1:end]) <= g["dt_tolerance"][1]
        whole = fresh()
        kept = (1, fill(NaN, n * (steps + 1)), (fill(NaN, steps + 1) for _ in 1:4)...)
        @test advance!(whole, steps, kept) == 0
        @test kept[2][n+1:end] == states
        @test whole.theta == single.theta && (whole.t, whole.next_dt) == (single.t, single.next_dt)
        @test kept[3][2:end] == kept[6][2:end] && !any(isnan, kept[4]) && !any(isnan, kept[5])
    end
end

@testset "golden observables" begin
    for (name, g) in cases("observables")
        n = Int(g["n"][1])
        for row in 1:length(g["r"])
            status, r, psi = order_parameter(g["theta"][(row-1)*n+1:row*n])
            @test status == 0
            @test abs(r - g["r"][row]) <= 1e-12
            @test r < 1e-9 || abs(rem2pi(psi - g["psi"][row], RoundNearest)) <= 1e-12 / r
        end
    end
end

@testset "identity and texts" begin
    @test ccall(C.spo_abi_version, Int32, ()) == 1
    @test unsafe_string(ccall(C.spo_backend_name, Cstring, ())) == "julia"
    text(status) = unsafe_string(ccall(C.spo_status_text, Cstring, (Int32,), status))
    source = read(joinpath(@__DIR__, "..", "..", "csrc", "status.c"), String)
    texts = [String(m[1]) for m in eachmatch(r"return \"(.*)\";\n", source)]
    @test [text(status) for status in 0:7] == texts[1:8]
    @test all(text(status) == texts[9] == "unknown status" for status in (-1, 8, 999, typemax(Int32)))
end

@testset "modulate at n = $n" for n in SIZES
    theta = 3 .* noise(n, 7)
    for (missing_pairs, changes) in Iterators.product((false, true), (
        (), (n_heads = 2,), (n_heads = 1,), (n_heads = 8,), (n_heads = 2, d_model = 6), (block_size = 3,),
        (temperature = [0.5, 1.0, 2.0, 4.0],), (temperature = fill(1e-3, 4),), (block_size = 0,),
        (lambda = 3.0, temperature = fill(1e-3, 4), block_size = 2)))
        p, knm = parameters(; changes...), symmetric_matrix(n; missing_pairs = missing_pairs)
        status, out = modulate(knm, theta, p)
        @test status == 0
        @test relative(out, modulated_plainly(knm, theta, p)) <= 1e-13
        square = reshape(out, n, n)
        @test square == square' && all(square[i, i] === 0.0 for i in 1:n)
        @test modulate(knm, theta, parameters(; changes..., lambda = 0.0))[2] == knm
    end
end

@testset "one-sided edges, tiny asymmetry, tiny diagonal" begin
    for n in (5, 8, 19), block_size in (-1, 4)
        knm, theta = symmetric_matrix(n; missing_pairs = true), 3 .* noise(n, 3)
        knm[2*n+1], knm[2] = 9e-13, 0.0 # K_31 and K_12, K_21 and K_13 being others
        knm[n+1] = 5e-13
        knm[3] = 0.0
        knm[n+2] = 1e-13
        p = parameters(block_size = block_size)
        status, out = modulate(knm, theta, p)
        @test status == 0
        @test relative(out, modulated_plainly(knm, theta, p)) <= 1e-13
        @test reshape(out, n, n) == reshape(out, n, n)'
        @test modulate(knm, theta, parameters(lambda = 0.0, block_size = block_size))[2] == knm
    end
end

@testset "huge weights and large phases" begin
    knm, theta = symmetric_matrix(17), 3 .* noise(17, 1)
    for size in (1e3, 1e80, 1e160)
        p = parameters()
        foreach(w -> w .*= size, p.weights[1:2])
        status, out = modulate(knm, theta, p)
        @test status == 0 && all(isfinite, out)
        @test all(abs.(knm) .- 1e-12 .<= abs.(out) .<= 1.5 .* abs.(knm) .+ 1e-12)
    end
    for turns in (1e3, 2.0^19 / 6, 1e8)
        far = theta .+ 2 * pi * round(turns)
        near = Float64.(rem.(big.(far), 2 * big(pi)))
        @test relative(modulate(knm, far, parameters())[2], modulate(knm, near, parameters())[2]) <= 1e-13
    end
end

@testset "refusals of modulate" begin
    for (change, status) in (
        ((k, t, n) -> k[2] = NaN, 3), ((k, t, n) -> k[n+2] = Inf, 3), ((k, t, n) -> k[2] = 7.0, 4),
        ((k, t, n) -> k[end] = 1e-6, 5), ((k, t, n) -> t[2] = Inf, 6), ((k, t, n) -> t[end] = NaN, 6),
        ((k, t, n) -> (k[end] = 1e-6; t[1] = NaN), 5), ((k, t, n) -> (k[end] = 1e-6; k[2] = 7.0), 4)),
        n in (2, 8, 13)

        knm, theta, out = symmetric_matrix(n), noise(n, 2), fill(42.0, n * n)
        change(knm, theta, n)
        @test modulate(knm, theta, parameters(); out = out)[1] == status
        @test all(==(42.0), out)
    end
    good, one = parameters(), [0.0]
    m = raw(good)
    with(; fields...) = [Modulation((get(fields, f, getfield(m, f)) for f in fieldnames(Modulation))...)]
    bad = (n_heads = 0,), (n_heads = 3,), (n_heads = -4,), (d_model = 7,), (d_model = 0,), (block_size = -2,),
          (lambda = -1.0,), (lambda = NaN,), (lambda = Inf,), (w_q = C_NULL,), (w_o = C_NULL,),
          (temperature = C_NULL,), (d_model = 2^28 + 2, n_heads = 1)
    GC.@preserve good begin
        for change in bad
            @test call_modulate(1, one, one, with(; change...), one) == 1
            @test call_modulate(0, one, one, with(; change...), one) == 1
        end
        for temperature in (0.0, -1.0, NaN, Inf)
            good.temperature[3] = temperature
            @test call_modulate(1, one, one, [m], one) == 1
            good.temperature[3] = 1.0
        end
        @test call_modulate(-1, one, one, [m], one) == 1
        @test call_modulate(2^28 + 1, one, one, [m], one) == 1
        @test call_modulate(1, C_NULL, one, [m], one) == 1
        @test call_modulate(1, one, C_NULL, [m], one) == 1
        @test call_modulate(1, one, one, [m], C_NULL) == 1
        @test call_modulate(1, one, one, C_NULL, one) == 1
        @test call_modulate(0, C_NULL, C_NULL, [m], C_NULL) == 0
    end
end

@testset "sizes that no memory holds" begin
    p = Parameters(1, 2^20, -1, ntuple(_ -> [0.0], 4), [1.0], 0.5)
    one, modulation = [0.0], Modulation[]
    GC.@preserve p one modulation begin
        push!(modulation, raw(p))
        at = pointer(one)
        state, integrator = [State(at, at, 0.0, 0.01, 0)], [Integrator(0, 0.01, 0.0, 0.0)]
        network(n, alpha, m) = [Network(n, at, at, alpha, 0.0, 0.0, 0.0, m, 1)]
        @test call_run(network(2^28, C_NULL, pointer(modulation)), integrator, state, 1, C_NULL) == 2
        @test call_run(network(2^28, at, C_NULL), integrator, state, 1, C_NULL) == 2
        @test call_run(network(2^28 + 1, C_NULL, C_NULL), integrator, state, 1, C_NULL) == 1
    end
end

@testset "runs against plain loops at n = $n" for n in (1, 2, 5, 8, 9, 17)
    base = (omega = noise(n, 1), theta = 10 .* noise(n, 2), zeta = 0.3, psi = 0.7, dt = 0.02)
    lags = ((), (uniform_alpha = 0.4,), (alpha = noise(n * n, 4),))
    for method in 0:1, lag in lags, every in (0, 1, 3)
        knm = every == 0 ? noise(n * n, 3) : symmetric_matrix(n; missing_pairs = true)
        p = every == 0 ? nothing : parameters()
        fresh() = Run(; base..., lag..., theta = copy(base.theta), knm = copy(knm), method = method,
                      parameters = p, modulate_every = max(every, 1))
        run = fresh()
        theta, k = mod2pi.(run.theta), run.knm
        for s in 0:6
            if every > 0 && s % every == 0
                k = modulated_plainly(run.knm, theta, p)
            end
            theta = step_plainly(run, k, theta)
        end
        @test advance!(run, 7) == 0
        @test all(angle_between(run.theta, theta) .<= 1e-12)
        @test (run.step, run.t) == (7, 7 * 0.02)
        @test run.knm == knm
        pieces = fresh()
        @test [advance!(pieces, count) for count in (2, 0, 1, 4)] == zeros(4)
        @test pieces.theta == run.theta && isequal(pieces.modulated, run.modulated)
    end
end

@testset "adaptive runs in pieces" begin
    for p in (nothing, parameters()), lag in ((), (alpha = noise(81, 4),))
        fresh() = Run(; omega = 5 .* noise(9, 1), theta = 9 .* noise(9, 2), knm = 3 .* symmetric_matrix(9),
                      method = 2, dt = 0.05, parameters = p, modulate_every = 3, lag...)
        whole, pieces = fresh(), fresh()
        @test advance!(whole, 20) == 0
        @test all(advance!(pieces, count) == 0 for count in (1, 1, 3, 5, 10))
        @test pieces.theta == whole.theta && (pieces.t, pieces.next_dt) == (whole.t, whole.next_dt)
        @test isequal(pieces.modulated, whole.modulated)
        @test whole.next_dt <= 10 * whole.dt
    end
end

@testset "records" begin
    n, steps, every = 11, 7, 3
    run = Run(omega = noise(n, 1), theta = 9 .* noise(n, 2), knm = symmetric_matrix(n))
    kept = (every, fill(NaN, n * 3), fill(NaN, 3), (fill(NaN, steps + 1) for _ in 1:3)...)
    @test advance!(run, steps, kept) == 0
    other = Run(omega = noise(n, 1), theta = 9 .* noise(n, 2), knm = symmetric_matrix(n))
    for s in 0:steps
        s > 0 && advance!(other, 1)
        s == 0 && advance!(other, 0) # wraps
        status, r, psi = order_parameter(other.theta)
        @test (kept[4][s+1], kept[5][s+1], kept[6][s+1]) == (r, psi, other.t)
        if s > 0 && s % every == 0
            row = s ÷ every
            @test kept[2][row*n+1:(row+1)*n] == other.theta && kept[3][row+1] == other.t
        end
    end
    @test all(isnan, kept[2][1:n]) && isnan(kept[3][1])
end

@testset "refusals of runs" begin
    small(; changes...) = Run(; omega = [1.0, 2.0], knm = zeros(4), theta = [1.0, 7.0], changes...)
    for change in ((method = 3,), (method = -1,), (dt = 0.0,), (dt = NaN,), (dt = Inf,), (atol = -1.0,),
                   (rtol = NaN,), (zeta = Inf,), (psi = NaN,), (uniform_alpha = Inf,))
        @test advance!(small(; change...), 1) == 1
    end
    @test advance!(small(), -1) == 1
    @test advance!(small(parameters = parameters(), modulate_every = 0), 1) == 1
    @test advance!(small(parameters = parameters(lambda = -1.0)), 1) == 1
    @test advance!(small(theta = [1.0, NaN]), 1) == 6
    @test advance!(small(parameters = parameters(), knm = [0.0, 1.0, 2.0, 0.0]), 1) == 4
    @test advance!(small(parameters = parameters(), knm = [0.0, Inf, Inf, 0.0]), 1) == 3
    @test advance!(small(parameters = parameters(), knm = [1.0, 0.0, 0.0, 0.0]), 1) == 5
    @test advance!(small(parameters = parameters(), knm = [NaN, 0.0, 0.0, 0.0], theta = [NaN, 0.0]), 1) == 3
    for method in 0:2
        for change in ((omega = [1.0, Inf],), (knm = [0.0, NaN, 0.0, 0.0],))
            run = small(; method = method, change...)
            @test advance!(run, 3) == 7
            @test run.theta ≈ [1.0, 7.0 - 2pi] && (run.step, run.t) == (0, 0.0)
        end
    end
    @test call_run(C_NULL, C_NULL, C_NULL, 1, C_NULL) == 1
    empty = Run(omega = Float64[], knm = Float64[], theta = Float64[], parameters = parameters())
    @test advance!(empty, 5) == 0 && empty.step == 5
end

@testset "order parameter" begin
    @test order_parameter(Float64[]) == (0, 0.0, 0.0)
    @test order_parameter([NaN])[1] == 6
    one = [0.0]
    bad = (-1, C_NULL, one, one), (1, C_NULL, one, one), (1, one, C_NULL, one), (0, one, one, C_NULL)
    for arguments in bad
        @test call_order_parameter(arguments...) == 1
    end
    for n in SIZES, phase in (0.0, 1.0, 3.0, 6.2, 1e9)
        status, r, psi = order_parameter(fill(phase, n))
        @test status == 0 && 1 - eps() <= r <= 1 && 0 <= psi < 2pi
    end
    for n in SIZES
        theta = 20 .* noise(n, 5)
        z = sum(cis.(big.(theta))) / n
        status, r, psi = order_parameter(theta)
        @test abs(r - abs(z)) <= 1e-15 && abs(rem2pi(psi - Float64(angle(z)), RoundNearest)) <= 1e-14
    end
    @test 1 - order_parameter([1e-3, 2pi - 1e-3])[2] ≈ 5e-7 rtol = 1e-6
end

@testset "functions of lanes" begin
    ulps(a, exact) = Float64(abs(big(a) - exact) / eps(Float64(exact)))
    worst = Dict(:exp2 => 0.0, :sin => 0.0, :cos => 0.0, :wrap => 0.0)
    note(name, a, exact) = worst[name] = max(worst[name], ulps(a, exact))
    at(x) = Lanes(ntuple(l -> VecElement(x[l]), Val(LANES)))
    for k in 1:200
        t = at(clamp.(1100 .* noise(LANES, k), -1021, 1023))
        foreach(l -> note(:exp2, lane(power_of_two(t), l), exp2(big(lane(t, l)))), 1:LANES)
        for size in (1.0, 10.0, 1e5, 1e9)
            x = at(size .* noise(LANES, k))
            s, c = sincos_lanes(x)
            for l in 1:LANES
                note(:sin, lane(s, l), sin(big(lane(x, l))))
                note(:cos, lane(c, l), cos(big(lane(x, l))))
                y = lane(wrap(x), l)
                @test 0 <= y < 2pi && abs(rem2pi(y - lane(x, l), RoundNearest)) <= 4e-16 * max(size, 4)
            end
        end
    end
    @test worst[:exp2] <= 1.5 && worst[:sin] <= 1.2 && worst[:cos] <= 1.2
    special = at([0.0, pi / 2, pi, 2pi, Inf, NaN, -Inf, -1e-300])
    s, c = sincos_lanes(special)
    @test (lane(s, 1), lane(c, 1), lane(s, 2)) == (0.0, 1.0, 1.0)
    @test all(isnan(lane(s, l)) && isnan(lane(c, l)) && isnan(lane(wrap(special), l)) for l in 5:7)
    @test lane(wrap(special), 8) == 0.0 && lane(power_of_two(at(zeros(8))), 1) == 1.0
    rows = [at(10.0 * r .+ (1:LANES)) for r in 1:LANES]
    @test all(lane(transposed(rows...)[r], l) == lane(rows[l], r) for r in 1:LANES, l in 1:LANES)
    @test all(lane(lane_sums(rows...), r) == 80 * r + 36 for r in 1:LANES)
end

@testset "parts of vectors, and memory past them" begin
    x = collect(1.0:16.0)
    GC.@preserve x for count in 0:LANES
        part = load_left(pointer(x), 3, count)
        @test all(lane(part, l) == (l <= count ? x[l+2] : 0.0) for l in 1:LANES)
        y = zeros(16)
        GC.@preserve y store_left(pointer(y), 3, part, count)
        @test y == [2 < i <= count + 2 ? x[i] : 0.0 for i in 1:16]
    end
end

@testset "calls leave no garbage" begin
    knm, theta, p = symmetric_matrix(16), noise(16, 1), parameters()
    out, m = fill(NaN, 256), [raw(p)]
    many(count) = GC.@preserve p (for _ in 1:count
        call_modulate(16, knm, theta, m, out)
    end)
    many(10)
    GC.gc()
    before = Base.gc_live_bytes()
    many(100_000)
    GC.gc()
    @test Base.gc_live_bytes() - before < 1 << 20
end
