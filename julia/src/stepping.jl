# Explicit Runge-Kutta steps from the tableaux, the controller of the adaptive one, and the loop that takes
# them: modulation, observation and records at their steps. A run cut into pieces ends in the same bits as in
# one piece.

# A network of phase oscillators, laid out as `spo_network`.
struct Network
    n::Int64                     # oscillators, >= 0
    omega::Ptr{Float64}          # (n)
    knm::Ptr{Float64}            # (n, n)
    alpha::Ptr{Float64}          # (n, n), or NULL: the lag is uniform
    uniform_alpha::Float64       # the lag of every pair when alpha is NULL
    zeta::Float64                # strength of the drive
    psi::Float64                 # phase of the drive
    modulation::Ptr{Modulation}  # NULL: K stays as it is
    modulate_every::Int64        # K' is made anew at each step that this number divides, >= 1
end

# How steps are taken, laid out as `spo_integrator`.
struct Integrator
    method::Int64 # 0: Euler, 1: classical Runge-Kutta, 2: Dormand-Prince
    dt::Float64   # step; for Dormand-Prince the first one, and a tenth of the largest
    atol::Float64
    rtol::Float64
end

# The state of a run, laid out as `spo_state`.
struct State
    theta::Ptr{Float64}     # (n), wrapped into [0, 2 pi) on entry and after each step
    modulated::Ptr{Float64} # (n, n): K' in force between two calls; NULL without modulation
    t::Float64              # time
    dt::Float64             # step tried next
    step::Int64             # steps taken
end

# What is kept, laid out as `spo_record`. NULL: not kept. Index s, from 0, describes the state at step s.
struct Record
    every::Int64            # theta and t keep the states after steps that this number divides; 0: none
    theta::Ptr{Float64}     # row s / every of (rows, n)
    t::Ptr{Float64}         # (rows)
    r::Ptr{Float64}         # order parameter, in [0, 1]
    psi::Ptr{Float64}       # mean phase, in [0, 2 pi)
    t_observe::Ptr{Float64} # time
end
Record() = Record(0, C_NULL, C_NULL, C_NULL, C_NULL, C_NULL)

tableau(method) = method == 0 ? EULER : method == 1 ? RK4 : DORMAND_PRINCE

# The controller of the adaptive step.
const SAFETY = 0.9
const GROWTH_LIMIT = 5.0 # of one step
const SHRINK_LIMIT = 0.2 # of one failed attempt
const STEP_LIMIT = 10.0  # of any step, in units of the first
const MAX_ATTEMPTS = 4   # the last one is taken whatever its error

# adaptive_step!(next, theta, w, knm, dt, integrator) -> (finite, taken, dt):
# One adaptive step from the first slope: the step size used, and the one to try next.
@noinline function adaptive_step!(next, theta, w, knm, dt, integrator)
    attempts = 0
    while true
        attempts += 1
        taken = dt
        finite = advance!(next, theta, w, DORMAND_PRINCE, knm, dt)
        error = estimate_error!(next, theta, w, DORMAND_PRINCE, knm, dt, integrator.atol, integrator.rtol)
        if error <= 1.0
            growth = error > 0 ? min(GROWTH_LIMIT, SAFETY * c_pow(error, -0.2)) : GROWTH_LIMIT
            return finite, taken, min(dt * growth, STEP_LIMIT * integrator.dt)
        end
        shrink = SAFETY * c_pow(error, -0.25)
        dt *= shrink > SHRINK_LIMIT ? shrink : SHRINK_LIMIT # also for a NaN
        attempts == MAX_ATTEMPTS && return finite, taken, dt
    end
end

# What a record keeps of a state, from its sine and cosine.
function observe(record, step, t, w)
    record.t_observe == C_NULL || unsafe_store!(record.t_observe, t, step + 1)
    record.r == C_NULL && record.psi == C_NULL && return
    sine, cosine = sum_exactly(w.n, w.sine), sum_exactly(w.n, w.cosine)
    record.r == C_NULL || unsafe_store!(record.r, radius(w.n, sine, cosine), step + 1)
    record.psi == C_NULL || unsafe_store!(record.psi, mean_phase(w.n, sine, cosine), step + 1)
    return
end

# What a record keeps of the state after a step.
function keep_state(record, step, t, theta, n)
    record.every > 0 && step % record.every == 0 || return
    row = step ÷ record.every
    record.theta == C_NULL || unsafe_copyto!(element(record.theta, row * n + 1), theta, n)
    record.t == C_NULL || unsafe_store!(record.t, t, row + 1)
    return
end

# Matrices of the lags in a workspace: the products with K, and their factors where K changes too.
lag_matrices(network) = network.alpha == C_NULL ? 0 : network.modulation == C_NULL ? 2 : 4

