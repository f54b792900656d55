"""
The kernels of spo_fast for C: modulation, steps and the order parameter of networks of phase oscillators.

`exports()` gives the functions of `spo_fast.h` as C pointers. They may be called from the thread that runs
Julia, work on the caller's memory and never throw.
"""
module SpoFast

using Base.Cartesian: @nexprs

Base.Experimental.@optlevel 1

const ABI_VERSION = Int32(1)

const OK = Int32(0)
const INVALID_ARGUMENT = Int32(1)
const OUT_OF_MEMORY = Int32(2)
const NONFINITE_COUPLING = Int32(3)
const ASYMMETRIC_COUPLING = Int32(4)
const NONZERO_DIAGONAL = Int32(5)
const NONFINITE_PHASE = Int32(6)
const NONFINITE_STATE = Int32(7)

const STATUS_TEXTS = (
    "success",
    "an argument is out of its range",
    "out of memory",
    "the coupling matrix holds NaN or infinity",
    "the coupling matrix is not symmetric within 1e-12",
    "the diagonal of the coupling matrix is not zero within 1e-12",
    "the phases hold NaN or infinity",
    "a step gave NaN or infinity",
)
const UNKNOWN_STATUS = "unknown status"
const BACKEND_NAME = "julia"

include("kernels.jl")
using .Kernels
include("coupling.jl")
include("modulation.jl")
include("observables.jl")
include("stepping.jl")

any_null(p) = p == C_NULL
any_null(p, others...) = any_null(p) || any_null(others...)

# Calls work(arguments..., scratch) with room for so many doubles.
function with_scratch(work::W, doubles, arguments::Vararg{Any,N}) where {W,N}
    scratch = Libc.malloc(8 * doubles + 64)
    scratch == C_NULL && return OUT_OF_MEMORY
    try
        aligned = (UInt(scratch) + 63) & ~UInt(63)
        return work(arguments..., Ptr{Float64}(aligned))
    finally
        Libc.free(scratch)
    end
end

# No exception may leave Julia: what should never happen is a status, too.
function guarded(work::W, arguments::Vararg{Any,N}) where {W,N}
    try
        return work(arguments...)
    catch error
        return error isa OutOfMemoryError ? OUT_OF_MEMORY : INVALID_ARGUMENT
    end
end

spo_abi_version() = ABI_VERSION

# Strings end in a zero byte, and constants stay where they are.
spo_backend_name() = pointer(BACKEND_NAME)
spo_status_text(status) = pointer(0 <= status <= 7 ? STATUS_TEXTS[status + 1] : UNKNOWN_STATUS)

"""
    spo_modulate(n, knm, theta, modulation, out) -> status

out (n, n) = K' = K with each unmasked pair scaled by 1 + lambda a_ij.
"""
function spo_modulate(n, knm, theta, modulation, out)
    acceptable(n, modulation) || return INVALID_ARGUMENT
    n == 0 && return OK
    any_null(knm, theta, out) && return INVALID_ARGUMENT
    status, traits = scan(n, knm)
    status == OK || return status
    all_finite(n, theta) || return NONFINITE_PHASE
    m = unsafe_load(modulation)
    return with_scratch(modulate!, modulation_scratch(n, m), out, n, knm, traits, theta, m)
end

function all_finite(n, x)
    for i in 1:n
        isfinite(number(x, i)) || return false
    end
    return true
end

"""
    spo_order_parameter(n, theta, r, psi) -> status

r = |mean exp(i theta)|, psi = its argument; both 0 when n is 0.
"""
function spo_order_parameter(n, theta, r, psi)
    (n < 0 || (n > 0 && theta == C_NULL) || any_null(r, psi)) && return INVALID_ARGUMENT
    all_finite(n, theta) || return NONFINITE_PHASE
    sine, cosine = order_sums(n, theta)
    unsafe_store!(r, radius(n, sine, cosine))
    unsafe_store!(psi, mean_phase(n, sine, cosine))
    return OK
end

function acceptable(network::Ptr{Network}, integrator, state, n_steps)
    (any_null(network, integrator, state) || n_steps < 0) && return false
    w, how, now = unsafe_load(network), unsafe_load(integrator), unsafe_load(state)
    0 <= w.n <= LARGEST_SIZE && 0 <= how.method <= 2 || return false
    how.dt > 0 && isfinite(how.dt) && how.atol >= 0 && how.rtol >= 0 || return false
    isfinite(w.zeta) && isfinite(w.psi) && isfinite(w.uniform_alpha) || return false
    w.n > 0 && any_null(w.omega, w.knm, now.theta) && return false
    w.modulation == C_NULL && return true
    w.n > 0 && now.modulated == C_NULL && return false
    return w.modulate_every >= 1 && acceptable(w.n, w.modulation)
end

"""
    spo_kuramoto_run(network, integrator, state, n_steps, record) -> status

Advances state by n_steps.
"""
function spo_kuramoto_run(network, integrator, state, n_steps, record)
    acceptable(network, integrator, state, n_steps) || return INVALID_ARGUMENT
    kept = record == C_NULL ? Record() : unsafe_load(record)
    w, how = unsafe_load(network), unsafe_load(integrator)
    return with_scratch(run!, run_scratch(w, how.method), w, how, state, n_steps, kept)
end

function run!(network, integrator, state, n_steps, record, scratch)
    status, after = take_steps!(network, integrator, unsafe_load(state), n_steps, record, scratch)
    unsafe_store!(state, after)
    return status
end

guarded_modulate(arguments...) = guarded(spo_modulate, arguments...)
guarded_order_parameter(arguments...) = guarded(spo_order_parameter, arguments...)
guarded_kuramoto_run(arguments...) = guarded(spo_kuramoto_run, arguments...)

"""
    c_function(Val(name)) -> pointer

The C function of a name of `spo_fast.h`, compiled when it is asked for.
"""
c_function(::Val{:spo_abi_version}) = @cfunction(spo_abi_version, Int32, ())
c_function(::Val{:spo_backend_name}) = @cfunction(spo_backend_name, Ptr{UInt8}, ())
c_function(::Val{:spo_status_text}) = @cfunction(spo_status_text, Ptr{UInt8}, (Int32,))
c_function(::Val{:spo_modulate}) = @cfunction(
    guarded_modulate, Int32, (Int64, Ptr{Float64}, Ptr{Float64}, Ptr{Modulation}, Ptr{Float64}))
c_function(::Val{:spo_order_parameter}) = @cfunction(
    guarded_order_parameter, Int32, (Int64, Ptr{Float64}, Ptr{Float64}, Ptr{Float64}))
c_function(::Val{:spo_kuramoto_run}) = @cfunction(
    guarded_kuramoto_run, Int32, (Ptr{Network}, Ptr{Integrator}, Ptr{State}, Int64, Ptr{Record}))

const NAMES = (
    :spo_abi_version, :spo_backend_name, :spo_status_text,
    :spo_modulate, :spo_order_parameter, :spo_kuramoto_run,
)

"""
    exports() -> pointers

All C functions, by their names.
"""
exports() = NamedTuple{NAMES}(map(name -> c_function(Val(name)), NAMES))

end
