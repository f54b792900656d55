# The loops that a call spends its time in, compiled with all of LLVM's optimisations. The rest of the module
# does with fewer, which halves the time that it takes to compile.
module Kernels

export LANES, Lanes, Mask, ALL_LANES, Blocks, Projections, Complete, Edges, Rows, Workspace, Tableau
export element, number, load, load_left, store, store_left, splat, iota, keep, less, equal, unequal
export transposed, add_exactly, total, padded, when_needed
export EULER, RK4, DORMAND_PRINCE, LOG2_E, TWO_PI, sincos_lanes, wrap
export c_sin, c_cos, c_pow, c_hypot, c_atan2
export harmonics!, project!, attend!, unit_outputs!, scale_all!, sincos!, drift!, advance!, estimate_error!

using Base.Cartesian: @nexprs

Base.Experimental.@optlevel 2

# Calls a function that is seldom needed, so that it is compiled only when it is: compilers follow every call
# that they can see.
when_needed(f, arguments...) = Base.invokelatest(f, arguments...)

padded(n) = (n + LANES - 1) ÷ LANES * LANES

include("polynomials.jl")
include("tableaux.jl")
include("lanes.jl")
include("vectormath.jl")
include("attention.jl")
include("drift.jl")
include("stages.jl")

end