# Doubles that a run works in: omega, two states, stage, sine, cosine, pull, push, and the slopes; the
# matrices of the lags; the scratch of the modulation.
function run_scratch(network, method)
    n = network.n
    doubles = (8 + tableau(method).stages) * padded(n) + lag_matrices(network) * padded(n * n)
    network.modulation == C_NULL && return doubles
    return doubles + modulation_scratch(n, unsafe_load(network.modulation))
end

# prepare(network, method, scratch) -> (workspace, theta, next):
# Cuts scratch into the arrays of a run, and fills those that stay as they are.
@noinline function prepare(network, method, scratch)
    n, lines, matrices = network.n, 8 + tableau(method).stages, lag_matrices(network)
    line(k) = element(scratch, k * padded(n) + 1)
    matrix(k) = k < matrices ? element(line(lines), k * padded(n * n) + 1) : Ptr{Float64}(C_NULL)
    w = Workspace(
        n, line(0), line(3), line(4), line(5), line(6), line(7), line(8),
        matrix(0), matrix(1), matrix(2), matrix(3), element(line(lines), matrices * padded(n * n) + 1),
        matrices > 0 ? (1.0, 0.0) : (c_cos(network.uniform_alpha), c_sin(network.uniform_alpha)),
        (network.zeta * c_sin(network.psi), network.zeta * c_cos(network.psi)),
    )
    for e in Blocks(lines * padded(n))
        store(scratch, e, zero(Lanes))
    end
    unsafe_copyto!(w.omega, network.omega, n)
    matrices > 0 && prepare_lags!(w, network, matrices > 2)
    return w, line(1), line(2)
end

@noinline function prepare_lags!(w, network, modulated)
    cosine, sine = modulated ? (w.alpha_cosine, w.alpha_sine) : (w.lag_cosine, w.lag_sine)
    entries = w.n * w.n
    for e in Blocks(entries)
        left = entries - e + 1
        s, c = sincos_lanes(load_left(network.alpha, e, left))
        k = modulated ? splat(1.0) : load_left(network.knm, e, left)
        store(cosine, e, k * c)
        store(sine, e, k * s)
    end
end

# Products of K' with the lags, where each pair has its own.
@noinline function apply_lags!(w, knm)
    w.alpha_cosine == C_NULL && return
    entries = w.n * w.n
    for e in Blocks(entries)
        k = load_left(knm, e, entries - e + 1)
        store(w.lag_cosine, e, k * load(w.alpha_cosine, e))
        store(w.lag_sine, e, k * load(w.alpha_sine, e))
    end
end

# take_steps!(network, integrator, state, n_steps, record, scratch) -> (status, state):
# The state after n_steps, or the last good one.
function take_steps!(network, integrator, state, n_steps, record, scratch)
    n, adaptive = network.n, integrator.method == 2
    modulated = network.modulation != C_NULL
    knm = modulated ? state.modulated : network.knm
    w, theta, next = prepare(network, integrator.method, scratch)
    status, traits = modulated ? scan(n, network.knm) : (OK, Traits(false, false, false))
    status == OK || return status, state
    for i in 1:n
        phase = wrap(number(state.theta, i))
        isfinite(phase) || return NONFINITE_PHASE, state
        unsafe_store!(theta, phase, i)
    end
    step, t, dt = state.step, state.t, state.dt
    slope_known = false # the first slope of this step was the last one of the step before
    if modulated && step % network.modulate_every != 0
        apply_lags!(w, knm)
    end
    sincos!(n, theta, w.sine, w.cosine)
    observe(record, step, t, w)
    for _ in 1:n_steps
        if modulated && step % network.modulate_every == 0
            m = unsafe_load(network.modulation)
            status = modulate!(knm, n, network.knm, traits, theta, m, w.modulation)
            status == OK || break
            apply_lags!(w, knm)
            slope_known = false
        end
        slope_known || drift!(w.slopes, w, knm)
        taken, next_dt = dt, dt
        if adaptive
            finite, taken, next_dt = adaptive_step!(next, theta, w, knm, dt, integrator)
        else
            finite = advance!(next, theta, w, tableau(integrator.method), knm, dt)
        end
        if !finite
            status = NONFINITE_STATE
            break
        end
        theta, next = next, theta
        step += 1
        dt = next_dt
        t = adaptive ? t + taken : step * integrator.dt
        if adaptive
            unsafe_copyto!(w.slopes, element(w.slopes, 6 * padded(n) + 1), padded(n))
            slope_known = true
        else
            sincos!(n, theta, w.sine, w.cosine)
        end
        keep_state(record, step, t, theta, n)
        observe(record, step, t, w)
    end
    unsafe_copyto!(state.theta, theta, n)
    return status, State(state.theta, state.modulated, t, dt, step)
end
