"""The structs of csrc/include/spo_fast.h, field by field; `spo_fast.mojo` holds their sizes to C's.

`Int` is the 64-bit integer of the header. A pointer that may be NULL is an `Optional`, which has the size of
the pointer and is empty for NULL.
"""

from lanes import Doubles, MutDoubles

comptime OK: Int32 = 0
comptime INVALID_ARGUMENT: Int32 = 1
comptime OUT_OF_MEMORY: Int32 = 2
comptime NONFINITE_COUPLING: Int32 = 3
comptime ASYMMETRIC_COUPLING: Int32 = 4
comptime NONZERO_DIAGONAL: Int32 = 5
comptime NONFINITE_PHASE: Int32 = 6
comptime NONFINITE_STATE: Int32 = 7

comptime METHOD_EULER = 0
comptime METHOD_RK4 = 1
comptime METHOD_RK45 = 2

comptime ReadOnly[T: AnyType] = Pointer[T, ImmUntrackedOrigin]
"""A struct of the caller that is only read."""


@fieldwise_init
struct Modulation(Copyable):
    """The parameters of the attention that rescales K; d_h = d_model / n_heads."""

    var n_heads: Int
    """At least 1; divides d_model."""
    var d_model: Int
    """Even, at least 2."""
    var block_size: Int
    """Pairs with |i - j| > block_size keep K_ij; -1: no limit."""
    var w_q: Optional[Doubles]
    """Shape (n_heads, d_model, d_h), like w_k and w_v."""
    var w_k: Optional[Doubles]
    var w_v: Optional[Doubles]
    var w_o: Optional[Doubles]
    """Shape (d_model, d_model)."""
    var temperature: Optional[Doubles]
    """Shape (n_heads), each above 0."""
    var strength: Float64
    """The header's lambda, at least 0."""

    @always_inline
    def width(self) -> Int:
        """The width of one head."""
        return self.d_model // self.n_heads


@fieldwise_init
struct Network(Copyable):
    var n: Int
    """Oscillators."""
    var omega: Optional[Doubles]
    """Shape (n), radians per time unit."""
    var knm: Optional[Doubles]
    """Shape (n, n)."""
    var alpha: Optional[Doubles]
    """Shape (n, n), radians; empty: the lag is uniform."""
    var uniform_alpha: Float64
    """The lag of every pair when alpha is empty."""
    var zeta: Float64
    """Strength of the drive."""
    var psi: Float64
    """Phase of the drive."""
    var modulation: Optional[ReadOnly[Modulation]]
    """Empty: K stays as it is."""
    var modulate_every: Int
    """K' is made anew at each step that this number divides."""


@fieldwise_init
struct Integrator(Copyable):
    var method: Int
    var dt: Float64
    """The step; for RK45 the first one, and a tenth of the largest."""
    var atol: Float64
    var rtol: Float64


@fieldwise_init
struct State(Copyable):
    var theta: Optional[MutDoubles]
    """Shape (n), radians; wrapped into [0, 2 pi) on entry and after each step."""
    var modulated: Optional[MutDoubles]
    """Shape (n, n): K' in force between two calls; empty without modulation."""
    var t: Float64
    var dt: Float64
    """The step tried next."""
    var step: Int
    """Steps taken."""


@fieldwise_init
struct Record(Copyable):
    """What is kept of a run; index s describes the state at step s."""

    var every: Int
    """Keeps theta and t after the steps that this number divides; 0: none."""
    var theta: Optional[MutDoubles]
    """Row s / every of (rows, n)."""
    var t: Optional[MutDoubles]
    var r: Optional[MutDoubles]
    """Order parameter, in [0, 1]."""
    var psi: Optional[MutDoubles]
    """Mean phase, in [0, 2 pi)."""
    var t_observe: Optional[MutDoubles]

    def __init__(out self):
        self.every = 0
        self.theta = None
        self.t = None
        self.r = None
        self.psi = None
        self.t_observe = None
